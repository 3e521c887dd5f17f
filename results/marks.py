"""What several figures draw alike: a line for each variant of XSA, and paired differences with intervals."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from results.frames import describe, settings
from results.stats import ALPHA
from results.style import SA, Dashes, Entry, lambda_color

_DASHES: tuple[Dashes, ...] = ("-", "--", ":", "-.")


def variants(frame: pd.DataFrame, own: Sequence[str]) -> dict[tuple[Any, ...], Entry]:
    """Return the look of each line by its values of XSA's own axes, λ among them; SA is one line."""
    found = {}
    alike: dict[float, int] = {}
    for values, _ in settings(frame, own):
        value = values["xsa_lambda"]
        nth = alike[value] = alike.get(value, -1) + 1
        look = Entry(f"XSA, {describe(values)}", lambda_color(value), _DASHES[nth % len(_DASHES)])
        found[tuple(values.values())] = Entry("SA", SA) if value == 0 else look
    return found


def differences(ax: Axes, axis: str, line: pd.DataFrame, color: str) -> list[Artist]:
    """Draw mean paired differences with their intervals; filled where Holm's correction leaves them claimed.

    Args:
        ax: panel.
        axis: column on its x-axis.
        line: a row a point: `axis`, `mean`, `low`, `high` and `p_holm`.
        color: of the points.
    """
    claimed = line["p_holm"] < ALPHA
    drawn: list[Artist] = [ax.vlines(line[axis], line["low"], line["high"], color=color, linewidth=1.4)]
    for part, face in ((line[claimed], color), (line[~claimed], "white")):
        drawn += ax.plot(part[axis], part["mean"], "o", color=color, markerfacecolor=face, markersize=4.5)
    return drawn


def move(ax: Axes, drawn: Sequence[Artist], points: float) -> None:
    """Move what has been drawn to the right by `points` (1/72 inch) on any scale, and leave the limits alone."""
    figure = ax.figure
    assert isinstance(figure, Figure)
    for artist in drawn:
        artist.set_transform(ax.transData + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans))


def intervals(line: pd.DataFrame) -> str:
    """Return for a caption what the marks of `differences` mean."""
    tests = int(line["p_holm"].notna().sum())
    correction = f" after Holm's correction over the {tests} differences here" if tests > 1 else ""
    return (
        f"Bars: 95 % t interval of the mean paired difference. Filled: p < {ALPHA:g}{correction}; "
        "hollow: not so, or no interval."
    )
