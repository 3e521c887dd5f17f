"""The paper's numbers agree with themselves and with the sizes that the program knows."""

import pytest

from results.reference import FIGURES, PUBLISHED, TABLES, overlays, published
from schemas.errors import UserError
from schemas.evals import PAPER8
from schemas.names import UnknownName
from schemas.sizes import SIZES, Size


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_names_its_source(name: str) -> None:
    frame = published(name)
    assert frame["source"].str.startswith("arXiv:2603.09078v1, ").all()


def test_table1_has_the_shapes_of_our_sizes_and_its_labels_count_their_weights() -> None:
    for row in published("table1").to_dict("records"):
        size = SIZES[row["model_size"]]
        assert size == Size(*(row[name] for name in Size._fields))
        assert f"{size.non_embedding / 1e9:.1f}B" == row["label"]


def test_table2_has_the_averages_of_its_tasks_and_the_papers_metrics() -> None:
    frame = published("table2")
    average = frame["task"] == "avg"
    means = frame[~average].groupby("model_size")[["sa", "xsa"]].mean()
    printed = frame[average].set_index("model_size")[["sa", "xsa"]]
    assert (means - printed).abs().max().max() < 0.0051
    for _, rows in frame[~average].groupby("model_size"):
        assert dict(zip(rows["task"], rows["metric"], strict=True)) == PAPER8


def test_overlays_are_of_figures_or_tables_and_one_without_numbers_is_a_mistake() -> None:
    assert list(overlays([], FIGURES)) == ["fig4", "fig6"]
    assert list(overlays(["fig6"], FIGURES)) == ["fig6"]
    assert list(overlays([], TABLES)) == ["table2"]
    with pytest.raises(UserError, match="no numbers to show in fig5, only in fig4 and fig6"):
        overlays(["fig4", "fig5"], FIGURES)
    with pytest.raises(UnknownName, match="Did you mean 'table1'"):
        published("tabel1")
