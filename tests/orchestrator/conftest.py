"""The command line as a user types it, and a session over a real store, in which tests play Ray Tune's part."""

import io
import sys
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.cli import main
from orchestrator.owner import Place, owner_name
from orchestrator.plan import Job, Plan
from orchestrator.progress import Progress
from orchestrator.room import Newcomers, Room
from orchestrator.session import Session
from orchestrator.show import console
from results.query import Database
from results.record import save_sweep
from results.state import arm_states
from results.store import Store
from schemas.report import Report
from schemas.trial import Arm
from tests.conftest import PROVENANCE, formula_record, formula_rows, make_sweep

Xsa = Callable[..., tuple[int, str, str]]


@pytest.fixture
def xsa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Xsa:
    """Runs a command line in a temporary directory; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "width", 200)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["xsa", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


class Bench:
    """A session over a real store, with what it printed."""

    def __init__(self, store: Store, storage: Path, **changes: Any) -> None:
        sweep = make_sweep(**{"seeds": [0]} | changes)
        self.plan = Plan.make(sweep, {})
        save_sweep(store, sweep, self.plan.trials, storage)
        (storage / "sessions").mkdir(parents=True)
        self.store = store
        self.printed = io.StringIO()
        progress = Progress(self.plan, Console(file=self.printed, width=200))
        self.nodes = {"n1": 2}
        """Slots of each node."""
        self.unfit: dict[str, str] = {}
        """Nodes that cannot be used, and why."""
        self.unasked: Exception | None = None
        """Why no node can be asked."""
        self.session = Session(
            store,
            sweep,
            storage,
            self.plan.jobs(),
            PROVENANCE,
            progress,
            owner=owner_name(),
            room=Room(self.slots_without, Newcomers(self.nodes, lambda: self.nodes, self.ask)),
        )

    def slots_without(self, avoided: set[str]) -> int:
        return sum(slots for node, slots in self.nodes.items() if node not in avoided)

    def ask(self, nodes: Collection[str]) -> "Future[dict[str, str]]":
        answer: Future[dict[str, str]] = Future()
        if self.unasked:
            answer.set_exception(self.unasked)
            return answer
        answer.set_result({node: why for node, why in self.unfit.items() if node in nodes})
        return answer

    def take(self, tune_id: str, node: str | None = None) -> Job | None:
        """Claim the next job; on a node, as if its worker had said where it is."""
        running = self.session.next_job(tune_id)
        if running and node:
            self.session.on_start(tune_id, Place(node, f"host-{node}", 17))
        return running.job if running else None

    def state(self, arm: Arm) -> str:
        return arm_states(self.store, [arm.id])[arm.id].status

    def store_attempts(self, job: Job) -> str:
        """The cause of the newest attempt at a job's first arm."""
        with Database(self.store.path) as db:
            attempts = db.attempts()
        return str(attempts[attempts.arm == job.arms[0].id[:12]].cause.iloc[-1])

    def events(self) -> list[tuple[str, str]]:
        with Database(self.store.path) as db:
            rows = db.sql(
                "SELECT e.kind, s.name FROM event e JOIN sweep s ON s.id = e.sweep_id ORDER BY e.id"
            )
        return list(rows.itertuples(index=False, name=None))

    @property
    def text(self) -> str:
        return self.printed.getvalue()


@pytest.fixture
def bench(store: Store, tmp_path: Path) -> Bench:
    return Bench(store, tmp_path / "runs")


def finish(bench: Bench, tune_id: str, job: Job) -> None:
    for arm in job.arms:
        number = bench.session.running[tune_id].attempts[arm.id]
        bench.session.on_report(tune_id, Report(formula_record(arm, number), formula_rows(arm)))
    bench.session.on_end(tune_id, None)


class ActorDiedError(Exception):
    """Named as Ray names it."""


def out_of_memory(*pids: int) -> Exception:
    """What Ray raises when its memory monitor has killed these workers."""
    workers = ", ".join(f"(Actor(a1): job ID=01, pid={pid}, actual memory used=0.82GB)" for pid in pids)
    text = (
        f"Memory on the node was 2.81GB used / 23.54GB limit\nSelected to kill: [{workers}\n]\nSee the docs."
    )
    return type("OutOfMemoryError", (Exception,), {})(text)
