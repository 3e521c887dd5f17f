"""The commands that look at what is in the store, and change nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from orchestrator.arguments import AsJson, Db, Out, SweepName, Where, parse_where, why_unwritable
from schemas.errors import UserError

if TYPE_CHECKING:
    from results.registry import Entry

look_app = typer.Typer()


@look_app.command()
def status(
    sweep: Annotated[
        str | None, typer.Argument(help="A sweep's name; all of them if left out.", metavar="[SWEEP]")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="What failed or diverged, with tracebacks.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again until nothing runs.")] = False,
    db: Db = None,
    json: AsJson = False,
) -> None:
    """Show how far sweeps are, what failed and why.

    Example: xsa status quickstart
    """
    import results
    from orchestrator.status import print_status

    with results.open(db) as database:
        print_status(database, sweep, failed=failed, watch=watch, as_json=json)


@look_app.command()
def show(
    id: Annotated[
        str, typer.Argument(help="The id of an arm or trial, or its first digits.", metavar="ARM|TRIAL")
    ],
    db: Db = None,
    json: AsJson = False,
) -> None:
    """Show everything about an arm or a pair.

    Settings, attempts, losses, curves, bias metrics and where its files are. `xsa status SWEEP` lists ids.

    Example: xsa show 602f7d0970cb
    """
    import results
    from orchestrator.detail import print_found
    from orchestrator.find import find

    with results.open(db) as database:
        print_found(database, find(id, database=database), as_json=json)


@look_app.command(name="results")
def show_results(
    sweep: SweepName,
    db: Db = None,
    where: Where = None,
    columns: Annotated[
        str | None, typer.Option("--columns", help="Only these, with commas between them.", metavar="A,B")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", help="table, csv, json or parquet.", show_default="what FILE ends in, or table"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write to a file.", metavar="FILE")] = None,
) -> None:
    """Print the paired losses of a sweep.

    A table over seeds; with --columns, or as csv, json or parquet, a row for every pair.

    Example: xsa results quickstart --where xsa_lambda=1 --columns seed,delta_val_loss --format csv
    """
    import results
    from orchestrator.rows import show_rows

    with results.open(db) as database:
        show_rows(database, sweep, parse_where(where), columns=columns, format=format, out=out)


@look_app.command()
def figures(
    sweep: SweepName,
    names: Annotated[list[str] | None, typer.Argument(help="Figures, such as fig7; all if left out.")] = None,
    db: Db = None,
    where: Where = None,
    published: Annotated[
        bool, typer.Option("--published", help="Add the paper's differences, dashed, where it gives any.")
    ] = False,
    out: Out = None,
) -> None:
    """Draw figures: PNG, SVG, PDF and CSV.

    Example: xsa figures quickstart fig7 --out figures
    """
    from results.figures import FIGURES
    from results.reference import FIGURES as PUBLISHED

    beside = PUBLISHED if published else []
    _write("figure", FIGURES, names, sweep=sweep, db=db, where=where, published=beside, out=out)


@look_app.command()
def tables(
    sweep: SweepName,
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables, such as losses; all if left out.")
    ] = None,
    db: Db = None,
    where: Where = None,
    published: Annotated[
        bool, typer.Option("--published", help="Add the paper's numbers beside ours, where a table can.")
    ] = False,
    out: Out = None,
) -> None:
    """Write tables: text, Markdown, LaTeX and CSV.

    Example: xsa tables quickstart losses
    """
    from results.reference import TABLES as PUBLISHED
    from results.tables import TABLES

    beside = PUBLISHED if published else []
    _write("table", TABLES, names, sweep=sweep, db=db, where=where, published=beside, out=out)


@look_app.command()
def report(
    sweep: SweepName,
    db: Db = None,
    published: Annotated[
        bool, typer.Option("--published", help="Add the paper's numbers beside ours, where it gives any.")
    ] = False,
    out: Out = None,
) -> None:
    """Write figures, tables and report.html.

    Example: xsa report quickstart
    """
    import results
    from orchestrator.show import console, note
    from results.reference import FIGURES, TABLES, overlays
    from results.report import write

    beside = overlays([], [*FIGURES, *TABLES]) if published else {}
    with results.open(db) as database:
        made = write(database, sweep, _directory(out, sweep), overlays=beside)
    note(
        db,
        {"report": {"report": [made.page]}, "figure": made.figures, "table": made.tables},
        sweep=sweep,
        filters={},
    )
    console.print(f"Report: {made.page}", soft_wrap=True, highlight=False)


@look_app.command()
def axes(
    json: Annotated[bool, typer.Option("--json", help="Print the JSON schema, for editors.")] = False,
) -> None:
    """List every axis a sweep can set.

    Type, default, limits and meaning; then the named model sizes.

    Example: xsa axes
    """
    from orchestrator.show import print_axes, print_json
    from schemas.trial import Trial

    if json:
        print_json(Trial.model_json_schema())
    else:
        print_axes()


def _write(
    kind: Literal["figure", "table"],
    entries: "Mapping[str, Entry[Any]]",
    names: list[str] | None,
    *,
    sweep: str,
    db: str | None,
    where: list[str] | None,
    published: Sequence[str],
    out: Path | None,
) -> None:
    """Write figures or tables, those named of `published` with the paper's numbers, and note which files."""
    import results
    from orchestrator.show import note, write
    from results.reference import overlays

    filters = parse_where(where)
    beside = overlays(names or [], published) if published else {}
    with results.open(db) as database:
        directory = _directory(out, sweep)
        made = write(
            kind,
            entries,
            names,
            database=database,
            sweep=sweep,
            filters=filters,
            directory=directory,
            overlays=beside,
        )
    note(db, {kind: made}, sweep=sweep, filters=filters)


def _directory(out: Path | None, sweep: str) -> Path:
    """Return the directory to write to, made if need be."""
    directory = out or Path("reports") / sweep
    if reason := why_unwritable(directory):
        raise UserError(f"Nothing can be written to {directory}: {reason}. Choose another place with --out.")
    return directory
