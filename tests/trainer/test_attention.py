"""The exclusion itself: its formula, gradients, precision, and what it is not."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from schemas.trial import Arm
from trainer.attention import EPS, exclusive, rope_table, rotate
from trainer.sinks import ColumnSinks, attend

LAMBDAS = [-1.0, 0.5, 1.0, 2.0]


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def formula(y: Tensor, v: Tensor, xsa_lambda: float) -> Tensor:
    """Algorithm 1 of the paper, a head at a time and with autograd's own gradients."""
    heads = []
    for h in range(y.shape[1]):
        own = v[:, h // (y.shape[1] // v.shape[1])]
        unit = own / own.square().sum(-1, keepdim=True).clamp(min=EPS**2).sqrt()
        heads.append(y[:, h] - xsa_lambda * (y[:, h] * unit).sum(-1, keepdim=True) * unit)
    return torch.stack(heads, dim=1)


@pytest.mark.parametrize("n_kv_head", [4, 2, 1])
@pytest.mark.parametrize("xsa_lambda", LAMBDAS)
def test_gradients_are_those_of_finite_differences(xsa_lambda: float, n_kv_head: int) -> None:
    y = draw(2, 4, 3, 5).requires_grad_()
    v = draw(2, n_kv_head, 3, 5, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: exclusive(a, b, xsa_lambda), (y, v))


@pytest.mark.parametrize("n_kv_head", [4, 2, 1])
@pytest.mark.parametrize("xsa_lambda", LAMBDAS)
def test_values_and_gradients_are_those_of_the_formula(xsa_lambda: float, n_kv_head: int) -> None:
    results = []
    for function in (exclusive, formula):
        y, v = draw(2, 4, 7, 8).requires_grad_(), draw(2, n_kv_head, 7, 8, seed=1).requires_grad_()
        z = function(y, v, xsa_lambda)
        z.backward(draw(2, 4, 7, 8, seed=2))
        results.append((z.detach(), y.grad, v.grad))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_full_exclusion_leaves_nothing_along_the_value() -> None:
    y, v = draw(2, 4, 7, 8), draw(2, 2, 7, 8, seed=1)
    assert F.cosine_similarity(exclusive(y, v, 1.0), v.repeat_interleave(2, 1), dim=-1).abs().max() < 1e-12


def test_a_grouped_head_has_the_value_of_its_group() -> None:
    y, v = draw(1, 4, 6, 8), draw(1, 2, 6, 8, seed=1)
    z = exclusive(y, v, 1.0)
    assert torch.equal(z, exclusive(y, v.repeat_interleave(2, dim=1), 1.0))
    assert (z - exclusive(y, v.repeat(1, 2, 1, 1), 1.0)).abs().max() > 0.1


def test_zero_strength_is_the_attention_output_itself() -> None:
    y, v = draw(1, 2, 3, 4), torch.full((1, 2, 3, 4), math.nan, dtype=torch.float64)
    assert exclusive(y, v, 0.0) is y


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_value_without_length_is_safe(length: float, dtype: torch.dtype) -> None:
    """|v| = 0 gives z = y and finite gradients; no square root of zero, no 0 / 0."""
    v = draw(1, 2, 3, 8, seed=1)
    v = (length * v / v.norm(dim=-1, keepdim=True)).to(dtype).requires_grad_()
    y = draw(1, 2, 3, 8).to(dtype).requires_grad_()
    z = exclusive(y, v, 1.0)
    z.backward(torch.ones_like(z))
    assert all(torch.isfinite(x).all() for x in (z, y.grad, v.grad) if x is not None)
    if length < 1e-12:
        assert torch.equal(z, y)
    if length > 10 * EPS and dtype != torch.bfloat16:
        assert F.cosine_similarity(z, v, dim=-1).abs().max() < 1e-5


def test_gradients_below_eps_are_those_of_the_clamped_formula() -> None:
    grads = []
    for function in (exclusive, formula):
        y, v = draw(1, 2, 3, 8).requires_grad_(), (1e-7 * draw(1, 2, 3, 8, seed=1)).requires_grad_()
        function(y, v, 1.0).backward(draw(1, 2, 3, 8, seed=2))
        grads.append((y.grad, v.grad))
    for ours, expected in zip(*grads, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("along", [1.0, 10.0, 30.0])
def test_bfloat16_is_orthogonal_even_where_output_and_value_nearly_agree(along: float) -> None:
    """The closer cos(y, v) comes to 1, the more cancels: float32 inside leaves the rounding of z alone."""
    v = draw(1, 2, 512, 64, seed=1).bfloat16()
    y = (along * v.float() + draw(1, 2, 512, 64).float()).bfloat16()
    left = F.cosine_similarity(exclusive(y, v, 1.0).float(), v.float(), dim=-1).abs()
    unit = F.normalize(v, dim=-1)
    plain = y - (y * unit).sum(-1, keepdim=True) * unit
    left_plain = F.cosine_similarity(plain.float(), v.float(), dim=-1).abs()
    assert left.mean() < 2.5e-4
    assert left.max() < 2e-3
    assert left_plain.mean() > 3 * left.mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_position_is_emptied(dtype: torch.dtype) -> None:
    q, k, v = (draw(1, 2, 5, 8, seed=s).to(dtype) for s in range(3))
    z = exclusive(attend(q, k, v, None), v, 1.0)
    assert z[:, :, 0].abs().max() < 1e-6 * v[:, :, 0].abs().max()
    half = exclusive(attend(q, k, v, None), v, 0.5)
    torch.testing.assert_close(half[:, :, 0], v[:, :, 0] / 2, rtol=1e-2, atol=0)


@pytest.mark.parametrize(("kind", "emptied"), [("kv", False), ("logit", True), ("zero", True)])
def test_only_a_sink_with_a_value_fills_the_first_position(
    tiny: Callable[..., Arm], kind: str, emptied: bool
) -> None:
    sinks = ColumnSinks(tiny(n_sinks=2, sink_kind=kind))
    for seed, parameter in enumerate(sinks.parameters()):
        parameter.data = draw(*parameter.shape, dtype=torch.float32, seed=seed + 5)
    q, k, v = (draw(1, 4, 5, 8, dtype=torch.float32, seed=s) for s in range(3))
    first = exclusive(attend(q, k, v, sinks), v, 1.0)[:, :, 0].norm(dim=-1)
    assert (first < 1e-6).all() if emptied else (first > 0.1).all()


def test_it_is_none_of_the_things_that_have_been_called_so() -> None:
    """Negative examples found in public code: each differs from XSA by far more than rounding."""
    q, k, v = (draw(1, 2, 6, 8, seed=s) for s in range(3))
    y = attend(q, k, v, None)
    z = exclusive(y, v, 1.0)
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    scores = (q @ k.mT / math.sqrt(8)).masked_fill(future, -math.inf)
    weights = scores.softmax(-1)
    own = weights.diagonal(dim1=-2, dim2=-1)[..., None]
    masked_diagonal = scores.masked_fill(torch.eye(6, dtype=torch.bool), -math.inf)[:, :, 1:].softmax(-1) @ v
    mean_value = F.normalize(v.mean(2, keepdim=True), dim=-1)
    merged_y, merged_v = (x.transpose(1, 2).flatten(2) for x in (y, v))
    across = merged_y - (merged_y * merged_v).sum(-1, keepdim=True) / merged_v.square().sum(
        -1, keepdim=True
    ) * (merged_v)
    added_eps = y - (y * v).sum(-1, keepdim=True) / (v.square().sum(-1, keepdim=True) + 1e-2) * v
    for wrong in (
        y - own * v,  # the self contribution alone
        y - (y * mean_value).sum(-1, keepdim=True) * mean_value,  # a direction that knows the future
        across.unflatten(2, (2, 8)).transpose(1, 2),  # the projection after the heads are merged
        added_eps,  # an additive eps, which switches the exclusion off for short values
    ):
        assert (wrong - z)[:, :, 1:].abs().max() > 1e-4
        assert F.cosine_similarity(wrong, v, dim=-1)[:, :, 1:].abs().max() > 1e-4
    assert (masked_diagonal - z[:, :, 1:]).abs().max() > 0.1
    torch.testing.assert_close(weights @ v, y)


def test_rotation_depends_on_relative_position_alone() -> None:
    cos, sin = rope_table(64, 8, 10_000.0)
    q, k = draw(1, 1, 1, 8), draw(1, 1, 1, 8, seed=1)

    def score(i: int, j: int) -> Tensor:
        return (rotate(q, cos[i], sin[i]) * rotate(k, cos[j], sin[j])).sum()

    torch.testing.assert_close(score(5, 2), score(45, 42))
    assert not torch.isclose(score(5, 2), score(5, 3))
    torch.testing.assert_close(rotate(q, cos[9], sin[9]).norm(), q.norm())
