"""How much attention outputs follow their own values: Figure 1 of the paper, and what explains it.

Everything is a mean over positions of a sequence, then over sequences, for each layer and head.
Position 0 is left out of all metrics but `cos_vv`: without sinks it sees only itself, so that
a_00 = 1, y_0 = v_0 and z_0 = 0 whatever was learned, which would add 1 / T to the means and make
sequence lengths incomparable. Sink tokens are no positions of the text and are left out too, but
they and all other sinks are in the softmax's denominator. Memory grows with T, not with T^2.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from schemas.report import METRICS, LayerRow
from trainer.attention import EPS
from trainer.data import Windows
from trainer.metrics import micro_batches
from trainer.model import GPT, Observation
from trainer.sinks import ColumnSinks

_TOKENS_AT_ONCE = 4096
_QUERY_ROWS = 128


@torch.no_grad()
def measure(model: GPT, windows: Windows) -> dict[str, Tensor]:
    """Return each metric of `schemas.report.METRICS` as means [L, H] in float64 over `windows` [B, T + 1].

    Measured in float32 on the queries, keys, values and outputs that the model really uses, in its
    own precision. With grouped queries, the heads of a group have the `cos_vv` of their values. The
    share of a_ii is the ratio of two means: a mean of ratios would follow the smallest denominators.
    """
    parts: list[dict[int, dict[str, Tensor]]] = []
    n_sinks = model.n_input_sinks
    for part in micro_batches(windows, max(1, _TOKENS_AT_ONCE // windows.shape[1]), model.cos.device):
        layers: dict[int, dict[str, Tensor]] = {}

        def observe(seen: Observation, layers: dict[int, dict[str, Tensor]] = layers) -> None:
            layers[seen.layer] = _sequence_means(seen, n_sinks)

        with model.autocast():
            model.forward(part[:, :-1], observe)  # not the compiled call: this one looks inside
        parts.append(layers)
    means = {
        name: torch.stack(
            [
                torch.cat([layers[layer][name] for layers in parts]).mean(0)
                for layer in range(model.trial.n_layer)
            ]
        )
        for name in METRICS
        if name != "coef_a_ii_share"
    }
    return means | {"coef_a_ii_share": means["a_ii"] / means["coef"]}


def measure_rows(model: GPT, windows: Windows, *, step: int) -> list[LayerRow]:
    """Return the metrics' means over heads, one row for each metric and layer."""
    means = {name: values.mean(1) for name, values in measure(model, windows).items()}
    means["coef_a_ii_share"] = means["a_ii"] / means["coef"]
    return [
        LayerRow(step, name, layer, value)
        for name, values in means.items()
        for layer, value in enumerate(values.tolist())
    ]


def _sequence_means(seen: Observation, n_sinks: int) -> dict[str, Tensor]:
    """Return each metric's mean over positions for each sequence and head [B, H] in float64."""
    y, z = (x.float()[:, :, n_sinks + 1 :] for x in (seen.y, seen.z))
    value = seen.v.float()[:, :, n_sinks:]
    group = y.shape[1] // value.shape[1]
    v = value[:, :, 1:].repeat_interleave(group, dim=1)
    a_ii, entropy = diagonal_and_entropy(seen.q, seen.k, seen.sinks)
    by_position = {
        "a_ii": a_ii[:, :, n_sinks + 1 :],
        "cos_yv": F.cosine_similarity(y, v, dim=-1),
        "cos_zv": F.cosine_similarity(z, v, dim=-1),
        "z_over_y": z.norm(dim=-1) / y.norm(dim=-1).clamp(min=EPS),
        "coef": (y * v).sum(-1) / v.square().sum(-1).clamp(min=EPS**2),
        "entropy": entropy[:, :, n_sinks + 1 :],
    }
    means = {name: values.double().mean(-1) for name, values in by_position.items()}
    means["cos_vv"] = pairwise_cosine(value).repeat_interleave(group, dim=1)
    return means


def pairwise_cosine(v: Tensor) -> Tensor:
    """Return the mean cosine of two distinct rows [B, H] of v [B, H, T, D], in time T.

    With unit rows u, the sum over i != j of u_i . u_j is |sum of u|^2 - sum of |u|^2. Each pair of
    positions counts once; a mean over i of means over j < i would be another statistic.
    """
    T = v.shape[2]
    u = v.double() / v.double().norm(dim=-1, keepdim=True).clamp(min=EPS)
    off_diagonal = u.sum(2).square().sum(-1) - u.square().sum((2, 3))
    mean: Tensor = off_diagonal / (T * (T - 1))
    return mean


def diagonal_and_entropy(q: Tensor, k: Tensor, sinks: ColumnSinks | None) -> tuple[Tensor, Tensor]:
    """Return each row's weight on itself, a_ii, and the entropy of its weights in nats, both [B, H, T].

    Args:
        q: queries [B, H, T, D] as they enter the attention; k: keys [B, H_kv, T, D].
        sinks: the layer's columns in front of the keys, which belong to the distribution.

    The products are float32 whatever the precision of q and k: in bfloat16, a_ii comes out above 1.
    """
    scale = 1 / math.sqrt(q.shape[-1])
    q, k = q.float(), k.float()
    n = 0
    if sinks is not None:
        n = sinks.n
        q, k, _ = sinks.extend(q, k, k)
    B, H_kv, T, D = k.shape
    q = q.reshape(B, H_kv, -1, T, D)
    diagonals, entropies = [], []
    for start in range(n, T, _QUERY_ROWS):
        rows = q[:, :, :, start : start + _QUERY_ROWS]
        scores = rows @ k[:, :, None, : start + rows.shape[3]].mT * scale
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(start + 1)
        log_weights = scores.masked_fill(future, -math.inf).log_softmax(-1)
        diagonals.append(log_weights.diagonal(start, -2, -1).exp())
        entropies.append(-(log_weights.exp() * log_weights.masked_fill(future, 0.0)).sum(-1))
    return torch.cat(diagonals, dim=-1).flatten(1, 2), torch.cat(entropies, dim=-1).flatten(1, 2)
