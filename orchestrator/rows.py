"""`xsa results`: the pairs of a sweep as a table or as rows, on the terminal or in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.arguments import why_unwritable
from orchestrator.show import console, losses
from schemas.errors import UserError
from schemas.names import unknown_name

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from results.query import Database

FORMATS = ("table", "csv", "json", "parquet")


def format_of(asked: str | None, out: Path | None) -> str:
    """Return the format that was asked for: by name, else by how the file's name ends, else `table`."""
    ending = out.suffix[1:] if out else ""
    name = asked or (ending if ending not in ("", "txt") else "table")
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    if name == "parquet" and out is None:
        raise UserError("Parquet is no text for a terminal. Name the file to write: --out pairs.parquet.")
    return name


def show_rows(
    database: "Database",
    sweep: str,
    filters: Mapping[str, Any],
    *,
    columns: str | None,
    format: str | None,
    out: Path | None,
) -> None:
    """Print or write the pairs of a sweep; as a table without `columns`, their summary over seeds.

    Args:
        database: the store.
        sweep: the sweep's name.
        filters: what `--where` admits.
        columns: names with commas between them, or None for all.
        format: one of `FORMATS`, or None to go by the file's name.
        out: the file to write, or None to print.
    """
    name = format_of(format, out)
    if out is not None:
        _check_writable(out)
    wanted = None if columns is None else [part.strip() for part in columns.split(",")]
    if name == "table" and wanted is None:
        content: str | bytes = losses(database, sweep, filters)
    elif name == "parquet":
        content = _parquet(database.pairs(sweep, columns=wanted, to="arrow", **filters))
    else:
        content = _text(database.pairs(sweep, columns=wanted, **filters), name)
    if out is None:
        print(content, end="")
        return
    # Whole or not at all: what was there stays until the new file is complete.
    part = out.with_name(f".{out.name}.part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(out)
    console.print(f"Written: {out}", soft_wrap=True, highlight=False)


def _text(pairs: "pd.DataFrame", format: str) -> str:
    if format == "csv":
        return str(pairs.to_csv(index=False))
    if format == "json":
        return str(pairs.to_json(orient="records", indent=2, double_precision=15)) + "\n"
    return "no pairs\n" if pairs.empty else str(pairs.to_string(index=False, na_rep="·")) + "\n"


def _parquet(pairs: "pa.Table") -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    buffer = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pairs, buffer)
    return bytes(buffer.getvalue())


def _check_writable(out: Path) -> None:
    """Raise `UserError` unless a file can be written at `out`, before the store is asked for anything."""
    reason = "it is a directory" if out.is_dir() else why_unwritable(out.parent)
    if reason:
        raise UserError(f"{out} cannot be written: {reason}. Choose another place with --out.")
