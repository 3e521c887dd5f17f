"""Figure 2: time and memory of a block."""

from collections.abc import Iterator
from typing import Any

import pytest
from matplotlib.figure import Figure

from results.figures import FIGURES
from results.frames import NotAsked
from results.query import Database
from results.store import Store
from tests.results.measured import bench_rows, measure

FIG2 = FIGURES["fig2"].load()


@pytest.fixture
def blocks(store: Store) -> Iterator[Database]:
    """Four lengths at a width of 128, three widths at a length of 256; eager and compiled."""
    both = ["eager", "compiled"]
    measure(store, bench_rows([64, 128, 256, 512], [128], both) + bench_rows([256], [64, 256], both))
    with Database(store.path) as db:
        yield db


def titles(figure: Figure) -> list[str]:
    return [ax.get_title("left").strip() for ax in figure.axes if ax.get_title("left")]


def test_overhead_is_that_of_the_medians_and_its_bars_of_the_quartiles(blocks: Database) -> None:
    frame = FIG2.data(blocks)
    assert len(frame) == 6 * 2 * 2
    eager = frame[frame["execution"] == "eager"]
    assert eager["overhead_ms"].tolist() == pytest.approx([0.1] * len(eager))
    assert eager["overhead_low"].tolist() == pytest.approx([1.1 * 0.99 / 1.01 - 1] * len(eager))
    assert eager["overhead_high"].tolist() == pytest.approx([1.1 * 1.01 / 0.99 - 1] * len(eager))
    assert eager["overhead_peak_bytes"].tolist() == pytest.approx([0.01] * len(eager), abs=1e-4)


def test_against_length_and_width_with_overheads_below_for_both_directions(blocks: Database) -> None:
    figure = FIG2.draw(FIG2.data(blocks))
    assert len(figure.axes) == 4 * 4
    assert titles(figure) == ["time (ms)", "memory (MB)", "time (ms)", "memory (MB)"] * 2
    levels, overheads = figure.axes[:4], figure.axes[4:8]
    assert [ax.get_xlabel() for ax in overheads] == ["sequence length (tokens)"] * 2 + ["model width"] * 2
    assert [list(line.get_xdata()) for line in levels[0].lines] == [[64, 128, 256, 512]] * 4
    assert [list(line.get_xdata()) for line in levels[2].lines] == [[64, 128, 256]] * 4
    drawn = {tuple(round(y, 6) for y in line.get_ydata()) for line in overheads[0].lines}
    assert {(10.0,) * 4, (2.0,) * 4} <= drawn
    assert overheads[0].get_ylim() == overheads[2].get_ylim() != overheads[1].get_ylim()


def test_caption_says_where_at_which_shapes_and_what_is_not_there(blocks: Database) -> None:
    caption = FIG2.caption(FIG2.data(blocks))
    assert "Measured on cpu of laptop (1 thread, float32, 4 sequences)" in caption
    assert (
        "against sequence length at model width 128 and against model width at sequence length 256" in caption
    )
    assert "Not measured: compiled." in FIG2.caption(
        FIG2.data(blocks, seq_len=[64, 128, 256]).query("execution == 'eager'")
    )


def test_machines_and_precisions_are_kept_apart(store: Store) -> None:
    measure(store, bench_rows([64, 128], [128]) + bench_rows([64, 128], [128], dtype="bfloat16"))
    with Database(store.path) as db:
        figure = FIG2.draw(FIG2.data(db))
    assert len(figure.axes) == 2 * 2 * 4
    assert "forward+backward, bfloat16" in [text.get_text() for ax in figure.axes for text in ax.texts]


def test_filters_that_are_about_blocks_count_and_others_do_not(blocks: Database) -> None:
    frame = FIG2.data(blocks, None, seq_len=(None, 256), lr=1e-3, xsa_lambda=1)
    assert set(frame["seq_len"]) == {64, 128, 256}


@pytest.mark.parametrize(("rows", "there"), [([], "none"), (bench_rows([64], [128]), "only others")])
def test_without_two_lengths_or_widths_there_is_nothing_to_draw(store: Store, rows: Any, there: str) -> None:
    measure(store, rows) if rows else None
    with (
        Database(store.path) as db,
        pytest.raises(NotAsked, match=f"`xsa bench` measures them; there is {there}"),
    ):
        FIG2.draw(FIG2.data(db))
