"""Figure 2: time and memory of a block."""

from collections.abc import Iterator
from typing import Any

import pytest
from matplotlib.figure import Figure

from results.claims import Provenance
from results.figures import FIGURES
from results.frames import NotAsked
from results.query import Database
from results.record_made import record_bench
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
    assert "Not measured at these shapes: compiled." in FIG2.caption(
        FIG2.data(blocks, seq_len=[64, 128, 256]).query("execution == 'eager'")
    )


def test_machines_and_precisions_are_kept_apart(store: Store) -> None:
    measure(store, bench_rows([64, 128], [128]) + bench_rows([64, 128], [128], dtype="bfloat16"))
    with Database(store.path) as db:
        figure = FIG2.draw(FIG2.data(db))
    assert len(figure.axes) == 2 * 2 * 4
    assert "forward+backward, bfloat16" in [text.get_text() for ax in figure.axes for text in ax.texts]


def test_legend_and_caption_are_of_what_is_drawn(store: Store) -> None:
    # a compiled block with a shape of its own, and of a machine with one shape only
    alone = bench_rows([512], [2048], ["compiled"], d_head=128)
    alone += bench_rows([64], [64], ["compiled"], threads=8)
    measure(store, bench_rows([64, 128], [128]) + alone)
    with Database(store.path) as db:
        frame = FIG2.data(db)
    (legend,) = FIG2.draw(frame).legends
    assert [text.get_text() for text in legend.get_texts()] == ["SA, eager", "XSA, eager"]
    caption = FIG2.caption(frame)
    assert "Not measured at these shapes: compiled." in caption and "heads of 64." in caption


def test_what_of_one_machine_is_of_several_codes_and_environments_is_said(store: Store) -> None:
    newer = {"torch": "2.14.0", "platform": "Linux", "hostname": "laptop", "device": "cpu", "threads": 1}
    rows = bench_rows([64, 128], [128])
    with_changes = Provenance("1" * 40, True, {"lm_eval": "0.4.13"})
    measure(store, rows)
    with Database(store.path) as db:
        assert "differ in" not in FIG2.caption(FIG2.data(db))
        record_bench(store, bench_rows([128], [128]), environment=newer, provenance=with_changes)
        record_bench(store, rows, environment=newer | {"hostname": "server"}, provenance=with_changes)
        frame = FIG2.data(db)
    caption = FIG2.caption(frame)
    assert caption.count("differ in") == 1
    assert (
        "Measurements of laptop differ in code (000000000000 and 111111111111 with uncommitted changes), "
        "torch (2.13.0 and 2.14.0), lm_eval (0.4.13 and unknown) and platform (Linux and unknown):"
    ) in caption
    mine = frame[frame["hostname"] == "laptop"].set_index("seq_len")
    assert mine.loc[64, "sa_git_sha"].tolist() == ["0" * 40] * 2
    assert mine.loc[128, "xsa_git_sha"].tolist() == ["1" * 40] * 2


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
