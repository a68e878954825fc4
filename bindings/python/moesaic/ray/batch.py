"""``python -m moesaic.ray.batch MODEL -i FILE -o FILE``: `moesaic batch` on the nodes of a Ray cluster.

All options of `moesaic batch` mean what they mean there. Those of the engine (``--expert-memory``, ``--memory``, ...)
are of each process; the model, and files that they name, are where they are on each node.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import sys
from typing import Any, NoReturn, Sequence, TextIO

from .._core import SharedBatch
from .._errors import InvalidArgumentError
from . import _report
from ._driver import Driver, Options, connect, status_of, warn


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidArgumentError(message)


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m moesaic.ray.batch",
        usage="%(prog)s MODEL -i FILE -o FILE [options of moesaic batch]",
        description="Answer a file of requests on the nodes of a Ray cluster. `moesaic batch --help` has all options; "
        "these are of the job, the others go to the process on each node.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-i", "--input", metavar="FILE", help="requests, one a line")
    add("-o", "--output", metavar="FILE", help="answers, one a line, in the order in which they come")
    add("--errors", metavar="FILE", help="lines that could not be answered (default: OUTPUT.errors.jsonl)")
    add("--input-format", default="auto", metavar="auto|jsonl|text")
    add("--resume", action="store_true", help="go on with the output file")
    add("--overwrite", action="store_true", help="throw away what is in the output and the error file")
    add("--json", action="store_true", help="print one JSON object with the numbers at the end")
    add("--report", default="", metavar="PATH", help="write PATH.json and PATH.html, and a page for each actor")
    add("--ray", default="auto", metavar="ADDRESS", help="HOST:PORT, or auto for the cluster that runs here")
    add("--ray-actors", type=int, default=0, metavar="N", help="processes that answer (default: one for each node)")
    add("--ray-cpus", type=int, default=0, metavar="N", help="CPUs of each (default: those of its node)")
    add("--ray-speeds", default="", metavar="LIST", help="plan, cpus or numbers like 2,1,1: the size of the shares")
    add("-n", "--max-tokens", type=int, default=256, metavar="N", help="longest answer of lines that are only a prompt")
    return parser


def _options(flags: argparse.Namespace, rest: list[str]) -> Options:
    if not flags.input:
        raise InvalidArgumentError("no requests given: -i FILE names the file")
    if not flags.output:
        raise InvalidArgumentError("no place for the answers given: -o FILE names the file")
    if flags.resume and flags.overwrite:
        raise InvalidArgumentError("--resume and --overwrite were both given")
    for name in ("ray_actors", "ray_cpus"):
        if getattr(flags, name) < 0:
            raise InvalidArgumentError(f"--{name.replace('_', '-')}: must not be negative")
    words = [*rest, "--max-tokens", str(flags.max_tokens)]
    return Options(
        arguments=words,
        model=_model_of(rest),
        max_tokens=flags.max_tokens,
        address=flags.ray,
        actors=flags.ray_actors,
        cpus=flags.ray_cpus,
        speeds=flags.ray_speeds,
        report=flags.report,
    )


def _model_of(words: Sequence[str]) -> str:
    """The model, for its tokenizer and for plans; empty where a file of settings names it."""
    if words and not words[0].startswith("-"):
        return words[0]
    for word, following in zip(words, [*words[1:], ""]):
        if word == "--model":
            return following
        if word.startswith("--model="):
            return word.split("=", 1)[1]
    return os.environ.get("MOESAIC_MODEL", "")


class _Interrupt:
    """How often the user has asked to stop, and what to exit with then."""

    def __init__(self) -> None:
        self.presses = 0
        self.code = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._press)

    def _press(self, number: int, _: Any) -> None:
        self.presses += 1
        self.code = 128 + number


def _write_reports(path: str, driver: Driver) -> None:
    stem = pathlib.Path(path)
    if stem.is_dir():
        stem /= "report"
    if stem.suffix in (".json", ".html"):
        stem = stem.with_suffix("")
    summary = _report.summary_json(driver.totals, driver.actors)
    pages = []
    for actor, entry in zip(driver.actors, summary["actors"]):
        entry["reports"] = [json.loads(report["json"]) for report in actor.reports if "json" in report]
        for run, report in enumerate(actor.reports):
            if "html" in report:
                file = stem.with_name(f"{stem.name}.actor-{actor.index}{f'-{run}' if run else ''}.html")
                file.write_text(report["html"])
                pages.append((f"actor {actor.index}", file.name))
    stem.with_name(stem.name + ".json").write_text(json.dumps(summary, indent=2) + "\n")
    stem.with_name(stem.name + ".html").write_text(_report.page(summary, pages))


def run(arguments: Sequence[str], results: TextIO) -> int:
    """Runs the job. Returns the exit code of `moesaic batch`; what --json prints goes to `results`.

    Raises:
        Error: Nothing more can be done; what was answered is in the output.
    """
    flags, rest = _parser().parse_known_args(arguments)
    options = _options(flags, rest)
    errors = flags.errors or flags.output + ".errors.jsonl"
    batch = SharedBatch(
        flags.input,
        flags.output,
        errors,
        flags.resume,
        flags.overwrite,
        flags.input_format,
        options.model,
        options.max_tokens,
    )
    connect(options.address)
    interrupt = _Interrupt()  # Ray has its own idea of SIGTERM
    terminal = sys.stderr.isatty()
    clear = "\r\x1b[K" if terminal else ""

    def say(text: str) -> None:
        warn(clear + text)

    def show(text: str) -> None:
        if terminal:
            print(clear + text, end="", file=sys.stderr, flush=True)

    driver = Driver(batch, options, lambda: interrupt.presses, say, show)
    driver.run()
    show("")
    if options.report:
        _write_reports(options.report, driver)
    totals = driver.totals
    if flags.json:
        print(json.dumps(_report.summary_json(totals, driver.actors), indent=2), file=results, flush=True)
    else:
        say(_report.summary_text(totals, driver.actors, errors))
    if interrupt.presses:
        return interrupt.code
    if totals.failed:
        return 4
    return 2 if totals.refused else 0


def main() -> None:
    """The command."""
    # Ray's threads print to standard output when an actor dies; that is none of the results.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.exit(status_of(lambda: run(sys.argv[1:], results)))


if __name__ == "__main__":
    main()
