"""Arms that several sweeps or evaluations share, and evaluations that are done anew."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator import evaluate as module
from orchestrator.eval_jobs import Job, jobs_of
from orchestrator.eval_progress import EvalProgress
from orchestrator.evaluate import evaluate
from results.record import save_sweep
from results.store import Store
from schemas.evals import Score, append_results
from schemas.report import arm_folder, write_record
from schemas.sweep import Evals, Sweep
from tests.conftest import formula_record
from tests.orchestrator.conftest import ActorDiedError, Xsa
from tests.orchestrator.eval_rig import ASKED, TEXT, Rig, result
from trainer.journal import FolderBusy


@pytest.fixture
def rig(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(store, tmp_path / "runs", monkeypatch)


def test_an_arm_that_sweeps_share_is_asked_once_and_never_by_two_at_a_time(rig: Rig, tmp_path: Path) -> None:
    other = Sweep.parse(TEXT, "other")
    save_sweep(rig.store, other, other.trials(), tmp_path / "runs")
    more = Evals(tasks=["piqa"], limit=3)
    jobs = [job for sweep in (rig.sweep, other) for job in jobs_of(rig.store, sweep, ASKED)]
    jobs += jobs_of(rig.store, other, more)
    rig.tell = lambda job: iter([result(task, limit=job.evals.limit) for task in job.evals.tasks])
    outcome = evaluate(rig.store, jobs, Console(file=rig.printed), data=None)
    assert (outcome.done, outcome.wanted, outcome.exit_code) == (9, 9, 0)
    assert outcome.skipped == {"diverged": 1}
    told = [{(job.sweep, job.evals.limit) for job in begun} for begun in rig.begun]
    assert told == [{("small", 2)}, {("other", 3)}]
    assert all(len({job.arm_id for job in begun}) == len(begun) == 3 for begun in rig.begun)


def test_an_arm_that_another_evaluation_has_is_waited_for_and_taken_over(rig: Rig) -> None:
    def busy(job: Job) -> Iterator[Any]:
        if "sa seed=0" not in job.name:
            yield from (result(task) for task in job.evals.tasks)
            return
        job.folder.mkdir(parents=True, exist_ok=True)
        if len(rig.begun) == 10:
            append_results(job.folder, [result("piqa"), result("boolq", scores={}, error="no data")])
        elif len(rig.begun) == 20:
            append_results(job.folder, [result("boolq")])
        yield from (None, FolderBusy("in use"))

    rig.tell = busy
    outcome = rig()
    assert (outcome.done, outcome.exit_code, outcome.lost) == (6, 0, [])
    assert len(rig.begun) == 20, "longer than a lost worker is tried again"
    assert rig.begun[10][0].evals.tasks == ["boolq"], "its error is not ours"
    assert len(rig.evals()) == 12
    assert rig.printed.getvalue().count("another evaluation has it") == 1
    assert "sa seed=0  piqa acc_norm 0.500, boolq acc 0.500" in rig.printed.getvalue()


def test_an_arm_that_is_in_use_without_an_end_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUSY_TRIES", 3)

    def busy(job: Job) -> Iterator[Any]:
        job.folder.mkdir(parents=True, exist_ok=True)
        if len(rig.begun) == 2:
            append_results(job.folder, [result("piqa")])
        yield FolderBusy("in use")

    rig.tell = busy
    outcome = rig()
    assert (outcome.done, outcome.exit_code, len(rig.begun)) == (3, 1, 2 + 3)
    assert {failure.cause for _, failure in outcome.lost} == {"folder_busy"}
    assert "folder_busy: in use (not tried again)" in rig.printed.getvalue()


def test_a_damaged_journal_of_an_arm_in_use_ends_that_arm_alone(rig: Rig) -> None:
    def busy(job: Job) -> Iterator[Any]:
        if "sa seed=0" not in job.name:
            yield from (result(task) for task in job.evals.tasks)
            return
        job.folder.mkdir(parents=True)
        (job.folder / "evals.jsonl").write_text("{}\n")
        yield FolderBusy("in use")

    rig.tell = busy
    assert (rig().done, len(rig.begun)) == (4, 1)
    assert "evals.jsonl cannot be read" in rig.printed.getvalue()


def test_arms_are_asked_where_they_were_trained(rig: Rig, tmp_path: Path) -> None:
    other = Sweep.parse(TEXT, "a-later-one")
    save_sweep(rig.store, other, other.trials(), tmp_path / "elsewhere")
    arms = list({arm.id: arm for trial in other.trials() for arm in trial.arms}.values())

    def write(storage: str, number: int, status: str) -> None:
        folder = arm_folder(tmp_path / storage, arms[number].id)
        folder.mkdir(parents=True)
        write_record(folder, formula_record(arms[number], status=status))

    def found(sweep: Sweep) -> list[str]:
        storages = {job.arm_id: job.storage.name for job in jobs_of(rig.store, sweep, ASKED)}
        return [storages[arm.id] for arm in arms]

    assert (found(rig.sweep), found(other)) == (["runs"] * 4, ["elsewhere"] * 4), "nothing is there: its own"
    for number, storages in enumerate([("runs",), ("elsewhere",), ("runs", "elsewhere"), ("runs",)]):
        for storage in storages:
            write(storage, number, "done")
    write("elsewhere", 0, "interrupted")
    damaged = arm_folder(tmp_path / "elsewhere", arms[3].id)
    damaged.mkdir()
    (damaged / "arm.json").write_text("{")
    assert found(rig.sweep) == ["runs", "elsewhere", "runs", "runs"]
    assert found(other) == ["runs", "elsewhere", "elsewhere", "runs"]


def test_a_task_without_a_metric_to_show_is_named_alone(rig: Rig) -> None:
    progress = EvalProgress(Console(file=rig.printed, width=200), had=0, wanted=1)
    told = result("wikitext", scores={"word_perplexity": Score(80.0, None, None)})
    progress.on_result("a", "sa", told, last=True)
    assert "✓ sa  wikitext\n" in rig.printed.getvalue()


def test_again_asks_anew_and_the_later_scores_count(
    rig: Rig, xsa: Xsa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XSA_DB", str(rig.store.path))
    rig()
    now_us, value = time.time_ns() // 1000 + 60_000_000, 1.0  # as a worker's clock may be

    def tell(job: Job) -> Iterator[Any]:
        if job.name == "sa seed=0" and len(rig.begun) == 2:
            yield from (result("piqa", time_us=now_us, scores={"acc_norm": Score(value, None, None)}),)
            yield ActorDiedError("gone")
            return
        for task in job.evals.tasks:
            error = {"scores": {}, "error": "no data"} if "xsa" in job.name and task == "boolq" else {}
            yield result(
                task, **{"time_us": now_us, "scores": {"acc_norm": Score(value, None, None)}} | error
            )

    rig.tell = tell
    code, output, _ = xsa("eval", "small", "--again")
    assert code == 1
    assert "5 of 6 evaluations done" in output
    assert [len(jobs) for jobs in rig.begun] == [3, 3, 1]
    assert rig.begun[2][0].evals.tasks == ["boolq"], "what is done anew is kept when its worker is lost"
    assert all(job.since_us for jobs in rig.begun[1:] for job in jobs)
    frame = rig.evals().set_index(["task", "metric"])
    assert list(frame.loc[("piqa", "acc_norm"), "value"]) == [1.0] * 3
    assert sorted(frame.loc["boolq", "value"]) == [0.5, 0.5, 1.0, 1.0], "what failed anew is as it was"

    code, output, _ = xsa("eval", "small")
    assert (code, len(rig.begun)) == (0, 3), "nothing is missing"
