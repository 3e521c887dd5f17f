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
TRIALS = 4
"""Trials whose items of evaluations are, of which there may be a hundred thousand each."""


def export(database: Database, directory: Path) -> list[Path]:
    """Write each view and the sweeps into a directory; return the files."""
    return [
        *(_write(directory / f"{view}.parquet", _tables(database, view)) for view in VIEWS),
        _write(directory / "sweeps.parquet", iter([database.sweeps(to="arrow")])),
    ]


def _tables(database: Database, view: str) -> "Iterator[pa.Table]":
    """The rows of a view, as tables with one schema."""
    whole: dict[str, Any] = {
        "v_results": database.pairs,
        "v_attempts": database.attempts,
        "v_evals": database.evals,
        "v_eval_pairs": database.eval_pairs,
        "v_checkpoints": database.checkpoints,
        "v_provenance": database.provenance,
        "v_mixed": database.mixed,
        "v_bench": database.bench,
        "v_artifacts": database.artifacts,
    }
    many: dict[str, tuple[Any, str, int]] = {
        "v_curves": (database.curves, "arm", ARMS),
        "v_layers": (database.layers, "arm", ARMS),
        "v_eval_items": (database.eval_items, "trial", TRIALS),
    }
    if view in many:
        ask, owner, number = many[view]
        query = f"SELECT substr(fingerprint, 1, 12) AS {owner} FROM {owner} ORDER BY id"
        owners = database.sql(query)[owner].tolist()
        for start in range(0, max(len(owners), 1), number):
            yield ask(**{owner: owners[start : start + number]}, to="arrow")
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
