"""simulate and plan: the commands of these names as functions."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from typing import Any, Sequence

from . import _core
from ._core import RoutingTrace
from ._engine import command, environment, settings_text


def simulate(
    trace: str | os.PathLike[str] | RoutingTrace | Sequence[str | os.PathLike[str]], **options: Any
) -> dict[str, Any]:
    """Serves a trace on a virtual clock by the cache, the queue, the predictors and the miss planner
    that serve models.

    Args:
        trace: A file, or what read_trace gave; or files, of a model each, that share a memory.
        options: Those of ``moesaic simulate`` with ``_`` for ``-``: ``slots="25%"``,
            ``predictor="none"``, ``policy="lru"``, ``hold_out=4``, ``layer_compute_us=1000``, ...

    Returns:
        What ``moesaic simulate --json`` prints: times in microseconds (``*_us``), counts of experts
        and copies, ``hit_rate``, recall by how many layers ahead; of several traces latencies in
        seconds, by how the memory is shared.
    """
    if isinstance(trace, RoutingTrace):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "served.trace"
            _core.write_trace(file, trace)
            return simulate(file, **options)
    result: dict[str, Any] = json.loads(_core.simulate(settings_text({"trace": trace, **options})))
    return result


def plan(model: str | os.PathLike[str], workload: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """Plans a throughput job: which schedule, batch and placement ends it soonest.

    Args:
        model: A directory, an id, or a shape such as "mixtral-8x7b".
        workload: "prompt=98,gen=64,requests=5000", or a file of requests.
        options: Those of ``moesaic plan`` with ``_`` for ``-``: ``machine="l4"``,
            ``host_memory="16GiB"``, ``what_if=False``, ...

    Returns:
        What ``moesaic plan --json`` prints.
    """
    pairs = settings_text({"model": model, "workload": workload, **options})
    result: dict[str, Any] = json.loads(_core.plan(pairs, environment(), command()))
    return result
