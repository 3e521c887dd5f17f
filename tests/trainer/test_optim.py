"""Optimizers, the schedule, and that models learn."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from schemas.report import EvalRow
from schemas.trial import Arm
from trainer.model import build
from trainer.optim import make_optimizers, set_learning_rate
from trainer.schedule import learning_rate


def groups(arm: Arm) -> dict[str, tuple[str, float]]:
    """By parameter name, which optimizer updates it and how much it decays."""
    model, _ = build(arm, torch.device("cpu"))
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[parameter]: (type(optimizer).__name__, group["weight_decay"])
        for optimizer in make_optimizers(model, arm)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize("sink_kind", ["token", "kv", "logit", "zero"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_parameter_has_one_optimizer_and_its_decay(
    tiny: Callable[..., Arm], optimizer: str, sink_kind: str
) -> None:
    arm = tiny(optimizer=optimizer, weight_decay=0.3, n_sinks=2, sink_kind=sink_kind)
    found = groups(arm)
    model, _ = build(arm, torch.device("cpu"))
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        plain = "ln_" in name or name.endswith("logit")
        hidden = name.startswith("blocks.") and not plain and "sinks" not in name
        assert found[name][0] == ("Muon" if optimizer == "muon" and hidden else "AdamW"), name
        assert found[name][1] == (0.0 if plain else 0.3), name
        assert plain or parameter.ndim >= 2


def test_the_learning_rate_reaches_every_group(tiny: Callable[..., Arm]) -> None:
    arm = tiny(optimizer="muon")
    optimizers = make_optimizers(build(arm, torch.device("cpu"))[0], arm)
    set_learning_rate(optimizers, 0.25)
    assert {group["lr"] for optimizer in optimizers for group in optimizer.param_groups} == {0.25}


def test_the_schedule_warms_up_and_ends_at_its_floor(tiny: Callable[..., Arm]) -> None:
    arm = tiny(steps=1000, warmup_steps=100, lr=2.0, min_lr_ratio=0.1)
    rates = [learning_rate(arm, step) for step in range(1, 1001)]
    assert rates[0] == pytest.approx(2 / 101)
    assert rates[99] == pytest.approx(200 / 101)
    assert max(rates) == rates[100] == 2.0
    assert rates[:101] == sorted(rates[:101])
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert rates[550] == pytest.approx((2.0 + 0.2) / 2)
    assert rates[-1] == pytest.approx(0.2, rel=1e-4)
    assert all(rate > 0.2 for rate in rates[100:])
    assert learning_rate(tiny(steps=1, lr=2.0), 1) == 2.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "xsa_lambda", "bound"),
    [("adamw", 0, 3.00), ("adamw", 1, 2.62), ("muon", 0, 2.97), ("muon", 1, 2.90)],
)
def test_the_toy_model_learns_the_embedded_text(
    tiny: Callable[..., Arm], run: Any, optimizer: str, xsa_lambda: float, bound: float
) -> None:
    """The bounds are measured losses plus 0.1; byte frequencies alone give 3.30."""
    length = {"adamw": {"steps": 150, "lr": 5e-3}, "muon": {"steps": 30, "lr": 2e-2}}[optimizer]
    toy = {"d_model": 128, "n_head": 2, "n_kv_head": 2, "d_head": 64, "seq_len": 64, "tokens_per_step": 512}
    changes = {"optimizer": optimizer, "xsa_lambda": xsa_lambda, "eval_tokens": 8192, "warmup_steps": 10}
    arm = tiny(**changes | toy | length)
    assert arm.model_size == "toy"
    run(arm, eval_every=1000, log_every=1000)
    final = [row.loss for row in run.rows(arm) if isinstance(row, EvalRow)][-1]
    assert final < bound
