import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import UserError
from schemas.evals import PAPER8, EvalKey, Score, TaskResult, append_results, metric_of, read_results
from schemas.report import DamagedJournal
from schemas.sweep import Evals, Sweep

RESULT = TaskResult(
    task="piqa",
    n_shot=0,
    limit=None,
    step=50,
    n_items=2,
    task_version="1.0",
    harness_version="0.4.13",
    data_sha256="ab" * 32,
    batch_size=16,
    device="cpu",
    scores={"acc": Score(0.5, 0.5, [0.0, 1.0]), "perplexity": Score(12.5, None, None)},
    error=None,
    wall_s=1.5,
    time_us=1,
)
Write = Callable[..., Path]


def test_a_result_survives_its_text() -> None:
    assert TaskResult.loads(RESULT.dumps()) == RESULT


def test_the_last_result_of_a_key_counts(tmp_path: Path) -> None:
    later, other = replace(RESULT, time_us=2), replace(RESULT, limit=10)
    append_results(tmp_path, [RESULT, other])
    append_results(tmp_path, [later])
    assert read_results(tmp_path) == [later, other]


def test_a_line_cut_short_is_left_out_and_one_that_is_no_result_is_damage(tmp_path: Path) -> None:
    append_results(tmp_path, [RESULT])
    path = tmp_path / "evals.jsonl"
    path.write_text(path.read_text() + RESULT.dumps()[:40])
    assert read_results(tmp_path) == [RESULT]
    path.write_text(json.dumps({"task": "piqa"}) + "\n")
    with pytest.raises(DamagedJournal, match="Remove it"):
        read_results(tmp_path)


def test_a_line_cut_short_gives_its_place_to_the_next(tmp_path: Path) -> None:
    path, later = tmp_path / "evals.jsonl", replace(RESULT, task="boolq")
    whole = RESULT.dumps().encode() + b"\n"
    for cut in (1, 40, len(whole) - 1):
        for before in (b"", whole):
            path.write_bytes(before + whole[:cut])
            append_results(tmp_path, [later])
            assert path.read_bytes() == before + later.dumps().encode() + b"\n"


def test_a_result_counts_that_has_scores_and_is_not_too_old() -> None:
    assert RESULT.counts(0) and RESULT.counts(1)
    assert not RESULT.counts(2)
    assert not replace(RESULT, error="no data").counts(0)


def test_the_metric_is_the_papers_or_else_the_normalised_one() -> None:
    assert metric_of("boolq", {"acc", "acc_norm"}) == "acc"
    assert metric_of("other", ["acc", "acc_norm", "brier_score"]) == "acc_norm"
    assert metric_of("other", {"acc"}) == "acc"
    assert metric_of("wikitext", {"word_perplexity"}) is None
    assert metric_of("other", {}) is None


def test_a_sweep_asks_for_evaluations_without_changing_its_arms(sweep_file: Write) -> None:
    base = "base: {seq_len: 64, tokens_per_step: 1024, eval_tokens: 64, bias_tokens: 64}\n"
    plain = Sweep.load(sweep_file(base))
    asking = Sweep.load(sweep_file(base + "evals: {tasks: [paper8, lambada_standard], limit: 20}\n"))
    assert [trial.id for trial in asking.trials()] == [trial.id for trial in plain.trials()]
    assert plain.evals is None and asking.evals is not None
    keys = asking.evals.wanted()
    assert keys == [EvalKey(task, 0, 20) for task in [*PAPER8, "lambada_standard"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evals: {task: [piqa]}", "Unknown evals setting 'task'. Did you mean 'tasks'?"),
        ("evals: {limit: 3}", "evals.tasks: this has to be given."),
        ("evals: {tasks: []}", "names no task"),
        ("evals: {tasks: [paper8, piqa]}", "names piqa twice"),
        ("evals: {tasks: piqa}", "evals.tasks"),
        ("evals: {tasks: [piqa], limit: 0}", "evals.limit: 0"),
        ("evals: {tasks: [piqa], num_fewshot: -1}", "evals.num_fewshot: -1"),
        ("evals: {tasks: [piqa], batch_size: 0}", "evals.batch_size: 0"),
        ("evals: {tasks: [piqa], limit: 1.5}", "evals.limit: 1.5"),
        ("evals: [piqa]", "evals"),
    ],
)
def test_mistakes_in_evals_are_answered_with_line_and_key(sweep_file: Write, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Sweep.load(sweep_file(f"base: {{seq_len: 64}}\n{text}\n"))
    assert message in str(caught.value)
    assert ":2:" in str(caught.value)


def test_the_preset_is_the_papers_eight_tasks() -> None:
    assert Evals(tasks=["paper8"]).tasks == list(PAPER8)
