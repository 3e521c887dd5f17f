"""The sweeps that docs/figures.md tells readers to run."""

from pathlib import Path

import pytest

from schemas.sweep import Sweep

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("path", sorted((DOCS / "figures").glob("*.yaml")), ids=lambda path: path.stem)
def test_sweep_of_the_documentation_is_a_sweep_and_is_named_there(path: Path) -> None:
    sweep = Sweep.load(path)
    assert len(sweep.trials()) >= 9
    assert sweep.name == path.stem and sweep.name in (DOCS / "figures.md").read_text()


def test_every_picture_of_the_documentation_is_small_and_shown() -> None:
    shown = (DOCS / "figures.md").read_text()
    for path in (DOCS / "figures").glob("*.png"):
        assert path.stat().st_size < 150_000 and f"figures/{path.name}" in shown
