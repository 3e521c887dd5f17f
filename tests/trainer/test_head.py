"""The chunked head against cross entropy of the full logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer import head
from trainer.head import linear_cross_entropy

VOCAB, ROWS = 320, 24


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tiles of words in float32, the last one narrower, and 24 rows of its logits at once."""
    monkeypatch.setattr(head, "TILE_BYTES", 4 * 128)
    monkeypatch.setitem(head.HEAD_BYTES, "cpu", 4 * VOCAB * ROWS)


def draw(n: int, width: int = 16, vocab: int = VOCAB, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = (scale * torch.randn(n, width, generator=generator)).requires_grad_()
    weight = torch.randn(vocab, width, generator=generator).requires_grad_()
    return x, weight, torch.randint(vocab, (n,), generator=generator)


@pytest.mark.parametrize("n", [1, 7, ROWS, ROWS + 1, 2 * ROWS, 2 * ROWS + 3])
@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0, 400.0])
def test_values_and_gradients_are_those_of_full_logits(n: int, scale: float) -> None:
    """At the largest scale logits go up to 5,000, and the first tile's largest is no shift for the others."""
    results = []
    for full in (False, True):
        x, weight, targets = draw(n, scale=scale)
        if full:
            loss = F.cross_entropy(x @ weight.T, targets)
        else:
            loss = linear_cross_entropy(x, weight, targets, dtype=torch.float32)
        (3 * loss).backward()
        results.append((loss.detach(), x.grad, weight.grad))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=2e-5, atol=1e-6)


def test_losses_far_beyond_exp_stay_exact() -> None:
    """A softmax that is stored before its logarithm is taken would give infinity here."""
    x, weight = torch.tensor([[300.0]]), torch.tensor([[1.0], [-1.0]])
    loss = linear_cross_entropy(x, weight, torch.tensor([1]), dtype=torch.float32)
    assert loss.item() == 600.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_later_tile_far_above_the_first_is_done_again(dtype: torch.dtype, gradients: bool) -> None:
    x = torch.ones(1, 1, requires_grad=gradients)
    weight = torch.zeros(VOCAB, 1)
    weight[300] = 512.0
    weight.requires_grad_(gradients)
    loss = linear_cross_entropy(x, weight, torch.tensor([3]), dtype=dtype)
    assert loss.item() == 512.0
    if gradients:
        loss.backward()
        assert x.grad.item() == 512.0
        assert weight.grad.flatten().nonzero().flatten().tolist() == [3, 300]


def test_without_gradients_only_the_loss_is_made() -> None:
    x, weight, targets = draw(2 * ROWS + 3)
    with_gradients = linear_cross_entropy(x, weight, targets, dtype=torch.float32)
    with torch.no_grad(), torch.profiler.profile() as profile:
        without = linear_cross_entropy(x, weight, targets, dtype=torch.float32)
    assert torch.equal(with_gradients, without)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["aten::mm"] + counts["aten::addmm"] == 3 * 3


def test_bfloat16_products_stay_near() -> None:
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        x, weight, targets = draw(ROWS + 3, scale=0.3)
        loss = linear_cross_entropy(x, weight, targets, dtype=dtype)
        loss.backward()
        assert loss.dtype == x.grad.dtype == weight.grad.dtype == torch.float32
        results.append((loss.detach(), x.grad, weight.grad))
    assert abs(results[0][0] - results[1][0]) < 5e-3
    for ours, expected in zip(results[1][1:], results[0][1:], strict=True):
        assert (ours - expected).norm() < 1e-2 * expected.norm()
        assert not torch.equal(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_likely_target_s_gradient_does_not_cancel(dtype: torch.dtype) -> None:
    """p - 1 of a target with p near 1 is what the other words have, not a difference of roundings."""
    vocab, width = VOCAB, 64
    generator = torch.Generator().manual_seed(0)
    weight = (
        torch.nn.functional.normalize(torch.randn(vocab, width, generator=generator), dim=1)
        .bfloat16()
        .double()
    )
    targets = torch.arange(0, vocab, 5)
    x = (
        (16 * weight[targets] + 0.1 * torch.randn(len(targets), width, generator=generator))
        .bfloat16()
        .double()
    )
    results = []
    for exact in (True, False):
        kind = torch.float64 if exact else torch.float32
        parts = [part.to(kind, copy=True).requires_grad_() for part in (x, weight)]
        if exact:
            loss = F.cross_entropy(parts[0] @ parts[1].T, targets)
        else:
            loss = linear_cross_entropy(*parts, targets, dtype=dtype)
        loss.backward()
        results.append([loss.detach(), *(part.grad for part in parts)])
    tolerance = 1e-3 if dtype == torch.float32 else 2e-2
    for expected, ours in zip(*results, strict=True):
        assert (ours - expected).norm() < tolerance * expected.norm()
    assert 0 < results[1][0] < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_it_is_given_is_left_alone(dtype: torch.dtype) -> None:
    given = draw(2 * ROWS + 3)
    before = [part.detach().clone() for part in given]
    linear_cross_entropy(*given, dtype=dtype).backward()
    assert all(torch.equal(part, copy) for part, copy in zip(given, before, strict=True))


def test_a_loss_that_is_not_finite_is_told() -> None:
    x, weight, targets = draw(4)
    with torch.no_grad():
        x[2, 0] = float("inf")
    assert not torch.isfinite(linear_cross_entropy(x, weight, targets, dtype=torch.float32))
