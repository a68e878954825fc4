"""A batch job on a cluster, from the side of the process that has its files."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any, Callable, Sequence

from .. import __version__
from .._core import SharedBatch
from .._errors import Error, IoError, UnavailableError, make
from . import _report, _shares
from ._library import load
from ._runner import Runner

_SYNC_EVERY_S = 5.0
# Nodes that have not answered by then get their parts by what is known of them.
_WAIT_FOR_NODES_S = 60.0
# A process that ends so often without an answer in between is not begun again.
_MOST_FAILURES = 3
# So long a process that is begun again has lines kept for it, and fewer than these are not divided.
_KEEP_FOR_S = 30.0
_LEAST_TO_DIVIDE = 8
# What moesaic batch ends with when its arguments or the machine are at fault: no second try helps.
_HOPELESS = {2: "invalid_argument", 3: "resource_exhausted"}


@dataclasses.dataclass
class Options:
    """What `moesaic.ray.batch` was asked for."""

    arguments: list[str]  # of moesaic batch on each node
    model: str
    max_tokens: int
    address: str = "auto"
    actors: int = 0
    cpus: int = 0
    speeds: str = ""
    report: str = ""


@dataclasses.dataclass
class Totals:
    """What the job has come to."""

    lines: int = 0
    resumed: int = 0
    done: int = 0
    refused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    @property
    def left(self) -> int:
        return self.lines - self.resumed - self.done - self.refused - self.failed


@dataclasses.dataclass
class Part:
    """Lines that one actor answers."""

    lines: dict[int, _shares.Line]  # that have not ended
    planned_for: int  # an actor's index


@dataclasses.dataclass
class Actor:
    """A process on a node, and what it does."""

    index: int
    node: str  # id; of the first one
    name: str
    cpus: int
    speed: float = 0.0
    handle: Any = None
    step: str = "joining"  # then idle, starting, working; gone
    waiting: Any = None  # the reference of the call that is under way
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    part: Part | None = None
    answers_at: int = 0
    errors_at: int = 0
    failures: int = 0  # since its last answer
    asked_s: float = 0.0  # when its process was asked for
    # For the report.
    lines: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    share: float = 0.0
    busy_s: float = 0.0
    began_s: float = 0.0
    deaths: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    summaries: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    reports: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def is_coming(self) -> bool:
        """Its process was asked for, and may be there soon."""
        return self.step == "joining" and time.monotonic() - self.asked_s < _KEEP_FOR_S


class Driver:
    """Runs a job on the nodes of a cluster that Ray is connected to.

    Answers are taken from the actors as they come, and appended to the job's output here, so that no file is shared
    between machines, and that what an actor has not handed over when it dies is simply still open: the answers of
    greedy and seeded sampling are the same whoever gives them.
    """

    def __init__(
        self,
        batch: SharedBatch,
        options: Options,
        stops: Callable[[], int],
        say: Callable[[str], None],
        show: Callable[[str], None],
    ) -> None:
        self._ray = load()
        self._batch = batch
        self._options = options
        self._stops = stops
        self._say = say
        self._show = show
        self._began = time.monotonic()
        self._stopped = 0
        self._open = {number: _shares.Line(number, prompt, output) for number, prompt, output in batch.open()}
        self._queue: list[Part] = []
        self.totals = Totals(batch.lines, batch.resumed, refused=batch.refused)
        self.actors = self._place()

    def run(self) -> None:
        """Returns when no line is open any more, or nothing runs any more after a stop."""
        try:
            if self._open:
                for actor in self.actors:
                    self._join(actor)
                self._wait_for_nodes()
                self._share_out()
            synced = time.monotonic()
            while self._open and not self._has_stopped():
                self._heed_stops()
                self._hand_out()
                self._step(0.25)
                if time.monotonic() - synced > _SYNC_EVERY_S:
                    self._batch.sync()
                    synced = time.monotonic()
                self._tell()
            # Their summaries and reports.
            while any(actor.part is not None for actor in self.actors) and self._stops() < 2:
                self._heed_stops()
                self._step(0.25)
            self._tell()
        finally:
            self._batch.sync()
            self._dismiss()

    # Nodes and actors.

    def _place(self) -> list[Actor]:
        """The actors, each on its node."""
        nodes = []
        for node in self._ray.nodes():
            cpus = int(node["Resources"].get("CPU", 0))
            if node["Alive"] and cpus > 0:
                nodes.append((node["NodeID"], node["NodeManagerHostname"] or node["NodeManagerAddress"], cpus))
        if not nodes:
            raise UnavailableError("no node of the cluster has CPUs; `ray status` lists them")
        count = self._options.actors or len(nodes)
        actors = []
        for index in range(count):
            node, name, cpus = nodes[index % len(nodes)]
            beside = len(range(index % len(nodes), count, len(nodes)))
            actors.append(Actor(index, node, name, self._options.cpus or max(1, cpus // beside)))
        return actors

    def _join(self, actor: Actor, again: bool = False) -> None:
        """Asks Ray for the actor's process. One that replaces another may be on another node, if its own is lost."""
        strategies = load("ray.util.scheduling_strategies")
        environment = {name: value for name, value in os.environ.items() if name.startswith("MOESAIC_")}
        remote = self._ray.remote(Runner).options(
            num_cpus=actor.cpus,
            max_restarts=0,
            max_concurrency=2,  # poll, and stop
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(actor.node, soft=again),
        )
        actor.handle = remote.remote(
            self._options.arguments, environment, os.getcwd(), actor.cpus, bool(self._options.report)
        )
        workload = None if again or self._options.speeds not in ("", "plan") else self._workload()
        actor.step, actor.part, actor.asked_s = "joining", None, time.monotonic()
        actor.waiting = actor.handle.describe.remote(self._options.model, workload)

    def _workload(self) -> str:
        lines = list(self._open.values())
        prompt = sum(line.prompt_tokens for line in lines) // len(lines)
        output = sum(line.output_tokens for line in lines) // len(lines)
        return f"prompt={max(1, prompt)},gen={max(1, output)},requests={len(lines)}"

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + _WAIT_FOR_NODES_S
        while any(actor.step == "joining" for actor in self.actors) and time.monotonic() < deadline:
            if self._stops():
                return
            self._step(0.25)
        if not any(actor.step == "idle" for actor in self.actors):
            self._say("the cluster has no free CPUs for this job yet: waiting (`ray status` says who has them)")

    def _dismiss(self) -> None:
        ends = [actor.handle.close.remote() for actor in self.actors if actor.step in ("idle", "working", "starting")]
        if ends and self._stops() < 2:
            self._ray.wait(ends, num_returns=len(ends), timeout=10)
        for actor in self.actors:
            if actor.handle is not None:
                self._ray.kill(actor.handle)
                actor.handle = None

    # Lines.

    def _share_out(self) -> None:
        for actor, speed in zip(self.actors, self._speeds()):
            actor.speed = speed
        speeds = [actor.speed for actor in self.actors]
        for actor, lines in zip(self.actors, _shares.split(list(self._open.values()), speeds)):
            actor.share = actor.speed / sum(speeds)
            if lines:
                self._queue.append(Part({line.number: line for line in lines}, actor.index))

    def _speeds(self) -> list[float]:
        asked = self._options.speeds
        if asked not in ("", "plan", "cpus"):
            return self._given_speeds(asked)
        rates = []
        for actor in self.actors:
            rate = actor.about.get("rate")
            # The planner's is of the whole machine.
            rates.append(None if rate is None else rate * min(1.0, actor.cpus / actor.about["machine_cpus"]))
        if asked != "cpus" and all(rate is not None for rate in rates):
            text = ", ".join(f"{rate:.1f}" for rate in rates if rate is not None)
            self._say(f"shares by what the planner expects of the nodes: {text} tokens/s")
            return [float(rate or 0) for rate in rates]
        if asked == "plan":
            problems = [str(actor.about["problem"]) for actor in self.actors if actor.about.get("problem")]
            raise UnavailableError(
                "--ray-speeds plan: the planner has measured the model on some of the nodes only; "
                "`moesaic profile --model` on each does that" + (f" ({problems[0]})" if problems else "")
            )
        if len({actor.cpus for actor in self.actors}) > 1:
            self._say("shares by CPUs: the planner has not measured the model on all nodes")
        return [float(actor.cpus) for actor in self.actors]

    def _given_speeds(self, text: str) -> list[float]:
        try:
            speeds = [float(word) for word in text.split(",")]
        except ValueError:
            speeds = []
        if len(speeds) != len(self.actors) or not all(0 < speed < 1e12 for speed in speeds):
            raise make(
                "invalid_argument",
                f"--ray-speeds {text[:80]}: expected plan, cpus or {len(self.actors)} positive numbers, one for each actor",
            )
        return speeds

    def _hand_out(self) -> None:
        """Gives parts to those who have nothing to do: their own, or what is left of another's."""
        if self._stopped:
            return
        idle = [actor for actor in self.actors if actor.step == "idle"]
        for actor in list(idle):
            own = next((part for part in self._queue if part.planned_for == actor.index), None)
            if own is not None:
                self._start(actor, own)
                idle.remove(actor)
        while idle and self._queue:
            part = max(self._queue, key=lambda part: len(part.lines))
            # A process that is being begun again gets its share of what it had, when it is there.
            soon = [other for other in self.actors if other.index == part.planned_for and other.is_coming()]
            takers = [*soon, *idle[: max(1, len(idle) - len(self._queue) + 1)]]
            if len(takers) > 1 and len(part.lines) >= _LEAST_TO_DIVIDE:
                self._divide(part, takers)
            own = next((part for part in self._queue if part.planned_for == idle[0].index), None)
            self._start(idle.pop(0), own or max(self._queue, key=lambda part: len(part.lines)))

    def _divide(self, part: Part, takers: Sequence[Actor]) -> None:
        """Cuts a part into one for each."""
        cut = _shares.split(sorted(part.lines.values()), [actor.speed for actor in takers])
        self._queue.remove(part)
        for actor, lines in zip(takers, cut):
            if lines:
                self._queue.append(Part({line.number: line for line in lines}, actor.index))

    def _start(self, actor: Actor, part: Part) -> None:
        self._queue.remove(part)
        actor.part = part
        actor.answers_at = actor.errors_at = 0
        actor.step = "starting"
        actor.began_s = time.monotonic()
        actor.waiting = actor.handle.start.remote(self._batch.part(sorted(part.lines)), self._batch.form)

    # What comes from the actors.

    def _step(self, seconds: float) -> None:
        calls = {actor.waiting: actor for actor in self.actors if actor.waiting is not None}
        if not calls:
            time.sleep(seconds)
            return
        done, _ = self._ray.wait(list(calls), num_returns=1, timeout=seconds)
        for call in done:
            actor = calls[call]
            actor.waiting = None
            try:
                result = self._ray.get(call)
            except self._ray.exceptions.RayTaskError as error:
                self._lost(actor, f"{error.cause}")
            except self._ray.exceptions.RayError as error:
                self._lost(actor, str(error).split("\n")[0])
            else:
                self._take(actor, result)

    def _take(self, actor: Actor, result: Any) -> None:
        if actor.step == "joining":
            actor.about = result
            actor.step = "idle"
            self._say(
                f"actor {actor.index}: pid {result['pid']} on {result['host']}, {actor.cpus} "
                f"CPU{'s' if actor.cpus > 1 else ''}"
            )
            if result["version"] != __version__:
                self._say(f"actor {actor.index}: moesaic is {result['version']} there and {__version__} here")
            return
        if actor.step == "starting":
            assert actor.part is not None
            actor.step = "working"
            self._say(f"actor {actor.index}: {len(actor.part.lines)} lines, moesaic batch is pid {result}")
        else:
            self._take_lines(actor, result)
        if actor.step == "working":
            actor.waiting = actor.handle.poll.remote(actor.answers_at, actor.errors_at)

    def _take_lines(self, actor: Actor, news: dict[str, Any]) -> None:
        for line in filter(None, news["answers"].split(b"\n")):
            number = self._batch.answer(line)
            if number is None:
                continue
            usage = json.loads(line)["response"]["body"].get("usage") or {}
            prompt, output = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
            actor.lines += 1
            actor.prompt_tokens += prompt
            actor.output_tokens += output
            self.totals.done += 1
            self.totals.prompt_tokens += prompt
            self.totals.output_tokens += output
            self._end_line(actor, number)
        for line in filter(None, news["errors"].split(b"\n")):
            number = self._batch.refuse(line)
            if number is None:
                continue
            if json.loads(line)["response"]["status_code"] < 500:
                self.totals.refused += 1
            else:
                self.totals.failed += 1
            self._end_line(actor, number)
        actor.answers_at += len(news["answers"])
        actor.errors_at += len(news["errors"])
        if news["ended"] is not None:
            self._take_end(actor, news["ended"])

    def _end_line(self, actor: Actor, number: int) -> None:
        assert actor.part is not None
        self._open.pop(number, None)
        actor.part.lines.pop(number, None)
        actor.failures = 0

    def _take_end(self, actor: Actor, end: dict[str, Any]) -> None:
        assert actor.part is not None
        actor.busy_s += time.monotonic() - actor.began_s
        if end["summary"] is not None:
            actor.summaries.append(end["summary"])
        if end["report"]:
            actor.reports.append(end["report"])
        rest, actor.part, actor.step = actor.part, None, "idle"
        if not rest.lines:
            return
        self._queue.append(rest)
        if self._stopped:
            return
        why = error_of(end["log"]) or f"it ended with {end['code']}"
        if end["summary"] is None and end["code"] in _HOPELESS:
            raise make(_HOPELESS[end["code"]], f"{actor.name}: {why}")
        self._count_failure(actor, f"moesaic batch ended with {end['code']}: {why}")

    def _lost(self, actor: Actor, why: str) -> None:
        """The actor's process or its node is gone: what it has not answered is open for all."""
        if actor.part is not None:
            actor.busy_s += time.monotonic() - actor.began_s
            if actor.part.lines:
                self._queue.append(actor.part)
            actor.part = None
        actor.step = "gone"
        self._ray.kill(actor.handle)  # should it only have been out of reach, it must not go on
        self._count_failure(actor, why)
        if actor.failures <= _MOST_FAILURES and not self._stopped:
            self._join(actor, again=True)

    def _count_failure(self, actor: Actor, why: str) -> None:
        actor.failures += 1
        actor.deaths.append({"after_s": round(time.monotonic() - self._began, 3), "why": why})
        left = sum(len(part.lines) for part in self._queue)
        self._say(f"actor {actor.index} was lost after {time.monotonic() - self._began:.1f} s ({why}); {left} lines go on elsewhere")
        if actor.failures > _MOST_FAILURES:
            actor.step = "gone"
            if all(other.step == "gone" for other in self.actors):
                raise IoError(f"no actor is left; the last one ended with: {why}; --resume goes on with what there is")

    # Stopping, and what is shown.

    def _heed_stops(self) -> None:
        stops = self._stops()
        if stops <= self._stopped:
            return
        self._stopped = stops
        for actor in self.actors:
            if actor.part is not None and actor.step == "working":
                actor.handle.stop.remote(stops)

    def _has_stopped(self) -> bool:
        return self._stops() >= 2 or (self._stopped > 0 and all(actor.part is None for actor in self.actors))

    def _tell(self) -> None:
        self.totals.seconds = time.monotonic() - self._began
        self._show(_report.progress_text(self.totals, self.actors, self._stopped > 0))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def error_of(log: str) -> str:
    """What a command said went wrong: all of it, as it may list what memory was planned for."""
    _, error, text = log.rpartition("error: ")
    return text.strip() if error else _last_line(log)


def connect(address: str) -> None:
    """Joins the cluster, unless this process has joined one."""
    ray = load()
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UnavailableError(
            f"--ray {address}: no cluster was found there ({_last_line(str(error))}); `ray start --head` begins one"
        ) from error


def status_of(run: Callable[[], int | None]) -> int:
    """Runs a command, and answers with what `moesaic batch` would exit with; an error is told on standard error."""
    kinds = {"invalid_argument": 2, "not_found": 2, "corrupt": 2, "unsupported": 2, "resource_exhausted": 3, "io": 4}
    try:
        return run() or 0
    except Error as error:
        warn(f"error: {error}")
        return kinds.get(error.kind, 1)


def warn(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)
