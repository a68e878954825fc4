"""What a batch job on a cluster says while it runs and at its end. Pure functions."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Sequence

if TYPE_CHECKING:
    from ._driver import Actor, Totals

_BAR_WIDTH = 20


def duration(seconds: float) -> str:
    """ "1 min 10 s" """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def rate(tokens: int, seconds: float) -> float:
    """Tokens per second."""
    return tokens / seconds if seconds > 0 else 0.0


def progress_text(totals: Totals, actors: Sequence[Actor], stopping: bool) -> str:
    """ "[#####---------------] 3 of 64  51.2 tok/s  1 min 10 s left  actors: 12, 9" """
    ended = totals.done + totals.refused + totals.failed
    share = ended / max(1, ended + totals.left)
    filled = int(share * _BAR_WIDTH)
    text = f"[{'#' * filled}{'-' * (_BAR_WIDTH - filled)}] {totals.lines - totals.left} of {totals.lines}"
    text += f"  {rate(totals.output_tokens, totals.seconds):.1f} tok/s"
    if stopping:
        text += "  stopping: Ctrl-C again stops at once"
    elif ended > 0:
        text += f"  {duration(totals.seconds * (1 - share) / share)} left"
    return text + "  actors: " + ", ".join("gone" if a.step == "gone" else str(a.lines) for a in actors)


def summary_text(totals: Totals, actors: Sequence[Actor], errors: str) -> str:
    """A few lines for people."""
    text = f"{totals.done + totals.resumed} of {totals.lines} lines answered"
    if totals.resumed:
        text += f" ({totals.resumed} before)"
    text += (
        f"; {totals.prompt_tokens} prompt and {totals.output_tokens} output tokens in {duration(totals.seconds)}: "
        f"{rate(totals.output_tokens, totals.seconds):.1f} output tokens/s"
    )
    for actor in actors:
        text += f"\nactor {actor.index} on {actor.about.get('host', actor.name)}: {actor.lines} lines"
        text += f", {rate(actor.output_tokens, actor.busy_s):.1f} output tokens/s while it worked"
        if actor.deaths:
            text += f", lost {len(actor.deaths)} time{'s' if len(actor.deaths) > 1 else ''}"
    if totals.refused + totals.failed:
        text += f"\n{totals.refused} bad and {totals.failed} failed lines are in {errors}"
    if totals.left:
        text += f"\n{totals.left} lines are left; the same command with --resume goes on"
    return text


def summary_json(totals: Totals, actors: Sequence[Actor]) -> dict[str, Any]:
    """The keys of `moesaic batch --json`, and `actors`. Steps and bytes are of runs that got to their end."""
    ended = [summary for actor in actors for summary in actor.summaries]
    return {
        "lines": totals.lines,
        "answered": totals.done,
        "answered_before": totals.resumed,
        "bad": totals.refused,
        "failed": totals.failed,
        "left": totals.left,
        "seconds": totals.seconds,
        "prompt_tokens": totals.prompt_tokens,
        "output_tokens": totals.output_tokens,
        "output_tokens_per_s": rate(totals.output_tokens, totals.seconds),
        "steps": sum(summary["steps"] for summary in ended),
        "expert_bytes_read": sum(summary["expert_bytes_read"] for summary in ended),
        "actors": [
            {
                "host": actor.about.get("host", actor.name),
                "node": actor.node,
                "cpus": actor.cpus,
                "share": actor.share,
                "predicted_tokens_per_s": actor.about.get("rate"),
                "answered": actor.lines,
                "prompt_tokens": actor.prompt_tokens,
                "output_tokens": actor.output_tokens,
                "busy_s": actor.busy_s,
                "output_tokens_per_s": rate(actor.output_tokens, actor.busy_s),
                "lost": actor.deaths,
            }
            for actor in actors
        ],
    }


def page(summary: dict[str, Any], pages: Sequence[tuple[str, str]]) -> str:
    """The job as HTML. `pages`: name of an actor's own report and its file."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in _cells(index, actor)) + "</tr>"
        for index, actor in enumerate(summary["actors"])
    )
    links = "".join(f'<li><a href="{html.escape(file, quote=True)}">{html.escape(name)}</a></li>' for name, file in pages)
    heads = ("actor", "host", "CPUs", "share", "lines", "output tokens", "tokens/s while working", "seconds", "lost")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Batch job on a cluster</title>'
        "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}"
        "table{border-collapse:collapse}td,th{border-bottom:1px solid #8884;padding:.3em .8em;text-align:left}</style>"
        "<h1>Batch job on a cluster</h1>"
        f"<p>{summary['answered']} of {summary['lines']} lines answered in {duration(summary['seconds'])}, "
        f"{summary['output_tokens_per_s']:.1f} output tokens/s.</p>"
        f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>"
        + (f"<h2>Reports of the actors</h2><ul>{links}</ul>" if links else "")
        + "</html>\n"
    )


def _cells(index: int, actor: dict[str, Any]) -> tuple[Any, ...]:
    lost = "; ".join(f"after {death['after_s']:.1f} s: {death['why']}" for death in actor["lost"])
    return (
        index,
        actor["host"],
        actor["cpus"],
        f"{actor['share']:.2f}",
        actor["answered"],
        actor["output_tokens"],
        f"{actor['output_tokens_per_s']:.1f}",
        f"{actor['busy_s']:.1f}",
        lost or "never",
    )
