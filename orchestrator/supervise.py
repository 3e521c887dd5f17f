"""A run from beginning to end: reconcile, claim, train, and settle, whatever happens in between."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from orchestrator.arguments import why_unwritable
from orchestrator.plan import Plan
from orchestrator.progress import Progress
from orchestrator.provenance import provenance
from orchestrator.session import Session, explain
from results.record import ingest, save_sweep
from results.state import arm_states
from results.store import Store
from schemas.errors import UserError
from schemas.report import DamagedJournal, arm_folder
from schemas.sweep import Runtime, Sweep

TUNE_RESTARTS = 5
"""How often a run goes on after Tune itself has ended: a host out of memory does end it."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    plan: Plan
    """The sweep against the store afterwards."""
    foreign: int
    """Arms left to another run that is training them."""
    signal: int | None
    """The signal that stopped it, if one did."""


def current_plan(store: Store, sweep: Sweep) -> Plan:
    """Return the plan of a sweep against what the store says now."""
    empty = Plan.make(sweep, {})
    return Plan.make(sweep, arm_states(store, list(empty.arms)))


def run(store: Store, sweep: Sweep, storage: Path, console: Console) -> Outcome:
    """Train what the sweep still needs. Safe to repeat, to interrupt and to run twice at once."""
    prepare_storage(storage)
    plan = Plan.make(sweep, {})
    save_sweep(store, sweep, plan.trials, storage)
    plan = current_plan(store, sweep)
    # What a run that was killed wrote to its journals and could not report.
    for arm in plan.unfinished():
        try:
            ingest(store, arm_folder(storage, arm.id))
        except DamagedJournal as error:
            console.print(f"[yellow]{escape(str(error))}[/]", soft_wrap=True)
    plan = current_plan(store, sweep)
    jobs = plan.jobs()
    if not jobs:
        return Outcome(plan, foreign=0, signal=None)

    from orchestrator.launch import count_slots, local_ray

    with Progress(plan, console) as progress:
        session = Session(store, storage, jobs, provenance(), progress)
        try:
            # In this order, because ray.init puts a SIGTERM handler of its own in place.
            with local_ray(), _signals(session, console) as caught:
                slots = count_slots(sweep.runtime)
                for _ in range(TUNE_RESTARTS + 1):
                    session.abandon(_session_error(session, sweep.runtime, slots=slots, progress=progress))
                    if session.finished:
                        break
                session.settle()
        finally:
            session.stop_file.unlink(missing_ok=True)
    after = current_plan(store, sweep)
    return Outcome(after, foreign=after.counts()["running"], signal=caught[0] if caught else None)


def _session_error(session: Session, runtime: Runtime, *, slots: int, progress: Progress) -> Exception | None:
    """Give Tune the jobs, and return what ended Tune itself where it did not end by itself."""
    from orchestrator.launch import run_session

    try:
        run_session(session, runtime, slots=slots)
    except Exception as ended:
        cause, message, _ = explain(ended)
        progress.say(f"[red]Ray Tune ended: {cause}: {escape(message)}[/]")
        if cause == "user_error":
            session.abandon(ended)
            raise
        return ended
    return None


def prepare_storage(storage: Path) -> None:
    """Make the storage's folders. Raises `UserError` where nothing can be written."""
    for name in ("arms", "sessions"):
        if reason := why_unwritable(storage / name):
            raise UserError(
                f"The storage {storage} cannot be written: {reason}. Choose another with --storage."
            )


@contextmanager
def _signals(session: Session, console: Console) -> Iterator[list[int]]:
    """Let SIGINT and SIGTERM end the run in good order; a second one ends it at once."""
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if caught:
            console.print("Stopping at once. What was not checkpointed is trained again by the next run.")
            sys.exit(128 + number)
        caught.append(number)
        session.stop()
        console.print("Stopping: trials checkpoint and end. Again to stop at once.")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
