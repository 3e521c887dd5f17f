"""The bias metrics against double loops over explicit attention weights."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from schemas.report import METRICS
from schemas.trial import Arm
from trainer.bias import measure, measure_rows, pairwise_cosine
from trainer.data import Batches
from trainer.model import GPT, Observation, build

CPU = torch.device("cpu")


ROUNDING = 1e-3
"""Mean cosine that full exclusion may leave: where all that a token attends to has its own value, z is the
rounding of nought, and points anywhere."""


def test_pairwise_cosine_is_the_double_loop() -> None:
    v = torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(0))
    ours = pairwise_cosine(v)
    for b in range(2):
        for h in range(3):
            pairs = [
                F.cosine_similarity(v[b, h, i].double(), v[b, h, j].double(), dim=0)
                for i in range(7)
                for j in range(i)
            ]
            torch.testing.assert_close(ours[b, h], torch.stack(pairs).mean(), rtol=1e-12, atol=1e-12)


def test_a_zero_value_does_not_spoil_the_pairwise_cosine() -> None:
    v = torch.ones(1, 1, 3, 4)
    v[0, 0, 0] = 0
    assert pairwise_cosine(v).item() == pytest.approx(1 / 3)


def make(tiny: Callable[..., Arm], **changes: Any) -> tuple[GPT, Any]:
    arm = tiny(**changes)
    model, _ = build(arm, CPU)
    for parameter in model.parameters():
        parameter.data.mul_(4)  # so that attention is not uniform
    return model, Batches.of(arm).bias()


def slow_metrics(seen: Observation, n_sinks: int) -> dict[str, Tensor]:
    """A position at a time, for models without column sinks."""
    B, H, T, D = seen.q.shape
    found: dict[str, list[list[float]]] = {}
    for h in range(H):
        kv = h // (H // seen.k.shape[1])
        values: dict[str, list[float]] = {}
        for b in range(B):
            cosines = []
            for i in range(n_sinks, T):
                for j in range(n_sinks, i):
                    cosines.append(F.cosine_similarity(seen.v[b, kv, i], seen.v[b, kv, j], dim=0).item())
                if i == n_sinks:
                    continue
                weights = (seen.k[b, kv, : i + 1] @ seen.q[b, h, i] / math.sqrt(D)).softmax(0)
                y, z, v = seen.y[b, h, i], seen.z[b, h, i], seen.v[b, kv, i]
                torch.testing.assert_close(weights @ seen.v[b, kv, : i + 1], y, rtol=1e-3, atol=1e-5)
                for name, value in (
                    ("a_ii", weights[-1]),
                    ("entropy", -(weights * weights.log()).sum()),
                    ("cos_yv", F.cosine_similarity(y, v, dim=0)),
                    ("cos_zv", F.cosine_similarity(z, v, dim=0)),
                    ("z_over_y", z.norm() / y.norm()),
                    ("coef", y @ v / (v @ v)),
                ):
                    values.setdefault(name, []).append(float(value))
            values.setdefault("cos_vv", []).append(sum(cosines) / len(cosines))
        values["coef_a_ii_share"] = [sum(values["a_ii"]) / sum(values["coef"])]
        for name, numbers in values.items():
            found.setdefault(name, []).append([sum(numbers) / len(numbers)])
    return {name: torch.tensor(numbers).squeeze(1) for name, numbers in found.items()}


@pytest.mark.parametrize("n_sinks", [0, 2])
@pytest.mark.parametrize("n_kv_head", [4, 2])
@pytest.mark.parametrize("xsa_lambda", [0.0, 1.0, 0.5])
def test_metrics_are_those_of_the_double_loop(
    tiny: Callable[..., Arm], xsa_lambda: float, n_kv_head: int, n_sinks: int
) -> None:
    model, windows = make(tiny, xsa_lambda=xsa_lambda, n_kv_head=n_kv_head, n_sinks=n_sinks)
    ours = measure(model, windows)
    assert set(ours) == set(METRICS)
    seen: list[Observation] = []
    with torch.no_grad():
        model.forward(torch.from_numpy(windows[:, :-1]), seen.append)
    for layer, observation in enumerate(seen):
        for name, expected in slow_metrics(observation, n_sinks).items():
            torch.testing.assert_close(
                ours[name][layer].float(), expected, rtol=5e-3, atol=2e-5, msg=f"{name}, layer {layer}"
            )


def test_nothing_excluded_means_equal_cosines_and_full_exclusion_means_none(tiny: Callable[..., Arm]) -> None:
    sa, windows = make(tiny, xsa_lambda=0)
    metrics = measure(sa, windows)
    assert torch.equal(metrics["cos_zv"], metrics["cos_yv"])
    assert torch.equal(metrics["z_over_y"], torch.ones_like(metrics["z_over_y"]))
    xsa, _ = make(tiny, xsa_lambda=1)
    metrics = measure(xsa, windows)
    assert metrics["cos_zv"].abs().max() < ROUNDING
    assert metrics["cos_yv"].abs().max() > 0.05
    assert (metrics["z_over_y"] < 1).all()


def test_only_the_chosen_layers_exclude(tiny: Callable[..., Arm]) -> None:
    model, windows = make(tiny, xsa_layers="last:1")
    cosines = measure(model, windows)["cos_zv"].abs().amax(1)
    assert cosines[0] > 0.05 > ROUNDING > cosines[1]


def test_rows_are_means_over_heads_and_the_share_is_of_means(tiny: Callable[..., Arm]) -> None:
    model, windows = make(tiny)
    per_head = measure(model, windows)
    rows = {(row.metric, row.layer): row.value for row in measure_rows(model, windows, step=7)}
    assert set(rows) == {(name, layer) for name in METRICS for layer in range(2)}
    assert rows["a_ii", 1] == pytest.approx(per_head["a_ii"][1].mean().item())
    assert rows["coef_a_ii_share", 1] == pytest.approx(rows["a_ii", 1] / rows["coef", 1])


def test_bfloat16_weights_on_oneself_stay_below_one(tiny: Callable[..., Arm]) -> None:
    model, windows = make(tiny, dtype="bfloat16")
    seen: list[Observation] = []
    with torch.no_grad(), model.autocast():
        model.forward(torch.from_numpy(windows[:, :-1]), seen.append)
    assert seen[0].q.dtype == torch.bfloat16
    metrics = measure(model, windows)
    assert (metrics["a_ii"] < 1).all() and (metrics["a_ii"] > 0).all()
    assert metrics["cos_zv"].abs().max() < 1e-3
