"""Time and memory of one transformer block, SA and XSA.

A block is attention and MLP. From left to right: time and memory against the sequence length, and against
the model width. Time is the median over repeats, SA and XSA taking turns; memory is the most that the block
holds at a time beyond its weights and input. Below each panel, what XSA takes more than SA, in percent of SA.
The forward pass keeps what a backward pass needs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from results import frames, sources, style
from results.frames import NotAsked, and_list
from results.schema import BENCH_KEY
from schemas.trial import AXES

if TYPE_CHECKING:
    from results.query import Database

MACHINE = ["hostname", "device", "threads", "dtype", "batch_size"]
"""Measurements that are alike in these are compared."""
DIRECTIONS = ("forward+backward", "forward")
_DASHES: dict[str, style.Dashes] = {"eager": "-", "compiled": "--"}
_SOURCE = ["git_sha", "dirty", "environment"]
_VALUES = ["ms", "ms_low", "ms_high", "peak_bytes", *_SOURCE]
_AXES = {"seq_len": "d_model", "d_model": "seq_len"}
"""What blocks are drawn against, and what is the same in all of them."""


class Quantity(NamedTuple):
    """What is drawn: its columns for SA and XSA are `sa_NAME` and `xsa_NAME`."""

    name: str
    title: str
    unit: float
    """The stored unit in one of the title's."""


QUANTITIES = (Quantity("ms", "time (ms)", 1.0), Quantity("peak_bytes", "memory (MB)", 1e6))


def data(db: "Database", sweep: str | None = None, **filters: Any) -> pd.DataFrame:
    """Return one row for each machine, shape, execution and direction: both variants and XSA's overhead.

    Overheads are XSA / SA - 1. `overhead_low` and `overhead_high` are what is left of it, and what becomes of
    it, if one variant's time is at its first and the other's at its third quartile. `sa_...` and `xsa_...` of
    `git_sha`, `dirty` and `environment` say what measured. Measurements belong to no `sweep`, and of the filters
    those count that are about blocks.
    """
    rows = db.bench(**{name: value for name, value in filters.items() if name in BENCH_KEY})
    keys = [name for name in BENCH_KEY if name != "variant"]
    sides = [
        rows[rows["variant"] == side][[*keys, *_VALUES]].rename(
            columns={value: f"{side}_{value}" for value in _VALUES}
        )
        for side in ("sa", "xsa")
    ]
    frame = sides[0].merge(sides[1], on=keys)
    frame["overhead_ms"] = frame["xsa_ms"] / frame["sa_ms"] - 1
    frame["overhead_low"] = frame["xsa_ms_low"] / frame["sa_ms_high"] - 1
    frame["overhead_high"] = frame["xsa_ms_high"] / frame["sa_ms_low"] - 1
    frame["overhead_peak_bytes"] = frame["xsa_peak_bytes"] / frame["sa_peak_bytes"] - 1
    return frame


def _parts(machine: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the blocks to draw against each axis: those at the value of the other one with most of them."""
    found = {}
    for axis, other in _AXES.items():
        counts = machine.groupby(other)[axis].nunique()
        if len(counts) and counts.max() > 1:
            found[axis] = machine[machine[other] == counts[counts == counts.max()].index.max()]
    return found


def _machines(frame: pd.DataFrame) -> list[tuple[dict[str, Any], dict[str, pd.DataFrame]]]:
    """Return the machines and ways of which something can be drawn, with it."""
    groups = [(dict(zip(MACHINE, key, strict=True)), rows) for key, rows in frame.groupby(MACHINE)]
    return [(values, parts) for values, rows in groups if (parts := _parts(rows))]


def _drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that are drawn; those at the crossing of both axes twice."""
    return pd.concat([part for _, parts in _machines(frame) for part in parts.values()])


def draw(frame: pd.DataFrame) -> Figure:
    """Return, for each machine and direction, a row of panels and a row of overheads below it."""
    machines = _machines(frame)
    if not machines:
        there = "only others" if len(frame) else "none"
        raise NotAsked(
            f"fig2 needs blocks of two or more lengths or widths, as `xsa bench` measures them; there is {there}."
        )
    bands = [
        (values, direction, {axis: part[part["direction"] == direction] for axis, part in parts.items()})
        for values, parts in machines
        for direction in DIRECTIONS
    ]
    columns = max(len(parts) for *_, parts in bands) * len(QUANTITIES)
    with style.style():
        figure = Figure(figsize=(style.WIDTH, 2.55 * len(bands) + 0.3))
        ratios = [1.25, 0.75] * len(bands)
        axes = figure.subplots(2 * len(bands), columns, squeeze=False, height_ratios=ratios)
        for i, (values, direction, parts) in enumerate(bands):
            levels, overheads = axes[2 * i : 2 * i + 2]
            panels = [(axis, part, quantity) for axis, part in parts.items() for quantity in QUANTITIES]
            for above, below, panel in zip(levels, overheads, panels, strict=False):
                _panel(above, below, *panel)
            for unused in (*levels[len(panels) :], *overheads[len(panels) :]):
                unused.remove()
            for first in range(len(QUANTITIES)):
                _share(overheads[first : len(panels) : len(QUANTITIES)])
            overheads[0].set_ylabel("XSA vs SA")
            style.row_title(levels[0], f"{direction}{_about(values, machines)}")
        style.key(figure, _entries(_drawn(frame)))
        return style.settle(figure)


def _panel(above: Axes, below: Axes, axis: str, part: pd.DataFrame, quantity: Quantity) -> None:
    above.set_title(quantity.title)
    for execution, line in part.sort_values(axis).groupby("execution"):
        dashes = _DASHES[str(execution)]
        for side, color, width in (("sa", style.SA, 1.6), ("xsa", style.XSA, 1.1)):
            value = line[f"{side}_{quantity.name}"] / quantity.unit
            above.plot(line[axis], value, dashes, color=color, linewidth=width, marker="o", markersize=2.2)
        percent = 100 * line[f"overhead_{quantity.name}"]
        face = style.XSA if execution == "eager" else "white"
        if quantity.name == "ms":
            low, high = 100 * line["overhead_low"], 100 * line["overhead_high"]
            below.vlines(line[axis], low, high, color=style.XSA, linewidth=1, alpha=0.45)
        below.plot(line[axis], percent, dashes, color=style.XSA, linewidth=1, marker="o", markersize=3)
        below.lines[-1].set_markerfacecolor(face)
    values = sorted(part[axis].unique())
    for ax in (above, below):
        style.axis_x(ax, axis, values)
        if not AXES[axis].log:
            ax.margins(x=0.08)
    above.set_xlabel("")
    above.tick_params(labelbottom=False)
    _plain_log(above)
    below.axhline(0, color=style.SA, linewidth=0.8, zorder=0)


def _share(overheads: Sequence[Axes]) -> None:
    """Give the overheads of one quantity in a row one scale, in percent."""
    limits = np.array([ax.get_ylim() for ax in overheads])
    for ax in overheads:
        ax.set_ylim(min(limits[:, 0].min(), -1.0), max(limits[:, 1].max(), 3.0))
        ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
        ax.yaxis.set_major_formatter(FuncFormatter(_percent))


def _percent(value: float, _: int | None = None) -> str:
    return f"{value:+g} %".replace("-", "−") if value else "0 %"


def _plain_log(ax: Axes) -> None:
    """Put ticks at 1, 2 and 5 times powers of ten, and at more where few of these are in sight."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    digits = (1.0, 2.0, 5.0) if high / low > 5 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    ax.yaxis.set_major_locator(LogLocator(subs=digits, numticks=9))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _entries(frame: pd.DataFrame) -> list[style.Entry]:
    return [
        style.Entry(f"{name}, {execution}", color, dashes)
        for execution, dashes in _DASHES.items()
        if (frame["execution"] == execution).any()
        for name, color in (("SA", style.SA), ("XSA", style.XSA))
    ]


def _about(values: dict[str, Any], machines: Sequence[tuple[dict[str, Any], Any]]) -> str:
    """Return in what this machine or way of measuring differs from the others, after a comma."""
    told = [name for name in MACHINE if len({machine[name] for machine, _ in machines}) > 1]
    return "".join(f", {_say(name, values[name])}" for name in told)


def _say(name: str, value: Any) -> str:
    if name == "threads":
        return f"{value} thread{'s' * (value > 1)}"
    return f"batch {value}" if name == "batch_size" else str(value)


def caption(frame: pd.DataFrame) -> str:
    """Return the caption: on which machines, with what, at which shapes, and what the bars are."""
    machines, drawn = _machines(frame), _drawn(frame)
    where = [
        f"{values['device']} of {values['hostname']} ({_threads(values)}{values['dtype']}, "
        f"{values['batch_size']} sequences)"
        for values, _ in machines
    ]
    fixed = {
        axis: sorted({int(part[_AXES[axis]].iloc[0]) for _, parts in machines for part in _of(parts, axis)})
        for axis in _AXES
    }
    at = [
        f"against {AXES[axis].label} at {AXES[_AXES[axis]].label} {and_list([f'{value:,}' for value in values])}"
        for axis, values in fixed.items()
        if values
    ]
    heads = and_list([str(width) for width in sorted(drawn["d_head"].unique())])
    additions = [
        f"Measured on {and_list(where)}: {and_list(at)}; heads of {heads}.",
        "Bars: from XSA's first quartile over SA's third to the reverse.",
    ]
    missing = [name for name in _DASHES if not (drawn["execution"] == name).any()]
    if missing:
        additions.append(f"Not measured at these shapes: {and_list(missing)}.")
    mixed = [(values["hostname"], _mixed(list(parts.values()))) for values, parts in machines]
    additions += [
        f"Measurements of {hostname} differ in {names}: the CSV says which has which, and what is drawn as one line "
        "may differ by that."
        for hostname, names in dict.fromkeys(mixed)
        if names
    ]
    return frames.caption(__doc__, *additions)


def _mixed(parts: Sequence[pd.DataFrame]) -> str:
    """Return in what code and environment the blocks of one machine differ; empty where in nothing."""
    rows = [
        {name: row[f"{side}_{name}"] for name in _SOURCE}
        for part in parts
        for row in part.to_dict("records")
        for side in ("sa", "xsa")
    ]
    return sources.differences(rows)


def _threads(values: dict[str, Any]) -> str:
    if values["device"] != "cpu":
        return ""
    return f"{_say('threads', values['threads'])}, "


def _of(parts: dict[str, pd.DataFrame], axis: str) -> list[pd.DataFrame]:
    return [parts[axis]] if axis in parts else []
