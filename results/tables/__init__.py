"""Tables, one file each: a docstring that is title and caption, `data` and `draw` as a figure has.

`data(db, sweep, **filters)` asks the store and returns the frame behind the table, `draw(frame)`
returns a `results.render.Table` or raises `results.frames.MissingData`. A file put here is a table.
"""

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd

    from results.query import Database
    from results.render import Table


class TableFile(Protocol):
    """What each file here has."""

    def data(self, db: "Database", sweep: str | None = None, **filters: Any) -> "pd.DataFrame":
        """Return what the table shows, as numbers."""

    def draw(self, frame: "pd.DataFrame") -> "Table":
        """Return the table. Raises `MissingData`."""


@dataclass(frozen=True)
class TableEntry:
    """A table by name; its file is loaded when first used."""

    name: str

    def load(self) -> TableFile:
        """Return the table's file."""
        return import_module(f"{__name__}.{self.name}")

    @property
    def title(self) -> str:
        """The first line of the file's docstring."""
        document = self.load().__doc__
        assert document, f"table {self.name} has no docstring"
        return document.strip().partition("\n")[0]

    def save(
        self, db: "Database", directory: Path, *, sweep: str | None = None, **filters: Any
    ) -> list[Path]:
        """Write the table as text, Markdown and LaTeX with its numbers as CSV. Raises `MissingData`."""
        file = self.load()
        frame = file.data(db, sweep, **filters)
        return save(file.draw(frame), directory, frame)


def save(table: "Table", directory: Path, frame: "pd.DataFrame") -> list[Path]:
    """Write `table` in every form, and the frame behind it."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"txt": table.text(), "md": table.markdown(), "tex": table.latex()}
    texts["csv"] = frame.to_csv(index=False, lineterminator="\n")
    paths = []
    for suffix, text in texts.items():
        paths.append(directory / f"{table.name}.{suffix}")
        paths[-1].write_text(text, encoding="utf-8", newline="\n")
    return paths


TABLES: dict[str, TableEntry] = {m.name: TableEntry(m.name) for m in pkgutil.iter_modules(__path__)}
"""Every table by name."""
