"""Training and validation loss against optimizer steps, SA and XSA.

Left: training loss, averaged over windows of steps. Middle: validation loss. Both are cut at the
top, where the first steps lie. Right: validation loss of each XSA run minus that of the SA run with
the same initial weights and batches, at every step at which both were evaluated; below 0 XSA is
better.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results import frames, marks, style
from results.frames import (
    XSA_AXES,
    MissingData,
    arm_filters,
    axes_in,
    axis_list,
    of_pairs,
    seeds,
    settings,
    varied,
)
from results.stats import mean_interval, mean_range
from schemas.trial import AXES

if TYPE_CHECKING:
    from results.query import Database

WINDOWS = 120
"""Most points in a line of training losses."""
ZOOM = 0.25
"""Share of the steps whose losses lie above the frame."""
PANELS = {
    "train_loss": "training loss (nats/token)",
    "val_loss": "validation loss (nats/token)",
    "delta_val_loss": "validation loss, XSA − SA",
}


def data(db: "Database", sweep: str | None = None, **filters: Any) -> pd.DataFrame:
    """Return one row for each setting, λ, quantity and step: mean over seeds, with its range or interval.

    Finished arms only; where a setting has none, its unfinished or diverged ones as far as they
    are, with `finished` False.
    """
    pairs = db.pairs(sweep, **filters)
    curves = of_pairs(db.curves(sweep, **arm_filters(filters)), pairs)
    varying = varied(pairs, besides=["xsa_lambda"])
    keys = [*varying, "xsa_lambda"]
    val = curves.dropna(subset=["val_loss"])
    window = max(1, math.ceil(curves["step"].max() / WINDOWS)) if len(curves) else 1
    train = curves.dropna(subset=["train_loss"])
    ends = -(-train["step"] // window) * window
    train = train.assign(step=ends.clip(upper=train.groupby("arm")["step"].transform("max")))
    train = train.groupby([*keys, "arm", "status", "step"], as_index=False)["train_loss"].mean()
    parts = {"train_loss": train, "val_loss": val, "delta_val_loss": _differences(pairs, val)}
    found = []
    for quantity, part in parts.items():
        finished = part["status"] == "done"
        has_finished = finished.groupby([part[name] for name in keys]).transform("any")
        for key, group in part[finished | ~has_finished].groupby([*keys, "step"]):
            row = dict(zip([*keys, "step"], key, strict=True))
            about = {"quantity": quantity, "finished": bool((group["status"] == "done").all())}
            over_seeds = mean_interval if quantity == "delta_val_loss" else mean_range
            found.append(row | about | over_seeds(group[quantity])._asdict())
    columns = [*keys, "quantity", "step", "finished", "n", "diverged", "mean", "sd", "low", "high"]
    return pd.DataFrame(found, columns=columns).sort_values([*keys, "quantity", "step"], ignore_index=True)


def _differences(pairs: pd.DataFrame, val: pd.DataFrame) -> pd.DataFrame:
    """Return each pair's difference in validation loss at the steps that both arms have."""
    losses = val[["arm", "step", "val_loss"]]
    sides = {
        side: losses.rename(columns={"arm": f"{side}_arm", "val_loss": f"{side}_val_loss"})
        for side in ("sa", "xsa")
    }
    axes = pairs[pairs["xsa_lambda"] != 0][[*AXES, "status", "sa_arm", "xsa_arm"]]
    joined = axes.merge(sides["sa"], on="sa_arm").merge(sides["xsa"], on=["xsa_arm", "step"])
    return joined.assign(delta_val_loss=joined["xsa_val_loss"] - joined["sa_val_loss"])


def draw(frame: pd.DataFrame) -> Figure:
    """Return a row of three panels for each setting that is not XSA's own."""
    if frame.empty:
        raise MissingData("fig3 needs the losses of at least one arm; none has reported a step yet.")
    rows = settings(frame, axes_in(frame, besides=XSA_AXES))
    own = axes_in(frame, besides=[name for name in AXES if name not in XSA_AXES])
    variants = marks.variants(frame, own)
    with style.style():
        figure, axes = style.panels(len(rows), len(PANELS), height=2.1)
        for title, ax in zip(PANELS.values(), axes[0], strict=True):
            ax.set_title(title)
        for ax in axes[1:, 2]:
            ax.sharey(axes[0][2])
        for (values, part), line in zip(rows, axes, strict=True):
            for quantity, ax in zip(PANELS, line, strict=True):
                _panel(ax, part[part["quantity"] == quantity], variants, own)
            _zoom(line[:2], part)
            line[2].axhline(0, color=style.SA, linewidth=0.8, zorder=0)
            if values:
                style.row_title(line[0], frames.describe(values))
        for ax in axes[-1]:
            ax.set_xlabel("step")
        style.key(figure, list(variants.values()))
        return style.settle(figure)


def _panel(
    ax: Axes, part: pd.DataFrame, variants: dict[tuple[Any, ...], style.Entry], own: list[str]
) -> None:
    for values, line in settings(part, own):
        entry = variants[tuple(values.values())]
        style.band(ax, line["step"], line["low"], line["high"], entry.color)
        ax.plot(line["step"], line["mean"], entry.dashes, color=entry.color)
        if not line["finished"].all():
            ax.plot(line["step"].iloc[-1], line["mean"].iloc[-1], "x", color=entry.color, markersize=5)
    style.whole_ticks(ax)
    style.plain_y(ax)


def _zoom(axes: Any, part: pd.DataFrame) -> None:
    """Cut off the steep start, which would flatten all that matters; one scale for both losses."""
    losses = part[part["quantity"] != "delta_val_loss"]
    late = losses[losses["step"] >= ZOOM * losses["step"].max()]
    values = late["mean"].to_numpy(dtype=float)
    values = values[np.isfinite(values)]
    if len(values) and np.ptp(values):
        margin = 0.05 * np.ptp(values)
        for ax in axes:
            ax.set_ylim(values.min() - margin, values.max() + margin)


def caption(frame: pd.DataFrame) -> str:
    """Return the caption: n, the interval, what else varies and what is unfinished."""
    additions = [f"Lines: mean over {seeds(frame['n'])}."]
    if frame["low"].notna().any():
        additions.append(
            "Shaded: the range over seeds (left, middle), the 95 % t interval of the mean paired difference (right)."
        )
    if others := axes_in(frame, besides=XSA_AXES):
        additions.append(f"One row of panels for each {axis_list(others)}.")
    if not frame["finished"].all():
        additions.append("A cross ends the line of a setting that no seed has finished.")
    return frames.caption(__doc__, *additions)
