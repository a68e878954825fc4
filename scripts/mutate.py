#!/usr/bin/env python3
"""Plants defects, one at a time, and says which of them the tests find.

    scripts/mutate.py [ROOM...] [--file TEXT] [--id TEXT] [--changed COMMIT]   run what is selected
    scripts/mutate.py --check                                                  only compare the lists with the sources

Rooms are those of tests/ROOM/mutations.toml (docs/testing.md). All selected defects are compiled into one
build under build/mutants; the environment variable MOESAIC_MUTANT chooses one when a test program starts. A program
that fails, crashes or does not end has found it. Exits 1 when a defect that the list does not account for
survives, or when one is found that the list says cannot be.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from mutations import ACTIVE, ListError, read_lists, weave

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "build" / "mutants" / "src"
BUILD = SOURCE / "build" / "release"
MEMORY_LIMIT = 12 << 30
FILE_LIMIT = 4 << 30


def command(*words, **options):
    return subprocess.run(words, check=True, text=True, **options)


def tracked_files():
    listed = command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT,
                     stdout=subprocess.PIPE).stdout
    return sorted(file for file in listed.split("\0") if file and (ROOT / file).is_file())


def update(path, content, mode=None):
    """Writes what differs only: what is unchanged is not compiled again."""
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if mode is not None:
        path.chmod(mode)


def write_sources(defects):
    """The tree under build/mutants/src, with `defects` in it."""
    by_file = {}
    for defect in defects:
        by_file.setdefault(defect.file, []).append(defect)
    files = tracked_files()
    for file in files:
        content = (ROOT / file).read_bytes()
        if file in by_file:
            content = weave(content.decode(), by_file[file]).encode()
        elif file == "core/CMakeLists.txt":
            content += b"\ntarget_sources(moesaic_base PRIVATE base/active_mutant.cpp)\n"
        update(SOURCE / file, content, (ROOT / file).stat().st_mode)
    update(SOURCE / "core/base/active_mutant.cpp", ACTIVE.encode())
    expected = {*files, "core/base/active_mutant.cpp"}
    for path in sorted(SOURCE.rglob("*")):
        name = path.relative_to(SOURCE).as_posix()
        if path.is_file() and not name.startswith("build/") and name not in expected:
            path.unlink()


def build(programs, jobs):
    command("cmake", "--preset", "release", "-DMOESAIC_BUILD_BENCHES=OFF", "-DMOESAIC_WERROR=OFF",
            "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", cwd=SOURCE, stdout=subprocess.DEVNULL)
    command("cmake", "--build", "--preset", "release", "-j", str(jobs), "--target", *sorted(programs), "--",
            "-k", "0", cwd=SOURCE)  # all that does not compile shows at once


class Runner:
    """Runs test programs, and knows how long they take when nothing is wrong."""

    def __init__(self, patience):
        self.patience = patience
        self.seconds = {}  # test: what it took without a defect

    def run(self, test, number, limit_s):
        """None when the tests pass, else what found the defect."""
        program, *filters = test.split()
        words = [str(BUILD / "tests" / program), "--gtest_fail_fast", "--gtest_brief=1"]
        words += [f"--gtest_filter={':'.join(filters)}"] if filters else []

        def limit():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))

        with tempfile.TemporaryDirectory(prefix="moesaic-mutant-", ignore_cleanup_errors=True) as scratch, \
                tempfile.TemporaryFile("w+", errors="replace") as log:
            process = subprocess.Popen(
                words, cwd=scratch, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=limit,
                process_group=0, env={**os.environ, "MOESAIC_MUTANT": str(number), "TMPDIR": scratch})
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                return f"{program} did not end within {limit_s:.0f} s"
            log.seek(0)
            output = log.read()
        if status == 0:
            if number == 0 and re.search(r"Running 0 tests|^\[==========\] 0 tests", output, re.MULTILINE):
                return f"{test}: no test has such a name"
            return None
        failed = re.search(r"\[  FAILED  \] (\S+)", output)
        if failed:
            return failed[1].rstrip(",")
        return f"{program} ended with status {status}: {output.strip().splitlines()[-1:]}"

    def baseline(self, test):
        start = time.monotonic()
        problem = self.run(test, 0, 1800)
        self.seconds[test] = time.monotonic() - start
        return problem

    def find(self, defect):
        for test in sorted(defect.tests, key=self.seconds.get):
            found = self.run(test, defect.number, 30 + self.patience * self.seconds[test])
            if found:
                return found
        return None


def percent(found, all_of):
    return f"{found} of {all_of} found, {100 * found / all_of:.0f}%" if all_of else "none to find"


def report(rooms, results):
    """Lines of the score so far."""
    lines, sum_found, sum_all = [], 0, 0
    notes = []
    for room, defects in rooms.items():
        done = [defect for defect in defects if defect.name in results]
        real = [defect for defect in done if not defect.equivalent]
        found = sum(results[defect.name] is not None for defect in real)
        sum_found += found
        sum_all += len(real)
        lines.append(f"{room:20} {percent(found, len(real))}")
        for defect in done:
            by = results[defect.name]
            change = f"{defect.name} ({defect.file}): `{' '.join(defect.find.split())}` -> " \
                     f"`{' '.join(defect.replace.split())}`"
            if by is None and not defect.equivalent:
                notes.append(f"survives: {change}: {defect.survives or 'NO EXPLANATION'}")
            elif by is not None and (defect.equivalent or defect.survives):
                notes.append(f"found by {by}, unlike the list says: {change}")
    lines.append(f"{'all rooms':20} {percent(sum_found, sum_all)}")
    return lines, notes


def select(options):
    rooms = read_lists(ROOT)
    unknown = set(options.rooms) - set(rooms)
    if unknown:
        raise ListError(f"no such room: {', '.join(sorted(unknown))}; there are: {', '.join(rooms)}")
    changed = None
    if options.changed:
        changed = set(command("git", "diff", "--name-only", options.changed, cwd=ROOT,
                              stdout=subprocess.PIPE).stdout.splitlines())
    chosen = {}
    for room, defects in rooms.items():
        if options.rooms and room not in options.rooms:
            continue
        kept = [d for d in defects if (options.file or "") in d.file and
                (not options.id or any(text in d.name for text in options.id)) and
                (changed is None or d.file in changed)]
        if kept:
            chosen[room] = kept
    if not chosen:
        raise ListError("no defect is selected")
    return chosen


def check(rooms):
    for defects in rooms.values():
        for file in sorted({defect.file for defect in defects}):
            if not (ROOT / file).is_file():
                raise ListError(f"{file}: there is no such file; change the list that names it")
            weave((ROOT / file).read_text(encoding="utf-8"), [d for d in defects if d.file == file])


def run(rooms, options):
    defects = [defect for defects in rooms.values() for defect in defects]
    tests = sorted({test for defect in defects for test in defect.tests})
    write_sources(defects)
    build({test.split()[0] for test in tests}, options.jobs)
    runner = Runner(options.patience)
    results, lock = {}, threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for test, problem in zip(tests, pool.map(runner.baseline, tests)):
            if problem:
                raise ListError(f"without any defect, {test} does not pass: {problem}")
        print(f"without any defect all tests pass, in {sum(runner.seconds.values()):.0f} s", flush=True)

        def one(defect):
            found = runner.find(defect)
            with lock:
                results[defect.name] = found
                print(f"[{len(results)}/{len(defects)}] {defect.name}: "
                      f"{'found by ' + found if found else 'SURVIVES'}", flush=True)
                if options.report:
                    lines, notes = report(rooms, results)
                    options.report.write_text("\n".join([*lines, "", *notes]) + "\n")

        list(pool.map(one, defects))
    lines, notes = report(rooms, results)
    print("\n".join(["", *notes, "", *lines]))
    return any("NO EXPLANATION" in note or "unlike the list says" in note for note in notes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help="core, kernels, serving/online ...; all when none")
    parser.add_argument("--file", metavar="TEXT", help="only defects of files whose path has TEXT in it")
    parser.add_argument("--id", metavar="TEXT", action="append",
                        help="only defects whose name has TEXT in it; may be given several times")
    parser.add_argument("--changed", metavar="COMMIT", help="only defects of files that differ from COMMIT")
    parser.add_argument("--check", action="store_true", help="only check that each place is there, once")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="programs at a time (%(default)s)")
    parser.add_argument("--patience", type=float, default=10, metavar="TIMES",
                        help="a hang: 30 s and so many times what the tests take (%(default)s)")
    parser.add_argument("--report", type=pathlib.Path, metavar="FILE", help="the score and survivors, while it runs")
    options = parser.parse_args()
    try:
        rooms = select(options)
        check(rooms)
        if options.check:
            print(f"{sum(map(len, rooms.values()))} defects in "
                  f"{len({d.file for ds in rooms.values() for d in ds})} files of {len(rooms)} rooms fit the sources")
            return 0
        return run(rooms, options)
    except ListError as error:
        sys.exit(f"mutate: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"mutate: {' '.join(error.cmd[:4])} ... failed")


if __name__ == "__main__":
    sys.exit(main())
