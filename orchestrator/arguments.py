"""What command-line arguments mean, and whether what they name can be used."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from schemas.errors import UserError
from schemas.secret import refuse_secret

Db = Annotated[
    str | None,
    typer.Option(
        "--db", envvar="XSA_DB", help="The store: a path or a database URL.", show_default="results.db"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print rows as JSON.")]
SweepFile = Annotated[Path, typer.Argument(help="The sweep's YAML file.", metavar="SWEEP.yaml")]
SweepName = Annotated[str, typer.Argument(help="The sweep's name.", metavar="SWEEP")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="Only rows where AXIS=VALUE, AXIS=A,B,C or AXIS=LOW..HIGH. May be repeated. In xsa_layers a comma is part "
        "of the value: repeat it for several.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The directory to write to.", show_default="reports/SWEEP")
]
Storage = Annotated[
    Path | None,
    typer.Option(
        "--storage",
        envvar="XSA_STORAGE",
        help="Where the arms' folders go.",
        show_default="runs/ beside the store",
    ),
]


def _without_secret(data: str | None) -> str | None:
    if data:
        try:
            refuse_secret(data)
        except ValueError as error:
            raise UserError(f"--data {error}.") from None
    return data


Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        envvar="XSA_DATA",
        callback=_without_secret,
        help="The data folder: a path or an fsspec URL.",
        show_default="data/ beside the storage",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar="RAY_ADDRESS",
        help="The Ray cluster to run on: `auto` or HOST:PORT.",
        show_default="a Ray of its own",
    ),
]


def use_cluster(address: str | None) -> None:
    """Let this process, and what it starts, use the Ray cluster at an address, if one is given.

    Raises `UserError` where there is none: better before a store is made than after.
    """
    if address:
        from orchestrator.launch import check_address

        os.environ["RAY_ADDRESS"] = address
        check_address()


def parse_where(conditions: list[str] | None) -> dict[str, Any]:
    """Return the filters that `--where` conditions mean. Raises `UserError`.

    A comma separates values, but not where an axis has values that hold commas (`xsa_layers=0,1`):
    there it is part of the value, and several values are several conditions.
    """
    from schemas.trial import AXES

    filters: dict[str, Any] = {}
    for condition in conditions or []:
        name, equals, text = condition.partition("=")
        if not equals:
            raise UserError(f"--where {condition}: write AXIS=VALUE, AXIS=A,B,C or AXIS=LOW..HIGH.")
        whole = name in AXES and AXES[name].commas
        if name == "sweep" or (name in filters and not whole):
            again = (
                "the sweep is the command's argument"
                if name == "sweep"
                else "write all values in one, with commas"
            )
            raise UserError(f"--where {condition}: {again}.")
        parse = AXES[name].parse if name in AXES else _parser(name)
        if whole:
            filters.setdefault(name, []).append(parse(text))
        elif ".." in text:
            low, _, high = text.partition("..")
            filters[name] = (parse(low) if low else None, parse(high) if high else None)
        elif "," in text:
            filters[name] = [parse(part) for part in text.split(",")]
        else:
            filters[name] = parse(text)
    return filters


def _parser(name: str) -> Callable[[str], Any]:
    """Return how the text of a value is read for a column that is no axis: an id of digits alone is a text."""
    from results.columns import COLUMNS
    from schemas.loader import parse_scalar

    texts = name in COLUMNS and COLUMNS[name].dtype in ("str", "category")
    return str if texts else parse_scalar


def why_unwritable(directory: Path) -> str | None:
    """Make a directory if need be, and return the reason why nothing can be written to it, if there is one."""
    probe = directory / ".writable"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.strerror
    return None
