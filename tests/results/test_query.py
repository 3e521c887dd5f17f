import numpy as np
import pandas as pd
import pytest

import results
from results.query import Database
from schemas.errors import UserError
from schemas.names import UnknownName
from schemas.report import METRICS
from schemas.trial import AXES
from tests.conftest import ON_BOTH

pytestmark = ON_BOTH


def test_open_is_the_front_door(filled: Database, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XSA_DB", address)
    with results.open() as db:
        assert len(db.pairs(sweep="small", xsa_lambda=1)) == 3


def test_pairs_are_one_row_a_trial_with_both_finals(filled: Database) -> None:
    pairs = filled.pairs("small")
    assert len(pairs) == 9
    assert (pairs.step == 40).all()
    np.testing.assert_allclose(pairs.delta_val_loss, pairs.xsa_val_loss - pairs.sa_val_loss)
    assert (pairs[pairs.xsa_lambda > 0].delta_val_loss < 0).all()
    zero = pairs[pairs.xsa_lambda == 0]
    assert (zero.sa_arm == zero.xsa_arm).all()
    assert (zero.delta_val_loss == 0).all()


def test_pairs_compare_at_the_last_step_that_both_have(troubled: Database) -> None:
    pairs = troubled.pairs("small").set_index(["xsa_lambda", "seed"])
    assert pairs.status.to_dict() == {
        (0.0, 0): "done", (0.0, 1): "done", (0.0, 2): "done",
        (0.5, 0): "done", (0.5, 1): "diverged", (0.5, 2): "done",
        (1.0, 0): "failed", (1.0, 1): "done", (1.0, 2): "running",
    }  # fmt: skip
    assert pairs.step[1.0, 2] == 20
    assert pairs.step[1.0, 1] == 40


def test_curves_have_every_step_and_the_evaluations(filled: Database) -> None:
    curves = filled.curves("small", xsa_lambda=1, seed=0)
    assert curves.step.tolist() == list(range(41))
    assert curves[curves.val_loss.notna()].step.tolist() == [0, 10, 20, 30, 40]
    assert curves.tokens.tolist() == [64 * step for step in range(41)]
    assert np.isnan(curves.train_loss[0])


def test_layers_are_long(filled: Database) -> None:
    layers = filled.layers("small", xsa_lambda=1, seed=0)
    assert set(layers.metric) == set(METRICS)
    assert len(layers) == len(METRICS) * 2 * 2
    assert set(layers.variant) == {"xsa"}


def test_types_are_the_axes_types_even_without_rows(filled: Database) -> None:
    for frame in (filled.pairs(), filled.pairs(seed=99), filled.curves(seed=99), filled.layers(seed=99)):
        for name, axis in AXES.items():
            assert (
                frame[name].dtype == {float: "float64", int: "int64", str: "str", bool: "bool"}[axis.kind]
            ), name
    assert str(filled.sweeps().created_at.dtype) == "datetime64[us, UTC]"
    assert str(filled.pairs().step.dtype) == "Int64"


def test_filters_are_values_lists_and_ranges(filled: Database) -> None:
    assert len(filled.pairs(xsa_lambda=0.5)) == 3
    assert len(filled.pairs(xsa_lambda=[0, 1])) == 6
    assert len(filled.pairs(xsa_lambda=(0.2, None))) == 6
    assert len(filled.pairs(xsa_lambda=(None, 0.5), seed=range(2))) == 4
    assert len(filled.pairs(status="done", model_size="toy")) == 9


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda db: db.pairs(seqlen=64), "Unknown filter 'seqlen'. Did you mean 'seq_len'"),
        (lambda db: db.pairs("smal"), "Unknown sweep 'smal'. Did you mean 'small'"),
        (lambda db: db.curves(step_=1), "Did you mean 'step'"),
        (lambda db: db.pairs(seq_len="64"), "sequence length must be a whole number"),
        (lambda db: db.pairs(**{"1=1; DROP TABLE arm; --": 1}), "Unknown filter"),
        (lambda db: db.pairs("x' OR '1'='1"), "Unknown sweep"),
    ],
)
def test_mistakes_are_answered(filled: Database, ask: object, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        ask(filled)  # type: ignore[operator]
    assert issubclass(UnknownName, UserError)
    assert len(filled.pairs()) == 9


def test_sql_takes_parameters(filled: Database) -> None:
    frame = filled.sql("SELECT * FROM v_results WHERE xsa_lambda = :value", value=0.5)
    assert len(frame) == 3
    assert filled.sql("SELECT * FROM v_status").arms.tolist() == [9]


def test_a_reader_cannot_write(filled: Database) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        filled.sql("DELETE FROM arm")
    assert len(filled.pairs()) == 9


def test_sweeps_count_arms_by_status(troubled: Database) -> None:
    row = troubled.sweeps().iloc[0]
    assert (row.trials, row.arms) == (9, 9)
    assert (row.done, row.diverged, row.failed, row.running, row.pending) == (6, 1, 1, 1, 0)


def test_attempts_say_where_and_how(troubled: Database) -> None:
    attempts = troubled.attempts("small")
    failed = attempts[attempts.status == "failed"].iloc[0]
    assert (failed.cause, failed.error) == ("user_error", "boom <b>")
    assert isinstance(attempts, pd.DataFrame)
    assert set(attempts.hostname) == {"laptop"}


def test_an_empty_store_gives_empty_frames(db: Database) -> None:
    assert db.pairs().empty
    assert db.curves().empty
    assert db.sweeps().empty
    assert db.attempts().empty
