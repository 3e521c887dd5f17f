"""Shapes, counts, initial weights, and lambda = 0 as the very code of standard attention."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import trainer.attention
from schemas.sizes import SIZES
from schemas.trial import Arm, Trial
from trainer.cost import count_non_embedding, count_parameters, flops_per_token
from trainer.model import GPT, Observation, build
from trainer.optim import make_optimizers, set_learning_rate

CPU = torch.device("cpu")


def windows(seed: int = 0) -> Tensor:
    return torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("size", "paper", "embedding"), [("0.7B", 0.679, 0.077), ("1.3B", 1.409, 0.103), ("2.7B", 2.684, 0.129)]
)
def test_parameters_are_those_of_table_1(size: str, paper: float, embedding: float) -> None:
    """The attention width is independent of the model width: tied together, 1.3B would have 1.208B."""
    trial = Trial(model_size=size)
    assert round(SIZES[size].non_embedding / 1e9, 3) == paper
    norms = (2 * trial.n_layer + 2) * trial.d_model
    assert count_non_embedding(trial) == SIZES[size].non_embedding + norms
    assert round((count_parameters(trial) - count_non_embedding(trial)) / 1e9, 3) == embedding


def test_counting_allocates_nothing_and_counts_what_is_built(tiny: Callable[..., Arm]) -> None:
    sinks = [{"n_sinks": 3, "sink_kind": kind} for kind in ("token", "kv", "logit", "zero")]
    for changes in ({}, {"n_kv_head": 2}, {"qk_norm": True}, *sinks):
        arm = tiny(**changes)
        model, _ = build(arm, CPU)
        assert count_parameters(arm) == sum(p.numel() for p in model.parameters())
    count_parameters(Trial(n_layer=96, d_model=65536, n_head=512, d_head=128))  # 20 TB, were it made


def test_flops_are_those_of_the_matrix_products(tiny: Callable[..., Arm]) -> None:
    arm = tiny(n_kv_head=2)
    matrices = sum(p.numel() for p in GPT(arm).parameters() if p.ndim == 2)
    width = arm.n_head * arm.d_head
    assert flops_per_token(arm) == 6 * matrices + 12 * arm.n_layer * width * arm.seq_len


def test_initial_weights_have_gpt2s_spread() -> None:
    model, _ = build(Trial(tokenizer="bytes", seq_len=16, tokens_per_step=16), CPU)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            expected = 0.02 / 2 if name.endswith("c_proj.weight") else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
            assert abs(parameter.mean().item()) < 1e-3, name


@pytest.mark.parametrize(
    "changes",
    [{"xsa_lambda": 0}, {"xsa_layers": "last:1"}, *({"n_sinks": 2, "sink_kind": k} for k in ("token", "kv", "logit", "zero"))],
)  # fmt: skip
def test_no_setting_moves_the_initial_weights_of_the_rest(
    tiny: Callable[..., Arm], changes: dict[str, Any]
) -> None:
    plain, _ = build(tiny(), CPU)
    other, _ = build(tiny(**changes), CPU)
    weights = dict(other.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    _, sa = build(tiny(**changes | {"xsa_lambda": 0}), CPU)
    _, xsa = build(tiny(**changes | {"xsa_lambda": 1}), CPU)
    assert sa == xsa


def test_no_two_matrices_begin_equal(tiny: Callable[..., Arm]) -> None:
    model, _ = build(tiny(n_sinks=2, sink_kind="kv"), CPU)
    drawn = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    ratios = {round((p / p.std()).flatten()[0].item(), 5) for p in drawn}
    assert len(ratios) == len(drawn)


def test_the_hash_of_the_init_tells_weights_apart(tiny: Callable[..., Arm]) -> None:
    hashes = [build(arm, CPU)[1] for arm in (tiny(), tiny(seed=1), tiny(n_sinks=1), tiny())]
    assert len(set(hashes)) == 3 and hashes[0] == hashes[3]


def test_initialisation_leaves_the_global_generator_alone(tiny: Callable[..., Arm]) -> None:
    before = torch.get_rng_state()
    build(tiny(), CPU)
    assert torch.equal(torch.get_rng_state(), before)


def step(arm: Arm) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    model, _ = build(arm, CPU)
    logits = model.logits(windows()[:, :-1]).detach()
    model.loss(windows()).backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizers = make_optimizers(model, arm)
    set_learning_rate(optimizers, 1e-2)
    for optimizer in optimizers:
        optimizer.step()
    return logits, grads, {name: p.detach().clone() for name, p in model.named_parameters()}


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sink_kind", ["token", "kv", "logit", "zero"])
def test_lambda_zero_is_standard_attention_bit_for_bit(
    tiny: Callable[..., Arm], monkeypatch: pytest.MonkeyPatch, dtype: str, sink_kind: str
) -> None:
    """Logits, gradients and weights after an update equal those of a model that knows no exclusion."""
    settings = {"dtype": dtype, "sink_kind": sink_kind, "n_sinks": 1, "n_kv_head": 2}
    zero = step(tiny(xsa_lambda=0, **settings))
    nowhere = step(Arm(**tiny(**settings).model_dump() | {"xsa_lambda": -0.0}))
    one = step(tiny(xsa_lambda=1, **settings))
    monkeypatch.setattr("trainer.model.exclusive", lambda y, v, xsa_lambda: y)
    without = step(tiny(xsa_lambda=1, **settings))
    for other in (nowhere, without):
        assert torch.equal(zero[0], other[0])
        assert equal(zero[1], other[1])
        assert equal(zero[2], other[2])
    assert not torch.equal(zero[0], one[0])
    assert not equal(zero[2], one[2])


def test_lambda_zero_never_reaches_the_exclusion(
    tiny: Callable[..., Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.attention._Exclusive", None)
    step(tiny(xsa_lambda=0))
    with pytest.raises(AttributeError):
        step(tiny(xsa_lambda=1))


def test_values_are_not_rotated(tiny: Callable[..., Arm]) -> None:
    """The reference of the exclusion is the projection of the layer's input, at every position."""
    model, _ = build(tiny(), CPU)
    seen: list[Observation] = []
    tokens = torch.full((1, 16), 65)
    with torch.no_grad():
        model.forward(tokens, seen.append)
        x = model.blocks[0].ln_1(model.ln_e(model.wte(tokens)))
        plain = {name: getattr(model.blocks[0].attn, f"c_{name}")(x) for name in "qkv"}
    found = {"q": seen[0].q, "k": seen[0].k, "v": seen[0].v}
    same = {name: torch.equal(found[name].transpose(1, 2).flatten(2), plain[name]) for name in "qkv"}
    assert same == {"q": False, "k": False, "v": True}
    assert torch.equal(seen[0].v[:, :, 3], seen[0].v[:, :, 9])


def test_qk_norm_gives_unit_root_mean_squares(tiny: Callable[..., Arm]) -> None:
    seen: list[Observation] = []
    model, _ = build(tiny(qk_norm=True, n_kv_head=2), CPU)
    with torch.no_grad():
        model.forward(windows()[:, :-1], seen.append)
    for observation in seen:
        for x in (observation.q, observation.k):
            torch.testing.assert_close(x.square().mean(-1), torch.ones(x.shape[:-1]), rtol=2e-2, atol=0)
        assert observation.v.square().mean() < 0.5


def test_the_exclusion_saves_a_number_for_each_token_and_head() -> None:
    """Attention keeps y and v for its own backward pass; beyond those, one over the head's width is kept."""
    saved: dict[int, Tensor] = {}
    y = torch.randn(1, 4, 16, 64, requires_grad=True)
    v = torch.randn(1, 2, 16, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.setdefault(x.data_ptr(), x), lambda x: x):
        trainer.attention.exclusive(y, v, 0.5)
    assert saved.pop(y.data_ptr()) is y
    assert saved.pop(v.data_ptr()) is v
    assert sum(x.nbytes for x in saved.values()) == y.nbytes / 64


def test_loss_at_the_start_is_that_of_guessing(tiny: Callable[..., Arm]) -> None:
    model, _ = build(tiny(), CPU)
    with torch.no_grad():
        loss = model.loss(windows())
        full = F.cross_entropy(model.logits(windows()[:, :-1]).flatten(0, 1), windows()[:, 1:].flatten())
    torch.testing.assert_close(loss, full)
    assert loss.item() == pytest.approx(torch.tensor(320.0).log().item(), abs=0.1)
