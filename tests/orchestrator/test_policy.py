"""What a session does about failures: it tries again, avoids a node, or stops with its reason."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.owner import Place
from orchestrator.session import Session
from orchestrator.supervise import _train
from orchestrator.worker import TrialTimeout
from results import sessions
from results.store import Store
from schemas.errors import UserError
from schemas.report import Report
from tests.conftest import formula_record
from tests.orchestrator.conftest import Bench, finish, out_of_memory
from tests.results.test_record import write_journal


def test_out_of_memory_is_the_fault_of_those_who_were_killed(bench: Bench) -> None:
    """Ray Tune 2.60 ends as a whole when Ray's memory monitor kills one of its workers."""
    bench.nodes["n1"] = 3
    jobs = [job for name in "abc" if (job := bench.take(name))]
    assert len(jobs) == 3
    for pid, name in enumerate("ab"):
        bench.session.on_start(name, Place("n1", "host", pid))
    bench.session.abandon(out_of_memory(1))
    states = [bench.store_attempts(job) for job in jobs]
    assert states == ["interrupted", "host_oom", "interrupted"]
    assert [job.trial_id for job in bench.session.queue] == [job.trial_id for job in jobs]
    assert [job.alone for job in bench.session.queue] == [False, True, False]
    assert (
        "2.81GB of 23.54GB in use, this trial 0.82GB of it (it is tried again, alone on a node)" in bench.text
    )
    for name in "abc":
        bench.take(name, "n1")
    bench.session.abandon(out_of_memory(17))
    assert [job.trial_id for job in bench.session.queue] == [jobs[0].trial_id, jobs[2].trial_id]


def test_who_has_not_said_where_it_is_may_be_to_blame_for_the_memory(bench: Bench) -> None:
    bench.nodes["n1"] = 3
    jobs = [job for name in "abc" if (job := bench.take(name))]
    bench.session.on_start("a", Place("n1", "host", 1))
    bench.session.abandon(out_of_memory(5))
    assert [bench.store_attempts(job) for job in jobs] == ["interrupted", "host_oom", "host_oom"]


def run_out(bench: Bench, tune_id: str, **environment: object) -> None:
    """Let a trial report how it is cut, and then run out of its GPU's memory."""
    job = bench.take(tune_id, "n1")
    assert job
    if environment:
        number = bench.session.running[tune_id].attempts[job.arms[0].id]
        told = formula_record(job.arms[0], number, status="running", step=0, environment=environment)
        bench.session.on_report(tune_id, Report(told, []))
    bench.session.on_end(tune_id, type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."))


def test_a_gpu_out_of_memory_is_tried_again_with_less_until_there_is_no_less(
    store: Store, tmp_path: Path
) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0]})
    bench.nodes = {"n1": 1, "n2": 1}
    for size in (64, 32, 16, 8, 4, 2):
        run_out(bench, str(size), micro_batch=size, activation_checkpointing=False)
        assert f"it is tried again, {size // 2} sequences at a time" in bench.text
    run_out(bench, "one", micro_batch=1, activation_checkpointing=False)
    assert "it is tried again, with activation checkpointing" in bench.text
    (job,) = bench.session.queue
    assert job.lighter == {"micro_batch": 1, "activation_checkpointing": True}
    assert (bench.session.halted, bench.session.room.avoided) == (None, set())  # nobody has failed yet
    run_out(bench, "last", micro_batch=1, activation_checkpointing=True)
    assert "not tried again in this run" in bench.text
    assert not bench.session.queue


def test_activation_checkpointing_is_left_off_where_the_user_says_so(store: Store, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0]})
    runtime = bench.session.sweep.runtime.model_copy(update={"activation_checkpointing": False})
    bench.session.sweep = bench.session.sweep.model_copy(update={"runtime": runtime})
    run_out(bench, "a", micro_batch=1, activation_checkpointing=False)
    assert not bench.session.queue


def test_a_trial_that_ran_out_before_it_told_how_it_is_cut_is_not_tried_again_as_it_was(
    store: Store, tmp_path: Path
) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0]})
    run_out(bench, "a")
    assert not bench.session.queue


def test_the_same_failure_again_and_again_stops_the_run_with_its_reason(store: Store, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0.1 * i for i in range(1, 9)]})
    for i in range(4):
        assert bench.take(f"t{i}")
        bench.session.on_end(f"t{i}", RuntimeError(f"shape {i} does not match [8, {i}]"))
    assert bench.session.halted is None
    assert bench.take("t4")
    bench.session.on_end("t4", RuntimeError("shape 4 does not match [8, 4]"))
    assert bench.session.halted
    assert "5 failures in a row were alike (user_error: shape 4 does not match [8, 4])" in bench.text
    assert bench.take("t5") is None
    assert bench.session.finished
    assert bench.events() == [("halted", "small")]


def test_failures_of_different_kinds_or_between_successes_stop_nothing(store: Store, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [0.1 * i for i in range(1, 9)]})
    for i in range(8):
        job = bench.take(f"t{i}")
        assert job
        if i == 4:
            finish(bench, "t4", job)
        else:
            bench.session.on_end(f"t{i}", RuntimeError("always the same"))
    assert bench.session.halted is None


def test_too_little_space_starts_nothing_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.take("t")
    free = bench.session.sweep.runtime.min_free_gib * 2**30 - 1
    monkeypatch.setattr("orchestrator.session.shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    assert bench.take("u") is None
    assert not bench.session.finished  # what runs goes on
    bench.session.on_end("t", None)
    assert bench.session.finished
    assert "1.00 GiB free, and runtime.min_free_gib is 1" in bench.text


def test_a_storage_that_goes_away_starts_nothing_more_and_blames_no_arm(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.take("t")
    assert job

    def gone(path: Path) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("orchestrator.session.shutil.disk_usage", gone)
    assert bench.take("u") is None
    assert bench.take("v") is None
    assert [bench.state(arm) for arm in job.arms] == ["running"] * len(job.arms)
    assert (
        bench.text.count(
            "Nothing more is started: the storage cannot be reached ([Errno 116] Stale file handle)"
        )
        == 1
    )


def test_a_journal_that_cannot_be_read_is_nobody_s_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.take("t")
    assert job

    def unreadable(store: Store, folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("orchestrator.session.ingest", unreadable)
    bench.session.on_end("t", None)
    assert bench.state(job.arms[0]) == "interrupted"
    assert "its journal could not be read: [Errno 5] Input/output error" in bench.text


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), AssertionError("ours")])
def test_an_error_of_the_driver_is_nobody_else_s_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    jobs = [bench.take("t", "n1"), bench.take("u")]

    def broken(session: Session) -> None:
        raise error

    monkeypatch.setattr("orchestrator.launch.run_session", broken)
    expected = UserError if isinstance(error, OSError) else AssertionError
    with pytest.raises(expected, match=re.escape(str(error))):
        _train(bench.session)
    assert [bench.state(arm) for job in jobs if job for arm in job.arms] == ["interrupted"] * 2
    assert [bench.store_attempts(job) for job in jobs if job] == ["interrupted"] * 2
    assert "tried again" not in bench.text


def test_a_run_hears_that_it_should_stop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.session.LOOK_S", -1.0)
    sessions.begin(bench.store, bench.session.owner, "small", hostname="here", pid=1)
    bench.session.beat()
    assert not bench.session.stopping
    (told,) = sessions.live(bench.store, "small")
    sessions.ask_to_stop(bench.store, [told.owner])
    bench.session.beat()
    assert bench.session.stopping
    assert "xsa stop" in bench.text
    sessions.end(bench.store, bench.session.owner, "it was asked to stop")
    assert not sessions.live(bench.store, "small")


def test_an_arm_out_of_time_is_a_timeout_whatever_its_folder_says(store: Store, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [1]})
    job = bench.take("t")
    assert job
    first, second = job.arms
    write_journal(bench.session.storage, formula_record(first, 1, status="interrupted", step=7), [])
    bench.session.on_end("t", TrialTimeout("it took more than 2 h"))
    assert [bench.state(first), bench.state(second)] == ["failed", "interrupted"]
    assert bench.store_attempts(job) == "timeout"
