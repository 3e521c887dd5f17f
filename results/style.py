"""One look for all figures, and the files they are saved as."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import matplotlib
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, ScalarFormatter

from results.frames import format_value
from schemas.trial import AXES

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 6.75
"""Inches: the text width of a two-column conference page."""
SA = "#404040"
XSA = "#0072B2"
"""Near-black and Okabe and Ito's blue: apart for every kind of colour vision and in grey."""
UNTRAINED = "#A3A3A3"
PAPER = "#757575"
"""What others have published, dashed."""
RULE = "#B8B8B8"
"""Zero lines and other guides."""

_LAMBDA = colors.LinearSegmentedColormap.from_list("lambda", [(0.0, "#74BCE2"), (0.5, XSA), (1.0, "#0B2A55")])
# Okabe and Ito's palette without the blue of XSA and the yellow that vanishes on white.
_CATEGORIES = ["#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]

_RC: dict[Any, Any] = {
    # The fonts that Matplotlib ships with, so that every machine draws the same.
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelcolor": "#222222",
    "ytick.labelcolor": "#222222",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.xmargin": 0.03,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.06,
    "figure.constrained_layout.h_pad": 0.05,
    "savefig.dpi": 220,
    "svg.hashsalt": "xsa",
    "pdf.fonttype": 42,
}
# Dates and versions out: the same data must give the same bytes.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in this look, and leave Matplotlib's settings as they were."""
    with matplotlib.rc_context(_RC):
        yield


def panels(rows: int, columns: int, *, height: float, width: float = WIDTH) -> tuple[Figure, Any]:
    """Return a figure and its axes, an array (rows, columns). `height` is a row's, in inches."""
    figure = Figure(figsize=(width, height * rows + 0.3))
    return figure, figure.subplots(rows, columns, squeeze=False)


def lambda_color(value: float) -> str:
    """Return the colour of λ, the same in every figure: SA's at 0, XSA's at 1, darker beyond."""
    return SA if value == 0 else colors.to_hex(_LAMBDA(min(1.0, abs(value) / 2)))


def series_colors(axis: str | None, values: Sequence[Any]) -> dict[Any, str]:
    """Return a colour for each value: a sequence for a numeric axis, distinct hues for names."""
    if len(values) == 1:
        return {values[0]: XSA}
    if axis is not None and AXES[axis].kind in (int, float):
        scale = matplotlib.colormaps["viridis"]
        return {v: colors.to_hex(scale(0.85 * i / (len(values) - 1))) for i, v in enumerate(values)}
    return {v: _CATEGORIES[i % len(_CATEGORIES)] for i, v in enumerate(values)}


def axis_x(ax: Axes, axis: str, values: Sequence[float], below: Mapping[float, str] | None = None) -> None:
    """Label and scale the x-axis as the axis declares, with ticks at the values measured.

    A count that begins at 0, where no logarithm does, has one doubling between 0 and 1 as between any
    other number and twice it.

    Args:
        ax: panel.
        axis: what is on its x-axis.
        values: those measured; where there is no room for all labels, `settle` keeps those that come first.
        below: what to write under the labels of values.
    """
    ax.set_xlabel(AXES[axis].title)
    if AXES[axis].log:
        ax.set_xscale("log")
    elif AXES[axis].kind is int and 0 in values:
        ax.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
    if len(values) <= 12:
        labels = [format_value(axis, value) for value in values]
        if below is not None:
            labels = [f"{label}\n{below.get(value, '')}" for label, value in zip(labels, values, strict=True)]
        ax.set_xticks(list(values), labels)
        ax.minorticks_off()


def whole_ticks(ax: Axes) -> None:
    """Put x ticks at whole numbers, with thousands separators: layers and steps."""
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def plain_y(ax: Axes) -> None:
    """Write y ticks without an offset: `3.4512`, never `+3.45e0`."""
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_scientific(False)
    ax.yaxis.set_major_formatter(formatter)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))


def band(ax: Axes, x: Any, low: Any, high: Any, color: str) -> None:
    """Shade an interval or a range; where it is NaN there is none."""
    ax.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0)


Dashes = Literal["-", "--", ":", "-."]


class Entry(NamedTuple):
    """One line of a figure's key."""

    label: str
    color: str
    dashes: Dashes = "-"


def key(figure: Figure, entries: Sequence[Entry]) -> None:
    """Name the lines in one row above the panels."""
    lines = [Line2D([], [], color=e.color, linestyle=e.dashes) for e in entries]
    figure.legend(
        lines,
        [e.label for e in entries],
        loc="outside upper left",
        ncols=min(len(entries), 6),
        frameon=False,
        handlelength=1.6,
        handletextpad=0.5,
        columnspacing=1.8,
        borderpad=0,
    )


def label_ends(ax: Axes, ends: Mapping[str, float]) -> None:
    """Write names right of the panel at the heights where their lines end, apart enough to be read.

    Args:
        ax: panel whose limits are final.
        ends: by name, the last y.
    """
    figure = ax.figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()  # the layout decides how high a panel is
    gap = 10.0 * figure.dpi / 72 / ax.get_window_extent().height
    placed = -1.0
    bottom, top = ax.get_ylim()
    for name, y in sorted(ends.items(), key=lambda item: item[1]):
        placed = max((y - bottom) / (top - bottom), placed + gap)
        ax.annotate(
            name,
            xy=(1, placed),
            xycoords="axes fraction",
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            color=SA,
            fontsize=8.5,
            annotation_clip=False,
        )


def math(label: str) -> str:
    """Set a metric's label, `cos(v_i, v_j)` or `a_ii`, as mathematics."""
    indexed = re.sub(r"_(\w{2,})", r"_{\1}", label).replace("cos", r"\mathrm{cos}")
    return f"${indexed}$"


def row_title(ax: Axes, title: str) -> None:
    """Say above a row's first panel what the row shows."""
    text: dict[str, Any] = {"fontweight": "bold", "fontsize": 9.0}
    panel = ax.get_title("left")
    if not panel:
        ax.set_title(title, text)
        return
    ax.set_title(f"\n{panel}")  # room for the row's title, which as an annotation takes none
    above = ax.annotate(
        title, (0, 1), xycoords="axes fraction", xytext=(0, 22), textcoords="offset points", **text
    )
    above.set_in_layout(False)


_AIR = 4.0
"""Points between two labels of an x-axis."""


def settle(figure: Figure) -> Figure:
    """Lay the finished figure out once: the same in every format, and not computed again for each.

    Where labels of an x-axis would touch, the first ones stay.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:
        if isinstance(ax.xaxis.get_major_locator(), FixedLocator):
            _thin_out(ax, _AIR * figure.dpi / 72)
    return figure


def _thin_out(ax: Axes, air: float) -> None:
    """Empty those labels of the x-axis that would come nearer than `air` pixels to one before them."""
    labels = ax.get_xticklabels()
    kept: list[Any] = []
    texts = []
    for label in labels:
        box = label.get_window_extent()
        free = all(box.x0 - air >= other.x1 or box.x1 + air <= other.x0 for other in kept)
        texts.append(label.get_text() if free else "")
        kept += [box] if free and label.get_text() else []
    ax.set_xticks(ax.get_xticks(), texts)


def svg(figure: Figure) -> bytes:
    """Return the figure as SVG without a background, for a page that may be dark."""
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format="svg", transparent=True, metadata=_METADATA["svg"])
    return buffer.getvalue()


def save(figure: Figure, directory: Path, name: str, frame: "pd.DataFrame") -> list[Path]:
    """Write `name` as PNG, SVG and PDF with the CSV behind it; byte-identical for equal data."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{name}.{suffix}" for suffix in (*_METADATA, "csv")]
    with style():
        for path, metadata in zip(paths, _METADATA.values(), strict=False):
            figure.savefig(path, metadata=metadata)
    frame.to_csv(paths[-1], index=False, lineterminator="\n")
    return paths
