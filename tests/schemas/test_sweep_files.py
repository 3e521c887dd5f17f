"""Every sweep that ships is read and expanded, and the paper's have the paper's numbers."""

from pathlib import Path

import pytest

from schemas.sweep import Sweep
from schemas.trial import Trial

SWEEPS = Path(__file__).parents[2] / "sweeps"
ARMS = {
    "quickstart": 6, "lr": 24, "seq_len": 30, "sinks": 18, "model_size": 18, "lambda": 27,
    "paper/fig3": 6, "paper/fig4": 8, "paper/fig5": 12, "paper/fig6": 6, "paper/table2": 6,
}  # fmt: skip


def trials(name: str) -> list[Trial]:
    return Sweep.load(SWEEPS / f"{name}.yaml").trials()


def arms(name: str) -> set[str]:
    return {arm.id for trial in trials(name) for arm in trial.arms}


def test_none_is_left_out() -> None:
    assert {str(path.relative_to(SWEEPS).with_suffix("")) for path in SWEEPS.rglob("*.yaml")} == ARMS.keys()


@pytest.mark.parametrize("name", ARMS)
def test_it_expands_into_its_arms(name: str) -> None:
    assert len(arms(name)) == ARMS[name]


@pytest.mark.parametrize("name", [name for name in ARMS if name.startswith("paper/")])
def test_the_paper_s_are_at_the_paper_s_scale(name: str) -> None:
    for trial in trials(name):
        assert (trial.dataset, trial.tokenizer, trial.tokens_per_step) == ("fineweb", "gpt2", 524_288)
        assert (trial.steps, trial.warmup_steps, trial.min_lr_ratio) == (200_000, 2_000, 0.1)
        assert trial.tokens == 104_857_600_000


def test_the_paper_s_sizes_have_its_learning_rates() -> None:
    found = {(trial.model_size, trial.lr, trial.seq_len) for trial in trials("paper/fig3")}
    assert found == {("0.7B", 5e-4, 2048), ("1.3B", 4e-4, 2048), ("2.7B", 3e-4, 2048)}


def test_the_paper_s_sweeps_share_what_they_have_in_common() -> None:
    assert arms("paper/table2") == arms("paper/fig3")
    for name in ("fig4", "fig5", "fig6"):
        assert len(arms(f"paper/{name}") & arms("paper/fig3")) == 2, "SA and XSA of 1.3B at 4e-4 and 2,048"
