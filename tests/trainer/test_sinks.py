"""Sinks of every kind against a softmax written out, and causality."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from schemas.trial import Arm
from trainer.bias import diagonal_and_entropy
from trainer.model import build
from trainer.sinks import ColumnSinks, attend

KINDS = ["token", "kv", "logit", "zero"]
CPU = torch.device("cpu")


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def explicit_weights(q: Tensor, k: Tensor, sinks: ColumnSinks | None) -> tuple[Tensor, Tensor]:
    """Return the weights on the sinks [B, H, T, n] and on the text [B, H, T, T], from a full softmax."""
    B, H, T, D = q.shape
    k = k.repeat_interleave(H // k.shape[1], dim=1)
    scores = (q @ k.mT / math.sqrt(D)).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    if sinks is None:
        columns = scores[..., :0]
    elif sinks.kind == "kv":
        key = sinks.key.repeat_interleave(H // sinks.key.shape[0], dim=0)
        columns = torch.einsum("bhtd,hnd->bhtn", q, key) / math.sqrt(D)
    elif sinks.kind == "logit":
        columns = sinks.logit[None, :, None, :].expand(B, H, T, -1)
    else:
        columns = torch.zeros(B, H, T, sinks.n)
    weights = torch.cat((columns, scores), dim=-1).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return weights[..., : columns.shape[-1]], weights[..., columns.shape[-1] :]


def make(tiny: Callable[..., Arm], kind: str, n: int, n_kv_head: int) -> ColumnSinks:
    sinks = ColumnSinks(tiny(n_sinks=n, sink_kind=kind, n_kv_head=n_kv_head))
    for seed, parameter in enumerate(sinks.parameters()):
        parameter.data = draw(*parameter.shape, seed=10 + seed)
    return sinks


@pytest.mark.parametrize("n_kv_head", [4, 2])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", ["kv", "logit", "zero"])
def test_attention_with_sinks_is_the_explicit_softmax(
    tiny: Callable[..., Arm], kind: str, n: int, n_kv_head: int
) -> None:
    sinks = make(tiny, kind, n, n_kv_head)
    results = []
    for explicit in (False, True):
        q = draw(2, 4, 9, 8, seed=0).requires_grad_()
        k, v = (draw(2, n_kv_head, 9, 8, seed=s).requires_grad_() for s in (1, 2))
        sinks.zero_grad()
        if explicit:
            on_sinks, on_text = explicit_weights(q, k, sinks)
            y = on_text @ v.repeat_interleave(4 // n_kv_head, dim=1)
            if kind == "kv":
                y = y + on_sinks @ sinks.value.repeat_interleave(4 // n_kv_head, dim=0)
        else:
            y = attend(q, k, v, sinks)
        y.backward(draw(2, 4, 9, 8, seed=3))
        grads = [None if p.grad is None else p.grad.clone() for p in sinks.parameters()]
        results.append([y.detach(), q.grad, k.grad, v.grad, *grads])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("n_kv_head", [4, 2])
@pytest.mark.parametrize("kind", [None, "kv", "logit", "zero"])
def test_diagonal_and_entropy_are_those_of_the_explicit_softmax(
    tiny: Callable[..., Arm], kind: str | None, n_kv_head: int
) -> None:
    """T = 300 spans several chunks of queries."""
    sinks = None if kind is None else make(tiny, kind, 3, n_kv_head)
    q, k = draw(2, 4, 300, 8, seed=0), draw(2, n_kv_head, 300, 8, seed=1)
    with torch.no_grad():
        a_ii, entropy = diagonal_and_entropy(q, k, sinks)
        on_sinks, on_text = explicit_weights(q, k, sinks)
        torch.testing.assert_close(a_ii, on_text.diagonal(dim1=-2, dim2=-1), rtol=1e-5, atol=1e-7)
        weights = torch.cat((on_sinks, on_text), dim=-1)
        torch.testing.assert_close(entropy, -torch.xlogy(weights, weights).sum(-1), rtol=1e-4, atol=1e-5)
        if kind is None:
            torch.testing.assert_close(a_ii[..., 0], torch.ones(2, 4))
        else:
            assert (a_ii[..., 0] < 1).all()


def test_one_zero_sink_scales_the_output_by_a_sigmoid(tiny: Callable[..., Arm]) -> None:
    """exp(0) in the denominator: y becomes y * sigmoid(log-sum-exp of the scores)."""
    q, k, v = (draw(1, 4, 6, 8, seed=s) for s in range(3))
    scores = (q @ k.mT / math.sqrt(8)).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -math.inf)
    expected = attend(q, k, v, None) * scores.logsumexp(-1, keepdim=True).sigmoid()
    torch.testing.assert_close(attend(q, k, v, make(tiny, "zero", 1, 4)), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_sinks", [0, 2])
def test_no_position_knows_the_future(tiny: Callable[..., Arm], kind: str, n_sinks: int) -> None:
    model, _ = build(tiny(n_sinks=n_sinks, sink_kind=kind, n_kv_head=2), CPU)
    for parameter in model.parameters():
        parameter.data.mul_(10)  # initial weights are too small for a leak to show
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 256
    with torch.no_grad():
        before, after = model.logits(tokens), model.logits(changed)
    torch.testing.assert_close(after[:, :9], before[:, :9], rtol=0, atol=1e-5)
    assert (after[:, 9:] - before[:, 9:]).abs().amax((0, 2)).min() > 1e-2


@pytest.mark.parametrize("kind", ["token", "kv", "logit"])
def test_learned_sinks_get_gradients(tiny: Callable[..., Arm], kind: str) -> None:
    model, _ = build(tiny(n_sinks=2, sink_kind=kind), CPU)
    windows = torch.randint(256, (2, 17), generator=torch.Generator().manual_seed(0))
    model.loss(windows).backward()
    learned = {name: p for name, p in model.named_parameters() if "sink" in name}
    assert learned
    for name, parameter in learned.items():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
