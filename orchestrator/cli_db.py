"""`xsa db`: what is in the store, whether it is sound, and moving it elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.arguments import AsJson, Db, why_unwritable
from schemas.errors import UserError

db_app = typer.Typer(
    help="Look after the store: info, check, copy, export, vacuum.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@db_app.command()
def info(db: Db = None, json: AsJson = False) -> None:
    """Say where the store is, what it is and how much it holds.

    Example: xsa db info --db results.db
    """
    from orchestrator.show import console, print_json
    from results.maintain import info as about
    from results.store import Store

    with Store.open(db) as store:
        found = about(store)
    if json:
        print_json(found)
        return
    sweeps = f": {', '.join(found['sweeps'])}" if found["sweeps"] else ""
    facts = {
        "store": found["store"],
        "database": f"{found['database']}, tables of revision {found['revision']}",
        "size": f"{found['bytes'] / 1e6:,.1f} MB",
        "sweeps": f"{len(found['sweeps'])}{sweeps}",
        "from": found["oldest"] or "nothing yet",
        "to": found["newest"] or "nothing yet",
        **{f"  {table}": f"{number:,} rows" for table, number in found["rows"].items()},
    }
    width = max(map(len, facts))
    for name, fact in facts.items():
        console.print(f"{name:<{width}}  {fact}", markup=False, soft_wrap=True)


@db_app.command()
def check(db: Db = None) -> None:
    """Check that the store is sound; exit code 1 and a line for each thing that is wrong.

    Pages, references, finished arms, pairs that began alike, and journals that know more than the
    store, where their storage is on this machine.

    Example: xsa db check
    """
    from orchestrator.show import console
    from results.maintain import check as problems_of
    from results.store import Store

    with Store.open(db) as store:
        problems = problems_of(store)
        name = store.name
    for problem in problems:
        console.print(problem, markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)
    console.print(f"{name} is sound.", markup=False, soft_wrap=True)


@db_app.command()
def copy(
    source: Annotated[
        str, typer.Argument(help="The store to copy: a path or a database URL.", metavar="FROM")
    ],
    target: Annotated[str, typer.Argument(help="A store that is new or empty.", metavar="TO")],
) -> None:
    """Copy a store, such as from a file to a server or back.

    Example: xsa db copy results.db postgresql://me@host/sweeps
    """
    from orchestrator.show import console
    from results.maintain import copy as copy_store
    from results.store import Store

    with Store.open(source) as reader, Store.open(target, mode="write") as writer:
        counts = copy_store(reader, writer)
        names = reader.name, writer.name
    console.print(
        f"{sum(counts.values()):,} rows copied from {names[0]} to {names[1]}.", markup=False, soft_wrap=True
    )


@db_app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="The directory to write to.", metavar="DIR")],
    db: Db = None,
) -> None:
    """Write every view, and the sweeps, as Parquet files.

    Example: xsa db export exported
    """
    import results
    from orchestrator.show import console
    from results.export import export as export_to

    with results.open(db) as database:
        if reason := why_unwritable(directory):
            raise UserError(f"Nothing can be written to {directory}: {reason}. Choose another directory.")
        for path in export_to(database, directory):
            console.print(str(path), markup=False, soft_wrap=True)


@db_app.command()
def vacuum(db: Db = None) -> None:
    """Give back the room that deleted rows take.

    It needs as much free space as the store has, and that nobody else writes.

    Example: xsa db vacuum
    """
    from orchestrator.show import console
    from results.maintain import vacuum as give_back
    from results.store import Store

    Store.open(db).close()  # raises where there is none: a mistyped path must not make a store
    with Store.open(db, mode="write") as store:
        before, after = give_back(store)
    console.print(f"{before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB after.")
