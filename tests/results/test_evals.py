"""Downstream scores in the store: what replaces what, pairs item by item, and what is never compared."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from results.bulk_items import ITEMS
from results.query import Database
from results.record import ingest
from results.record_evals import record_evals
from results.store import Store
from schemas.errors import UserError
from schemas.evals import EVALS, Score, append_results, read_results
from schemas.report import DamagedJournal
from tests.conftest import ON_BOTH, formula_record, formula_rows, make_sweep
from tests.results.made_up import ARMS, TASKS, failure, task_result
from tests.results.test_record import write_journal

pytestmark = ON_BOTH
PAIR = make_sweep().trials()[3]


def evaluate_all(store: Store) -> None:
    for arm in ARMS:
        record_evals(store, arm.id, [task_result(arm, task) for task in TASKS])


def counts(db: Database) -> tuple[int, ...]:
    tables = ("eval_result", "eval_score", "eval_item")
    return tuple(int(db.sql(f"SELECT count(*) AS n FROM {table}").n[0]) for table in tables)


def test_scores_come_back_by_arm_and_by_pair(filled: Database, store: Store) -> None:
    evaluate_all(store)
    scores = filled.evals("small", metric="acc", task="arc_easy")
    assert len(scores) == 9
    best = scores[scores.xsa_lambda == 1].set_index("seed").loc[2]
    assert (best.value, best.stderr, best.n_items, best.batch_size) == (0.7, 0.1, 20, 8)
    assert (best.step, best.harness_version, best.data_sha256) == (
        40,
        "0.4.13",
        task_result(PAIR.sa).data_sha256,
    )
    assert scores.item_limit.isna().all() and scores.error.isna().all()
    assert filled.evals(metric="ppl").stderr.isna().all()
    pairs = filled.eval_pairs("small", metric="acc")
    assert len(pairs) == 9 * len(TASKS)
    assert pairs.delta_value.round(9).tolist() == (0.2 * pairs.xsa_lambda).round(9).tolist()
    assert pairs.same_data.all()
    assert (pairs.sa_n_items == 20).all()


def test_items_stand_side_by_side_as_in_their_view(filled: Database, store: Store) -> None:
    evaluate_all(store)
    items = filled.eval_items("small")
    assert len(items) == 9 * len(TASKS) * 20  # `ppl` is no mean of items
    order = "trial_id, task, metric, n_shot, item_limit, item"
    view = filled.sql(f"SELECT * FROM v_eval_items ORDER BY {order}")
    pd.testing.assert_frame_equal(items, view.drop(columns="trial_id"))
    means = items.groupby("trial", sort=False)[["sa_value", "xsa_value"]].mean()
    whole = filled.eval_pairs(metric="acc", task=TASKS[0]).set_index("trial")
    pd.testing.assert_frame_equal(means, whole[["sa_value", "xsa_value"]], check_exact=False)
    axes = {"xsa_lambda": PAIR.xsa.xsa_lambda, "seed": [PAIR.xsa.seed]}
    one = filled.eval_items(task=TASKS[1], columns=["item", "xsa_value"], **axes)
    assert one.item.tolist() == list(range(20))
    assert one.xsa_value.tolist() == task_result(PAIR.xsa).scores["acc"].items
    assert filled.eval_items(to="arrow").column_names == ITEMS
    with pytest.raises(UserError, match="Unknown sweep 'smal'"):
        filled.eval_items("smal")


def test_a_later_result_takes_the_place_of_the_earlier_one(filled: Database, store: Store) -> None:
    first = task_result(PAIR.xsa)
    later = replace(first, time_us=20, n_items=2, scores={"acc": Score(0.5, None, [1.0, 0.0])})
    record_evals(store, PAIR.xsa.id, [first])
    for results in ([later], [first], [later, first], [first, later]):  # and stays, however they are told
        record_evals(store, PAIR.xsa.id, results)
        (row,) = filled.evals().to_dict("records")
        assert (row["value"], row["n_items"]) == (0.5, 2)
        assert counts(filled) == (1, 1, 2)


def test_an_error_is_told_until_there_are_scores(filled: Database, store: Store) -> None:
    good = task_result(PAIR.xsa, time_us=20)
    record_evals(store, PAIR.xsa.id, [failure(good, "no data\0", time_us=10)])
    (row,) = filled.evals().to_dict("records")
    assert (row["error"], row["n_items"]) == ("no data\\x00", 0)
    assert pd.isna(row["value"]) and pd.isna(row["metric"])
    record_evals(store, PAIR.xsa.id, [failure(good, "later", time_us=15)])
    assert filled.evals().error.tolist() == ["later"]
    for told in (good, failure(good, time_us=30)):
        record_evals(store, PAIR.xsa.id, [told])
        assert filled.evals(metric="acc").value.tolist() == [good.scores["acc"].value]
        assert filled.evals().error.isna().all()
    assert counts(filled) == (1, 2, 20)


def test_shots_and_limits_are_evaluations_of_their_own(filled: Database, store: Store) -> None:
    kinds = [{}, {"limit": 5}, {"limit": 10}, {"n_shot": 5}, {"n_shot": 5, "limit": 5}]
    for _ in range(2):
        record_evals(store, PAIR.sa.id, [task_result(PAIR.sa, **kind) for kind in kinds])
    rows = filled.evals(metric="acc", columns=["n_shot", "item_limit"])
    assert rows.fillna(-1).to_numpy().tolist() == [[0, -1], [0, 5], [0, 10], [5, -1], [5, 5]]
    assert len(filled.evals(metric="acc", item_limit=None)) == 2
    assert len(filled.evals(metric="acc", item_limit=5)) == 2


def test_several_may_record_the_same_at_once(filled: Database, store: Store, address: str) -> None:
    results = [task_result(PAIR.sa, limit=limit) for limit in (None, 3)]

    def again(number: int) -> None:
        with Store.open(address, mode="write") as opened:
            record_evals(opened, PAIR.sa.id, [replace(result, time_us=number) for result in results])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(again, range(8)))
    assert counts(filled) == (2, 4, 40)
    assert filled.sql("SELECT ended_at_us AS t FROM eval_result").t.tolist() == [7, 7]


def test_arms_that_were_asked_other_items_are_not_compared(filled: Database, store: Store) -> None:
    for task, changes in {"a": {"data_sha256": "other"}, "b": {"task_version": "2"}}.items():
        record_evals(store, PAIR.sa.id, [task_result(PAIR.sa, task)])
        record_evals(store, PAIR.xsa.id, [task_result(PAIR.xsa, task, **changes)])
    pairs = filled.eval_pairs(metric="acc", xsa_lambda=PAIR.xsa.xsa_lambda)
    assert len(pairs) == 2
    assert not pairs.same_data.any() and pairs.delta_value.isna().all()
    assert pairs.xsa_value.notna().all()
    assert filled.eval_items(xsa_lambda=PAIR.xsa.xsa_lambda).empty
    assert len(filled.sql("SELECT * FROM v_eval_items WHERE xsa_lambda > 0")) == 0


def test_items_that_one_arm_lacks_are_left_out(filled: Database, store: Store) -> None:
    record_evals(store, PAIR.sa.id, [task_result(PAIR.sa, "a"), task_result(PAIR.sa, "b")])
    fewer = {"acc": Score(0.5, None, [1.0, 0.0])}
    record_evals(store, PAIR.xsa.id, [task_result(PAIR.xsa, "a", scores=fewer)])
    items = filled.eval_items(xsa_lambda=PAIR.xsa.xsa_lambda)
    assert items.item.tolist() == [0, 1]
    assert items.xsa_value.tolist() == [1, 0]


ODD = ["x'; DROP TABLE arm; --", 'a"b%s:c?', "Ä\U0001f600", "a\0b", "\ud800", " "]


def test_odd_names_are_names(filled: Database, store: Store) -> None:
    for arm in PAIR.arms:
        for task in ODD * 2:
            record_evals(store, arm.id, [task_result(arm, task, scores={task: Score(0.5, None, [1.0, 0.0])})])
    names = filled.evals(arm=PAIR.xsa.id[:12]).task.tolist()
    assert sorted(names) == sorted([*(name for name in ODD if name.isprintable()), "a\\x00b", "\\ud800"])
    for name in names:
        assert len(filled.evals(task=name, metric=[name])) == 2
        assert len(filled.eval_items(task=name, metric=name, xsa_lambda=PAIR.xsa.xsa_lambda)) == 2
    assert len(filled.pairs()) == 9


def test_mistakes_are_answered(filled: Database, store: Store) -> None:
    evaluate_all(store)
    assert filled.evals(task="' OR 1=1 --").empty
    assert filled.eval_items(metric=["acc' OR '1'='1"]).empty
    for mistake, said in {
        "tsk": "Unknown filter 'tsk'. Did you mean 'task'",
        "1=1; --": "Unknown filter",
    }.items():
        for ask in (filled.evals, filled.eval_pairs, filled.eval_items):
            with pytest.raises(UserError, match=said):
                ask(**{mistake: 1})
    with pytest.raises(UserError, match="item_limit='5': that column holds whole numbers"):
        filled.evals(item_limit="5")
    for column in ("item", "sa_value"):
        with pytest.raises(UserError, match=f"Unknown filter of pairs and tasks '{column}'"):
            filled.eval_items(**{column: 1})
    with pytest.raises(UserError, match="Unknown column 'valu'"):
        filled.evals(columns="valu")


def test_without_evaluations_frames_have_their_columns(filled: Database) -> None:
    evals, pairs, items = filled.evals(), filled.eval_pairs(), filled.eval_items()
    assert evals.empty and pairs.empty and items.empty
    assert list(items) == ITEMS
    assert str(evals.value.dtype) == str(items.xsa_value.dtype) == "float64"
    assert str(pairs.same_data.dtype) == "boolean"
    assert str(items.item.dtype) == str(evals.item_limit.dtype) == "Int64"


def test_an_arm_s_folder_tells_its_evaluations(filled: Database, store: Store, tmp_path: Path) -> None:
    folder = write_journal(tmp_path / "runs", formula_record(PAIR.xsa), formula_rows(PAIR.xsa))
    good = task_result(PAIR.xsa)
    other = failure(task_result(PAIR.xsa, "boolq"))
    append_results(folder, [failure(good, time_us=5), good, other, failure(good, time_us=50)])
    with (folder / EVALS).open("a") as journal:
        journal.write('{"task": "cut sh')
    assert {result.task: result.error for result in read_results(folder)} == {
        "arc_easy": None,
        "boolq": "no such data",
    }
    for _ in range(2):
        assert ingest(store, folder)
        assert counts(filled) == (2, 2, 20)
    assert set(filled.evals().task) == {"arc_easy", "boolq"}


def test_a_damaged_journal_is_named_and_nothing_is_taken(store: Store, db: Database, tmp_path: Path) -> None:
    folder = write_journal(tmp_path / "runs", formula_record(PAIR.xsa), formula_rows(PAIR.xsa))
    (folder / EVALS).write_text("{}\n")
    with pytest.raises(DamagedJournal, match=r"evals\.jsonl cannot be read .* evaluated anew"):
        ingest(store, folder)
    assert db.curves().empty
