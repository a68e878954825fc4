"""What runs on a node: `moesaic batch` on one part of a job at a time."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Mapping, Sequence

from .. import __version__
from .._engine import command
from .._errors import Error
from .._jobs import plan

# Answers are taken to the driver in pieces of at most this.
_MOST_BYTES = 4 << 20
_LOOK_EVERY_S = 0.05
_LOG_BYTES = 4000

# Starts a program that is killed when the thread that started it ends, so that nothing goes on when this process is
# killed: argv is the parent's process id, then the program. (PR_SET_PDEATHSIG is kept by exec. A preexec_fn would run
# between fork and exec in a process of many threads.)
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def tied(words: Sequence[str]) -> list[str]:
    """The command that runs `words` for as long as the thread that starts it lives."""
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *words]


def node_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This node's environment with the driver's settings of Moesaic."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MOESAIC_")}
    return {**own, **settings}


class Runner:
    """An actor. Its methods return soon: `poll` waits for news for half a second at most.

    Args:
        arguments: Of `moesaic batch`, without those that name files of the job.
        environment: The driver's settings (MOESAIC_...).
        directory: The driver's working directory, used where it is here, too.
        cpus: The CPUs that it has on this node.
        report: Whether to write reports.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], directory: str, cpus: int, report: bool
    ) -> None:
        self._arguments = list(arguments)
        if cpus < (os.cpu_count() or 1) and not any(word.split("=")[0] == "--threads" for word in arguments):
            self._arguments += ["--threads", str(cpus)]
        self._environment = node_environment(environment)
        self._working = directory if pathlib.Path(directory).is_dir() else None
        self._report = report
        self._scratch = pathlib.Path(tempfile.mkdtemp(prefix="moesaic-ray-"))
        self._part: _Run | None = None

    def describe(self, model: str, workload: str | None) -> dict[str, Any]:
        """Who this is. With a workload: also how fast the planner expects this machine to be, or why
        it does not know."""
        rate, problem = None, ""
        if workload is not None:
            try:
                if self._working is not None:
                    os.chdir(self._working)
                planned = plan(model, workload, what_if=False)
                rate = float(planned["prediction"]["generated_tokens_per_s"])
            except Error as error:
                problem = str(error)
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "machine_cpus": os.cpu_count() or 1,
            "rate": rate,
            "problem": problem,
        }

    def start(self, part: bytes, form: str) -> int:
        """Begins a part (the input with other lines left blank). Returns the process's id."""
        if self._part is not None:
            self._part.stop(2)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        words = [str(command()), "batch", *self._arguments, "--input-format", form, "--json"]
        self._part = _Run(words, part, self._scratch, self._environment, self._working, self._report)
        return self._part.pid

    def poll(self, answers_at: int, errors_at: int) -> dict[str, Any]:
        """What there is behind these offsets of the files of answers and of errors.

        Returns:
            ``answers`` and ``errors`` (bytes, whole lines); ``ended``: None, or once everything was
            taken a dict with ``code``, ``summary`` (None: it did not get to its end), ``log``, and
            ``report`` (JSON and HTML as text).
        """
        assert self._part is not None
        deadline = time.monotonic() + 0.5
        while True:
            ended = self._part.ended()  # before the files are read: nothing is written afterwards
            answers = self._part.lines("answers.jsonl", answers_at)
            errors = self._part.lines("errors.jsonl", errors_at)
            if answers or errors or ended or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_EVERY_S)
        all_taken = not answers and not errors
        return {"answers": answers, "errors": errors, "ended": self._part.result() if ended and all_taken else None}

    def stop(self, presses: int) -> None:
        """1: what runs is finished, nothing new begins. 2: at once."""
        if self._part is not None:
            self._part.stop(presses)

    def close(self) -> None:
        """Ends what runs, and removes its files."""
        self.stop(2)
        shutil.rmtree(self._scratch, ignore_errors=True)


class _Run:
    """One process, and the files that it writes."""

    def __init__(
        self,
        words: list[str],
        part: bytes,
        scratch: pathlib.Path,
        environment: dict[str, str],
        working: str | None,
        report: bool,
    ) -> None:
        self._scratch = scratch
        (scratch / "input").write_bytes(part)
        words += ["-i", str(scratch / "input"), "-o", str(scratch / "answers.jsonl")]
        words += ["--errors", str(scratch / "errors.jsonl")]
        if report:
            words += ["--report", str(scratch / "report")]
        self._words, self._environment, self._working = words, environment, working
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self.pid = 0
        started = threading.Event()
        # The process ends with the thread that starts it.
        threading.Thread(target=self._run, args=(started,), name="moesaic batch", daemon=True).start()
        started.wait()
        if self._process is None:
            raise self._failure or OSError("moesaic batch was not started")
        self.pid = self._process.pid

    def _run(self, started: threading.Event) -> None:
        try:
            with open(self._scratch / "stdout", "wb") as out, open(self._scratch / "stderr", "wb") as log:
                self._process = subprocess.Popen(
                    tied(self._words),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    env=self._environment,
                    cwd=self._working,
                    start_new_session=True,  # Ctrl-C in a terminal is the driver's
                )
        except OSError as error:
            self._failure = error
            return
        finally:
            started.set()
        self._process.wait()

    def ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def lines(self, name: str, at: int) -> bytes:
        try:
            with open(self._scratch / name, "rb") as file:
                file.seek(at)
                data = file.read(_MOST_BYTES)
                # One line that is longer than that comes as a whole.
                while len(data) >= _MOST_BYTES and b"\n" not in data:
                    more = file.read(_MOST_BYTES)
                    if not more:
                        break
                    data += more
        except FileNotFoundError:
            return b""
        return data[: data.rfind(b"\n") + 1]

    def result(self) -> dict[str, Any]:
        assert self._process is not None
        summary = None
        try:
            summary = json.loads((self._scratch / "stdout").read_text())
        except ValueError:
            pass  # it was killed, or refused to begin
        log = (self._scratch / "stderr").read_bytes()[-_LOG_BYTES:].decode(errors="replace")
        report = {}
        for kind in ("json", "html"):
            file = self._scratch / f"report.{kind}"
            if file.exists():
                report[kind] = file.read_text()
        return {"code": self._process.returncode, "summary": summary, "log": log, "report": report}

    def stop(self, presses: int) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        if presses == 1:
            self._process.send_signal(signal.SIGTERM)
        else:
            self._process.kill()
            self._process.wait()
