import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import UserError
from schemas.evals import PAPER8, TaskResult, append_results, read_results
from schemas.sweep import Evals, Runtime
from schemas.trial import Arm
from trainer import checkpoint, evals
from trainer.evals_tasks import check_names, load_task
from trainer.model import build

TASKS = Path(__file__).parents[1] / "tasks"
"""Made-up items in the formats of the paper's eight tasks."""
Make = Callable[..., Arm]


@pytest.fixture
def arm(tiny: Make) -> Arm:
    return tiny(seq_len=128, tokens_per_step=128, eval_tokens=128, bias_tokens=128)


def finish(arm: Arm, folder: Path) -> Path:
    """Give an arm its initial weights for final ones."""
    folder.mkdir()
    model, _ = build(arm, torch.device("cpu"))
    checkpoint.save_final(folder, model.state_dict(), step=arm.steps, journal_bytes=0)
    return folder


@pytest.fixture
def folder(arm: Arm, tmp_path: Path) -> Path:
    return finish(arm, tmp_path / "arm")


def run(
    arm: Arm,
    folder: Path,
    *tasks: str,
    data: Path = TASKS,
    should_stop: Callable[[], bool] = lambda: False,
    since_us: int = 0,
    **settings: Any,
) -> list[TaskResult]:
    asked, how = Evals(tasks=list(tasks), **settings), {"data": data, "should_stop": should_stop}
    return list(evals.evaluate(arm, folder, asked, Runtime(), since_us=since_us, **how))


def test_the_papers_eight_tasks_are_scored_by_its_metrics_and_journalled(arm: Arm, folder: Path) -> None:
    results = run(arm, folder, "paper8")
    assert [result.task for result in results] == list(PAPER8)
    for result in results:
        assert result.error is None
        assert (result.n_shot, result.limit, result.step, result.harness_version) == (
            0,
            None,
            arm.steps,
            "0.4.13",
        )
        lines = next(TASKS.glob(f"{result.task}.[tv][ea]*.jsonl")).read_text().splitlines()
        assert result.n_items == len(lines)
        score = result.scores[PAPER8[result.task]]
        assert score.items is not None and set(score.items) <= {0.0, 1.0}
        assert (len(score.items), sum(score.items) / len(score.items)) == (
            result.n_items,
            pytest.approx(score.value),
        )
    perplexity = results[list(PAPER8).index("lambada_openai")].scores["perplexity"]
    assert perplexity.items is None and perplexity.stderr is None, "it is no mean of items"
    assert read_results(folder) == results


def test_batch_size_decides_no_score(arm: Arm, folder: Path) -> None:
    one = run(arm, folder, "hellaswag", "piqa", batch_size=1)
    (folder / "evals.jsonl").unlink()
    many = run(arm, folder, "hellaswag", "piqa", batch_size=64)
    assert [result.scores for result in one] == [result.scores for result in many]
    assert [result.batch_size for result in one + many] == [1, 1, 64, 64]


def test_both_arms_of_a_pair_are_asked_the_same_and_other_items_have_another_hash(
    arm: Arm, folder: Path, tmp_path: Path, tiny: Make
) -> None:
    other = tiny(**arm.model_dump() | {"xsa_lambda": 0.0})
    assert other.id != arm.id
    (first,) = run(arm, folder, "piqa")
    (second,) = run(other, finish(other, tmp_path / "other"), "piqa")
    (fewer,) = run(arm, folder, "piqa", limit=2)
    assert first.data_sha256 == second.data_sha256 != fewer.data_sha256
    assert (fewer.n_items, fewer.limit) == (2, 2)


def test_what_is_there_is_not_done_again_and_what_failed_is(arm: Arm, folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(TASKS, data)
    (data / "boolq.validation.jsonl").rename(tmp_path / "boolq")
    (data / "winogrande.validation.jsonl").write_text('{"sentence": "no blank"}\n')
    first = run(arm, folder, "boolq", "winogrande", "piqa", data=data)
    assert [result.error is None for result in first] == [False, False, True], "the rest is kept"
    assert str(first[0].error) == f"{data} has no boolq.validation.jsonl"
    assert str(first[1].error).startswith("KeyError")

    (tmp_path / "boolq").rename(data / "boolq.validation.jsonl")
    second = run(arm, folder, "boolq", "winogrande", "piqa", data=data)
    assert [result.error is None for result in second] == [True, False, True]
    assert second[2] == first[2], "not even its time"
    assert [result.task for result in read_results(folder)] == ["boolq", "winogrande", "piqa"]


def test_what_ended_before_a_time_is_done_anew_and_stays_where_that_fails(
    arm: Arm, folder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(TASKS, data)
    first, boolq = run(arm, folder, "piqa", "boolq", data=data)
    path = data / "piqa.validation.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[::-1]))
    assert run(arm, folder, "piqa", data=data) == [first], "other items alone are no reason"
    since_us = boolq.time_us
    (second, same) = run(arm, folder, "piqa", "boolq", data=data, since_us=since_us)
    assert second.data_sha256 != first.data_sha256 and second.time_us >= since_us
    assert same == boolq, "as one that took over after a lost worker's"
    path.unlink()
    (failed,) = run(arm, folder, "piqa", data=data, since_us=second.time_us + 1)
    assert failed.error
    assert set(map(TaskResult.dumps, read_results(folder))) == {second.dumps(), boolq.dumps()}


def test_a_stop_drops_the_task_at_hand_alone(arm: Arm, folder: Path) -> None:
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3  # before the first task and its batches of one, in the middle of the second

    results = run(arm, folder, "piqa", "hellaswag", batch_size=3, should_stop=should_stop)
    assert [result.task for result in results] == ["piqa"] == [r.task for r in read_results(folder)]


def test_examples_come_from_the_training_split_and_are_the_same_every_time(
    arm: Arm, folder: Path, tmp_path: Path
) -> None:
    prompts = []
    for _ in range(2):
        task = load_task("arc_easy", n_shot=2, data=TASKS)
        task.build_all_requests(limit=2, rank=0, world_size=1)
        prompts.append([instance.args for instance in task.instances])
    assert prompts[0] == prompts[1]
    assert prompts[0][0][0].count("Question:") == 3
    (result,) = run(arm, folder, "piqa", num_fewshot=1)
    assert result.error == f"{TASKS} has no piqa.train.jsonl"


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is empty"), ('{"goal": "a"}\n{"goal"', ":2: this is not JSON")],
)
def test_files_that_cannot_be_read_are_named(
    arm: Arm, folder: Path, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "piqa.validation.jsonl").write_text(content)
    (result,) = run(arm, folder, "piqa", data=tmp_path)
    assert str(tmp_path / "piqa.validation.jsonl") in str(result.error)
    assert message in str(result.error)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085"])
def test_an_item_is_a_line_whatever_stands_in_its_text(mark: str, tmp_path: Path) -> None:
    item = {"goal": f"one{mark}two", "sol1": "a", "sol2": "b", "label": 0}
    line = json.dumps(item, ensure_ascii=False)
    (tmp_path / "piqa.validation.jsonl").write_text(f"{line}\n" * 2, encoding="utf-8")
    docs = list(load_task("piqa", n_shot=0, data=tmp_path).validation_docs())
    assert [doc["goal"] for doc in docs] == [item["goal"]] * 2


def test_the_hub_without_a_network_is_an_error_that_says_what_to_do(
    arm: Arm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr("datasets.load_dataset", offline)
    asked = Evals(tasks=["piqa"])
    (result,) = evals.evaluate(arm, folder, asked, Runtime(), data=None, should_stop=lambda: False)
    assert "Couldn't reach the Hub" in str(result.error)
    assert "--task-data" in str(result.error)


class _Entry:
    def __init__(self, kind: Any, cfg: dict[str, Any]) -> None:
        self.kind, self.cfg, self.tags, self.yaml_path = kind, cfg, {"one", "two"}, TASKS / "none.yaml"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pica", r"Unknown task 'pica'. Did you mean 'piqa'\?"),
        ("somethin", r"Did you mean 'something'\?"),
        ("many", "is a group of tasks; name those you want of a, b, c, d, e and 1 more"),
        ("tagged", "is a group of tasks; name those you want of one, two"),
    ],
)
def test_names_that_are_no_tasks_are_answered(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    from lm_eval.tasks._index import Kind

    index = {
        "something": _Entry(Kind.TASK, {}),
        "many": _Entry(Kind.GROUP, {"task": [*"abcde", {"task": "f"}]}),
        "tagged": _Entry(Kind.TAG, {}),
    }
    monkeypatch.setattr("trainer.evals_tasks._index", lambda: index)
    check_names(["something", *PAPER8])
    with pytest.raises(UserError, match=message):
        check_names([name])


def test_evaluations_without_the_harness_or_the_folder_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="There is no folder"):
        evals.check_evals(Evals(tasks=["piqa"]), tmp_path / "none")
    monkeypatch.setattr(evals, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'xsa-sweeps\[evals\]'"):
        evals.check_evals(Evals(tasks=["piqa"]), None)


def test_weights_that_are_damaged_are_not_evaluated(arm: Arm, folder: Path) -> None:
    (folder / "checkpoints" / "final" / "state.pt").write_bytes(b"no weights")
    with pytest.raises(checkpoint.DamagedCheckpoint, match="sha256"):
        run(arm, folder, "piqa")
    assert read_results(folder) == []


def test_a_journal_line_cut_short_is_as_if_it_was_not_written(arm: Arm, folder: Path) -> None:
    (result,) = run(arm, folder, "piqa")
    append_results(folder, [replace(result, task="boolq")])
    path = folder / "evals.jsonl"
    path.write_text(path.read_text()[:-20])
    assert read_results(folder) == [result]
    (again,) = run(arm, folder, "boolq")
    assert again.error is None
    assert read_results(folder) == [result, again]
