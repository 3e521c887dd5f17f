"""Frames that are read around their views hold what the views hold."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from results import bulk
from results.query import Database
from results.store import Store
from schemas.errors import UserError
from schemas.names import UnknownName
from schemas.trial import AXES
from tests.conftest import ON_BOTH

pytestmark = ON_BOTH
ORDERS = {
    "pairs": ("v_results", [*AXES, "trial"]),
    "curves": ("v_curves", ["arm_id", "step"]),
    "layers": ("v_layers", ["arm_id", "step", "metric", "layer"]),
    "attempts": ("v_attempts", ["arm_id", "attempt"]),
}


def ask(db: Database, what: str, *arguments: Any, **filters: Any) -> Any:
    return getattr(db, what)(*arguments, **filters)


def from_view(db: Database, what: str, where: str = "1 = 1") -> pd.DataFrame:
    view, order = ORDERS[what]
    rows = db.sql(f"SELECT * FROM {view} WHERE {where} ORDER BY {', '.join(order)}")
    return rows.drop(columns=[name for name in ("arm_id", "trial_id") if name in rows])


@pytest.mark.parametrize("what", ORDERS)
def test_a_frame_is_its_view(troubled: Database, store: Store, what: str) -> None:
    with store.write() as connection:  # a step without a number, an evaluation without a step
        connection.exec_driver_sql(
            "UPDATE arm_step SET train_loss = NULL, train_loss_kind = 3 WHERE arm_id = 1 AND step = 5"
        )
        connection.exec_driver_sql("DELETE FROM arm_step WHERE arm_id = 1 AND step IN (10, 11)")
        connection.exec_driver_sql("UPDATE layer_metric SET value = NULL, value_kind = 2 WHERE arm_id = 1")
    found = ask(troubled, what)
    assert len(found) > 8
    if what == "attempts":
        seconds = (found["ended_at"] - found["started_at"]).dt.total_seconds()
        pd.testing.assert_series_equal(found.pop("wall_s"), seconds, check_names=False)
    pd.testing.assert_frame_equal(found, from_view(troubled, what), check_exact=True)


FILTERS: list[tuple[str, dict[str, Any], str]] = [
    ("curves", {"seed": [0, 1], "xsa_lambda": (0.5, None)}, "seed IN (0, 1) AND xsa_lambda >= 0.5"),
    ("curves", {"step": (5, 20)}, "step BETWEEN 5 AND 20"),
    ("curves", {"tokens": 640}, "tokens = 640"),
    ("curves", {"val_loss": (None, 4)}, "val_loss <= 4"),
    ("curves", {"train_loss": (3, None)}, "train_loss >= 3"),
    ("curves", {"train_loss": (3, 5), "val_loss": (None, 4)}, "train_loss BETWEEN 3 AND 5 AND val_loss <= 4"),
    ("curves", {"grad_norm": (2, None)}, "grad_norm >= 2"),
    ("curves", {"status": "diverged", "variant": "xsa"}, "status = 'diverged' AND variant = 'xsa'"),
    ("curves", {"seed": 99}, "seed = 99"),
    ("layers", {"metric": ["cos_yv", "a_ii"], "layer": 1}, "metric IN ('cos_yv', 'a_ii') AND layer = 1"),
    ("layers", {"value": (0.3, None), "step": 0}, "value >= 0.3 AND step = 0"),
    ("layers", {"metric": "nothing"}, "metric = 'nothing'"),
    ("attempts", {"cause": "user_error"}, "cause = 'user_error'"),
    ("pairs", {"status": ["failed", "running"]}, "status IN ('failed', 'running')"),
]  # fmt: skip
"""What is asked, by which filters, and what they mean in SQL."""


def test_a_filter_admits_what_its_condition_does(troubled: Database) -> None:
    for what, filters, where in FILTERS:
        found = ask(troubled, what, "small", **filters)
        wanted = from_view(troubled, what, where)
        pd.testing.assert_frame_equal(found[list(wanted)], wanted, check_exact=True, obj=f"{what} {filters}")
        assert found.empty == (filters in ({"seed": 99}, {"metric": "nothing"}))


def test_a_measured_time_is_a_filter(troubled: Database) -> None:
    began = troubled.attempts().started_at
    assert len(troubled.attempts(started_at=(began.min(), None))) == 9
    assert troubled.attempts(started_at=(None, "2020-01-01")).empty
    assert len(troubled.attempts(ended_at=("2020-01-01", None))) == 8
    assert len(troubled.attempts(wall_s=(0, None))) == 8


@pytest.mark.parametrize("what", [*ORDERS, "sweeps"])
def test_columns_are_chosen_and_in_that_order(troubled: Database, what: str) -> None:
    whole = ask(troubled, what)
    names = list(whole)[::-3]
    pd.testing.assert_frame_equal(ask(troubled, what, columns=names), whole[names])
    with pytest.raises(UnknownName, match="Unknown column 'satus'"):
        ask(troubled, what, columns=["satus"])
    assert list(troubled.curves(columns="step", train_loss=(3, None))) == ["step"]


@pytest.mark.parametrize("what", [*ORDERS, "sweeps"])
def test_arrow_holds_the_same(troubled: Database, what: str) -> None:
    frame, table = ask(troubled, what), ask(troubled, what, to="arrow")
    assert table.column_names == list(frame)
    for name in frame:
        values = [None if pd.isna(value) else value for value in frame[name].tolist()]
        assert table.column(name).to_pylist() == values, name
    if what != "sweeps":
        empty = ask(troubled, what, seed=99, to="arrow")
        assert empty.schema == table.schema
        assert empty.num_rows == 0
        assert table.schema.field("dataset").type == pa.string()
        assert pa.types.is_dictionary(table.schema.field("status").type)


def test_text_of_few_values_is_a_category(troubled: Database) -> None:
    layers = troubled.layers("small", metric=["a_ii", "cos_yv"])
    assert {name for name in layers if layers[name].dtype == "category"} == {"variant", "status", "metric"}
    assert layers.groupby("metric").value.count().to_dict() == {"a_ii": 30, "cos_yv": 30}
    attempts = troubled.attempts()
    few = {"variant", "status", "cause", "execution", "peak_source"}
    assert {name for name in attempts if attempts[name].dtype == "category"} == few
    assert troubled.pairs(columns=["sa_status", "xsa_status", "status"]).dtypes.eq("category").all()


def test_sql_of_the_user_may_call_things_by_our_names(troubled: Database) -> None:
    frame = troubled.sql(
        "SELECT name AS step, name AS value, id AS status, 1 AS twice, 2 AS twice FROM sweep"
    )
    assert frame.iloc[0].tolist() == ["small", "small", 1, 1, 2]
    assert troubled.sql("SELECT sum(step) AS total, avg(step) AS mean FROM arm").total.dtype.kind in "if"
    assert troubled.sql("SELECT NULL AS missing", to="arrow").num_rows == 1
    with pytest.raises(ValueError, match="no Arrow table"):
        troubled.sql("SELECT 1 AS twice, 2 AS twice", to="arrow")
    with pytest.raises(UnknownName, match="Unknown form 'arow'"):
        troubled.sql("SELECT 1", to="arow")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has a parameter :seed; give its value"):
        troubled.sql("SELECT * FROM arm WHERE seed = :seed")
    with pytest.raises(UnknownName, match="Unknown parameter 'sed'"):
        troubled.sql("SELECT * FROM arm WHERE seed = :seed", sed=1, seed=1)


def test_numbers_come_back_as_they_were(troubled: Database, store: Store) -> None:
    largest = 2**53 - 1
    with store.write() as connection:
        connection.exec_driver_sql(
            f"UPDATE arm_step SET step = {largest}, lr = 0.1 WHERE arm_id = 2 AND step = 20"
        )
        connection.exec_driver_sql("UPDATE arm SET tokens_per_step = 1 WHERE id = 2")
    last = troubled.curves().dropna(subset="train_loss").sort_values("step").iloc[-1]
    assert (last.step, last.lr_now) == (largest, 0.1)
    assert np.isinf(troubled.curves(status="diverged").grad_norm).sum() == 1


def test_a_frame_is_of_one_moment(troubled: Database, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before, numbers = troubled.curves(), bulk._numbers

    def interrupted(*arguments: Any) -> Any:
        with store.write() as connection:  # another process, between two of the queries
            connection.exec_driver_sql("DELETE FROM arm_step WHERE step > 5")
            connection.exec_driver_sql("DELETE FROM arm_eval WHERE step > 5")
        return numbers(*arguments)

    monkeypatch.setattr(bulk, "_numbers", interrupted)
    pd.testing.assert_frame_equal(troubled.curves(), before)
    assert troubled.curves().step.max() == 5
