"""The paper's numbers agree with themselves and with the sizes that the program knows."""

import pytest

from results.reference import PUBLISHED, overlays, published
from schemas.errors import UserError
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


def test_table2_has_the_averages_of_its_tasks() -> None:
    frame = published("table2")
    means = frame.loc[:, "arc_easy":"winogrande"].mean(axis=1)
    assert (means - frame["avg"]).abs().max() < 0.0051


def test_overlays_are_of_figures_and_a_figure_without_numbers_is_a_mistake() -> None:
    assert list(overlays([])) == ["fig4", "fig6"]
    assert list(overlays(["fig6"])) == ["fig6"]
    with pytest.raises(UserError, match="no numbers to draw into fig5, only into fig4 and fig6"):
        overlays(["fig4", "fig5"])
    with pytest.raises(UnknownName, match="Did you mean 'table1'"):
        published("tabel1")
