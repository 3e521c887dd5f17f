"""Figures, one file each: a docstring that is title and caption, and three functions.

`data(db, sweep, **filters)` asks the store and returns a tidy frame, `draw(frame)` makes the figure
or raises `results.frames.MissingData`, `caption(frame)` adds to the docstring what the data decides:
n, what else varies, what is missing. A file put here is a figure; there is no list to extend.
"""

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from results.query import Database


class FigureFile(Protocol):
    """What each file here has."""

    def data(self, db: "Database", sweep: str | None = None, **filters: Any) -> "pd.DataFrame":
        """Return what the figure shows, one row a point."""

    def draw(self, frame: "pd.DataFrame") -> "Figure":
        """Return the figure. Raises `MissingData`."""

    def caption(self, frame: "pd.DataFrame") -> str:
        """Return the caption of the figure of this frame."""


@dataclass(frozen=True)
class FigureEntry:
    """A figure by name; its file, and Matplotlib with it, is loaded when first used."""

    name: str

    def load(self) -> FigureFile:
        """Return the figure's file."""
        return import_module(f"{__name__}.{self.name}")

    @property
    def title(self) -> str:
        """The first line of the file's docstring."""
        document = self.load().__doc__
        assert document, f"figure {self.name} has no docstring"
        return document.strip().partition("\n")[0]

    def save(
        self, db: "Database", directory: Path, *, sweep: str | None = None, **filters: Any
    ) -> list[Path]:
        """Draw the figure and write it as PNG, SVG and PDF with the CSV behind it.

        Raises `MissingData` if the store cannot fill it yet.
        """
        from results import style

        file = self.load()
        frame = file.data(db, sweep, **filters)
        return style.save(file.draw(frame), directory, self.name, frame)


FIGURES: dict[str, FigureEntry] = {m.name: FigureEntry(m.name) for m in pkgutil.iter_modules(__path__)}
"""Every figure by name."""
