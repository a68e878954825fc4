"""The package itself: types, stubs, names, the version, and the README's ten lines."""

import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import moesaic
import moesaic.plot
from harness import BINARY, MODEL, PATIENCE_S

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = pathlib.Path(moesaic.__file__).parent


def run(*arguments, **options):
    return subprocess.run(arguments, capture_output=True, text=True, timeout=600, **options)


class PackageTest(unittest.TestCase):
    def test_stubs_are_what_the_module_has(self):
        with tempfile.TemporaryDirectory() as cache:
            environment = {
                **os.environ,
                "MYPYPATH": str(PACKAGE.parent),
                "PYTHONPATH": str(PACKAGE.parent),
                "MYPY_CACHE_DIR": cache,
            }
            allowed = pathlib.Path(__file__).with_name("stubtest_allowlist.txt")
            stubtest = [sys.executable, "-m", "mypy.stubtest", "moesaic._core", "--allowlist", str(allowed)]
            done = run(*stubtest, env=environment, cwd=cache)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            done = run(sys.executable, "-m", "mypy", "--strict", str(PACKAGE), env=environment, cwd=cache)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_what_is_public_is_documented(self):
        for name in moesaic.__all__:
            thing = getattr(moesaic, name)
            if name == "__version__" or thing.__module__ == "moesaic._core":
                continue
            self.assertTrue(inspect.getdoc(thing), name)
            for member, function in inspect.getmembers(thing, inspect.isfunction):
                if not member.startswith("_") and function.__qualname__.startswith(name + "."):
                    self.assertTrue(inspect.getdoc(function), f"{name}.{member}")

    def test_one_version(self):
        version = re.search(r"project\(moesaic VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual(moesaic.__version__, version)
        self.assertIn(version, run(BINARY, "version").stdout)

    def test_one_nanobind(self):
        pin = re.search(r"^(nanobind==\S+)", (ROOT / "scripts/nanobind.txt").read_text(), re.M)[1]
        self.assertIn(f'"{pin}"', (ROOT / "pyproject.toml").read_text())

    def test_the_command_comes_with_the_module(self):
        done = run(sys.executable, "-m", "moesaic", "version")
        self.assertEqual((done.returncode, done.stdout), (0, run(BINARY, "version").stdout))

    def test_the_examples_of_the_pages_run(self):
        for page in ("README.md", "docs/python.md"):
            (example,) = [
                block
                for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
                if block.startswith("from moesaic import LLM")
            ]
            done = run(sys.executable, "-c", example, cwd=ROOT)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("experts in memory", done.stdout)

    def test_the_notebook_runs(self):
        os.environ["MPLBACKEND"] = "agg"
        import matplotlib.pyplot

        notebook = json.loads((ROOT / "docs/experts.ipynb").read_text())
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        script = "\n".join(cells) + "\nprint('figures:', len(plt.get_fignums()))"
        (ROOT / "build").mkdir(exist_ok=True)
        done = run(sys.executable, "-c", script.replace("plt.show()", ""), cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("figures: 3", done.stdout)
        self.assertIn("of the experts were there", done.stdout)
        axes = moesaic.plot.activations(moesaic.read_trace(ROOT / "tests/data/traces/gpt_oss_20b_part.jsonl.gz"), 0)
        self.assertEqual(axes.get_ylabel(), "expert")
        matplotlib.pyplot.close("all")

    def test_an_engine_that_nobody_closed(self):
        script = f"import moesaic; llm = moesaic.LLM({MODEL!r}); print(llm.generate('x')[0].finished)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True\n", ""))


if __name__ == "__main__":
    unittest.main()
