"""A run from beginning to end: reconcile, claim, train, and settle, whatever happens in between."""

import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from rich.console import Console
from rich.markup import escape

from orchestrator.arguments import why_unwritable
from orchestrator.failures import RunEnded, explain
from orchestrator.owner import owner_name
from orchestrator.plan import Plan
from orchestrator.progress import Progress
from orchestrator.provenance import provenance
from orchestrator.room import Newcomers, Room
from orchestrator.session import Session
from orchestrator.stop import live_runs
from results import sessions
from results.record import ingest, save_sweep
from results.state import arm_states
from results.store import Store
from schemas.errors import UserError
from schemas.report import DamagedJournal, arm_folder
from schemas.sweep import Sweep

MEMORY_PAUSE_S = 5.0
"""How long a node is given to get its memory back before a trial that was killed for it begins again."""
TUNE_RESTARTS = 5
"""How often Tune may end with nothing under way before a run gives up."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    plan: Plan
    """The sweep against the store afterwards."""
    foreign: int
    """Arms left to another run that is training them."""
    signal: int | None
    """The signal that stopped it, if one did."""
    stopped: bool = False
    """Whether somebody asked it to stop, by a signal or by `xsa stop`."""


def current_plan(store: Store, sweep: Sweep) -> Plan:
    """Return the plan of a sweep against what the store says now."""
    empty = Plan.make(sweep, {})
    return Plan.make(sweep, arm_states(store, list(empty.arms)))


def run(
    store: Store, sweep: Sweep, storage: Path, console: Console, *, only: Collection[str] | None = None
) -> Outcome:
    """Train what the sweep still needs, or `only` these arms. Safe to repeat, interrupt and run twice at once."""
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
        except OSError as error:
            raise UserError(f"The storage {storage} cannot be read: {error}.") from error
    plan = current_plan(store, sweep)
    jobs = plan.jobs(only)
    if not jobs:
        return Outcome(plan, foreign=0, signal=None)

    from orchestrator.cluster import check_cluster, living_nodes, unfit_nodes, versions
    from orchestrator.launch import connected_ray, count_slots, slots_now

    versions()  # before Ray unpacks a job's code anew, which on a host of several nodes is where this runs from

    owner = owner_name()
    with (
        Progress(plan, console) as progress,
        announced(store, sweep.name, owner) as told,
        connected_ray(),
        ThreadPoolExecutor(1) as asking,
    ):
        newcomers = Newcomers(
            check_cluster(storage, sweep),
            living_nodes,
            lambda nodes: asking.submit(unfit_nodes, nodes, storage, sweep),
        )
        count_slots(sweep.runtime)  # a user's mistake where there are none; later on, a reason to wait
        session = Session(
            store,
            sweep,
            storage,
            jobs,
            provenance(),
            progress,
            owner=owner,
            room=Room(lambda avoided: slots_now(sweep.runtime, avoided), newcomers),
        )
        # After ray.init, which puts a SIGTERM handler of its own in place.
        note = "Stopping: trials checkpoint and end. Again to stop at once."
        with signals(session, console, note) as caught:
            _train(session)
            stopped = session.stopping
            told.outcome = signal.Signals(caught[0]).name if caught else session.outcome
    after = current_plan(store, sweep)
    return Outcome(after, after.counts()["running"], signal=caught[0] if caught else None, stopped=stopped)


@dataclass
class _Told:
    owner: str
    outcome: str = "an error of its own"


@contextmanager
def announced(store: Store, sweep: str, owner: str) -> Iterator[_Told]:
    """Keep in the store that this run is alive, and in the end why it is not."""
    live_runs(store, sweep)  # those that are not are closed
    sessions.begin(store, owner, sweep, hostname=socket.gethostname(), pid=os.getpid())
    told = _Told(owner)
    try:
        yield told
    finally:
        sessions.end(store, owner, told.outcome)


def _train(session: Session) -> None:
    """Give Tune the jobs until none is left. Tune itself ends when a worker runs out of host memory."""
    from orchestrator.launch import run_session

    idle = 0
    while not session.finished and idle < TUNE_RESTARTS:
        ended, pause = None, 0.0
        try:
            run_session(session)
        except Exception as error:
            failure = explain(error)
            session.progress.say(f"[red]Ray Tune ended: {failure.cause}: {escape(failure.message)}[/]")
            if failure.cause == "user_error":  # of the driver's own: trials' errors do not end Tune
                session.abandon(RunEnded(f"its run ended: {failure.message}"))
                if isinstance(error, OSError):
                    raise UserError(
                        f"The run ended, because the driver met this: {error}. What was trained is kept; "
                        "run the same command again."
                    ) from error
                raise
            ended, pause = error, MEMORY_PAUSE_S if failure.cause == "host_oom" else 0.0
        idle = 0 if session.running else idle + 1
        session.abandon(ended)
        time.sleep(pause)
    session.settle()


def prepare_storage(storage: Path) -> None:
    """Make the storage's folders. Raises `UserError` where nothing can be written."""
    for name in ("arms", "sessions"):
        if reason := why_unwritable(storage / name):
            raise UserError(
                f"The storage {storage} cannot be written: {reason}. Choose another with --storage."
            )


class Stoppable(Protocol):
    """A run that ends in good order when it is asked to."""

    @property
    def stop_file(self) -> Path:
        """What its workers look for."""

    def stop(self) -> None:
        """Ask it to end."""


@contextmanager
def signals(session: Stoppable, console: Console, note: str) -> Iterator[list[int]]:
    """Let SIGINT and SIGTERM end the run in good order, which `note` says; a second one ends it at once."""
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if caught:
            console.print("Stopping at once. The next run does again what was not kept.")
            console.show_cursor(True)
            sys.stdout.flush()
            session.stop_file.unlink(missing_ok=True)
            # Not sys.exit: Ray swallows exceptions in some of its frames. Its processes follow their owner.
            os._exit(128 + number)
        caught.append(number)
        session.stop()
        console.print(note)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        session.stop_file.unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)
