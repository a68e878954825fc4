"""How a throughput job is shared out between machines that differ, and what comes of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from .._errors import InvalidArgumentError
from .._jobs import plan

# Shares are moved until the nodes end so close to each other, or as often as this.
_CLOSE = 0.02
_MOST_ROUNDS = 6


@dataclass(frozen=True)
class ClusterNode:
    """A machine of a cluster.

    Args:
        machine: "this", a preset ("l4"), or a profile that `moesaic profile` wrote on it.
        name: For the output.
        host_memory, gpu_memory: What may be used of it ("16GiB"); None: all.
    """

    machine: str = "this"
    name: str = ""
    host_memory: str | None = None
    gpu_memory: str | None = None


@dataclass(frozen=True)
class NodeShare:
    """What a node does of a job, as predicted."""

    node: ClusterNode
    requests: int
    wall_s: float
    generated_tokens_per_s: float
    plan: Mapping[str, Any]  # of its share, as `moesaic plan --json` prints it


@dataclass(frozen=True)
class ClusterPlan:
    """A job on a cluster, as predicted.

    Attributes:
        shares: One for each node; one with no requests is of no use to the job.
        wall_s: Until the last node ends.
        generated_tokens_per_s: Of all together.
        speedup: Against the node that would be the fastest alone.
        efficiency: Of the sum of what each node alone would do.
    """

    shares: list[NodeShare]
    wall_s: float
    generated_tokens_per_s: float
    speedup: float
    efficiency: float

    def speedup_here(self, cpus_per_node: int, cpus: int | None = None) -> float:
        """The most that can be measured when the nodes are simulated on one machine: processes of
        ``cpus_per_node`` CPUs each that share ``cpus`` (None: this machine's)."""
        together = (cpus or os.cpu_count() or 1) / max(1, cpus_per_node)
        return min(self.speedup, max(1.0, together))


def plan_cluster(
    model: str | os.PathLike[str], workload: str | os.PathLike[str], nodes: Sequence[ClusterNode], **options: Any
) -> ClusterPlan:
    """Plans a throughput job for several machines: the share of each, and how long it takes.

    Every node has the whole model and answers its requests by itself. Each is planned for its own share by
    `moesaic.plan`; a share is what the others' speeds leave, moved until all nodes are predicted to end at the same time,
    because a small share is slower than its part of a large job (batches are smaller, and begin and end).

    Args:
        model: A directory, an id, or a shape such as "mixtral-8x7b".
        workload: "prompt=98,gen=64,requests=5000", or a file of requests, whose mean lengths are taken.
        nodes: The machines.
        options: More of `moesaic plan`, for all nodes: ``constants="spec-sheet"``, ...

    Raises:
        Error: As of ``moesaic.plan``: a node that cannot run the model is named in it.
    """
    if not nodes:
        raise InvalidArgumentError("nodes: a cluster has at least one")
    lengths: dict[str, Any] = {}
    made: dict[tuple[ClusterNode, int], Mapping[str, Any]] = {}

    def plan_node(node: ClusterNode, requests: int) -> Mapping[str, Any]:
        key = (ClusterNode(node.machine, "", node.host_memory, node.gpu_memory), requests)
        if key not in made:
            text = str(workload) if not requests else f"prompt={lengths['prompt']},gen={lengths['gen']},requests={requests}"
            own = {**options, "machine": node.machine, "host_memory": node.host_memory, "gpu_memory": node.gpu_memory}
            made[key] = plan(model, text, what_if=False, **own)
        return made[key]

    alone = []
    for node in nodes:
        whole = plan_node(node, 0)
        if not lengths:
            of_all = whole["workload"]
            lengths = {
                "requests": of_all["requests"],
                "prompt": max(1, of_all["prompt_tokens"] // of_all["requests"]),
                "gen": max(1, of_all["generated_tokens"] // of_all["requests"]),
            }
        alone.append(float(whole["prediction"]["generated_tokens_per_s"]))
    requests = int(lengths["requests"])

    speeds = list(alone)
    best: list[NodeShare] = []
    for _ in range(_MOST_ROUNDS):
        shares = []
        for node, count in zip(nodes, _apportion(requests, speeds)):
            if count == 0:
                shares.append(NodeShare(node, 0, 0.0, 0.0, {}))
                continue
            planned = plan_node(node, count)
            prediction = planned["prediction"]
            shares.append(
                NodeShare(node, count, float(prediction["wall_s"]), float(prediction["generated_tokens_per_s"]), planned)
            )
        if not best or _wall(shares) < _wall(best):
            best = shares
        walls = [share.wall_s for share in shares if share.requests]
        if max(walls) - min(walls) <= _CLOSE * max(walls):
            break
        # What a node did of its share in a second; one without a share keeps what it was thought to do.
        speeds = [share.requests / share.wall_s if share.requests else 0.0 for share in shares]

    wall = _wall(best)
    rate = requests * lengths["gen"] / wall
    return ClusterPlan(best, wall, rate, rate / max(alone), rate / sum(alone))


def _wall(shares: Sequence[NodeShare]) -> float:
    return max(share.wall_s for share in shares)


def _apportion(requests: int, speeds: Sequence[float]) -> list[int]:
    """Whole numbers in the proportion of speeds that add up to `requests`: largest remainders first."""
    total = sum(speeds)
    exact = [requests * speed / total for speed in speeds]
    counts = [int(value) for value in exact]
    order = sorted(range(len(speeds)), key=lambda index: exact[index] - counts[index], reverse=True)
    for index in order[: requests - sum(counts)]:
        counts[index] += 1
    return counts
