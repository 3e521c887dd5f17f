"""Every view as a Parquet file, for DuckDB, Polars, R and whoever else reads no SQL."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from results.query import Database
from results.views import VIEWS

if TYPE_CHECKING:
    import pyarrow as pa

ARMS = 200
"""Arms whose curves are in memory at once: a row group of the file."""


def export(database: Database, directory: Path) -> list[Path]:
    """Write each view and the sweeps into a directory; return the files."""
    return [
        *(_write(directory / f"{view}.parquet", _tables(database, view)) for view in VIEWS),
        _write(directory / "sweeps.parquet", iter([database.sweeps(to="arrow")])),
    ]


def _tables(database: Database, view: str) -> "Iterator[pa.Table]":
    """The rows of a view, as tables with one schema."""
    whole: dict[str, Any] = {"v_results": database.pairs, "v_attempts": database.attempts}
    many: dict[str, Any] = {"v_curves": database.curves, "v_layers": database.layers}
    if view in many:
        arms = database.sql("SELECT substr(fingerprint, 1, 12) AS arm FROM arm ORDER BY id")["arm"].tolist()
        for start in range(0, max(len(arms), 1), ARMS):
            yield many[view](arm=arms[start : start + ARMS], to="arrow")
    elif view in whole:
        yield whole[view](to="arrow")
    else:
        yield database.sql(f"SELECT * FROM {view}", to="arrow")


def _write(path: Path, tables: "Iterator[pa.Table]") -> Path:
    part = path.with_name(f".{path.name}.part")  # a file that is there is whole
    first = next(tables)
    with pq.ParquetWriter(part, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    part.replace(path)
    return path
