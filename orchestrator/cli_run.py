"""`xsa plan`, `run`, `retry` and `stop`: what a sweep needs, and training it."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.arguments import (
    Address,
    AsJson,
    Data,
    Db,
    Storage,
    SweepFile,
    SweepName,
    Where,
    parse_where,
    use_cluster,
)
from orchestrator.cli_eval import TaskData, check_task_data, evaluate_sweep
from schemas.errors import UserError

if TYPE_CHECKING:
    from results.store import Store
    from schemas.sweep import Sweep

run_app = typer.Typer()


@run_app.command()
def plan(
    sweep_file: SweepFile,
    ids: Annotated[bool, typer.Option("--ids", help="List its arms: id, name and status.")] = False,
    explain: Annotated[
        tuple[str, str] | None,
        typer.Option("--explain", help="Say in which fields two arms or trials differ.", metavar="ID ID"),
    ] = None,
    db: Db = None,
    storage: Storage = None,
    data: Data = None,
    json: AsJson = False,
) -> None:
    """Say what a sweep would train, and its cost.

    Example: xsa plan sweeps/quickstart.yaml
    """
    import results
    from orchestrator.explain import print_explanation, print_ids
    from orchestrator.plan import Plan
    from orchestrator.preview import preview, print_preview
    from orchestrator.show import console, print_json
    from orchestrator.supervise import current_plan
    from results.location import store_exists

    if ids and explain:
        raise UserError("--ids and --explain answer two questions; leave one of them out.")
    sweep, unprepared = _load(sweep_file, data, db, storage)
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
            told = preview(made, store, (storage or runs).absolute()) | {"unprepared": unprepared}
            print_json(told) if json else print_preview(told, sweep.runtime)
    for line in unprepared if not json else []:
        console.print(line, markup=False, soft_wrap=True)


@run_app.command()
def run(
    sweep_file: SweepFile,
    db: Db = None,
    storage: Storage = None,
    data: Data = None,
    task_data: TaskData = None,
    address: Address = None,
) -> None:
    """Train whatever a sweep still needs, then evaluate.

    Running it again does only what is not done, and goes on where a run was stopped or killed.

    Example: xsa run sweeps/quickstart.yaml
    """
    from orchestrator.supervise import prepare_storage
    from results.store import Store

    sweep, _ = _load(sweep_file, data, db, storage)
    check_task_data(sweep, task_data)
    use_cluster(address)
    if storage:
        prepare_storage(storage)  # before a store is made for nothing
    sweep = _with_data(sweep, data, db, storage)
    with Store.open(db, mode="write") as store:
        code, stopped = _train(store, db, sweep, (storage or store.default_storage()).absolute(), None)
        if sweep.evals and not stopped:
            code = evaluate_sweep(store, sweep, task_data) or code
    raise typer.Exit(code)


@run_app.command()
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
    data: Data = None,
    address: Address = None,
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
        wanted = _with_data(wanted, data, db, storage or Path(kept_in))
        only = chosen_arms(database, wanted, statuses=statuses, causes=causes, where=parse_where(where))
    runtime = changed_runtime(wanted.runtime, resources or [])
    if not only:
        console.print(f"{sweep} has no such arms; `xsa status {sweep}` shows what it has.")
        return
    use_cluster(address)
    console.print(f"{sweep}: {len(only)} arms to try again.")
    with Store.open(db, mode="write") as store:
        code, _ = _train(
            store, db, wanted.model_copy(update={"runtime": runtime}), storage or Path(kept_in), only
        )
    raise typer.Exit(code)


def _train(
    store: "Store", db: str | None, sweep: "Sweep", storage: Path, only: set[str] | None
) -> tuple[int, bool]:
    """Run a sweep, or only these arms of it; return the exit code that says how it went, and if it was stopped."""
    from orchestrator.show import console, print_outcome
    from orchestrator.supervise import run as run_sweep

    print_notes(store)
    outcome = run_sweep(store, sweep, storage.absolute(), console, only=only)
    print_outcome(outcome, db, store.name)
    if outcome.signal is not None:
        return 128 + outcome.signal, True
    left = [arm for arm in outcome.plan.unfinished() if only is None or arm.id in only]
    # 1 where something is left that no other run is training either
    return int(any(outcome.plan.status(arm.id) != "running" for arm in left)), outcome.stopped


@run_app.command()
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
        print_notes(store)
        stop_runs(store, sweep, lambda line: console.print(line, markup=False, soft_wrap=True), wait=wait)


def _load(
    sweep_file: Path, data: str | None, db: str | None, storage: Path | None
) -> "tuple[Sweep, list[str]]":
    """Read a sweep on its data, and check that they are enough; return it, and a line for what is not prepared."""
    from orchestrator.data import data_folder, on_data
    from schemas.sweep import Sweep

    sweep = Sweep.load(sweep_file)
    folder = data_folder(data or sweep.runtime.data, db, storage)
    try:
        sweep, missing = on_data(sweep, folder)
    except UserError as error:
        raise UserError(f"{sweep_file}: {error}") from None
    return sweep, [f"{one.advice(folder)}." for one in missing]


def _with_data(sweep: "Sweep", data: str | None, db: str | None, storage: Path | None) -> "Sweep":
    """Return the sweep on its data, which are prepared first where they are files that are not yet."""
    from orchestrator.data import data_folder, with_data
    from orchestrator.show import console

    return with_data(sweep, data_folder(data or sweep.runtime.data, db, storage), console)


def print_notes(store: "Store") -> None:
    """Say what opening the store has done to it."""
    from orchestrator.show import console

    for note in store.notes:
        console.print(note, markup=False, soft_wrap=True)
