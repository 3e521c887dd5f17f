"""The command line, `xsa`. Heavy imports live inside the commands, so that `--help` answers at once."""

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from orchestrator.arguments import AsJson, Db, SweepName, Where, parse_where
from orchestrator.cli_db import db_app
from orchestrator.cli_look import look_app
from schemas.errors import UserError

if TYPE_CHECKING:
    from results.store import Store
    from schemas.sweep import Sweep

ORDER = (
    *("plan", "run", "retry", "stop", "status", "show", "results", "figures", "tables", "report"),
    *("ingest", "db", "axes"),
)
"""The commands as `xsa --help` lists them: as one needs them."""


class _InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    cls=_InOrder,
    name="xsa",
    help="Sweeps of paired attention experiments (SA and XSA), their results in SQL, and the figures from them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.registered_commands += look_app.registered_commands
app.add_typer(db_app, name="db")

SweepFile = Annotated[Path, typer.Argument(help="The sweep's YAML file.", metavar="SWEEP.yaml")]
Storage = Annotated[
    Path | None,
    typer.Option("--storage", help="Where the arms' folders go.", show_default="runs/ beside the store"),
]


@app.command()
def plan(
    sweep_file: SweepFile,
    ids: Annotated[bool, typer.Option("--ids", help="List its arms: id, name and status.")] = False,
    explain: Annotated[
        tuple[str, str] | None,
        typer.Option("--explain", help="Say in which fields two arms or trials differ.", metavar="ID ID"),
    ] = None,
    db: Db = None,
    storage: Storage = None,
    json: AsJson = False,
) -> None:
    """Say what a sweep would train, and its cost.

    Example: xsa plan sweeps/quickstart.yaml
    """
    import results
    from orchestrator.explain import print_explanation, print_ids
    from orchestrator.plan import Plan
    from orchestrator.preview import preview, print_preview
    from orchestrator.show import print_json
    from orchestrator.supervise import current_plan
    from results.location import store_exists

    if ids and explain:
        raise UserError("--ids and --explain answer two questions; leave one of them out.")
    sweep = _load(sweep_file)
    with ExitStack() as stack:
        database = stack.enter_context(results.open(db)) if store_exists(db) else None
        made = current_plan(database.store, sweep) if database else Plan.make(sweep, {})
        if explain:
            print_explanation(explain, made, database, as_json=json)
        elif ids:
            print_ids(made, as_json=json)
        else:
            store = database.store if database else None
            runs = store.default_storage() if store else Path("runs")
            told = preview(made, store, (storage or runs).absolute())
            print_json(told) if json else print_preview(told, sweep.runtime)


@app.command()
def run(sweep_file: SweepFile, db: Db = None, storage: Storage = None) -> None:
    """Train whatever a sweep still needs.

    Running it again does only what is not done, and goes on where a run was stopped or killed.

    Example: xsa run sweeps/quickstart.yaml
    """
    from orchestrator.supervise import prepare_storage
    from results.store import Store

    sweep = _load(sweep_file)
    if storage:
        prepare_storage(storage)  # before a store is made for nothing
    with Store.open(db, mode="write") as store:
        _train(store, db, sweep, (storage or store.default_storage()).absolute(), None)


@app.command()
def retry(
    sweep: SweepName,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", help="Arms that ended so: failed, interrupted.", show_default="failed"),
    ] = None,
    cause: Annotated[
        list[str] | None, typer.Option("--cause", help="Only where the last attempt ended of this.")
    ] = None,
    where: Where = None,
    resources: Annotated[
        list[str] | None,
        typer.Option("--resources", help="A runtime setting to change: KEY=VALUE. May be repeated."),
    ] = None,
    db: Db = None,
    storage: Storage = None,
) -> None:
    """Try again just those arms of a sweep that failed.

    What they tried before is kept. Everything else is left as it is.

    Example: xsa retry quickstart --cause cuda_oom --where seq_len=16384 --resources micro_batch=1
    """
    import results
    from orchestrator.retry import changed_runtime, chosen_arms, stored_sweep
    from orchestrator.show import console
    from results.store import Store

    statuses, causes = status or ["failed"], cause or []
    with results.open(db) as database:
        wanted, kept_in = stored_sweep(database, sweep)
        only = chosen_arms(database, wanted, statuses=statuses, causes=causes, where=parse_where(where))
    runtime = changed_runtime(wanted.runtime, resources or [])
    if not only:
        console.print(f"{sweep} has no such arms; `xsa status {sweep}` shows what it has.")
        return
    console.print(f"{sweep}: {len(only)} arms to try again.")
    with Store.open(db, mode="write") as store:
        _train(store, db, wanted.model_copy(update={"runtime": runtime}), storage or Path(kept_in), only)


def _train(store: "Store", db: str | None, sweep: "Sweep", storage: Path, only: set[str] | None) -> None:
    """Run a sweep, or only these arms of it, and end with the exit code that says how it went."""
    from orchestrator.show import console, print_outcome
    from orchestrator.supervise import run as run_sweep

    _print_notes(store)
    outcome = run_sweep(store, sweep, storage.absolute(), console, only=only)
    print_outcome(outcome, db, store.name)
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)
    left = [arm for arm in outcome.plan.unfinished() if only is None or arm.id in only]
    if any(outcome.plan.status(arm.id) != "running" for arm in left):
        raise typer.Exit(1)  # something is left that no other run is training either


@app.command()
def stop(
    sweep: SweepName,
    wait: Annotated[bool, typer.Option(help="Return when they have stopped.")] = True,
    db: Db = None,
) -> None:
    """Ask the runs of a sweep to checkpoint and end, from another terminal.

    Example: xsa stop quickstart
    """
    import results
    from orchestrator.show import console
    from orchestrator.stop import stop as stop_runs
    from results.store import Store

    with results.open(db):
        pass  # a store that is not there is not to be made by a wish to stop
    with Store.open(db, mode="write") as store:
        _print_notes(store)
        stop_runs(store, sweep, lambda line: console.print(line, markup=False, soft_wrap=True), wait=wait)


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
        _print_notes(store)
        for folder in folders:
            try:
                taken += ingest_arm(store, folder)
            except DamagedJournal as error:
                damaged.append(str(error))
    console.print(f"{taken} of {len(folders)} arms brought up to date in {store.name}.")
    console.print("`xsa run SWEEP.yaml` brings their sweeps back, and trains nothing that is done.")
    if damaged:
        raise UserError("\n".join(damaged))


def _print_notes(store: "Store") -> None:
    """Say what opening the store has done to it."""
    from orchestrator.show import console

    for note in store.notes:
        console.print(note, markup=False, soft_wrap=True)


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
        if end.code == signal.SIGTERM:  # as Ray's own handler ends a run that is still starting it
            print("xsa: terminated; what was done is kept.", file=sys.stderr)
            sys.exit(128 + signal.SIGTERM)
        raise
