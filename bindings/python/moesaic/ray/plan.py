"""``python -m moesaic.ray.plan MODEL --workload LENGTHS --nodes l4,2*t4``: a job on a cluster, as predicted.

`moesaic plan` for several machines: what each would do, and how long all of it takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Sequence

from .._errors import InvalidArgumentError
from ._driver import status_of
from ._plan import ClusterNode, ClusterPlan, plan_cluster
from ._report import duration


def nodes_of(text: str) -> list[ClusterNode]:
    """The machines of a list like "l4,2*t4:16GiB": how many, a name, and the host memory that may be used."""
    nodes = []
    for word in text.split(","):
        count, _, name = word.rpartition("*")
        machine, _, memory = name.partition(":")
        if not machine or not (count or "1").isdigit() or not 1 <= int(count or 1) <= 1000:
            raise InvalidArgumentError(f"--nodes {text[:80]}: '{word[:40]}' is none of MACHINE, N*MACHINE, MACHINE:MEMORY")
        nodes += [ClusterNode(machine, name, memory or None)] * int(count or 1)
    return nodes


def text_of(planned: ClusterPlan) -> str:
    """For people."""
    lines = [f"{'node':<24}{'requests':>10}{'share':>8}{'tokens/s':>11}{'time':>16}"]
    requests = sum(share.requests for share in planned.shares)
    for share in planned.shares:
        lines.append(
            f"{share.node.name or share.node.machine:<24}{share.requests:>10}{share.requests / requests:>8.1%}"
            f"{share.generated_tokens_per_s:>11.1f}{duration(share.wall_s):>16}"
        )
    lines.append(
        f"all: {planned.generated_tokens_per_s:.1f} tokens/s, {duration(planned.wall_s)}; {planned.speedup:.2f} times the "
        f"fastest node alone, {planned.efficiency:.0%} of what all would do alone"
    )
    return "\n".join(lines)


def run(arguments: Sequence[str]) -> None:
    """Plans, and prints."""
    parser = argparse.ArgumentParser(prog="python -m moesaic.ray.plan", description="Plan a throughput job for several machines.")
    parser.add_argument("model", help="a directory, an id, or a shape of configs/models")
    parser.add_argument("--workload", required=True, metavar="LENGTHS", help="prompt=N,gen=N,requests=N, or a file")
    parser.add_argument("--nodes", default="this", metavar="LIST", help="as l4,2*t4:16GiB: machines of `moesaic plan`")
    parser.add_argument("--json", action="store_true", help="print the plan, with that of each node, as JSON")
    flags = parser.parse_args(arguments)
    planned = plan_cluster(flags.model, flags.workload, nodes_of(flags.nodes))
    print(json.dumps(asdict(planned), indent=2) if flags.json else text_of(planned))


def main() -> None:
    """The command."""
    sys.exit(status_of(lambda: run(sys.argv[1:])))


if __name__ == "__main__":
    main()
