"""What happens when a store, nodes or a connection are away for a while, and afterwards."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.job_submission import JobStatus

from orchestrator import jobs, reach
from orchestrator.reach import Reach
from results.location import StoreError
from results.query import Database
from results.store import Store
from schemas.report import Report
from tests.conftest import formula_record, formula_rows
from tests.orchestrator.conftest import ActorDiedError, Bench, finish
from tests.results.test_record import write_journal


@contextmanager
def locked(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let somebody else hold the store's lock."""
    assert store.path
    monkeypatch.setattr(store, "wait_s", 0.1)
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_run_is_not_finished_before_what_ended_is_settled(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0]})
    assert bench.take("t")
    with locked(store, monkeypatch):
        bench.session.on_end("t", ActorDiedError("its node died"))
        assert not bench.session.finished
    bench.session.settle()
    assert not bench.session.finished
    job = bench.take("again")
    assert job
    finish(bench, "again", job)
    assert bench.session.finished


@pytest.mark.parametrize("heard", [True, False], ids=["another report comes", "it was the last"])
def test_rows_of_a_report_that_the_store_missed_are_read_from_the_journal(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    job = bench.take("t")
    assert job
    arm = job.arms[0]
    rows, half = formula_rows(arm), arm.steps // 2
    parts = [[row for row in rows if (row.step > half) == late] for late in (False, True)]
    with locked(bench.store, monkeypatch):
        bench.session.on_report("t", Report(formula_record(arm, 1, status="running", step=half), parts[0]))
        if not heard:
            bench.session.on_report("t", Report(formula_record(arm, 1), parts[1]))
    write_journal(bench.session.storage, formula_record(arm, 1), rows)
    if heard:
        bench.session.on_report("t", Report(formula_record(arm, 1), parts[1]))
    else:
        bench.session.on_end("t", None)
    assert bench.state(arm) == "done"
    with Database(bench.store.path) as db:
        assert set(db.curves("small", arm=arm.id[:12]).step) == {row.step for row in rows}


def test_a_store_that_is_slow_to_fail_is_left_alone_for_a_while(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    reached = Reach(store, said.append)
    for slow, left_alone in ((reach.SLOW_S, False), (-1.0, True)):
        monkeypatch.setattr(reach, "SLOW_S", slow)
        with locked(store, monkeypatch), reached.attempt(), reached.store.write():
            raise AssertionError("somebody else has the lock")
        asked = False
        with reached.attempt():
            asked = bool(reached.store)
        assert asked is not left_alone
        assert reached.lost is left_alone
    assert [text.count("locked by another program") for text in said] == [1, 1]
    with pytest.raises(StoreError, match="a moment ago"):
        _ = reached.store
    reached.at_once()
    with reached.attempt():
        assert reached.store is store
    assert not reached.lost


def test_a_job_whose_log_fell_silent_is_followed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def __init__(self) -> None:
            self.statuses = iter([JobStatus.RUNNING, *[JobStatus.SUCCEEDED] * 2])

        async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
            yield "one\n"
            await asyncio.Event().wait()

        def get_job_status(self, job_id: str) -> JobStatus:
            return next(self.statuses)

        def get_job_logs(self, job_id: str) -> str:
            return "one\ntwo\n"

        def get_job_info(self, job_id: str) -> SimpleNamespace:
            return SimpleNamespace(driver_exit_code=0)

    monkeypatch.setattr(jobs, "LOOK_S", 0.01)
    heard: list[str] = []
    assert jobs.follow(Silent(), "job-1", heard.append) == 0  # type: ignore[arg-type]
    assert heard == ["one\n", "two\n"]


def test_nodes_that_join_or_leave_a_running_cluster_are_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.room.RECOUNT_S", -1.0)
    bench.nodes["n2"] = 1
    bench.session.beat()
    assert bench.session.room.slots == 2  # the new one has yet to answer
    bench.session.beat()
    bench.session.beat()
    assert bench.session.room.slots == 3
    assert bench.text.count("room for 3 at once, before it was 2") == 1
    bench.nodes.clear()
    bench.session.beat()
    assert bench.session.room.slots == 0
