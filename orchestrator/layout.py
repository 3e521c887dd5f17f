"""Pieces of what the commands print: indented columns, times, memory, and curves in a line."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import isfinite
from statistics import fmean
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.progress import duration
from orchestrator.show import console

STATUS_COLORS = {
    "done": "green",
    "running": "cyan",
    "failed": "red",
    "interrupted": "yellow",
    "diverged": "yellow",
}
_BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
"""Bars of the longest curve."""

Row = Mapping[str, Any]


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print one part after the other. Where lines end is the reader's affair, unless a terminal shows them."""
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text) and not console.is_terminal)


def columns(lines: Iterable[Sequence[str | Text]]) -> Table:
    """Return indented columns, each of which wraps within itself."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for line in lines:
        table.add_row("", *(Text(cell) if isinstance(cell, str) else cell for cell in line))
    return table


def facts(known: Mapping[str, str | Text | None]) -> Table:
    """Return names and what is known of them, without what is not."""
    return columns([(name, fact) for name, fact in known.items() if fact])


def machine(attempt: Row) -> str:
    """Return what an attempt ran on, and how: `laptop, cpu, 1 thread, micro-batch 4, compiled`."""
    parts = [attempt["hostname"], attempt["device"]]
    if threads := attempt["threads"]:
        parts.append(f"{threads} thread{'s' if threads > 1 else ''}")
    if attempt["micro_batch"]:
        parts.append(f"micro-batch {attempt['micro_batch']}")
    parts.append(attempt["execution"])
    if why := attempt["compile_error"]:
        first, *_ = why.splitlines()
        parts.append(first if attempt["execution"] == "compiled" else f"not compiled: {first}")
    return ", ".join(filter(None, parts))


def memory(attempt: Row) -> str:
    """Return an attempt's peak memory, or an empty text where none was told."""
    kinds = {"peak_rss_bytes": "GiB", "peak_gpu_bytes": "GiB of the GPU's"}
    told = [f"{attempt[key] / 2**30:,.2f} {unit}" for key, unit in kinds.items() if attempt[key]]
    return f"at most {' and '.join(told)}" if told else ""


def speed(told: Row | None) -> str:
    """Return how fast an arm was trained, or an empty text where no attempt told.

    Such as `1,893 tokens/s, 75 % of the CPU's peak (measured)`, made of `orchestrator.detail`'s `speed`.
    """
    if told is None:
        return ""
    rate = f"{told['tok_per_s']:,.0f} tokens/s"
    if told["mfu"] is None:
        return rate
    processor = "CPU" if told["device"] == "cpu" else "GPU"
    return f"{rate}, {100 * told['mfu']:.0f} % of the {processor}'s peak ({told['peak_source']})"


def ago(moment: datetime) -> str:
    """Return how long ago a moment was, such as `3 min 20 s ago`."""
    return f"{duration(max(0.0, time.time() - moment.timestamp()))} ago"


def utc(moment: datetime) -> str:
    """Return a moment to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def span(began: datetime, ended: datetime) -> str:
    """Return from when to when something took: `2026-11-29 18:00:00 to 18:05:30 UTC (5 min 30 s)`."""
    day = "" if began.date() == ended.date() else f"{ended:%Y-%m-%d} "
    took = duration((ended - began).total_seconds())
    return f"{began:%Y-%m-%d %H:%M:%S} to {day}{ended:%H:%M:%S} UTC ({took})"


def sparkline(
    values: Iterable[float | None], *, width: int = WIDTH, scale: tuple[float, float] | None = None
) -> str:
    """Return a curve in a line of at most `width` bars, each the mean of its share of the finite values.

    `scale` is the values of the lowest and of the highest bar: the least and the greatest one without it.
    """
    finite = [value for value in values if value is not None and isfinite(value)]
    bars = min(len(finite), width)
    means = [fmean(finite[i * len(finite) // bars : (i + 1) * len(finite) // bars]) for i in range(bars)]
    low, high = scale or (min(means, default=0.0), max(means, default=0.0))
    top = len(_BARS) - 1
    return "".join(_BARS[round(top * (mean - low) / (high - low)) if high > low else 0] for mean in means)
