"""Defects planted on purpose: the lists beside the tests, and sources that have all of them woven in.

A list is tests/ROOM/mutations.toml; docs/testing.md says what stands in it. Weaving makes one source out of a file and
its defects: each place gets both texts, and the number in moesaic_mutant::active decides between them while
the program runs. So one build serves all defects.
"""

import dataclasses
import pathlib
import re
import tomllib
import zlib

# Line numbers in a compiler's messages stay those of the file.
PRELUDE = """\
namespace moesaic_mutant {
extern int active;
}
#line 1
"""

# Compiled into the lowest library. Set before any other static object is made.
ACTIVE = """\
#include <cstdlib>

namespace moesaic_mutant {
extern int active;
int active = 0;
}  // namespace moesaic_mutant

namespace {
__attribute__((constructor(101))) void Activate() {
  const char* const number = std::getenv("MOESAIC_MUTANT");
  if (number != nullptr) moesaic_mutant::active = std::atoi(number);
}
}  // namespace
"""


class ListError(Exception):
    """A list that is wrong, or that the sources have left behind."""


@dataclasses.dataclass
class Defect:
    name: str  # file's stem / id
    file: str
    find: str
    replace: str
    within: str  # where `find` is looked for; empty: in the whole file
    tests: list  # "PROGRAM [FILTER]"
    statement: bool
    equivalent: str  # why no test can notice it
    survives: str  # why no test does notice it

    @property
    def number(self):
        """Stays the same when others are added, so that nothing else is compiled again."""
        return zlib.crc32(self.name.encode()) & 0x3FFFFFFF or 1


def _text(table, key, where, default=None):
    value = table.pop(key, default)
    if not isinstance(value, str):
        raise ListError(f"{where}: {key} is missing or no text")
    return value


def _programs(table, where):
    tests = table.pop("tests", [])
    if not isinstance(tests, list) or not all(isinstance(test, str) and test.split() for test in tests):
        raise ListError(f"{where}: tests is a list of texts \"PROGRAM [FILTER]\"")
    return tests


def _whole(find, replace, statement):
    """Why `find` cannot be what it has to be, a whole expression or statement; None: it may be one."""
    if "//" in find:
        return "has a comment in it"
    code = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])*\'', "", find)
    for opening, closing in ("()", "{}", "[]"):
        if code.count(opening) != code.count(closing):
            return f"has not as many {opening} as {closing}"
    if find.lstrip().startswith("}"):
        return "begins with the end of something"
    first = re.match(r"\s*(\w*)", find)[1]
    if statement and first in ("const", "auto", "constexpr"):
        return "is a declaration, which ends with the block that is put around it"
    if not statement and first in ("if", "for", "while", "return", "const", "auto"):
        return "begins as a statement and does not end with ; or }"
    if not statement and re.search(r"[-+*/%&|^<>=?:,(]\s*$", find):
        return "is an expression that ends with an operator"
    if not statement and not replace.strip():
        return "is an expression, which cannot be replaced by nothing"
    return None


def read_list(path, name):
    """The defects of one mutations.toml."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ListError(f"{name}: {error}") from None
    defects = []
    for entry in content.pop("file", []):
        file = _text(entry, "path", name)
        programs = _programs(entry, f"{name}: {file}")
        for planted in entry.pop("defect", []):
            where = f"{name}: {file}"
            own = _text(planted, "id", where)
            where += f": {own}"
            find, replace = _text(planted, "find", where), _text(planted, "replace", where)
            defect = Defect(name=f"{pathlib.PurePath(file).stem}/{own}", file=file, find=find, replace=replace,
                            within=_text(planted, "within", where, ""),
                            tests=_programs(planted, where) or programs,
                            statement=find.rstrip().endswith((";", "}")),
                            equivalent=_text(planted, "equivalent", where, ""),
                            survives=_text(planted, "survives", where, ""))
            if problem := _whole(find, replace, defect.statement):
                raise ListError(f"{where}: find {problem}: {' '.join(find.split())!r}")
            if not defect.tests:
                raise ListError(f"{where}: no tests are named, neither here nor for the file")
            if planted:
                raise ListError(f"{where}: unknown keys: {', '.join(planted)}")
            defects.append(defect)
        if entry:
            raise ListError(f"{name}: {file}: unknown keys: {', '.join(entry)}")
    if content:
        raise ListError(f"{name}: unknown keys: {', '.join(content)}")
    return defects


def read_lists(root):
    """Room ("core", "serving/online") to its defects, from the lists under root/tests."""
    rooms = {}
    numbers = {}
    for path in sorted((root / "tests").rglob("mutations.toml")):
        room = path.parent.relative_to(root / "tests").as_posix()
        rooms[room] = read_list(path, path.relative_to(root).as_posix())
        for defect in rooms[room]:
            other = numbers.setdefault(defect.number, defect.name)
            if other is not defect.name:
                raise ListError(f"{room}: {defect.name} has the name, or the number, of {other}; choose another id")
    return rooms


def _only_place(text, wanted, defect, what):
    """Where `wanted` is; blanks and line ends are all alike, so that formatting moves nothing."""
    pattern = r"\s+".join(re.escape(word) for word in wanted.split())
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise ListError(f"{defect.name}: its {what} occurs {len(found)} times in {defect.file}, and must once: "
                        f"{' '.join(wanted.split())!r}")
    return found[0].start(), found[0].end()


def _span(source, defect):
    if not defect.find.split():
        raise ListError(f"{defect.name}: find is empty")
    if not defect.within:
        return _only_place(source, defect.find, defect, "`find`")
    begin, end = _only_place(source, defect.within, defect, "`within`")
    first, last = _only_place(source[begin:end], defect.find, defect, "`find` (in its `within`)")
    return begin + first, begin + last


def _choice(defect, original):
    chosen = f"moesaic_mutant::active == {defect.number}"
    if defect.statement:
        return f"if ({chosen}) {{ {defect.replace} }} else {{ {original} }}"
    return f"(({chosen}) ? ({defect.replace}) : ({original}))"


def weave(source, defects):
    """`source` with all of `defects`. A place may lie within another's, and two may have the same one."""
    places = sorted(((_span(source, defect), defect) for defect in defects),
                    key=lambda place: (place[0][0], -place[0][1]))

    def woven(begin, end, inside):
        out, at = [], begin
        while inside:
            (first, last), defect = inside[0]
            within = [place for place in inside[1:] if place[0][0] < last]
            for (_, other_end), other in within:
                if other_end > last:
                    raise ListError(f"{defect.name} and {other.name}: their places in {defect.file} overlap")
            out += [source[at:first], _choice(defect, woven(first, last, within))]
            at = last
            inside = inside[1 + len(within):]
        return "".join(out) + source[at:end]

    return PRELUDE + woven(0, len(source), places)
