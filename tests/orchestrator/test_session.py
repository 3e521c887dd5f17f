import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.failures import RETRIES
from orchestrator.owner import owner_name
from orchestrator.progress import duration
from results.claims import claim
from results.store import Store
from schemas.report import Report, arm_folder
from tests.conftest import PROVENANCE, formula_record, formula_rows
from tests.orchestrator.conftest import ActorDiedError, Bench, finish
from tests.results.test_record import write_journal


def test_jobs_are_claimed_one_by_one_and_end_done(bench: Bench) -> None:
    done = 0
    while job := bench.take(f"t{done}"):
        assert [bench.state(arm) for arm in job.arms] == ["running"]
        finish(bench, f"t{done}", job)
        assert [bench.state(arm) for arm in job.arms] == ["done"]
        done += 1
    assert done == 3
    assert bench.text.count("✓") == 3
    assert not bench.session.running


def test_what_another_run_trains_is_left_to_it(bench: Bench, store: Store) -> None:
    arms = [arm for job in bench.session.queue for arm in job.arms]
    claim(store, arms[0].id, "elsewhere:1:1.00", PROVENANCE)
    job = bench.take("t")
    assert job
    assert job.arms == (arms[1],)


def test_what_a_dead_run_claimed_is_taken_over(bench: Bench, store: Store) -> None:
    arm = bench.session.queue[0].arms[0]
    host = owner_name().partition(":")[0]
    claim(store, arm.id, f"{host}:999999999:1.00", PROVENANCE)
    job = bench.take("t")
    assert job
    assert job.arms == (arm,)
    assert bench.session.running["t"].attempts == {arm.id: 2}


def test_a_user_s_error_is_kept_and_not_tried_again(bench: Bench) -> None:
    job = bench.take("t")
    assert job
    bench.session.on_end("t", ValueError("no [such] thing"))
    assert bench.state(job.arms[0]) == "failed"
    assert job not in bench.session.queue
    assert "user_error: no [such] thing (not tried again in this run)" in bench.text


def test_that_layers_were_not_compiled_is_said_once_for_each_reason(bench: Bench) -> None:
    error, graphs = "no [C++] compiler", "no CUDA graphs: Inductor skipped 2 of them"
    for execution, reason in (("eager", error), ("eager", error), ("compiled", graphs)):
        job = bench.take("t")
        assert job
        environment = {"execution": execution, "compile_error": reason}
        told = replace(formula_record(job.arms[0], 1), environment=environment)
        bench.session.on_report("t", Report(told, []))
        finish(bench, "t", job)
    assert bench.text.count("trials run eagerly: no [C++] compiler") == 1
    assert bench.text.count("Layers are compiled, but with no CUDA graphs: Inductor skipped 2 of them") == 1


def test_a_lost_node_is_tried_again_within_its_budget(bench: Bench) -> None:
    job = bench.take("t")
    assert job
    for left in range(RETRIES["node_lost"], -1, -1):
        bench.session.on_end("t", ActorDiedError("gone"))
        assert bench.state(job.arms[0]) == "interrupted"
        assert (job in bench.session.queue) == (left > 0)
        if left:
            bench.session.queue.remove(job)
            bench.session.queue.appendleft(job)
            assert bench.take("t") == job


def test_a_trial_that_finished_unheard_is_read_from_its_journal(bench: Bench) -> None:
    job = bench.take("t")
    assert job
    arm = job.arms[0]
    write_journal(bench.session.storage, formula_record(arm, 1), formula_rows(arm))
    bench.session.on_end("t", ActorDiedError("died after its last word"))
    assert bench.state(arm) == "done"


def wait_little(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store wait for locks but a tenth of a second."""
    monkeypatch.setattr(store, "wait_s", 0.1)


def test_a_store_that_is_locked_does_not_stop_training(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_little(bench.store, monkeypatch)
    job = bench.take("t")
    assert job
    assert bench.store.path
    arm = job.arms[0]
    report = Report(formula_record(arm, 1), formula_rows(arm))
    with closing(sqlite3.connect(bench.store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        bench.session.on_report("t", report)
        bench.session.on_report("t", report)
        other.execute("ROLLBACK")
    assert bench.text.count("locked by another program") == 1
    assert "1/3 arms done" in bench.text
    write_journal(bench.session.storage, report.record, report.rows)
    bench.session.on_end("t", None)
    assert bench.state(arm) == "done"
    assert arm_folder(bench.session.storage, arm.id).exists()


def test_a_store_that_is_locked_while_claiming_is_asked_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_little(bench.store, monkeypatch)
    assert bench.store.path
    with closing(sqlite3.connect(bench.store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert bench.take("t") is None
        assert not bench.session.finished
        other.execute("ROLLBACK")
    assert bench.take("t")


def test_a_trial_that_ends_while_the_store_is_locked_is_settled_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_little(bench.store, monkeypatch)
    job = bench.take("t")
    assert job
    assert bench.store.path
    with closing(sqlite3.connect(bench.store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        bench.session.on_end("t", ValueError("boom"))
        other.execute("ROLLBACK")
    assert bench.state(job.arms[0]) == "running"
    bench.session.settle()
    assert bench.state(job.arms[0]) == "failed"


def test_only_the_arm_at_work_is_blamed(store: Store, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path / "runs", grid={"xsa_lambda": [1]})
    job = bench.take("t")
    assert job
    assert [arm.name for arm in job.arms] == ["sa", "xsa"]
    bench.session.on_end("t", ValueError("boom"))
    assert [bench.state(arm) for arm in job.arms] == ["failed", "interrupted"]
    again = bench.take("u")
    assert again
    assert again.arms == (job.arms[1],)


def test_a_damaged_folder_fails_its_arm_and_not_the_driver(bench: Bench) -> None:
    job = bench.take("t")
    assert job
    folder = arm_folder(bench.session.storage, job.arms[0].id)
    folder.mkdir(parents=True)
    (folder / "arm.json").write_text("{")
    bench.session.on_end("t", None)
    assert bench.state(job.arms[0]) == "failed"
    assert "cannot be read" in bench.text


def test_what_another_run_took_over_is_not_ours_to_end(bench: Bench, store: Store) -> None:
    job = bench.take("t")
    assert job
    claim(store, job.arms[0].id, "elsewhere:1:1", PROVENANCE, dead_owners=[bench.session.owner])
    bench.session.on_end("t", ActorDiedError("gone"))
    assert bench.state(job.arms[0]) == "running"
    assert job not in bench.session.queue


def test_a_stopped_session_gives_out_nothing_more(bench: Bench) -> None:
    job = bench.take("t")
    assert job
    bench.session.stop()
    assert bench.session.stopping
    assert bench.take("u") is None
    record = replace(formula_record(job.arms[0]), status="interrupted", step=7)
    bench.session.on_report("t", Report(record, []))
    bench.session.on_end("t", None)
    assert bench.state(job.arms[0]) == "interrupted"
    assert "stopped at step 7/40, checkpointed" in bench.text


def test_when_tune_ends_what_was_under_way_is_settled(bench: Bench) -> None:
    first, second = bench.take("a"), bench.take("b")
    assert first
    assert second
    bench.session.abandon(ActorDiedError("the raylet is gone"))
    assert not bench.session.running
    assert list(bench.session.queue)[-2:] == [first, second]


def test_progress_says_what_is_done_running_and_left(bench: Bench) -> None:
    job = bench.take("t")
    assert job
    arm = job.arms[0]
    rows = [row for row in formula_rows(arm) if row.step <= 20]
    bench.session.on_report("t", Report(formula_record(arm, 1, status="running", step=0), []))
    bench.session.on_report("t", Report(formula_record(arm, 1, status="running", step=20), rows))
    line = bench.session.progress.line()
    assert line.startswith("0/3 arms done · 1 running · 2 left · ")
    assert "tok/s" in line
    assert "sa step 20/40 val loss" in line


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (18_720, "5 h 12 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
