"""Which nodes a session uses: those that fail are avoided, and those that join are asked first."""

from collections import Counter
from pathlib import Path

import pytest

from orchestrator.plan import Job
from results.store import Store
from tests.orchestrator.conftest import ActorDiedError, Bench, finish
from trainer.journal import FolderBusy


def test_a_node_that_only_fails_is_avoided_and_what_failed_there_is_due_again(
    store: Store, tmp_path: Path
) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0.1 * i for i in range(1, 9)]}, seeds=[0, 1])
    bench.nodes = {"good": 1, "bad": 1}
    failed: list[Job] = []

    def fail(name: str) -> None:
        job = bench.take(name, "bad")
        assert job
        failed.append(job)
        bench.session.on_end(name, RuntimeError(f"CUDA error at 0xabc{name}"))

    for name in "01":
        fail(name)
        job = bench.take(f"g{name}", "good")
        assert job
        finish(bench, f"g{name}", job)
    assert not bench.session.room.avoided
    fail("2")
    assert bench.session.room.avoided == {"bad"}
    assert bench.session.room.slots == 1
    due = Counter(arm.id for job in bench.session.queue for arm in job.arms)
    assert {due[arm.id] for job in failed for arm in job.arms} == {1}
    assert max(len(job.arms) for job in failed) == 2
    assert bench.session.halted is None
    assert "Node host-bad (bad) is avoided from now on: 3 trials in a row failed there." in bench.text
    assert bench.events() == [("node_avoided", "small")]


def test_a_trial_that_failed_twice_on_an_avoided_node_is_due_once(store: Store, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0.1 * i for i in range(1, 9)]})
    bench.nodes = {"good": 1, "bad": 1}
    twice = bench.session.queue[0]
    for name, error in {
        "a": ActorDiedError("gone"),
        "b": RuntimeError("broken"),
        "c": RuntimeError("too"),
    }.items():
        bench.take(name, "bad")
        bench.session.on_end(name, error)
        bench.session.queue.rotate(1)  # the one that failed is the next
    assert bench.session.room.avoided == {"bad"}
    due = Counter(arm.id for job in bench.session.queue for arm in job.arms)
    assert {due[arm.id] for arm in twice.arms} == {1}


def test_what_failed_on_an_avoided_node_and_runs_elsewhere_is_not_begun_twice(
    store: Store, tmp_path: Path
) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0.1 * i for i in range(1, 9)]})
    bench.nodes = {"good": 1, "bad": 1}
    first = bench.take("a", "bad")
    assert first
    bench.session.on_end("a", ActorDiedError("gone"))
    bench.session.queue.rotate(1)
    again = bench.take("b", "good")
    assert again
    assert again.trial_id == first.trial_id
    for name in "cd":
        bench.take(name, "bad")
        bench.session.on_end(name, RuntimeError(f"kind {name}"))
    assert bench.session.room.avoided == {"bad"}
    queued = {arm.id for job in bench.session.queue for arm in job.arms}
    assert not queued & {arm.id for arm in again.arms}
    finish(bench, "b", again)
    assert [bench.state(arm) for arm in again.arms] == ["done"] * len(again.arms)


def test_a_folder_that_a_lost_worker_still_holds_says_nothing_against_the_node(
    store: Store, tmp_path: Path
) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0.1 * i for i in range(1, 9)]})
    bench.nodes = {"n1": 1, "n2": 1}
    for i in range(4):
        job = bench.take(f"t{i}", "n1")
        assert job
        bench.session.on_end(f"t{i}", FolderBusy("another process trains this arm"))
        assert bench.store_attempts(job) == "node_lost"
    assert not bench.session.room.avoided


def test_the_last_node_is_never_avoided(bench: Bench) -> None:
    for i in range(3):
        assert bench.take(f"t{i}", "n1")
        bench.session.on_end(f"t{i}", RuntimeError(f"kind {'abc'[i]}"))
    assert not bench.session.room.avoided


def test_a_node_that_joins_and_is_not_fit_is_not_used_until_it_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RECOUNT_S", "ASK_AGAIN_S"):
        monkeypatch.setattr(f"orchestrator.room.{name}", -1.0)
    bench.nodes |= {"n2": 1, "n3": 1}
    bench.unfit = {"n3": "it does not see the storage"}
    bench.session.beat()
    assert bench.session.room.avoided == {"n2", "n3"}
    bench.session.beat()
    bench.session.beat()
    assert bench.session.room.avoided == {"n3"}
    assert bench.session.room.slots == 3
    assert bench.text.count("Node n3 joined the cluster and is not used: it does not see the storage") == 1
    assert bench.events() == [("node_avoided", "small")]
    for bench.unfit in ({"n3": "its clock is a minute off"}, {}):
        bench.session.beat()
        bench.session.beat()
        bench.session.beat()
    assert "is not used: its clock is a minute off" in bench.text
    assert not bench.session.room.avoided
    assert bench.session.room.slots == 4


def test_a_node_that_cannot_be_asked_is_not_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.room.RECOUNT_S", -1.0)
    bench.nodes["n2"] = 1
    bench.unasked = RuntimeError("Ray is busy")
    bench.session.beat()
    bench.session.beat()
    assert bench.session.room.avoided == {"n2"}
    assert (
        "Node n2 joined the cluster and is not used: it could not be asked (RuntimeError: Ray is busy)"
        in bench.text
    )
