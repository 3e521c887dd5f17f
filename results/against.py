"""What figures 4, 5 and 6 share: final losses against one axis, and XSA minus SA beside them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results import frames, marks, style
from results.frames import (
    XSA_AXES,
    MissingData,
    NotAsked,
    axes_in,
    axis_list,
    lacking,
    seeds,
    settings,
    varied,
)
from results.stats import LACKING, mean_range, summarise
from schemas.trial import AXES

if TYPE_CHECKING:
    from results.query import Database

DELTA, OVERLAY = "delta_val_loss", "published"
LEVELS = {"train_loss": "training loss (nats/token)", "val_loss": "validation loss (nats/token)"}
_CAPTION = """Left: training loss of the last step's batch. Middle: final validation loss. Right: validation loss of
each XSA run minus that of the SA run with the same initial weights and batches (mean paired difference); below 0
XSA is better. n counts the pairs of which both runs finished, and all panels show these alone."""
_COUNTS = ("n", *LACKING)
Line = tuple[style.Entry, pd.DataFrame]
"""How a line looks, and its points."""


@dataclass(frozen=True)
class Against:
    """A figure against an axis; `data`, `draw` and `caption` are what its file in results/figures has."""

    name: str
    axis: str
    document: str | None
    """The file's docstring: title, and what is special about this axis."""
    prepare: Callable[[pd.DataFrame], pd.DataFrame] = lambda pairs: pairs
    """What is to be done with the pairs before anything is taken from them."""

    def data(
        self,
        db: "Database",
        sweep: str | None = None,
        *,
        overlay: pd.DataFrame | None = None,
        **filters: Any,
    ) -> pd.DataFrame:
        """Return one row for each setting, value of the axis, λ and quantity: mean over seeds, range or interval.

        The quantities are `train_loss` and `val_loss`, where SA has λ = 0, and the paired `delta_train_loss` and
        `delta_val_loss`, each corrected by itself; all in nats/token.
        An `overlay`, such as `results.reference.published` returns, adds its differences (`low` to
        `high` at values of the axis, with `n`, `label` and `source`) as `published`.
        """
        pairs = db.pairs(sweep, **filters)
        pairs = self.prepare(pairs[pairs["xsa_lambda"] != 0])
        varying = varied(pairs, besides=[self.axis, "xsa_lambda"])
        own = ["xsa_lambda", *(name for name in varying if name in XSA_AXES)]
        others = [name for name in varying if name not in XSA_AXES]
        keys = [*others, self.axis]
        deltas = [
            summarise(pairs, [*keys, *own], value=name)
            .rename(columns={"delta": "mean"})
            .assign(quantity=f"delta_{name}")
            for name in LEVELS
        ]
        baseline = {name: AXES[name].history["sa"] for name in own}
        levels: list[dict[str, Any]] = []
        for name in LEVELS:
            levels += [row | baseline for row in _means(pairs, keys, "sa", name)]
            levels += _means(pairs, [*keys, *own], "xsa", name)
        columns = [*keys, *own, "quantity", *_COUNTS, "mean", "low", "high", "p_holm"]
        parts = [pd.DataFrame(levels, columns=columns), *(delta[columns] for delta in deltas)]
        if overlay is not None:
            published = overlay.assign(**dict.fromkeys(_COUNTS[1:], 0), quantity=OVERLAY)
            published = published.assign(**{name: AXES[name].default for name in own})
            parts += [published.assign(**values) for values, _ in settings(pairs, others)]
        return pd.concat(parts, ignore_index=True)

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Return a row of three panels for each setting that is not XSA's own."""
        others = axes_in(frame, besides=[self.axis, *XSA_AXES])
        self._check(frame[frame["quantity"] == DELTA], others)
        own = axes_in(frame, besides=[name for name in AXES if name not in XSA_AXES])
        looks = marks.variants(frame[frame["quantity"] == "val_loss"], own)
        rows = settings(frame, others)
        with style.style():
            figure, axes = style.panels(len(rows), 3, height=2.1)
            for ax, title in zip(axes[0], [*LEVELS.values(), "validation loss, XSA − SA"], strict=True):
                ax.set_title(title)
            for ax in axes[1:, 2]:
                ax.sharey(axes[0][2])
            for (values, part), (*lefts, right) in zip(rows, axes, strict=True):
                lines = [
                    (looks[tuple(key.values())], line.sort_values(self.axis))
                    for key, line in settings(part[part["quantity"] != OVERLAY], own)
                ]
                for ax, name in zip(lefts, LEVELS, strict=True):
                    self._levels(ax, lines, name)
                self._differences(right, lines)
                self._overlay(right, part[part["quantity"] == OVERLAY])
                self._ticks(lefts, right, part)
                if values:
                    style.row_title(lefts[0], frames.describe(values))
            for ax in axes[:-1].flat:
                ax.set_xlabel("")
            entries = list(looks.values())
            for label in frame["label"].dropna().unique() if "label" in frame else []:
                entries.append(style.Entry(label, style.PAPER, "--"))
            style.key(figure, entries)
            return style.settle(figure)

    def _check(self, delta: pd.DataFrame, others: Sequence[str]) -> None:
        """Raise unless some setting of the other axes has finished pairs at two values of this one."""
        finished = delta[delta["n"] > 0]
        if _most(finished, others, self.axis) > 1:
            return
        values = [frames.format_value(self.axis, value) for value in sorted(finished[self.axis].unique())]
        there = "is one for each " + axis_list(others)
        if len(values) < 2:
            there = f"is one ({values[0]})" if values else "is none"
        raise (MissingData if _most(delta, others, self.axis) > 1 else NotAsked)(
            f"{self.name} needs finished pairs at two or more values of {AXES[self.axis].label}; there {there}."
        )

    def _levels(self, ax: Axes, lines: Sequence[Line], name: str) -> None:
        """Draw the losses, and above them a cross where an arm diverged."""
        found = [(look, line[line["quantity"] == name]) for look, line in lines]
        for look, line in found:
            style.band(ax, line[self.axis], line["low"], line["high"], look.color)
            ax.plot(line[self.axis], line["mean"], look.dashes, color=look.color, marker="o", markersize=3.5)
        bottom, top = ax.get_ylim()
        for look, line in found:
            diverged = line.loc[line["n_diverged"] > 0, self.axis]
            if len(diverged):
                top += 0.07 * (top - bottom)
                ax.plot(diverged, [top] * len(diverged), "x", color=look.color, markersize=5, clip_on=False)
                ax.set_ylim(bottom, top)
        style.plain_y(ax)

    def _differences(self, ax: Axes, lines: Sequence[Line]) -> None:
        ax.axhline(0, color=style.SA, linewidth=0.8, zorder=0)
        found = [(look, line[line["quantity"] == DELTA]) for look, line in lines]
        found = [(look, line) for look, line in found if len(line)]
        for i, (look, line) in enumerate(found):
            path = ax.plot(
                line[self.axis], line["mean"], look.dashes, color=look.color, linewidth=1, alpha=0.5
            )
            points = marks.differences(ax, self.axis, line, look.color)
            # Side by side, so that the intervals of different lines do not hide each other.
            marks.move(ax, [*path, *points], 6 * (i - (len(found) - 1) / 2))
        style.plain_y(ax)

    def _overlay(self, ax: Axes, published: pd.DataFrame) -> None:
        style.band(ax, published[self.axis], published["low"], published["high"], style.PAPER)
        for edge in ("low", "high"):
            ax.plot(published[self.axis], published[edge], "--", color=style.PAPER, linewidth=1, zorder=1)

    def _ticks(self, lefts: Sequence[Axes], right: Axes, part: pd.DataFrame) -> None:
        """Scale the panels, and say under each value how many pairs its differences rest on."""
        delta = part[part["quantity"] == DELTA]
        values = sorted(delta[self.axis].unique())
        n = delta.groupby(self.axis)["n"].agg(["min", "max"])
        below = {
            value: f"n = {low}" if low == high else f"n = {low}–{high}"
            for value, low, high in n.itertuples(name=None)
        }
        for ax in (*lefts, right):
            ax.margins(x=0.08)
        for ax in lefts:
            style.axis_x(ax, self.axis, values, below)
        others = sorted({*part[self.axis]} - {*values})
        style.axis_x(right, self.axis, [*values, *others], below)

    def caption(self, frame: pd.DataFrame) -> str:
        """Return the caption: n, intervals, the correction, what else varies, what diverged or is missing."""
        delta = frame[frame["quantity"] == DELTA]
        finished = delta[delta["n"] > 0]
        additions = [_CAPTION, f"Means over {seeds(finished['n'])}."]
        if frame.loc[frame["quantity"] == "val_loss", "low"].notna().any():
            additions.append("Shading: the range over seeds.")
        if measured := delta["low"].notna().any():
            additions.append(marks.intervals(delta))
        if (finished["n"] == 1).any():
            additions.append("Where n = 1 there is no interval." if measured else "n = 1, no interval.")
        if others := axes_in(frame, besides=[self.axis, *XSA_AXES]):
            additions.append(f"One row of panels for each {axis_list(others)}.")
        additions += lacking(delta, self.axis)
        if (frame.loc[frame["quantity"] == "val_loss", "n_diverged"] > 0).any():
            additions.append("A cross at the top: an arm diverged there.")
        if "source" in frame:
            (source,) = frame["source"].dropna().unique()
            additions.append(
                f"Dashed: {source}. It reports no seeds (n = 1 a point, no interval), "
                "and losses of other models and data cannot be compared, so only its differences are shown."
            )
        return frames.caption(self.document, *additions)


def _means(
    pairs: pd.DataFrame, by: Sequence[str], side: Literal["sa", "xsa"], name: str
) -> Iterator[dict[str, Any]]:
    """Return the mean final loss of one side's arms, each once: a baseline is in the pairs of every λ."""
    for values, group in settings(pairs, by):
        done = group[(group["status"] == "done") & np.isfinite(group["delta_val_loss"].astype(float))]
        mean = mean_range(done.drop_duplicates(f"{side}_arm")[f"{side}_{name}"])
        diverged = group.loc[group[f"{side}_status"] == "diverged", f"{side}_arm"].nunique()
        counts = dict.fromkeys(LACKING, 0) | {"n_diverged": diverged}
        yield values | mean._asdict() | counts | {"quantity": name}


def _most(delta: pd.DataFrame, others: Sequence[str], axis: str) -> int:
    """Return at how many values of the axis there is something, in the setting of the others with most."""
    return max((int(part[axis].nunique()) for _, part in settings(delta, others)), default=0)
