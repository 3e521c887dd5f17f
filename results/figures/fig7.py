"""Validation loss and residual bias against the strength of exclusion λ.

Left: final validation loss of XSA minus that of the SA run with the same initial weights and
batches (mean paired difference); below 0 XSA is better. λ = 0 is SA itself. Right: cosine of the
attention output with the token's own value vector before (y) and after (z) the exclusion at the
last step, averaged over layers.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results import frames, marks, style
from results.frames import (
    MissingData,
    arm_filters,
    axes_in,
    axis_list,
    describe_one,
    lacking,
    of_pairs,
    seeds,
    settings,
    varied,
    with_baselines,
)
from results.stats import LACKING, mean_range, summarise
from schemas.report import METRICS
from schemas.trial import AXES

if TYPE_CHECKING:
    from results.query import Database

LOSS = "delta_val_loss"
BIAS = {"cos_zv": "-", "cos_yv": ":"}


def data(db: "Database", sweep: str | None = None, **filters: Any) -> pd.DataFrame:
    """Return one row for each setting, λ and quantity: mean over seeds, with its interval or range.

    The quantities are `delta_val_loss` (paired, nats/token), `cos_zv` and `cos_yv`.
    """
    pairs = db.pairs(sweep, **filters)
    pairs = with_baselines(pairs, pairs, arm="sa_arm")
    keys = [*varied(pairs, besides=["xsa_lambda"]), "xsa_lambda"]
    loss = summarise(pairs, keys).rename(columns={"delta": "mean"}).assign(quantity=LOSS)
    layers = with_baselines(of_pairs(db.layers(sweep, **arm_filters(filters)), pairs), pairs)
    last = layers[(layers["step"] == layers["steps"]) & layers["metric"].isin(BIAS)]
    per_arm = last.groupby([*keys, "metric", "arm"], as_index=False)["value"].mean()
    bias = []
    for key, group in per_arm.groupby([*keys, "metric"]):
        found = mean_range(group["value"])
        row = dict(zip([*keys, "quantity"], key, strict=True))
        bias.append(row | found._asdict() | dict.fromkeys(LACKING, 0) | {"n_diverged": found.diverged})
    columns = [*keys, "quantity", "n", *LACKING, "mean", "low", "high", "p_holm"]
    return pd.concat([loss[columns], pd.DataFrame(bias, columns=columns)], ignore_index=True)


def draw(frame: pd.DataFrame) -> Figure:
    """Return two panels: a line for each value of one further axis, a row for each of the others."""
    loss = frame[(frame["quantity"] == LOSS) & (frame["n"] > 0)]
    lambdas = sorted(loss["xsa_lambda"].unique())
    if len(lambdas) < 2:
        there = f"one ({AXES['xsa_lambda'].format(lambdas[0])})" if lambdas else "none"
        raise MissingData(f"fig7 needs finished pairs at two or more λ; there is {there}.")
    others = axes_in(frame, besides=["xsa_lambda"])
    line_axis = others[-1] if others else None
    lines = [values[line_axis] for values, _ in settings(frame, [line_axis])] if line_axis else [None]
    palette = style.series_colors(line_axis, lines)
    rows = settings(frame, others[:-1])
    lambdas = sorted({0.0, *lambdas})
    # Lines side by side, so that the intervals of different lines at one λ do not hide each other.
    step = 0.12 * min(b - a for a, b in pairwise(lambdas)) / len(lines)
    with style.style():
        figure, axes = style.panels(len(rows), 2, height=2.3)
        axes[0][0].set_title("validation loss, XSA − SA (nats/token)")
        axes[0][1].set_title("cosine with the own value vector")
        for (values, part), (left, right) in zip(rows, axes, strict=True):
            for ax in (left, right):
                ax.axhline(0, color=style.RULE, linewidth=0.8, zorder=0)
            for i, line in enumerate(lines):
                mine = part if line_axis is None else part[part[line_axis] == line]
                _loss(
                    left,
                    mine[mine["quantity"] == LOSS],
                    palette[line],
                    shift=step * (i - (len(lines) - 1) / 2),
                )
                for metric, dashes in BIAS.items():
                    _bias(right, mine[mine["quantity"] == metric], palette[line], dashes)
            left.margins(y=0.12)  # room for the label of a point at the top
            left.plot(0, 0, "o", color=style.SA, markersize=4.5)
            left.annotate(
                "SA", (0, 0), xytext=(4, 5), textcoords="offset points", color=style.SA, fontsize=8.5
            )
            for ax in (left, right):
                style.axis_x(ax, "xsa_lambda", lambdas)
                style.plain_y(ax)
            if values:
                style.row_title(left, frames.describe(values))
        for ax in axes[:-1].flat:
            ax.set_xlabel("")
        if line_axis:
            style.key(figure, [style.Entry(describe_one(line_axis, v), palette[v]) for v in lines])
        for (_, part), (_, right) in zip(rows, axes, strict=True):
            style.label_ends(right, _ends(part))
        return style.settle(figure)


def _loss(ax: Axes, line: pd.DataFrame, color: str, *, shift: float) -> None:
    """Draw the differences at λ other than 0, joined to SA's at (0, 0)."""
    line = line[(line["n"] > 0) & (line["xsa_lambda"] != 0)]
    at, mean = line["xsa_lambda"] + shift, line["mean"]
    path = sorted([(0.0, 0.0), *zip(at, mean, strict=True)])
    ax.plot(*zip(*path, strict=True), color=color, linewidth=1, alpha=0.5)
    marks.differences(ax, "xsa_lambda", line.assign(xsa_lambda=at), color)


def _bias(ax: Axes, line: pd.DataFrame, color: str, dashes: str) -> None:
    line = line.sort_values("xsa_lambda")
    style.band(ax, line["xsa_lambda"], line["low"], line["high"], color)
    ax.plot(line["xsa_lambda"], line["mean"], dashes, color=color, marker="o", markersize=3)


def _ends(part: pd.DataFrame) -> dict[str, float]:
    """Return the heights at which the lines of the two cosines end, as a mean over lines."""
    ends = {}
    for metric in BIAS:
        line = part[(part["quantity"] == metric) & part["mean"].notna()]
        if len(line):
            last = line["xsa_lambda"] == line["xsa_lambda"].max()
            ends[style.math(METRICS[metric].label)] = float(line.loc[last, "mean"].mean())
    return ends


def caption(frame: pd.DataFrame) -> str:
    """Return the caption: n, the interval, what else varies, and what diverged or is missing."""
    loss = frame[(frame["quantity"] == LOSS)]
    additions = [f"Means over {seeds(loss.loc[loss['n'] > 0, 'n'])}."]
    if loss["low"].notna().any():
        additions += [marks.intervals(loss), "Shading: the range over seeds."]
    if not frame["quantity"].isin(BIAS).any():
        additions.append("The bias was not measured at the last step of any arm.")
    others = axes_in(frame, besides=["xsa_lambda"])
    if others:
        additions.append(f"Lines: {axis_list(others[-1:])}.")
    if others[:-1]:
        additions.append(f"One row of panels for each {axis_list(others[:-1])}.")
    return frames.caption(__doc__, *additions, *lacking(loss, "xsa_lambda"))
