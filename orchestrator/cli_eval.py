"""`xsa eval`: downstream scores of finished arms, at any time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.arguments import Address, Db, use_cluster
from schemas.errors import UserError

if TYPE_CHECKING:
    from orchestrator.eval_jobs import Job
    from results.query import Database
    from results.store import Store
    from schemas.sweep import Evals, Sweep

eval_app = typer.Typer()

TaskData = Annotated[
    Path | None,
    typer.Option(
        "--task-data",
        envvar="XSA_TASK_DATA",
        help="Folder of the tasks' files TASK.SPLIT.jsonl.",
        show_default="the Hugging Face Hub",
    ),
]


@eval_app.command(name="eval")
def evaluate(
    targets: Annotated[
        list[str], typer.Argument(help="Sweeps by name; arms or trials by id.", metavar="SWEEP|ARM...")
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            help="lm-eval's tasks with commas between them, or paper8.",
            metavar="A,B",
            show_default="those of the sweep's `evals:`",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N items.")] = None,
    num_fewshot: Annotated[
        int | None, typer.Option("--num-fewshot", min=0, help="Solved examples in a prompt.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Contexts read at once.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Evaluate anew what is there, such as after a change of task data."),
    ] = False,
    task_data: TaskData = None,
    db: Db = None,
    address: Address = None,
) -> None:
    """Evaluate finished arms on downstream tasks, with lm-eval.

    Does only what is missing, or with --again everything, from the arms' final weights. `xsa run` does it for
    a sweep's own `evals:`.

    Example: xsa eval quickstart --tasks paper8 --limit 100
    """
    import results
    from results.record import now_us
    from results.store import Store

    use_cluster(address)
    asked = {"limit": limit, "num_fewshot": num_fewshot, "batch_size": batch_size}
    changes = {name: value for name, value in asked.items() if value is not None}
    with results.open(db) as database:
        found = _found(database, targets)
    with Store.open(db, mode="write") as store:
        since_us = now_us() if again else 0
        jobs = [job for sweep, only in found for job in _jobs(store, sweep, only, tasks, changes, since_us)]
        code = _evaluate(store, jobs, [sweep.name for sweep, _ in found], task_data)
    raise typer.Exit(code)


def check_task_data(sweep: "Sweep", task_data: Path | None) -> None:
    """Raise `UserError` for what is wrong with a sweep's `evals:`, before anything is trained."""
    if sweep.evals:
        from trainer.evals import check_evals

        check_evals(sweep.evals, task_data)


def evaluate_sweep(store: "Store", sweep: "Sweep", task_data: Path | None) -> int:
    """Evaluate what a sweep asks of its finished arms, and return the exit code that says how it went."""
    return _evaluate(store, _jobs(store, sweep, None, None, {}, 0), [sweep.name], task_data)


def _evaluate(store: "Store", jobs: "list[Job]", sweeps: list[str], task_data: Path | None) -> int:
    from orchestrator.eval_view import print_outcome
    from orchestrator.evaluate import evaluate
    from orchestrator.show import console

    data = task_data.absolute() if task_data else None  # workers may have another working directory
    outcome = evaluate(store, jobs, console, data=data)
    print_outcome(outcome, sweeps)
    return outcome.exit_code


def _found(database: "Database", targets: list[str]) -> list[tuple["Sweep", set[str] | None]]:
    """Return the sweeps that are meant, each with those of its arms that are, or None for all.

    An arm that several sweeps share is evaluated as one of the first. Raises `UserError`.
    """
    from orchestrator.find import find
    from orchestrator.retry import stored_sweep

    known = list(database.sweeps(columns=["sweep"])["sweep"])
    chosen: dict[str, set[str] | None] = {}
    for target in targets:
        if target in known:
            chosen[target] = None
            continue
        try:
            meant = find(target, database=database)
        except UserError as error:
            raise _neither(target, known, error) from None
        kind = ("t.fingerprint = :id", "a.fingerprint = :id")[meant.kind == "arm"]
        rows = database.sql(_MEMBERSHIPS.format(which=kind), id=meant.id)
        sweep = rows["sweep"].iloc[0]
        arms = set(rows.loc[rows["sweep"] == sweep, "arm"])
        own = chosen.setdefault(sweep, set())
        if own is not None:
            own |= arms
    return [(stored_sweep(database, name)[0], only) for name, only in chosen.items()]


_MEMBERSHIPS = """
SELECT DISTINCT w.name AS sweep, a.fingerprint AS arm FROM trial t JOIN sweep_trial m ON m.trial_id = t.id
JOIN sweep w ON w.id = m.sweep_id JOIN arm a ON a.id IN (t.sa_arm_id, t.xsa_arm_id)
WHERE {which} ORDER BY w.name, a.fingerprint"""


def _neither(target: str, known: list[str], error: UserError) -> UserError:
    """Return the error for what is neither a sweep nor an id: an id's own message where it looks like one."""
    from schemas.names import unknown_name

    if set(target.lower()) <= set("0123456789abcdef"):
        return error
    return unknown_name("sweep", target, known)


def _jobs(
    store: "Store",
    sweep: "Sweep",
    only: set[str] | None,
    tasks: str | None,
    changes: dict[str, int],
    since_us: int,
) -> "list[Job]":
    from orchestrator.eval_jobs import evals_of, jobs_of

    evals = _asked(tasks, changes) if tasks is not None else evals_of(sweep).model_copy(update=changes)
    return jobs_of(store, sweep, evals, only, since_us)


def _asked(tasks: str, changes: dict[str, int]) -> "Evals":
    """Return what the options ask. Raises `UserError`."""
    from pydantic import ValidationError

    from schemas.sweep import Evals

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    try:
        return Evals(tasks=names, **changes)
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(f"--tasks {tasks}: {problem.get('ctx', {}).get('error', problem['msg'])}.") from None
