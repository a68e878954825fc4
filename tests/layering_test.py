#!/usr/bin/env python3
"""The table of rooms in docs/architecture.md, checked against the source.

Four things are checked for every file of the rooms: who includes whom, that the libraries of the
CMakeLists link in the same direction, that what is included is also linked, and that no two files
define a type of the same name in the same namespace. Run it without arguments, or through ctest.
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

PAGE = "docs/architecture.md"
ROW = re.compile(r"^\| `([a-z_/]+)` \|.*\| ([^|]+) \|$", re.MULTILINE)


def read_table(page):
    """Room: the rooms that it may include, beside itself; from the table of rooms of the page."""
    section = page.split("\n## Rooms\n", 1)[1].split("\n## ", 1)[0]
    rows = {room: [name.strip() for name in names.split(",")] for room, names in ROW.findall(section)}
    allowed = {}
    for room, names in rows.items():
        allowed[room] = []
        for name in names if names != ["-"] else []:
            meant = [other for other in rows if other == name or other.startswith(name + "/")]
            if not meant:
                raise ValueError(f"{PAGE}: {room} may include {name}, which is neither a room nor a folder of rooms")
            allowed[room] += [other for other in meant if other != room]
    return allowed


ALLOWED = read_table((ROOT / PAGE).read_text(encoding="utf-8"))

SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SYSTEM_INCLUDE = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.MULTILINE)
# What no header that others include may pull in (CONTRIBUTING.md: no CUDA, no SIMD in shared headers).
INTRINSICS = re.compile(r"(^|/)(\w*intrin|arm_neon|cuda\w*|cublas\w*)\.h$")


def room_of(path):
    """The room of a path relative to the root, or None when it is in none (tests, docs)."""
    for room in sorted(ALLOWED, key=len, reverse=True):
        if path == room or path.startswith(room + "/"):
            return room
    return None


def sources(root):
    for top in sorted({room.split("/")[0] for room in ALLOWED}):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES:
                yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def check_includes(files):
    """files: (path, text) pairs. Returns problems as text, and the edges that are used."""
    problems = []
    used = {}
    for path, text in files:
        room = room_of(path)
        if room is None:
            problems.append(f"{path}: lies in no room of the table")
            continue
        for included in INCLUDE.findall(text):
            target = room_of(included)
            if target is None:
                problems.append(f'{path}: includes "{included}", which is in no room (paths are from the root)')
            elif target != room:
                if target not in ALLOWED[room]:
                    problems.append(f'{path}: {room} may not include {target} ("{included}")')
                used.setdefault((room, target), path)
        if path.endswith(".h") and "/internal/" not in path:
            for included in SYSTEM_INCLUDE.findall(text):
                if INTRINSICS.search(included):
                    problems.append(f"{path}: a shared header includes <{included}>")
    return problems, used


def strip_comments(text):
    return re.sub(r"#[^\n]*", "", text)


def parse_libraries(root):
    """Library name: (room, linked moesaic libraries), from the CMakeLists of the rooms."""
    libraries = {}
    for top in sorted({room.split("/")[0] for room in ALLOWED}):
        for lists in sorted((root / top).rglob("CMakeLists.txt")):
            folder = lists.parent.relative_to(root).as_posix()
            text = strip_comments(lists.read_text(encoding="utf-8"))
            lists_by_name = dict(re.findall(r"\bset\((\w+)\s+([^)]*)\)", text))
            text = re.sub(r"\$\{(\w+)\}", lambda name: lists_by_name.get(name[1], name[0]), text)
            for body in re.findall(r"moesaic_library\(([^)]*)\)", text):
                words = body.split()
                name, keyword, links, first_source = words[0], None, [], None
                for word in words[1:]:
                    if word in ("SOURCES", "LINKS", "PRIVATE_LINKS"):
                        keyword = word
                    elif keyword == "SOURCES":
                        first_source = first_source or word
                    elif word.startswith("moesaic_"):
                        links.append(word)
                libraries[name] = (room_of(folder) or room_of(f"{folder}/{first_source}"), links)
            for name, body in re.findall(r"target_link_libraries\(\s*(\w+)([^)]*)\)", text):
                if name in libraries:
                    libraries[name][1].extend(w for w in body.split() if w.startswith("moesaic_"))
    return libraries


def reachable(libraries, name):
    seen, stack = set(), [name]
    while stack:
        for link in libraries.get(stack.pop(), (None, []))[1]:
            if link not in seen:
                seen.add(link)
                stack.append(link)
    return seen


def check_links(libraries, used_edges):
    problems = []
    for name, (room, links) in libraries.items():
        if room is None:
            problems.append(f"{name}: its folder is in no room")
            continue
        for link in links:
            if link == "moesaic_flags":
                continue
            if link not in libraries:
                problems.append(f"{name}: links {link}, which no CMakeLists makes")
                continue
            target = libraries[link][0]
            if target != room and target not in ALLOWED[room]:
                problems.append(f"{name}: {room} may not link {target} ({link})")
        if name in reachable(libraries, name):
            problems.append(f"{name}: links itself in a circle")
    by_room = {}
    for name, (room, _) in libraries.items():
        by_room.setdefault(room, set()).add(name)
    for (room, target), path in sorted(used_edges.items()):
        if room not in by_room or target not in by_room:
            continue
        linked = set().union(*(reachable(libraries, name) for name in by_room[room]))
        if not linked & by_room[target]:
            problems.append(f"{path}: {room} includes {target} but does not link it")
    return problems


# What is no code: comments, literals (raw ones first), preprocessor lines.
NO_CODE = re.compile(
    r'R"(?P<delimiter>[^\s()\\]{0,16})\(.*?\)(?P=delimiter)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'"
    r"|//[^\n]*|/\*.*?\*/"
    r"|^[ \t]*\#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
TOKEN = re.compile(r"[A-Za-z_]\w*|::|[^\s\w]")
TYPE_WORDS = {"class", "struct", "union", "enum"}


def without_brackets(tokens, opening, closing, marker):
    """The tokens without what stands in these brackets behind a token `marker`, and without it."""
    result, i = [], 0
    while i < len(tokens):
        if tokens[i] == marker and tokens[i + 1 : i + 2] == [opening]:
            depth, i = 0, i + 1
            while i < len(tokens):
                depth += (tokens[i] == opening) - (tokens[i] == closing)
                i += 1
                if depth == 0:
                    break
        else:
            result.append(tokens[i])
            i += 1
    return result


def type_name(head):
    """The name of the type whose definition begins with these tokens, or None: they begin no type."""
    head = without_brackets(head, "<", ">", "template")
    head = without_brackets(head, "(", ")", "alignas")
    start = next((i for i, token in enumerate(head) if token in TYPE_WORDS), None)
    if start is None:
        return None
    words = head[start:]
    while words and (words[0] in TYPE_WORDS or words[0] == "["):
        words = words[words.index("]") + 2 :] if words[0] == "[" else words[1:]
    if ":" in words:
        words = words[: words.index(":")]
    if words[-1:] == ["final"]:
        words = words[:-1]
    # A macro in front of the name, with or without arguments: CAPABILITY("mutex").
    while len(words) > 1 and words[0].isupper() and (words[1] == "(" or words[1][0].isalpha()):
        words = words[words.index(")") + 1 :] if words[1] == "(" else words[1:]
    if not words or "(" in words or "=" in words or words[1:2] and words[1][0].isalpha():
        return None  # a function or a variable of such a type
    return "".join(words)


def types_defined(text):
    """Qualified names of the types that a source defines in named namespaces. Those of unnamed
    namespaces are the file's own; nested and local ones belong to their class or function."""
    tokens = TOKEN.findall(NO_CODE.sub(" ", text))
    found, scopes, head, i = [], [], [], 0
    while i < len(tokens):
        token = tokens[i]
        i += 1
        if token == "}":
            if scopes:
                scopes.pop()
            head = []
        elif token == ";":
            head = []
        elif token != "{":
            head.append(token)
        elif "namespace" in head:
            scopes.append("".join(head[head.index("namespace") + 1 :]))
            head = []
        elif head == ["extern"]:  # "C"
            scopes.append(None)
            head = []
        else:
            name = type_name(head)
            if name is not None and "" not in scopes:
                found.append("::".join([scope for scope in scopes if scope] + [name]))
            depth = 1
            while i < len(tokens) and depth > 0:
                depth += (tokens[i] == "{") - (tokens[i] == "}")
                i += 1
            # Of `struct A {} a;` and `int a{1};` a rest follows; of a function there is none.
            head = []
    return found


def check_types(files):
    """files: (path, text) pairs. In one program two such types are undefined behaviour, which no
    compiler and no linker reports."""
    where = {}
    for path, text in files:
        for name in types_defined(text):
            where.setdefault(name, set()).add(path)
    return [
        f"{name}: defined in {' and in '.join(sorted(paths))}; rename one, or put it into an unnamed namespace"
        for name, paths in sorted(where.items())
        if len(paths) > 1
    ]


class Table(unittest.TestCase):
    def test_has_no_circle(self):
        def visit(room, trail):
            self.assertNotIn(room, trail)
            for target in ALLOWED[room]:
                visit(target, trail + [room])

        for room in ALLOWED:
            visit(room, [])

    def test_folders_stand_for_their_rooms(self):
        page = "\n## Rooms\n\n| `a/b` | x | - |\n| `a/c` | x | a/b |\n| `d` | x | a |\n| `a/e` | x | a, d |\n\n## Next\n| `f` | x | g |\n"
        self.assertEqual(read_table(page), {"a/b": [], "a/c": ["a/b"], "d": ["a/b", "a/c", "a/e"], "a/e": ["a/b", "a/c", "d"]})
        with self.assertRaisesRegex(ValueError, "a may include b"):
            read_table("\n## Rooms\n| `a` | x | b |\n")


class Checks(unittest.TestCase):
    """The checks themselves: each finds what it is there to find."""

    def test_forbidden_include(self):
        problems, _ = check_includes([("cache/a.h", '#include "kernels/cpu/kernels.h"\n')])
        self.assertEqual(len(problems), 1)
        self.assertIn("cache may not include kernels/cpu", problems[0])

    def test_sub_rooms(self):
        problems, used = check_includes([("core/base/a.h", '#include "core/io/b.h"\n')])
        self.assertEqual(len(problems), 1)
        problems, used = check_includes([("core/io/a.h", '#include "core/base/b.h"\n')])
        self.assertEqual(problems, [])
        self.assertEqual(used, {("core/io", "core/base"): "core/io/a.h"})

    def test_path_not_from_the_root(self):
        problems, _ = check_includes([("cache/a.cpp", '#include "expert_cache.h"\n')])
        self.assertIn("in no room", problems[0])

    def test_intrinsics_in_a_header(self):
        problems, _ = check_includes([("kernels/cpu/a.h", "#include <immintrin.h>\n")])
        self.assertIn("shared header", problems[0])
        problems, _ = check_includes([("kernels/cpu/internal/a.h", "#include <immintrin.h>\n")])
        self.assertEqual(problems, [])

    def test_forbidden_link_and_circle(self):
        libraries = {"moesaic_base": ("core/base", ["moesaic_io"]), "moesaic_io": ("core/io", ["moesaic_base"])}
        problems = check_links(libraries, {})
        self.assertTrue(any("may not link core/io" in p for p in problems))
        self.assertTrue(any("circle" in p for p in problems))

    def test_included_but_not_linked(self):
        libraries = {"moesaic_base": ("core/base", []), "moesaic_io": ("core/io", [])}
        problems = check_links(libraries, {("core/io", "core/base"): "core/io/a.h"})
        self.assertEqual(problems, ["core/io/a.h: core/io includes core/base but does not link it"])

    def test_a_type_that_two_files_define(self):
        a = ("core/config/a.h", "namespace moesaic {\nclass Fields final : public Base {\n int x{1};\n};\n}\n")
        b = ("serving/http/b.h", "namespace moesaic {\nint F() { return 1; }\nstruct Fields {\n};\n}\n")
        self.assertEqual(
            check_types([a, b]),
            [
                "moesaic::Fields: defined in core/config/a.h and in serving/http/b.h; rename one, or put "
                "it into an unnamed namespace"
            ],
        )
        self.assertEqual(check_types([a, a]), [])  # the same file

    def test_types_that_may_have_one_name(self):
        a = "namespace moesaic { struct T { int a; }; }"
        for other in (
            "namespace moesaic { namespace { struct T {}; } }",  # the file's own
            "namespace moesaic::cuda { struct T {}; }",
            "namespace moesaic { struct T; class T* F(); }",  # declared
            "namespace moesaic { struct Outer { struct T {}; enum class U { kT }; }; }",  # nested
            "namespace moesaic { void F() { struct T {}; } }",  # local
            "namespace moesaic { template <class T> void G(T t) { } }",
            "namespace moesaic { struct T F() { } }",  # a function that returns one
            "namespace moesaic { struct T t = {}; struct T u{}; }",
            "namespace moesaic { // struct T {\n /* struct T {}; */ const char* s = \"struct T {};\"; }",
            "namespace moesaic { const char* s = R\"x(struct T {};)x\"; char c = '{'; int n = 1'000; }",
            "#define T_OF(x) \\\n struct T { x; };\nnamespace moesaic { }",
        ):
            self.assertEqual(check_types([("cache/a.h", a), ("cache/b.h", other)]), [], other)

    def test_ways_to_define_a_type(self):
        def names(text):
            return types_defined("namespace moesaic { " + text + " }")

        self.assertEqual(names("enum class A : uint8_t { kB };"), ["moesaic::A"])
        self.assertEqual(names("enum A { kB };"), ["moesaic::A"])
        self.assertEqual(names("union A { int b; };"), ["moesaic::A"])
        self.assertEqual(names("template <class B, int n = 3> struct A {};"), ["moesaic::A"])
        self.assertEqual(names("template <> struct A<int> {}; struct A {};"), ["moesaic::A<int>", "moesaic::A"])
        self.assertEqual(names('class CAPABILITY("mutex") A {};'), ["moesaic::A"])
        self.assertEqual(names("class SCOPED_CAPABILITY A {};"), ["moesaic::A"])
        self.assertEqual(names("struct alignas(64) A {};"), ["moesaic::A"])
        self.assertEqual(names("struct [[nodiscard]] A {};"), ["moesaic::A"])
        self.assertEqual(names("struct AB {}; struct KB final {};"), ["moesaic::AB", "moesaic::KB"])
        self.assertEqual(names("struct A::B {};"), ["moesaic::A::B"])
        self.assertEqual(names("namespace cuda { struct A {}; } struct B {};"), ["moesaic::cuda::A", "moesaic::B"])
        self.assertEqual(names("int F() { if (1) { } return 2; } struct A {};"), ["moesaic::A"])


class Tree(unittest.TestCase):
    maxDiff = None

    def test_includes_and_links(self):
        files = list(sources(ROOT))
        self.assertGreater(len(files), 50)
        problems, used = check_includes(files)
        libraries = parse_libraries(ROOT)
        self.assertIn("moesaic_base", libraries)
        problems += check_links(libraries, used)
        self.assertGreater(sum(len(types_defined(text)) for _, text in files), 300)
        problems += check_types(files)
        self.assertEqual([], problems, "\n" + "\n".join(problems))


if __name__ == "__main__":
    sys.exit(unittest.main())
