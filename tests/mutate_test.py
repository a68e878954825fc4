#!/usr/bin/env python3
"""The lists of planted defects fit the sources, and scripts/mutations.py weaves as it says.

Needs no build; scripts/mutate.py is what runs the tests against the defects.
"""

import pathlib
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from mutations import PRELUDE, Defect, ListError, read_lists, weave  # noqa: E402


def defect(own, find, replace, **others):
    fields = {"name": f"a/{own}", "file": "a.cpp", "find": find, "replace": replace, "within": "",
              "tests": ["a_test"], "statement": find.rstrip().endswith((";", "}")), "equivalent": "", "survives": ""}
    return Defect(**{**fields, **others})


def woven(source, *defects):
    text = weave(source, defects)
    assert text.startswith(PRELUDE)
    return text[len(PRELUDE):]


class Weaving(unittest.TestCase):
    def test_expression(self):
        one = defect("one", "a < b", "a <= b")
        self.assertEqual(woven("return a < b && c;", one),
                         f"return ((moesaic_mutant::active == {one.number}) ? (a <= b) : (a < b)) && c;")

    def test_statement_and_formatting(self):
        one = defect("one", "if (a)  Run(b);", "")
        self.assertEqual(woven("x;\n  if (a)\n    Run(b);\n", one),
                         f"x;\n  if (moesaic_mutant::active == {one.number}) {{  }} else {{ if (a)\n    Run(b); }}\n")

    def test_place_within_a_place(self):
        outer, inner = defect("outer", "if (a < b) Run();", ""), defect("inner", "a < b", "true")
        choice = f"((moesaic_mutant::active == {inner.number}) ? (true) : (a < b))"
        self.assertEqual(woven("if (a < b) Run();", inner, outer),
                         f"if (moesaic_mutant::active == {outer.number}) {{  }} else {{ if ({choice}) Run(); }}")

    def test_two_at_one_place(self):
        one, two = defect("one", "a < b", "a <= b"), defect("two", "a < b", "true")
        choice = f"((moesaic_mutant::active == {two.number}) ? (true) : (a < b))"
        self.assertEqual(woven("a < b", one, two),
                         f"((moesaic_mutant::active == {one.number}) ? (a <= b) : ({choice}))")

    def test_within(self):
        one = defect("one", "a;", "b;", within="y(); a;")
        self.assertIn("else { a; }", woven("x(); a; y(); a;", one))
        self.assertTrue(woven("x(); a; y(); a;", one).startswith("x(); a; y(); if"))

    def test_place_that_is_not_there_once(self):
        for source in ("a > b", "a < b, a < b"):
            with self.assertRaisesRegex(ListError, "a/one: .* times in a.cpp"):
                woven(source, defect("one", "a < b", "true"))

    def test_overlap(self):
        with self.assertRaisesRegex(ListError, "a/one and a/two: .* overlap"):
            woven("a + b + c", defect("one", "a + b", "a"), defect("two", "b + c", "c"))


class Lists(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as root:
            path = pathlib.Path(root) / "tests" / "room" / "mutations.toml"
            path.parent.mkdir(parents=True)
            path.write_text(textwrap.dedent(text))
            return read_lists(pathlib.Path(root))

    def test_tests_of_the_file_and_of_a_defect(self):
        one, two = self.read("""
            [[file]]
            path = "room/a.cpp"
            tests = ["a_test"]
            defect = [
              { id = "one", find = 'x;', replace = '' },
              { id = "two", find = 'y', replace = 'z', tests = ["b_test B*"], equivalent = "why" },
            ]""")["room"]
        self.assertEqual((one.name, one.tests, one.statement), ("a/one", ["a_test"], True))
        self.assertEqual((two.tests, two.statement, two.equivalent), (["b_test B*"], False, "why"))

    def test_what_is_wrong_is_named(self):
        for text, problem in (
                ("[[file]]\npath = 'a.cpp'\ntests = ['t']\ndefect = [{ id = 'one', find = 'x' }]", "one: replace is missing"),
                ("[[file]]\npath = 'a.cpp'\ndefect = [{ id = 'one', find = 'x', replace = 'z' }]", "one: no tests"),
                ("[[file]]\npath = 'a.cpp'\ntests = ['t']\ndefect = [{ id = 'o', find = 'x', replace = 'z', y = 1 }]",
                 "unknown keys: y"),
                ("[[file]]\npath = 'a.cpp'\ntests = ['t']\ndefect = [{ id = 'o', find = 'x', replace = 'z' }, "
                 "{ id = 'o', find = 'y', replace = 'z' }]", "choose another id"),
                *((f"[[file]]\npath = 'a.cpp'\ntests = ['t']\ndefect = [{{ id = 'o', find = '{find}', replace = '' }}]", why)
                  for find, why in (("if (a) {", "not as many { as }"), ("if (a)", "begins as a statement"),
                                    ("const int a = b;", "is a declaration"), ("a = b;  // why", "a comment"),
                                    ("a ? b :", "ends with an operator"), ("a < b", "cannot be replaced by nothing")))):
            with self.assertRaisesRegex(ListError, problem):
                self.read(text)


class Tree(unittest.TestCase):
    """Who changes a line that a list names changes the list."""

    def test_lists_fit_the_sources(self):
        rooms = read_lists(ROOT)
        defects = [one for of_room in rooms.values() for one in of_room]
        self.assertGreaterEqual(len(defects), 150)
        problems = []
        for file in sorted({one.file for one in defects}):
            try:
                weave((ROOT / file).read_text(encoding="utf-8"), [one for one in defects if one.file == file])
            except (ListError, OSError) as error:
                problems.append(str(error))
        self.assertEqual([], problems, "\n" + "\n".join(problems))

    def test_programs_exist(self):
        made = "".join(lists.read_text(encoding="utf-8") for lists in (ROOT / "tests").rglob("CMakeLists.txt"))
        for room, defects in read_lists(ROOT).items():
            for one in defects:
                for test in one.tests:
                    self.assertIn(f"moesaic_test({test.split()[0]}\n", made, f"{room}: {one.name}")


if __name__ == "__main__":
    sys.exit(unittest.main())
