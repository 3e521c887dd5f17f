"""The whole training against an implementation written from the paper's formulas, sharing no code.

Attention is an explicit softmax a query at a time over explicit lists of keys, the exclusion
is Algorithm 1 as printed, positions are rotated as complex numbers, the loss is a full softmax, the
schedule is nanoGPT's, and AdamW is its update rule. Only initial weights and batches are taken over.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from schemas.report import EvalRow, StepRow
from schemas.trial import Arm
from trainer.data import Batches
from trainer.model import build

Weights = dict[str, Tensor]


def norm(x: Tensor, weight: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turn(x: Tensor, position: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    frequency = torch.tensor([base ** (-2 * j / x.shape[-1]) for j in range(half)])
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * position[:, None] * frequency)
    return torch.cat((turned.real, turned.imag), dim=-1)


def attention(arm: Arm, w: Weights, layer: int, x: Tensor) -> Tensor:
    """One sequence x [T, C]."""
    D, group, T = arm.d_head, arm.n_head // arm.n_kv_head, len(x)
    prefix = f"blocks.{layer}.attn."
    q, k, v = (x @ w[f"{prefix}c_{name}.weight"].T for name in "qkv")
    if arm.xsa_layers == "all":
        strength = arm.xsa_lambda
    else:
        strength = arm.xsa_lambda if str(layer) in arm.xsa_layers.split(",") else 0.0
    heads = []
    for h in range(arm.n_head):
        kv = h // group
        qh, kh, vh = q[:, h * D :][:, :D], k[:, kv * D :][:, :D], v[:, kv * D :][:, :D]
        if arm.qk_norm:
            qh, kh = (a / (a.square().mean(-1, keepdim=True) + 1e-6).sqrt() for a in (qh, kh))
        qh, kh = (turn(a, torch.arange(T), arm.rope_base) for a in (qh, kh))
        rows = []
        for i in range(T):
            logits = kh[: i + 1] @ qh[i] / math.sqrt(D)
            values = vh[: i + 1]
            if arm.n_sinks and arm.sink_kind == "kv":
                logits = torch.cat((logits, w[f"{prefix}sinks.key"][kv] @ qh[i] / math.sqrt(D)))
                values = torch.cat((values, w[f"{prefix}sinks.value"][kv]))
            mass = logits.exp().sum()
            if arm.n_sinks and arm.sink_kind == "logit":
                mass = mass + w[f"{prefix}sinks.logit"][h].exp().sum()
            if arm.n_sinks and arm.sink_kind == "zero":
                mass = mass + arm.n_sinks
            y = logits.exp() @ values / mass
            unit = vh[i] / vh[i].norm()
            rows.append(y - strength * (y @ unit) * unit)
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=-1) @ w[f"{prefix}c_proj.weight"].T


def mean_loss(arm: Arm, w: Weights, windows: Tensor) -> Tensor:
    losses = []
    for window in windows:
        x = w["wte.weight"][window[:-1]]
        front = 0
        if arm.n_sinks and arm.sink_kind == "token":
            x, front = torch.cat((w["sink"], x)), arm.n_sinks
        x = norm(x, w["ln_e.weight"])
        for layer in range(arm.n_layer):
            x = x + attention(arm, w, layer, norm(x, w[f"blocks.{layer}.ln_1.weight"]))
            inner = norm(x, w[f"blocks.{layer}.ln_2.weight"]) @ w[f"blocks.{layer}.c_fc.weight"].T
            inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
            x = x + inner @ w[f"blocks.{layer}.c_proj.weight"].T
        logits = norm(x, w["ln_f.weight"])[front:] @ w["wte.weight"].T
        losses.append(F.cross_entropy(logits, window[1:]))
    return torch.stack(losses).mean()


def nanogpt_lr(arm: Arm, it: int) -> float:
    low = arm.min_lr_ratio * arm.lr
    if it < arm.warmup_steps:
        return arm.lr * (it + 1) / (arm.warmup_steps + 1)
    ratio = (it - arm.warmup_steps) / (arm.steps - arm.warmup_steps)
    return low + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (arm.lr - low)


def plain_training(arm: Arm, batches: Batches) -> tuple[list[float], list[float], float]:
    """Return the training losses, gradient norms, and the final held-out loss."""
    model, _ = build(arm, torch.device("cpu"))
    w = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(p) for name, p in w.items()}
    second = {name: torch.zeros_like(p) for name, p in w.items()}
    losses, norms = [], []
    for it in range(arm.steps):
        loss = mean_loss(arm, w, torch.from_numpy(batches.train(it)))
        grads = dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))
        length = math.sqrt(sum(g.double().square().sum().item() for g in grads.values()))
        clip = min(1.0, arm.grad_clip / (length + 1e-6))
        lr = nanogpt_lr(arm, it)
        with torch.no_grad():
            for name, p in w.items():
                g = grads[name] * clip
                first[name].mul_(arm.beta1).add_(g, alpha=1 - arm.beta1)
                second[name].mul_(arm.beta2).add_(g * g, alpha=1 - arm.beta2)
                if p.ndim >= 2 and not name.endswith("sinks.logit"):
                    p.mul_(1 - lr * arm.weight_decay)
                m = first[name] / (1 - arm.beta1 ** (it + 1))
                v = second[name] / (1 - arm.beta2 ** (it + 1))
                p.sub_(lr * m / (v.sqrt() + 1e-8))
        losses.append(loss.item())
        norms.append(length)
    with torch.no_grad():
        return losses, norms, mean_loss(arm, w, torch.from_numpy(batches.evaluation())).item()


CASES: dict[str, dict[str, Any]] = {
    "sa": {"xsa_lambda": 0},
    "xsa": {},
    "partial": {"xsa_lambda": 0.5, "xsa_layers": "last:1"},
    "grouped": {"n_kv_head": 2, "n_head": 4, "qk_norm": True},
    "token": {"n_sinks": 2, "sink_kind": "token"},
    "kv": {"n_sinks": 2, "sink_kind": "kv"},
    "logit": {"n_sinks": 2, "sink_kind": "logit", "n_kv_head": 1},
    "zero": {"n_sinks": 2, "sink_kind": "zero"},
}


def case_arm(tiny: Callable[..., Arm], case: str) -> Arm:
    shape = {"n_head": 2, "n_kv_head": 2, "seq_len": 8, "tokens_per_step": 16}
    return tiny(
        **shape
        | {"eval_tokens": 64, "bias_tokens": 16, "steps": 50, "warmup_steps": 5, "lr": 1e-3}
        | CASES[case]
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_fifty_steps_follow_the_plain_implementation(tiny: Callable[..., Arm], run: Any, case: str) -> None:
    arm = case_arm(tiny, case)
    assert run(arm).status == "done"
    rows = [row for row in run.rows(arm) if isinstance(row, StepRow)]
    losses, norms, held_out = plain_training(arm, Batches.of(arm))
    assert [row.step for row in rows] == list(range(1, 51))
    assert max(abs(row.train_loss - loss) for row, loss in zip(rows, losses, strict=True)) < 1e-5
    assert max(abs(row.grad_norm - n) for row, n in zip(rows, norms, strict=True)) < 1e-4
    assert [row.lr for row in rows] == pytest.approx([nanogpt_lr(arm, it) for it in range(50)], rel=1e-12)
    final = [row for row in run.rows(arm) if isinstance(row, EvalRow)][-1]
    assert final.loss == pytest.approx(held_out, abs=1e-5)


def test_the_cases_differ_by_more_than_the_tolerance(tiny: Callable[..., Arm], run: Any) -> None:
    """Else the comparison with the plain implementation could not tell them apart."""
    curves = []
    for case in CASES:
        arm = case_arm(tiny, case)
        run(arm)
        curves.append([row.train_loss for row in run.rows(arm) if isinstance(row, StepRow)])
        assert curves[-1][-1] < curves[-1][0] - 0.3
    for one, other in itertools.combinations(curves, 2):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 1e-4
