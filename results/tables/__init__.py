"""Tables, one file each: a docstring that is title and caption, `data` and `draw` as a figure has.

`data(db, sweep, **filters)` asks the store and returns the frame behind the table, `draw(frame)`
returns a `results.render.Table` or raises `results.frames.MissingData`. A file put here is a table.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from results.registry import Entry, File, entries

if TYPE_CHECKING:
    import pandas as pd

    from results.render import Table


class TableFile(File, Protocol):
    """What each file here has."""

    def draw(self, frame: "pd.DataFrame") -> "Table":
        """Return the table. Raises `MissingData`."""


def save(table: "Table", directory: Path, name: str, frame: "pd.DataFrame") -> list[Path]:
    """Write a table as text, Markdown and LaTeX, and the frame behind it."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"txt": table.text(), "md": table.markdown(), "tex": table.latex()}
    texts["csv"] = frame.to_csv(index=False, lineterminator="\n")
    paths = []
    for suffix, text in texts.items():
        paths.append(directory / f"{name}.{suffix}")
        paths[-1].write_text(text, encoding="utf-8", newline="\n")
    return paths


TABLES: dict[str, Entry[TableFile]] = entries(__name__, __path__, save)
"""Every table by name."""
