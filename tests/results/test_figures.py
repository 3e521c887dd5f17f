import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from results import style
from results.figures import FIGURES
from results.frames import MissingData, describe, varied
from results.query import Database
from results.store import Store
from tests.conftest import fill, make_sweep
from tests.results.measured import bench_rows, measure


def frame_of(name: str, db: Database, **filters: Any) -> pd.DataFrame:
    return FIGURES[name].load().data(db, "small", **filters)


@pytest.fixture
def empty(store: Store) -> Database:
    return Database(store.path)


@pytest.fixture
def grid(store: Store, tmp_path: Path) -> Database:
    """λ by learning rate by model size, one seed."""
    grid = {"xsa_lambda": [0.5, 1], "lr": [1e-3, 3e-3], "model_size": ["toy", "10M"]}
    fill(store, make_sweep(grid=grid, seeds=[0]), tmp_path / "runs")
    return Database(store.path)


AGAINST = {"fig4": {"lr": [1e-3, 3e-3]}, "fig5": {"seq_len": [16, 32]}, "fig6": {"n_sinks": [0, 4]}}
"""Figures against an axis, and the grid that their sweep has; fig2 is of no sweep, the others show that of `filled`."""


@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_drawn_and_written_the_same_twice(
    name: str, store: Store, filled: Database, tmp_path: Path
) -> None:
    if name in AGAINST:
        fill(store, make_sweep(grid={"xsa_lambda": [1], **AGAINST[name]}, seeds=[3, 4]), tmp_path / "runs")
    if name == "fig2":
        measure(store, bench_rows([128, 256], [64]) + bench_rows([128], [64], ["compiled"]))
    first = FIGURES[name].save(filled, tmp_path / "first", sweep="small")
    again = FIGURES[name].save(filled, tmp_path / "again", sweep="small")
    assert [path.name for path in first] == [f"{name}.{suffix}" for suffix in ("png", "svg", "pdf", "csv")]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


@pytest.mark.parametrize("name", FIGURES)
def test_figure_of_nothing_says_what_it_needs(name: str, empty: Database) -> None:
    file = FIGURES[name].load()
    with pytest.raises(MissingData, match=f"{name} needs .*(none|no )"):
        file.draw(file.data(empty))


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in {*AGAINST, "fig2"}])
def test_figure_of_an_unfinished_sweep_is_drawn(name: str, troubled: Database) -> None:
    file = FIGURES[name].load()
    frame = file.data(troubled, "small")
    assert file.draw(frame).axes
    assert file.caption(frame)


@pytest.mark.parametrize(
    ("name", "rows", "columns"), [("fig1", 4, 4), ("fig3", 4, 3), ("fig4", 2, 3), ("fig7", 2, 2)]
)
def test_figure_shows_every_value_of_further_axes_and_says_so(
    name: str, rows: int, columns: int, grid: Database
) -> None:
    file = FIGURES[name].load()
    frame = file.data(grid)
    assert set(frame["lr"]) == {1e-3, 3e-3} and set(frame["model_size"]) == {"toy", "10M"}
    assert len(file.draw(frame).axes) == rows * columns
    caption = f"{FIGURES[name].title} {file.caption(frame)}"
    assert "learning rate" in caption and "model size" in caption
    assert "t interval" not in caption  # one seed: there is none


@pytest.mark.parametrize("name", FIGURES)
def test_title_is_the_first_line_of_the_docstring(name: str) -> None:
    assert FIGURES[name].title.endswith(".")
    assert len(FIGURES[name].title) < 100


def test_fig7_differences_are_those_of_the_pairs(filled: Database) -> None:
    frame = frame_of("fig7", filled)
    pairs = filled.pairs("small", xsa_lambda=0.5)
    row = frame[(frame["quantity"] == "delta_val_loss") & (frame["xsa_lambda"] == 0.5)].iloc[0]
    assert row["n"] == 3
    assert row["mean"] == pytest.approx(pairs["delta_val_loss"].mean())
    assert row["low"] < row["mean"] < row["high"] < 0


def test_fig7_bias_includes_the_sa_arm_and_vanishes_at_full_exclusion(filled: Database) -> None:
    frame = frame_of("fig7", filled)
    bias = frame[frame["quantity"] == "cos_zv"].set_index("xsa_lambda")["mean"]
    assert list(bias.index) == [0.0, 0.5, 1.0]
    assert bias[1.0] == 0.0
    assert bias[0.5] == pytest.approx(bias[0.0] / 2)


def test_fig7_needs_two_lambdas(filled: Database) -> None:
    file = FIGURES["fig7"].load()
    with pytest.raises(MissingData, match=r"two or more λ; there is one \(0\.5\)"):
        file.draw(file.data(filled, xsa_lambda=0.5))


def test_fig7_caption_counts_what_diverged_and_what_is_missing(troubled: Database) -> None:
    caption = FIGURES["fig7"].load().caption(frame_of("fig7", troubled))
    assert "Pairs diverged: 1 at λ = 0.5." in caption
    assert "Pairs failed: 1 at λ = 1. Pairs not finished: 1 at λ = 1." in caption


def test_a_filter_on_lambda_keeps_the_baseline(filled: Database) -> None:
    assert set(frame_of("fig3", filled, xsa_lambda=1.0)["xsa_lambda"]) == {0.0, 1.0}
    assert set(frame_of("fig1", filled, xsa_lambda=0.5)["state"]) == {"untrained", "SA", "XSA"}


def test_fig3_difference_is_paired_by_seed(filled: Database) -> None:
    frame = frame_of("fig3", filled)
    last = frame[(frame["step"] == 40) & (frame["xsa_lambda"] == 1.0)].set_index("quantity")
    pairs = filled.pairs("small", xsa_lambda=1.0)
    delta = last.loc["delta_val_loss"]
    assert delta["mean"] == pytest.approx(pairs["delta_val_loss"].mean())
    # the seeds' own spread is in each arm's interval and cancels in the paired one
    assert delta["high"] - delta["low"] < 0.2 * (last.loc["val_loss", "high"] - last.loc["val_loss", "low"])
    assert not (frame["quantity"].eq("delta_val_loss") & frame["xsa_lambda"].eq(0)).any()


def test_fig3_has_one_scale_of_differences_for_all_rows(grid: Database) -> None:
    file = FIGURES["fig3"].load()
    frame = file.data(grid)
    frame.loc[(frame["quantity"] == "delta_val_loss") & (frame["model_size"] == "10M"), "mean"] = -7.0
    limits = {ax.get_ylim() for ax in file.draw(frame).axes[2::3]}
    assert len(limits) == 1 and limits.pop()[0] < -7


def test_fig3_averages_finished_arms_apart_from_unfinished_ones(troubled: Database) -> None:
    frame = frame_of("fig3", troubled)
    for step in (20, 40):  # the unfinished arms reach step 20
        val = frame[(frame["quantity"] == "val_loss") & (frame["step"] == step)].set_index("xsa_lambda")
        assert val["n"].to_dict() == {0.0: 3, 0.5: 2, 1.0: 1}
        assert val["finished"].all()


def test_fig3_training_windows_end_at_the_last_step(store: Store, tmp_path: Path) -> None:
    base = make_sweep().base | {"steps": 250}
    fill(store, make_sweep(base=base, grid={"xsa_lambda": [1]}, seeds=[0]), tmp_path / "runs")
    with Database(store.path) as db:
        frame = frame_of("fig3", db, xsa_lambda=1.0)
        curve = db.curves("small", variant="sa").set_index("step")["train_loss"]
    train = frame[(frame["quantity"] == "train_loss") & (frame["xsa_lambda"] == 0)].set_index("step")["mean"]
    assert train.index[[0, -1]].tolist() == [3, 250]
    assert train[3] == pytest.approx(curve[[1, 2, 3]].mean())
    assert train[250] == pytest.approx(curve[250])


def test_fig1_takes_full_exclusion_and_the_untrained_network(filled: Database) -> None:
    frame = frame_of("fig1", filled)
    lambdas = frame.groupby("state")["xsa_lambda"].unique()
    assert {state: list(values) for state, values in lambdas.items()} == {
        "SA": [0.0],
        "XSA": [1.0],
        "untrained": [0.0],
    }
    row = frame[(frame["state"] == "SA") & (frame["metric"] == "cos_vv") & (frame["layer"] == 1)].iloc[0]
    assert (row["n"], row["mean"]) == (3, pytest.approx(0.1 + 0.1 + 0.08 + 0.001))


@pytest.fixture
def layered(store: Store, tmp_path: Path) -> Database:
    """λ by the layers that XSA is in: one SA arm for all of them."""
    grid = {"xsa_lambda": [0, 0.5, 1], "xsa_layers": ["all", "last:1"]}
    fill(store, make_sweep(grid=grid, seeds=[0]), tmp_path / "runs")
    return Database(store.path)


def test_every_setting_of_xsa_s_own_has_the_baseline_beside_it(layered: Database) -> None:
    bias = frame_of("fig7", layered)
    bias = bias[bias["quantity"] == "cos_zv"]
    assert bias.groupby("xsa_layers")["xsa_lambda"].agg(list).to_dict() == {
        "1": [0, 0.5, 1],
        "all": [0, 0.5, 1],
    }
    states = frame_of("fig1", layered).groupby("xsa_layers")["state"].unique()
    assert list(states.index) == ["1", "all"]
    assert all(set(found) == {"untrained", "SA", "XSA"} for found in states)


def test_a_baseline_is_no_setting_of_its_own_where_xsa_is_in_some_layers(
    store: Store, tmp_path: Path
) -> None:
    fill(
        store, make_sweep(grid={"xsa_lambda": [0, 1], "xsa_layers": ["last:1"]}, seeds=[0]), tmp_path / "runs"
    )
    with Database(store.path) as db:
        for name, panels in (("fig1", 4), ("fig7", 2)):
            frame = frame_of(name, db)
            assert "xsa_layers" not in frame
            assert len(FIGURES[name].load().draw(frame).axes) == panels


def test_a_named_size_stands_for_its_numbers(grid: Database) -> None:
    assert varied(grid.pairs()) == ["xsa_lambda", "model_size", "lr"]


def test_labels_come_from_the_axes() -> None:
    values = {"xsa_lambda": 0.5, "seq_len": 2048, "model_size": "toy", "qk_norm": True}
    assert describe(values) == "λ = 0.5, sequence length 2,048 tokens, model size toy, QK-norm = True"


def test_colours_of_a_lambda_are_fixed_and_apart() -> None:
    assert style.lambda_color(0) == style.SA
    assert to_rgb(style.lambda_color(1)) == pytest.approx(to_rgb(style.XSA), abs=0.01)
    shades = [to_rgb(style.lambda_color(value)) for value in (0.25, 0.5, 1, 1.5, 2)]
    luminance = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in shades]
    assert all(a - b > 0.03 for a, b in pairwise(luminance))


def test_listing_figures_and_tables_loads_no_plotting() -> None:
    code = (
        "import sys, results, results.figures, results.tables;"
        "print(*sorted({'matplotlib', 'pandas', 'scipy', 'jinja2'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
