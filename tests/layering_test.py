#!/usr/bin/env python3
"""The layers of docs/architecture.md, section 1, checked against the source.

Three things are checked for every file of the rooms: who includes whom, that the libraries of the
CMakeLists link in the same direction, and that what is included is also linked. Run it without
arguments, or through ctest.
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

CORE = ["core/base", "core/device", "core/io", "core/config", "core/perf"]
LOWER = CORE + ["kernels", "tracer", "cache", "prefetch"]

# Room: the rooms that it may include, beside itself.
ALLOWED = {
    "core/base": [],
    "core/device": ["core/base"],
    "core/io": ["core/base"],
    "core/config": ["core/base"],
    "core/perf": ["core/base", "core/device", "core/io", "core/config"],
    "kernels": CORE,
    "tracer": CORE + ["kernels"],
    "cache": CORE,
    "prefetch": CORE + ["kernels", "tracer", "cache"],
    "serving/text": LOWER,
    "serving/model": LOWER,
    "serving/online": LOWER + ["serving/text", "serving/model"],
    "serving/batch": LOWER + ["serving/text", "serving/model", "serving/online"],
    "serving/plan": LOWER + ["serving/text", "serving/model", "serving/batch"],
    "serving/simulate": LOWER,
    "serving/http": LOWER + ["serving/text", "serving/model", "serving/online", "serving/batch"],
    "serving/cli": LOWER
    + ["serving/" + part for part in ("text", "model", "online", "batch", "plan", "simulate", "http")],
    "bindings": CORE
    + ["serving/" + part for part in ("text", "model", "online", "batch", "plan", "simulate")],
}

SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SYSTEM_INCLUDE = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.MULTILINE)
# What no header that others include may pull in (docs/conventions: no CUDA, no SIMD in shared headers).
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


class Table(unittest.TestCase):
    def test_has_no_circle(self):
        def visit(room, trail):
            self.assertNotIn(room, trail)
            for target in ALLOWED[room]:
                visit(target, trail + [room])

        for room in ALLOWED:
            visit(room, [])


class Checks(unittest.TestCase):
    """The checks themselves: each finds what it is there to find."""

    def test_forbidden_include(self):
        problems, _ = check_includes([("cache/a.h", '#include "kernels/cpu/kernels.h"\n')])
        self.assertEqual(len(problems), 1)
        self.assertIn("cache may not include kernels", problems[0])

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


class Tree(unittest.TestCase):
    maxDiff = None

    def test_includes_and_links(self):
        files = list(sources(ROOT))
        self.assertGreater(len(files), 50)
        problems, used = check_includes(files)
        libraries = parse_libraries(ROOT)
        self.assertIn("moesaic_base", libraries)
        problems += check_links(libraries, used)
        self.assertEqual([], problems, "\n" + "\n".join(problems))


if __name__ == "__main__":
    sys.exit(unittest.main())
