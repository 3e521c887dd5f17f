"""Attention similarity bias by layer, before and after training.

From left to right: cosine of the value vectors of two distinct positions; attention weight of a
token on itself; cosine of the attention output y with the token's own value vector, before the
exclusion; the same after the exclusion (z), where position 0 is left out. Averaged over heads and a
fixed set of training sequences. The untrained network is the SA arm at step 0, the others are at
their last step. In an SA arm z is y.
"""

from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure

from results import frames, style
from results.frames import (
    MissingData,
    and_list,
    arm_filters,
    axes_in,
    axis_list,
    describe,
    of_pairs,
    seeds,
    settings,
    varied,
    with_baselines,
)
from results.stats import mean_range
from schemas.report import METRICS

if TYPE_CHECKING:
    from results.query import Database

STATES = ("untrained", "SA", "XSA")
_LOOKS: dict[str, tuple[str, style.Dashes]] = {
    "untrained": (style.UNTRAINED, ":"),
    "SA": (style.SA, "-"),
    "XSA": (style.XSA, "-"),
}
PANELS = ("cos_vv", "a_ii", "cos_yv", "cos_zv")


def data(db: "Database", sweep: str | None = None, **filters: Any) -> pd.DataFrame:
    """Return one row for each setting, state, metric and layer: mean and range over seeds.

    `xsa_lambda` is the λ of the state: 0, or for XSA 1 where the store has it, else the largest.
    """
    pairs = db.pairs(sweep, **filters)
    layers = with_baselines(of_pairs(db.layers(sweep, **arm_filters(filters)), pairs), pairs)
    others = varied(with_baselines(pairs, pairs, arm="sa_arm"), besides=["xsa_lambda"])
    last = layers["step"] == layers["steps"]
    baseline = layers["variant"] == "sa"
    lambdas = layers.loc[last & ~baseline, "xsa_lambda"].unique()
    shown = 1.0 if 1.0 in lambdas else max(lambdas, default=1.0)
    parts = {
        "untrained": layers[baseline & (layers["step"] == 0)],
        "SA": layers[baseline & last],
        "XSA": layers[last & (layers["xsa_lambda"] == shown) & ~baseline],
    }
    rows = pd.concat([part.assign(state=state) for state, part in parts.items()])
    keys = [*others, "state", "xsa_lambda", "metric", "layer"]
    found = [
        dict(zip(keys, key, strict=True)) | mean_range(group["value"])._asdict()
        for key, group in rows.groupby(keys)
    ]
    return pd.DataFrame(found, columns=[*keys, "n", "diverged", "mean", "sd", "low", "high"])


def draw(frame: pd.DataFrame) -> Figure:
    """Return a row of four panels for each setting."""
    if frame.empty:
        raise MissingData(
            "fig1 needs the bias metrics of an arm at step 0 or at its last step; there are none yet. "
            "`bias_every` in the sweep's runtime says how often they are measured."
        )
    rows = settings(frame, axes_in(frame, besides=["xsa_lambda"]))
    with style.style():
        figure, axes = style.panels(len(rows), len(PANELS), height=1.75)
        for metric, ax in zip(PANELS, axes[0], strict=True):
            ax.set_title(style.math(METRICS[metric].label))
        for (values, part), line in zip(rows, axes, strict=True):
            for metric, ax in zip(PANELS, line, strict=True):
                _panel(ax, part[part["metric"] == metric])
            if values:
                style.row_title(line[0], describe(values))
        for ax in axes[-1]:
            ax.set_xlabel("layer")
        style.key(figure, [style.Entry(_name(frame, state), *_LOOKS[state]) for state in _states(frame)])
        return style.settle(figure)


def _panel(ax: Any, part: pd.DataFrame) -> None:
    for state in STATES:
        line = part[part["state"] == state].sort_values("layer")
        color, dashes = _LOOKS[state]
        style.band(ax, line["layer"], line["low"], line["high"], color)
        ax.plot(line["layer"], line["mean"], dashes, color=color, marker="o", markersize=2.6)
    style.whole_ticks(ax)
    style.plain_y(ax)
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, 0), max(high, 0))
    ax.axhline(0, color=style.RULE, linewidth=0.6, zorder=0)


def _states(frame: pd.DataFrame) -> list[str]:
    return [state for state in STATES if (frame["state"] == state).any()]


def _name(frame: pd.DataFrame, state: str) -> str:
    if state != "XSA":
        return state
    return f"XSA, {describe({'xsa_lambda': frame.loc[frame['state'] == 'XSA', 'xsa_lambda'].iloc[0]})}"


def caption(frame: pd.DataFrame) -> str:
    """Return the caption: n, the shading, what else varies and which states are missing."""
    additions = [f"Lines: mean over {seeds(frame['n'])}."]
    if frame["low"].notna().any():
        additions.append("Shaded: the range over seeds.")
    if others := axes_in(frame, besides=["xsa_lambda"]):
        additions.append(f"One row of panels for each {axis_list(others)}.")
    if missing := [state for state in STATES if state not in _states(frame)]:
        additions.append(f"Not measured yet: {and_list(missing)}.")
    return frames.caption(__doc__, *additions)
