"""Table 2: downstream scores of pairs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from results.frames import MissingData, NotAsked
from results.query import Database
from results.record_evals import record_evals
from results.reference import published
from results.render import Table
from results.stats import holm
from results.stats_items import item_difference, mcnemar
from results.store import Store
from results.tables import TABLES
from schemas.evals import PAPER8, Score, TaskResult
from schemas.trial import Arm
from tests.conftest import fill, make_sweep
from tests.results.measured import answers, failed, task_result, tell_evals

TABLE2 = TABLES["table2"].load()
SWEEP = make_sweep(grid={"xsa_lambda": [1]}, seeds=[0, 1])
XSA0, XSA1 = (next(arm for arm in trial.arms if arm.xsa_lambda) for trial in SWEEP.trials())
Tell = Callable[..., Database]


@pytest.fixture
def tell(store: Store, tmp_path: Path) -> Iterator[Tell]:
    """Fills the store with the sweep's evaluations, then with what the test tells of single arms."""
    opened: list[Database] = []

    def fill_in(*told: tuple[Arm, TaskResult], tasks: list[str] | None = None) -> Database:
        fill(store, SWEEP, tmp_path / "runs")
        tell_evals(store, SWEEP, tasks or list(PAPER8))
        for arm, result in told:
            record_evals(store, arm.id, [result])
        opened.append(Database(store.path))
        return opened[0]

    yield fill_in
    for database in opened:
        database.close()


def of(frame: pd.DataFrame, task: str) -> dict[Any, Any]:
    (row,) = frame[frame["task"] == task].to_dict("records")
    return row


def cells(table: Table, task: str) -> dict[str, str]:
    """Return a column of the first setting: its text by the line's name."""
    column = [column.head for column in table.columns].index(task)
    first = min([*table.groups, len(table.rows)])
    return {row[1]: row[column] for row in table.rows[:first]}


def test_scores_and_statistics_are_those_of_the_items(tell: Tell) -> None:
    frame = TABLE2.data(tell(), "small")
    row = of(frame, "boolq")
    right = {arm.id: np.array(answers(arm, "boolq")) for trial in SWEEP.trials() for arm in trial.arms}
    summed = sum(right[x.id] - right[s.id] for s, x in (trial.arms for trial in SWEEP.trials()))
    found = item_difference(summed / 2)
    assert (row["n"], row["n_items"], row["metric"]) == (2, 40, "acc")
    assert row["xsa"] == pytest.approx(100 * np.mean([right[XSA0.id].mean(), right[XSA1.id].mean()]))
    assert row["delta"] == pytest.approx(100 * found.mean) == pytest.approx(row["xsa"] - row["sa"])
    assert (row["se"], row["low"], row["high"]) == pytest.approx(
        (100 * found.se, 100 * found.low, 100 * found.high)
    )
    assert row["p"] == mcnemar(summed)
    tests = frame[frame["task"] != "avg"]
    assert tests["p_holm"].tolist() == holm(tests["p"].tolist())


def test_average_is_of_all_tasks_with_its_standard_error(tell: Tell) -> None:
    frame = TABLE2.data(tell(), "small")
    tasks, average = frame[frame["task"] != "avg"], of(frame, "avg")
    assert average["delta"] == pytest.approx(tasks["delta"].mean())
    assert average["se"] == pytest.approx(np.sqrt((tasks["se"] ** 2).sum()) / 8)
    assert average["n"] == 2 and np.isnan(average["p"])


def test_table_has_the_papers_tasks_and_order_and_the_better_in_bold(tell: Tell) -> None:
    table = TABLE2.draw(TABLE2.data(tell(), "small"))
    heads = ["ARC-E", "BoolQ", "HSwag", "LAMBADA", "OBQA", "PIQA", "SocIQA", "WinoGr", "Avg"]
    assert [column.head for column in table.columns] == ["model", "", *heads]
    assert [row[1] for row in table.rows] == ["SA", "XSA", "Δ", "SE", "p", "sd, seeds"]
    assert [row[0] for row in table.rows] == ["toy, n = 2"] + [""] * 5
    assert table.best == {(1, column) for column in range(2, 11)}
    assert r" & XSA & \textbf{" in table.latex() and "| **" in table.markdown()
    assert "Holm's correction is over the 8 tests" in table.caption and "BoolQ 40" in table.caption


def test_what_failed_is_marked_and_left_out_of_its_task_and_of_the_average(tell: Tell) -> None:
    # a failed result never replaces one with scores, so this task is only told here
    db = tell(
        *[
            (arm, task_result("extra", answers(arm, "extra")))
            for trial in SWEEP.trials()
            for arm in trial.arms
            if arm is not XSA1
        ],
        (XSA1, failed("extra")),
    )
    frame = TABLE2.data(db, "small")
    assert (of(frame, "extra")["n"], of(frame, "extra")["n_failed"]) == (1, 1)
    assert of(frame, "boolq")["n"] == 2 and of(frame, "avg")["n"] == 1
    table = TABLE2.draw(frame)
    assert cells(table, "extra")["XSA"].endswith("†")
    assert "†: without some pairs. Evaluations failed: 1 (extra)." in table.caption
    assert "extra 40 (acc)" in table.caption


def test_arms_with_other_items_are_not_compared_and_it_is_said(tell: Tell) -> None:
    changed = task_result("piqa", answers(XSA0, "piqa"), data_sha256="others", time_us=2)
    again = task_result("boolq", answers(XSA0, "boolq"), task_version="2.0", time_us=2)
    frame = TABLE2.data(tell((XSA0, changed), (XSA0, again)), "small", seed=0)
    assert [of(frame, task)["n_other_items"] for task in ("piqa", "boolq", "arc_easy")] == [1, 1, 0]
    assert of(frame, "avg")["n"] == 0
    table = TABLE2.draw(frame)
    assert cells(table, "PIQA") == {"SA": "≠ items", "XSA": "≠ items", "Δ": "—", "SE": "—", "p": "—"}
    assert cells(table, "Avg")["XSA"] == "—"
    said = "its arms were asked other items (xsa eval --again asks both anew): 2 (BoolQ and PIQA)"
    assert said in table.caption
    assert "xsa eval -{}-again" in table.latex(), "two hyphens, not TeX's dash"
    assert r"$\neq$ items" in table.latex()


def test_seeds_of_different_task_versions_are_no_sample_of_the_same_items(tell: Tell) -> None:
    told = [
        (arm, task_result("boolq", answers(arm, "boolq"), task_version=f"{arm.seed}.0", time_us=2))
        for trial in SWEEP.trials()
        for arm in trial.arms
    ]
    frame = TABLE2.data(tell(*told, tasks=["boolq", "piqa"]), "small")
    boolq, piqa = of(frame, "boolq"), of(frame, "piqa")
    assert np.isnan([boolq["p"], boolq["se"]]).all() and not np.isnan([piqa["p"], piqa["se"]]).any()


@pytest.mark.parametrize("others", [["boolq"], []])
def test_a_task_without_accuracy_is_named_and_in_no_average(others: list[str], tell: Tell) -> None:
    scores = {"exact_match": Score(0.5, 0.1, None), "ppl": Score(2.0, None, None)}
    arms = [arm for trial in SWEEP.trials() for arm in trial.arms]
    told = [(arm, task_result("gsm8k", [0, 1], scores=scores, time_us=2)) for arm in arms]
    told += [(arm, task_result("boolq", answers(arm, "boolq"))) for arm in arms if others]
    db = tell(*told, tasks=["gsm8k"])
    frame = TABLE2.data(db, "small")
    assert (of(frame, "gsm8k")["n"], of(frame, "gsm8k")["n_no_accuracy"]) == (0, 2)
    if not others:
        with pytest.raises(MissingData, match="acc_norm or acc; there are only those of gsm8k"):
            TABLE2.draw(frame)
        return
    table = TABLE2.draw(frame)
    assert [column.head for column in table.columns][2:] == ["BoolQ", "Avg"]
    assert of(frame, "avg")["n"] == 2 and of(frame, "avg")["delta"] == of(frame, "boolq")["delta"]
    assert "Not shown, because without the paper's metric, acc_norm and acc: gsm8k." in table.caption


def test_filters_that_only_pairs_have_choose_pairs(tell: Tell) -> None:
    db = tell(tasks=["boolq"])
    one = SWEEP.trials()[0].id[:12]
    assert of(TABLE2.data(db, "small", trial=one), "boolq")["n"] == 1
    assert of(TABLE2.data(db, "small", sa_status="done", seed=1, xsa_lambda=1), "boolq")["n"] == 1


def test_what_is_missing_and_what_diverged_is_told_apart(store: Store, tmp_path: Path) -> None:
    fill(store, SWEEP, tmp_path, {(1.0, 1): "diverged"})
    for trial in SWEEP.trials():
        record_evals(store, trial.arms[0].id, [task_result("boolq", answers(trial.arms[0], "boolq"))])
    with Database(store.path) as db:
        frame = TABLE2.data(db, "small")
    row = of(frame, "boolq")
    assert (row["n"], row["n_diverged"], row["n_missing"]) == (0, 1, 1)
    table = TABLE2.draw(frame)
    assert cells(table, "BoolQ")["SA"] == "div."
    assert "Pairs diverged: 1 (BoolQ). Evaluations missing: 1 (BoolQ)." in table.caption


def test_a_task_evaluated_in_two_ways_has_rows_for_each(tell: Tell) -> None:
    arms = [arm for trial in SWEEP.trials() for arm in trial.arms]
    db = tell(
        *[(arm, task_result("boolq", answers(arm, "boolq", 30), limit=30)) for arm in arms], tasks=["boolq"]
    )
    frame = TABLE2.data(db, "small")
    boolq = frame[frame["task"] == "boolq"]
    assert boolq[["items", "n_items"]].values.tolist() == [["all", 40], ["first 30", 30]]
    titles = [row[0] for row in TABLE2.draw(frame).rows if row[0]]
    assert titles == ["toy, 0-shot, all items, n = 2", "toy, 0-shot, first 30 items, n = 2"]


def test_the_paper_stands_below_with_its_power(tell: Tell) -> None:
    frame = TABLE2.data(tell(), "small", overlay=published("table2"))
    paper = frame[frame["source"].notna() & (frame["task"] == "avg")]
    assert paper["se"].tolist() == pytest.approx(
        [0.59, 0.59, 0.59], abs=0.002
    )  # of n and p: reference in the paper's data
    table = TABLE2.draw(frame)
    assert [row[0] for row in table.rows if row[0]][1:] == ["0.7B, paper", "1.3B, paper", "2.7B, paper"]
    assert "differ by +0.26, +1.03 and +1.36 points, which are 0.4, 1.7 and 2.3 of these" in table.caption


def test_a_score_without_items_has_no_p(tell: Tell) -> None:
    told = [
        (arm, task_result("boolq", [1, 0], scores={"acc": Score(0.5 + 0.1 * arm.xsa_lambda, 0.1, None)}))
        for trial in SWEEP.trials()
        for arm in trial.arms
    ]
    row = of(TABLE2.data(tell(*told, tasks=["piqa"]), "small"), "boolq")
    assert row["delta"] == pytest.approx(10) and np.isnan(row["p"]) and np.isnan(row["se"])


def test_a_sweep_without_evaluations_has_no_table(filled: Database) -> None:
    with pytest.raises(NotAsked, match=r"table2 needs evaluations .*there is none"):
        TABLE2.draw(TABLE2.data(filled, "small"))
