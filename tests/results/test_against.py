"""Figures 4, 5 and 6: final validation loss against an axis."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from results import marks, style
from results.figures import FIGURES
from results.frames import MissingData, NotAsked
from results.query import Database
from results.record import save_sweep
from results.reference import published
from results.store import Store
from tests.conftest import fill, make_sweep

LAMBDAS = [0, 0.5, 1]
FIG4, FIG5, FIG6 = (FIGURES[name].load() for name in ("fig4", "fig5", "fig6"))


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Sweeps over each axis. Of `lr`, one XSA arm diverged; of `sinks`, one with 16 is not finished."""
    folder = tmp_path_factory.mktemp("against")
    with Store.open(folder / "results.db", mode="write") as store:

        def add(name: str, *parts: dict[str, Any], grid: dict[str, Any], seeds: list[int]) -> None:
            for part in parts:
                ends = part.pop("ends", None)
                fill(store, make_sweep(name=name, grid=grid | part, seeds=seeds), folder, ends)
            whole = {key: sorted({value for part in parts for value in part[key]}) for key in parts[0]}
            sweep = make_sweep(name=name, grid=grid | whole, seeds=seeds)
            save_sweep(store, sweep, sweep.trials(), folder)

        broken = {"lr": [8e-3], "ends": {(1.0, 1): "diverged"}}
        add("lr", {"lr": [2e-3, 4e-3]}, broken, grid={"xsa_lambda": LAMBDAS}, seeds=[0, 1, 2])
        running = {"n_sinks": [16], "ends": {(1.0, 0): "running"}}
        add("sinks", {"n_sinks": [0, 1, 4]}, running, grid={"xsa_lambda": [1]}, seeds=[0])
        lengths = {"seq_len": [16, 32], "n_sinks": [0, 2]}
        fill(store, make_sweep(name="seq_len", grid=lengths, seeds=[0, 1], base=_base(lr=3e-3)), folder)
        kinds = {"n_sinks": [0, 2], "sink_kind": ["kv", "logit"]}
        fill(store, make_sweep(name="kinds", grid=kinds, seeds=[3]), folder)
        two = [{"model_size": "toy", "lr": 1e-2}, {"model_size": "10M", "lr": 1e-3}]
        tied = make_sweep(name="tied", grid={}, list=two, seeds=[7])
        fill(store, tied, folder)
    with Database(folder / "results.db") as database:
        yield database


def _base(**changes: Any) -> dict[str, Any]:
    return make_sweep().base | changes


def panels(figure: Any) -> list[tuple[Axes, Axes]]:
    """The panels of validation losses and of their differences, which stand right of the training losses."""
    return list(zip(figure.axes[1::3], figure.axes[2::3], strict=True))


def of(frame: pd.DataFrame, quantity: str, **values: Any) -> pd.DataFrame:
    chosen = frame["quantity"] == quantity
    for name, value in values.items():
        chosen &= frame[name] == value
    return frame[chosen]


def test_differences_are_those_of_the_pairs_and_corrected_over_the_figure(db: Database) -> None:
    delta = of(FIG4.data(db, "lr"), "delta_val_loss")
    assert len(delta) == 6  # λ = 0 is SA itself and no difference
    (row,) = of(delta, "delta_val_loss", lr=2e-3, xsa_lambda=1.0).to_dict("records")
    pairs = db.pairs("lr", lr=2e-3, xsa_lambda=1.0)
    assert (row["n"], row["mean"]) == (3, pytest.approx(pairs["delta_val_loss"].mean()))
    assert row["low"] < row["mean"] < row["high"] < 0
    assert "Holm's correction over the 6 differences here" in FIG4.caption(FIG4.data(db, "lr"))


def test_levels_are_over_finished_pairs_and_hold_each_baseline_once(db: Database) -> None:
    level = of(FIG4.data(db, "lr"), "val_loss")
    pairs = db.pairs("lr", lr=8e-3)
    done = pairs[(pairs["status"] == "done") & (pairs["xsa_lambda"] == 1.0)]
    xsa = of(level, "val_loss", lr=8e-3, xsa_lambda=1.0).iloc[0]
    assert (xsa["n"], xsa["n_diverged"]) == (2, 1)
    assert xsa["mean"] == pytest.approx(done["xsa_val_loss"].mean())
    assert (xsa["low"], xsa["high"]) == (done["xsa_val_loss"].min(), done["xsa_val_loss"].max())
    sa = of(level, "val_loss", lr=8e-3, xsa_lambda=0.0).iloc[0]
    assert (sa["n"], sa["n_diverged"]) == (3, 0)  # the pairs with λ = 0.5 all finished


def test_training_losses_are_beside_those_of_validation(db: Database) -> None:
    frame = FIG4.data(db, "lr")
    pairs = db.pairs("lr", lr=2e-3, xsa_lambda=1.0)
    xsa = of(frame, "train_loss", lr=2e-3, xsa_lambda=1.0).iloc[0]
    assert (xsa["n"], xsa["mean"]) == (3, pytest.approx(pairs["xsa_train_loss"].mean()))
    delta = of(frame, "delta_train_loss", lr=2e-3, xsa_lambda=1.0).iloc[0]
    assert delta["mean"] == pytest.approx(pairs["delta_train_loss"].mean())
    left = FIG4.draw(frame).axes[0]
    assert left.get_title("left") == "training loss (nats/token)"
    assert pytest.approx(xsa["mean"]) in [line.get_ydata()[0] for line in left.lines]


def test_what_diverged_is_counted_and_marked(db: Database) -> None:
    frame = FIG4.data(db, "lr")
    assert "Pairs diverged: 1 at learning rate 0.008. A cross at the top" in FIG4.caption(frame)
    ((left, _),) = panels(FIG4.draw(frame))
    (cross,) = [line for line in left.lines if line.get_marker() == "x"]
    assert cross.get_xdata() == [8e-3]
    assert cross.get_ydata()[0] == left.get_ylim()[1]


def test_one_seed_has_no_interval_and_what_is_missing_is_named(db: Database) -> None:
    frame = FIG6.data(db, "sinks")
    caption = FIG6.caption(frame)
    assert "one seed. n = 1, no interval. Pairs not finished: 1 at attention sinks 16." in caption
    assert "Bars" not in caption and "Shading" not in caption
    ((left, right),) = panels(FIG6.draw(frame))
    for ax in (left, right):
        assert [label.get_text() for label in ax.get_xticklabels()] == [
            "0\nn = 1",
            "1\nn = 1",
            "4\nn = 1",
            "16\nn = 0",
        ]


def test_scales_are_those_of_the_axis(db: Database) -> None:
    ((lr, _),) = panels(FIG4.draw(FIG4.data(db, "lr")))
    assert lr.get_xscale() == "log"
    ((sinks, _),) = panels(FIG6.draw(FIG6.data(db, "sinks")))
    places = sinks.xaxis.get_transform().transform(np.array([0.0, 1.0, 4.0, 16.0]))
    assert np.diff(places) / places[1] == pytest.approx([1, 2, 2])


def test_another_axis_has_rows_of_panels_and_one_scale_of_differences(db: Database) -> None:
    frame = FIG5.data(db, "seq_len")
    frame.loc[of(frame, "delta_val_loss", n_sinks=2).index, "mean"] = -7.0
    (_, first), (_, second) = panels(FIG5.draw(frame))
    assert first.get_ylim() == second.get_ylim()
    assert first.get_ylim()[0] < -7
    assert "One row of panels for each attention sinks." in FIG5.caption(frame)
    assert "compare the differences" in FIG5.caption(frame)


def test_a_pair_without_sinks_belongs_to_every_kind_of_sink(db: Database) -> None:
    frame = of(FIG6.data(db, "kinds"), "delta_val_loss")
    assert frame.groupby("sink_kind")["n_sinks"].agg(list).to_dict() == {"kv": [0, 2], "logit": [0, 2]}
    assert "One row of panels for each sink kind." in FIG6.caption(frame)


def test_a_sweep_that_does_not_vary_the_axis_is_another_figure_s(db: Database) -> None:
    with pytest.raises(NotAsked, match=r"values of sequence length; there is one \(16\)\."):
        FIG5.draw(FIG5.data(db, "lr"))
    with pytest.raises(NotAsked, match="values of learning rate; there is one for each model size"):
        FIG4.draw(FIG4.data(db, "tied"))
    with pytest.raises(NotAsked, match="there is none"):
        FIG4.draw(FIG4.data(db, "lr", xsa_lambda=0))


def test_a_sweep_that_has_one_value_so_far_lacks_data(db: Database) -> None:
    with pytest.raises(MissingData, match=r"values of attention sinks; there is one \(4\)\.") as raised:
        FIG6.draw(FIG6.data(db, "sinks", n_sinks=[4, 16]))
    assert not isinstance(raised.value, NotAsked)


def test_published_differences_are_beside_ours_and_named(db: Database) -> None:
    overlay = published("fig6")
    plain, frame = FIG6.data(db, "sinks"), FIG6.data(db, "sinks", overlay=overlay)
    assert of(frame, "published")["n_sinks"].tolist() == overlay["n_sinks"].tolist()
    pd.testing.assert_frame_equal(frame[frame["quantity"] != "published"][[*plain]], plain)
    caption = FIG6.caption(frame)
    assert f"Dashed: {overlay['source'][0]}." in caption and "n = 1 a point, no interval" in caption
    ((left, right),) = panels(FIG6.draw(frame))
    dashed = [line for line in right.lines if line.get_color() == style.PAPER]
    assert [list(line.get_xdata()) for line in dashed] == [[0, 1, 4]] * 2
    assert not [line for line in left.lines if line.get_color() == style.PAPER]


def test_published_differences_are_in_every_row(db: Database) -> None:
    overlay = published("fig6").rename(columns={"n_sinks": "seq_len"})
    frame = FIG5.data(db, "seq_len", overlay=overlay)
    assert of(frame, "published")["n_sinks"].tolist() == [0, 0, 0, 2, 2, 2]


def test_only_claimed_differences_are_filled() -> None:
    _, axes = style.panels(1, 1, height=1)
    rows = [(1.0, -0.2, -0.3, -0.1, 0.01), (2.0, -0.2, -0.3, -0.1, 0.06), (4.0, -0.2, *[float("nan")] * 3)]
    line = pd.DataFrame(rows, columns=["lr", "mean", "low", "high", "p_holm"])
    _, filled, hollow = marks.differences(axes[0][0], "lr", line, style.XSA)
    assert (list(filled.get_xdata()), list(hollow.get_xdata())) == ([1.0], [2.0, 4.0])
    assert hollow.get_markerfacecolor() == "white"


def test_labels_that_would_touch_are_left_out_and_the_first_ones_stay() -> None:
    figure, axes = style.panels(1, 1, height=1)
    style.axis_x(axes[0][0], "lr", [1e-3, 1e-2, 1.05e-3, 4e-3])
    style.settle(figure)
    assert [label.get_text() for label in axes[0][0].get_xticklabels()] == ["0.001", "0.01", "", "0.004"]
    assert axes[0][0].get_xticks().tolist() == [1e-3, 1e-2, 1.05e-3, 4e-3]


@pytest.mark.parametrize(("name", "sweep"), [("fig4", "lr"), ("fig6", "sinks")])
def test_no_two_labels_touch_beside_the_papers_values(db: Database, name: str, sweep: str) -> None:
    file = FIGURES[name].load()
    figure = file.draw(file.data(db, sweep, overlay=published(name)))
    for ax in figure.axes:
        boxes = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
        boxes.sort(key=lambda box: box.x0)
        assert len(boxes) > 1
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
