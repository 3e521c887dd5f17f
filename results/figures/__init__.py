"""Figures, one file each: a docstring that is title and caption, and three functions.

`data(db, sweep, **filters)` asks the store and returns a tidy frame, `draw(frame)` makes the figure
or raises `results.frames.MissingData`, `caption(frame)` adds to the docstring what the data decides:
n, what else varies, what is missing. A file put here is a figure; there is no list to extend.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from results.registry import Entry, File, entries

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class FigureFile(File, Protocol):
    """What each file here has."""

    def draw(self, frame: "pd.DataFrame") -> "Figure":
        """Return the figure. Raises `MissingData` if the frame cannot fill it yet."""

    def caption(self, frame: "pd.DataFrame") -> str:
        """Return the caption of the figure of this frame."""


def save(figure: "Figure", directory: Path, name: str, frame: "pd.DataFrame") -> list[Path]:
    """Write a figure as PNG, SVG and PDF, and the frame behind it."""
    from results import style

    return style.save(figure, directory, name, frame)


FIGURES: dict[str, Entry[FigureFile]] = entries(__name__, __path__, save)
"""Every figure by name."""
