"""An evaluation's driver over a real store, in which tests play Ray's and the workers' part."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import evaluate as module
from orchestrator import supervise
from orchestrator.eval_jobs import Job, jobs_of
from orchestrator.plan import Plan
from orchestrator.preview import preview
from orchestrator.status import of_sweep
from results import sessions
from results.location import StoreError
from results.query import Database
from results.store import Store
from schemas.evals import TaskResult, append_results
from schemas.sweep import Evals, Runtime, Sweep
from tests.conftest import SMALL, fill, make_sweep
from tests.orchestrator.conftest import ActorDiedError, Xsa
from tests.orchestrator.eval_rig import ASKED, TEXT, Rig, result


@pytest.fixture
def rig(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(store, tmp_path / "runs", monkeypatch)


def test_finished_arms_get_what_they_lack_and_nothing_twice(rig: Rig) -> None:
    outcome = rig()
    assert (outcome.done, outcome.wanted, outcome.exit_code) == (6, 6, 0)
    assert outcome.skipped == {"diverged": 1}
    assert len(rig.evals()) == 3 * 2 * 2, "arms, tasks and metrics"
    assert "✓ sa seed=0  piqa acc_norm 0.500, boolq acc 0.500" in rig.printed.getvalue()

    assert rig().exit_code == 0
    more = rig(Evals(tasks=["piqa", "arc_easy"], limit=2))
    assert more.had == 3
    assert len(rig.begun) == 2, "no Ray where nothing is missing"
    assert {task for job in rig.begun[1] for task in job.evals.tasks} == {"arc_easy"}
    rig(Evals(tasks=["piqa"]))
    assert len(rig.begun[2]) == 3, "all items are not the first two"


def test_what_failed_is_told_once_kept_and_tried_again(rig: Rig) -> None:
    rig.tell = lambda job: iter([None, result("piqa"), result("boolq", scores={}, error="no data")])
    outcome = rig()
    assert (outcome.done, outcome.wanted, outcome.exit_code) == (3, 6, 1)
    assert rig.printed.getvalue().count("✗") == 1
    frame = rig.evals()
    assert list(frame[frame.task == "boolq"].error) == ["no data"] * 3
    assert set(frame[frame.task == "piqa"].metric) == {"acc", "acc_norm"}
    rig.tell = lambda job: iter([result(task, time_us=2) for task in job.evals.tasks])
    assert rig().exit_code == 0
    assert [job.evals.tasks for job in rig.begun[1]] == [["boolq"]] * 3
    assert rig.evals().error.isna().all()


def test_a_lost_worker_is_replaced_for_what_it_left_and_not_for_ever(rig: Rig) -> None:
    def dies(job: Job) -> Iterator[Any]:
        if "sa seed=0" not in job.name:
            yield from (result(task) for task in job.evals.tasks)
        elif "piqa" in job.evals.tasks:
            yield from (None, result("piqa"), ActorDiedError("gone"))
        else:
            yield ActorDiedError("gone")

    rig.tell = dies
    outcome = rig()
    assert (outcome.done, outcome.exit_code) == (5, 1)
    assert [len(jobs) for jobs in rig.begun] == [3, 1, 1, 1, 1, 1]
    assert rig.begun[1][0].evals.tasks == ["boolq"]
    assert [job.name for job, _ in outcome.lost] == ["sa seed=0"]


def test_an_error_of_the_workers_own_is_told_and_not_tried_again(rig: Rig) -> None:
    rig.tell = lambda job: iter([None, ValueError("its folder is gone")])
    outcome = rig()
    assert outcome.exit_code == 1
    assert len(rig.begun) == 1
    assert "user_error: its folder is gone (not tried again)" in rig.printed.getvalue()


def test_what_a_killed_run_left_in_the_journals_is_recorded_without_ray(rig: Rig) -> None:
    for job in jobs_of(rig.store, rig.sweep, ASKED):
        if job.status == "done":
            job.folder.mkdir(parents=True)
            append_results(job.folder, [result("piqa"), result("boolq")])
    assert rig().exit_code == 0
    assert rig.begun == []
    assert len(rig.evals()) == 12


def test_a_damaged_journal_is_named_and_the_others_go_on(rig: Rig) -> None:
    first = jobs_of(rig.store, rig.sweep, ASKED)[0]
    first.folder.mkdir(parents=True)
    (first.folder / "evals.jsonl").write_text('{"task": 1}\n')
    assert rig().exit_code == 0
    assert "evals.jsonl cannot be read" in rig.printed.getvalue()


def test_a_store_that_is_away_does_not_end_the_evaluation(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(store: Store, arm_id: str, results: list[TaskResult]) -> None:
        if results:
            raise StoreError("the database is locked.")

    monkeypatch.setattr(module, "record_evals", away)
    assert rig().done == 6
    assert "recorded next time" in rig.printed.getvalue()


def test_a_wish_in_the_store_stops_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", -1.0)
    seen: list[bool] = []

    def asks(job: Job) -> Iterator[Any]:
        live = sessions.live(rig.store, "small")
        sessions.ask_to_stop(rig.store, [one.owner for one in live])
        yield None
        yield None
        seen.append(any((job.storage / "sessions").glob("*-eval.stop")))
        yield ActorDiedError("its machine went away meanwhile")

    rig.tell = asks
    outcome = rig()
    assert seen[0], "workers look for this file"
    assert (outcome.done, outcome.exit_code, len(rig.begun)) == (0, 1, 1)
    assert "Somebody asked for it (xsa stop)" in rig.printed.getvalue()
    assert not any((rig.begun[0][0].storage / "sessions").glob("*.stop"))
    assert sessions.live(rig.store, "small") == []


def test_plan_and_status_tell_what_is_missing_and_what_failed(rig: Rig, tmp_path: Path) -> None:
    plan = Plan.make(rig.sweep, {})
    assert preview(plan, None, tmp_path)["evals"] == {
        "tasks": ["piqa", "boolq"], "limit": 2, "wanted": 8, "missing": 8,
    }  # fmt: skip
    rig.tell = lambda job: iter([result("piqa"), result("boolq", scores={}, error="no data")])
    rig()
    told = preview(plan, rig.store, tmp_path)["evals"]
    assert (told["wanted"], told["missing"]) == (8, 5)
    assert preview(Plan.make(make_sweep(), {}), rig.store, tmp_path)["evals"] is None
    with Database(rig.store.path) as db:
        assert of_sweep(db, "small")["evals"] == [
            {"task": "boolq", "error": "no data", "arms": 3},
            {"task": "piqa", "error": None, "arms": 3},
        ]


@pytest.fixture
def desk(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """The rig's store as `results.db` of the directory in which commands are run."""
    monkeypatch.setenv("XSA_DB", str(rig.store.path))
    return rig


def test_eval_takes_sweeps_arms_and_trials(desk: Rig, xsa: Xsa) -> None:
    arms = [job for job in jobs_of(desk.store, desk.sweep, ASKED) if job.status == "done"]
    trial = desk.sweep.trials()[0]
    code, output, _ = xsa("eval", arms[0].arm_id[:12], "--tasks", "piqa", "--limit", "2")
    assert (code, len(desk.begun[0])) == (0, 1)
    assert "small: 1 of 1 evaluations done" in output
    assert len(trial.arms) == 1, "at λ = 0 a pair is one arm, so it is named twice here"
    code, output, _ = xsa("eval", trial.sa.id[:12], trial.id[:12], "--tasks", "arc_easy", "--limit", "2")
    assert "small: 1 of 1 evaluations done" in output
    code, output, _ = xsa("show", arms[0].arm_id[:12])
    assert "piqa      acc_norm 0.5000 ± 0.5000 on 2 items" in output
    code, output, _ = xsa("eval", "small", "--batch-size", "4")
    assert code == 0
    assert {job.evals.batch_size for job in desk.begun[-1]} == {4}
    assert "1 arms diverged and have no weights" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smal"], "Unknown sweep 'smal'. Did you mean 'small'?"),
        (["abcd"], "No arm or trial has an id that begins with 'abcd'"),
        (["small", "--tasks", "piqa,piqa"], "names piqa twice"),
        (["small", "--tasks", ","], "names no task"),
        (["small", "--tasks", "piqa", "--task-data", "nowhere"], "There is no folder"),
    ],
)
def test_mistakes_are_answered_in_a_line(desk: Rig, xsa: Xsa, arguments: list[str], message: str) -> None:
    code, output, errors = xsa("eval", *arguments)
    assert code == 2
    assert message in errors
    assert "Traceback" not in output + errors
    assert desk.begun == []


def test_a_run_checks_what_it_is_to_evaluate_before_it_trains(xsa: Xsa, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "base: {tokenizer: bytes, seq_len: 16, tokens_per_step: 64, eval_tokens: 64, bias_tokens: 64, steps: 2}\n"
        "evals: {tasks: [piqa]}\n"
    )
    code, _, errors = xsa("run", "s.yaml", "--task-data", "nowhere")
    assert code == 2
    assert "There is no folder nowhere of task data" in errors
    assert not (tmp_path / "results.db").exists()


@pytest.mark.parametrize("stopped", [True, False])
def test_a_run_that_was_asked_to_stop_does_not_go_on_to_evaluate(
    desk: Rig, xsa: Xsa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    (tmp_path / "small.yaml").write_text(TEXT)

    def run(store: Store, sweep: Sweep, *_: Any, **__: Any) -> supervise.Outcome:
        return supervise.Outcome(Plan.make(sweep, {}), foreign=0, signal=None, stopped=stopped)

    monkeypatch.setattr(supervise, "run", run)
    code, output, _ = xsa("run", "small.yaml")
    assert code == 1, "that plan has arms left"
    assert ("6 of 6 evaluations done" in output) is not stopped
    assert len(desk.begun) == (0 if stopped else 1)


def test_a_sweep_that_asks_nothing_needs_tasks(
    store: Store, tmp_path: Path, xsa: Xsa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XSA_DB", str(store.path))
    text = json.dumps({"base": SMALL, "grid": {"xsa_lambda": [0]}})
    fill(store, Sweep.parse(text, "plain"), tmp_path / "runs")
    code, _, errors = xsa("eval", "plain")
    assert code == 2
    assert "plain asks for no evaluations" in errors
    assert "--tasks paper8" in errors


def test_a_worker_without_finished_weights_says_so(tmp_path: Path) -> None:
    from orchestrator.worker import NoWeights, evaluate_arm

    with pytest.raises(NoWeights, match=r"nowhere: there is no arm, where finished weights are needed"):
        list(
            evaluate_arm(
                folder=str(tmp_path / "nowhere"),
                evals=ASKED.model_dump_json(),
                runtime=Runtime().model_dump_json(),
                data=None,
                stop_file=str(tmp_path / "stop"),
                since_us=0,
            )
        )
    assert not (tmp_path / "nowhere").exists()
