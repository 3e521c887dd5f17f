"""The command line, `xsa`. Heavy imports live inside the commands, so that `--help` answers at once."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.arguments import parse_where, why_unwritable
from schemas.errors import UserError

if TYPE_CHECKING:
    from schemas.sweep import Sweep

app = typer.Typer(
    name="xsa",
    help="Sweeps of paired attention experiments (SA and XSA), their results in SQL, and the figures from them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)

SweepFile = Annotated[Path, typer.Argument(help="The sweep's YAML file.", metavar="SWEEP.yaml")]
SweepName = Annotated[str, typer.Argument(help="The sweep's name.", metavar="SWEEP")]
Db = Annotated[
    str | None,
    typer.Option(
        "--db", envvar="XSA_DB", help="The store: a path or a database URL.", show_default="results.db"
    ),
]
Storage = Annotated[
    Path | None,
    typer.Option("--storage", help="Where the arms' folders go.", show_default="runs/ beside the store"),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", help="Only rows where AXIS=VALUE, AXIS=A,B,C or AXIS=LOW..HIGH. May be repeated."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The directory to write to.", show_default="reports/SWEEP")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print rows as JSON.")]


@app.command()
def plan(sweep_file: SweepFile, db: Db = None, json: AsJson = False) -> None:
    """Say what a sweep would train, and its cost.

    Example: xsa plan sweeps/quickstart.yaml
    """
    from orchestrator.plan import Plan
    from orchestrator.show import print_json, print_plan
    from orchestrator.supervise import current_plan
    from results.location import store_exists
    from results.store import Store

    sweep = _load(sweep_file)
    speed = None
    if store_exists(db):
        from results.state import measured_speed

        with Store.open(db, mode="read") as store:
            made, speed = current_plan(store, sweep), measured_speed(store)
    else:
        made = Plan.make(sweep, {})
    if json:
        print_json({"sweep": sweep.name, "trials": len(made.trials), "arms": len(made.arms), **made.counts()})
    else:
        print_plan(made, speed)


@app.command()
def run(sweep_file: SweepFile, db: Db = None, storage: Storage = None) -> None:
    """Train whatever a sweep still needs.

    Running it again does only what is not done, and goes on where a run was stopped or killed.

    Example: xsa run sweeps/quickstart.yaml
    """
    from orchestrator.show import console, print_outcome
    from orchestrator.supervise import prepare_storage
    from orchestrator.supervise import run as run_sweep
    from results.store import Store

    sweep = _load(sweep_file)
    if storage:
        prepare_storage(storage)  # before a store is made for nothing
    with Store.open(db, mode="write") as store:
        outcome = run_sweep(store, sweep, (storage or store.default_storage()).absolute(), console)
        name = store.name
    print_outcome(outcome, db, name)
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)
    if any(outcome.plan.status(arm.id) != "running" for arm in outcome.plan.unfinished()):
        raise typer.Exit(1)  # something is left that no other run is training either


@app.command()
def status(
    sweep: Annotated[str | None, typer.Argument(help="A sweep's name; all of them if left out.")] = None,
    db: Db = None,
    json: AsJson = False,
) -> None:
    """Show how far sweeps are, what failed and why.

    Example: xsa status quickstart
    """
    import results
    from orchestrator.show import print_status

    with results.open(db) as database:
        print_status(database, sweep, as_json=json)


@app.command(name="results")
def show_results(
    sweep: SweepName,
    db: Db = None,
    where: Where = None,
    format: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
) -> None:
    """Print the paired losses of a sweep.

    A table over seeds, or with --format csv or json every pair.

    Example: xsa results quickstart --where xsa_lambda=1 --format csv
    """
    import results
    from orchestrator.show import print_results

    with results.open(db) as database:
        print_results(database, sweep, parse_where(where), format)


@app.command()
def figures(
    sweep: SweepName,
    names: Annotated[list[str] | None, typer.Argument(help="Figures, such as fig7; all if left out.")] = None,
    db: Db = None,
    where: Where = None,
    out: Out = None,
) -> None:
    """Draw figures: PNG, SVG, PDF and CSV.

    Example: xsa figures quickstart fig7 --out figures
    """
    import results
    from orchestrator.show import write_figures

    with results.open(db) as database:
        write_figures(database, sweep, names or [], parse_where(where), _directory(out, sweep))


@app.command()
def tables(
    sweep: SweepName,
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables, such as losses; all if left out.")
    ] = None,
    db: Db = None,
    where: Where = None,
    out: Out = None,
) -> None:
    """Write tables: text, Markdown, LaTeX and CSV.

    Example: xsa tables quickstart losses
    """
    import results
    from orchestrator.show import write_tables

    with results.open(db) as database:
        write_tables(database, sweep, names or [], parse_where(where), _directory(out, sweep))


@app.command()
def report(sweep: SweepName, db: Db = None, out: Out = None) -> None:
    """Write figures, tables and report.html.

    Example: xsa report quickstart
    """
    import results
    from orchestrator.show import console
    from results.report import write

    with results.open(db) as database:
        path = write(database, sweep, _directory(out, sweep))
    console.print(f"Report: {path}", soft_wrap=True, highlight=False)


@app.command()
def ingest(
    storage: Annotated[Path, typer.Argument(help="A storage directory, such as runs/.")], db: Db = None
) -> None:
    """Rebuild the store from the arms' folders.

    Repeating it changes nothing.

    Example: xsa ingest runs
    """
    from orchestrator.show import console
    from results.record import ingest as ingest_arm
    from results.store import Store
    from schemas.report import DamagedJournal

    folders = sorted(path.parent for path in (storage / "arms").glob("*/arm.json"))
    if not folders:
        raise UserError(
            f"{storage} holds no arms (no {storage}/arms/*/arm.json). Name the storage of a run, such as runs/."
        )
    taken, damaged = 0, []
    with Store.open(db, mode="write") as store:
        for folder in folders:
            try:
                taken += ingest_arm(store, folder)
            except DamagedJournal as error:
                damaged.append(str(error))
    console.print(f"{taken} of {len(folders)} arms brought up to date in {store.name}.")
    console.print("`xsa run SWEEP.yaml` brings their sweeps back, and trains nothing that is done.")
    if damaged:
        raise UserError("\n".join(damaged))


@app.command()
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


def _load(sweep_file: Path) -> "Sweep":
    """Read a sweep, and check that there is data for each of its trials."""
    from schemas.sweep import Sweep
    from trainer.data import check_data

    sweep = Sweep.load(sweep_file)
    try:
        check_data(sweep.trials())
    except UserError as error:
        raise UserError(f"{sweep_file}: {error}") from None
    return sweep


def _directory(out: Path | None, sweep: str) -> Path:
    """Return the directory to write to, made if need be."""
    directory = out or Path("reports") / sweep
    if reason := why_unwritable(directory):
        raise UserError(f"Nothing can be written to {directory}: {reason}. Choose another place with --out.")
    return directory


def main() -> None:
    """Run the command line: a user's mistake is one message and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"xsa: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:  # in which Typer has turned Ctrl-C
        if end.code == 130:
            print("xsa: interrupted; what was done is kept.", file=sys.stderr)
        raise
