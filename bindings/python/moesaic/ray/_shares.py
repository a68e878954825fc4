"""Which lines of a batch job go to whom. Pure functions."""

from __future__ import annotations

from typing import NamedTuple, Sequence


class Line(NamedTuple):
    """A line of the input that is to be answered."""

    number: int  # from 1
    prompt_tokens: int
    output_tokens: int

    @property
    def work(self) -> int:
        """What it takes, in tokens."""
        return self.prompt_tokens + self.output_tokens


def split(lines: Sequence[Line], speeds: Sequence[float]) -> list[list[Line]]:
    """Cuts lines into as many runs as there are speeds, with work in their proportion.

    Neighbours stay together, because they often begin alike, and what is alike is found in the
    prefix cache.

    Args:
        lines: In the order of the input.
        speeds: Of each who gets a part, in any unit; at least one is positive.

    Returns:
        A part for each; some are empty when there are few lines.
    """
    total_speed = sum(speeds)
    total_work = sum(line.work for line in lines)
    parts: list[list[Line]] = [[] for _ in speeds]
    part, work, limit = 0, 0.0, total_work * speeds[0] / total_speed
    for line in lines:
        # A line belongs to the part that its middle falls into.
        while part + 1 < len(parts) and work + line.work / 2 > limit:
            part += 1
            limit += total_work * speeds[part] / total_speed
        parts[part].append(line)
        work += line.work
    return parts
