"""The tied output head and cross entropy together, without ever holding the logits of a batch.

At a small width nearly all of a step's time and memory is here, so rows are done a few at a time
and the gradients are made on the way forward, while the logits are still in the cache.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.cost import HEAD_ROWS


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return the mean cross entropy in nats of the logits `x @ weight.T`.

    Args:
        x: hidden states [N, C].
        weight: the embedding [V, C], rows beyond the vocabulary included.
        targets: token ids [N].
        dtype: precision of the matrix products. Softmax and sums are float32 in any case, and
            with float32 the result is that of `F.cross_entropy` to rounding.
    """
    wanted = torch.is_grad_enabled()
    loss: Tensor = _LinearCrossEntropy.apply(x, weight, targets, dtype, wanted)  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, wanted: bool
    ) -> Tensor:
        N = len(x)
        rows, matrix = x.to(dtype), weight.to(dtype)
        buffer = rows.new_empty(min(HEAD_ROWS, N), len(weight))
        dx = torch.empty_like(x, dtype=torch.float32) if wanted else None
        dweight = torch.zeros_like(weight, dtype=torch.float32) if wanted else None
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, N, HEAD_ROWS):
                part = slice(start, min(start + HEAD_ROWS, N))
                chunk, target = rows[part], targets[part, None]
                logits = torch.mm(chunk, matrix.T, out=buffer[: len(chunk)]).float()
                own = logits.gather(1, target)
                peak = logits.amax(1, keepdim=True)
                weights = logits.sub_(peak).exp_()  # softmax, but for the division by their sum
                mass = weights.sum(1, keepdim=True)
                total += (peak + mass.log() - own).sum()
                if dx is not None and dweight is not None:
                    # The gradient of a row's logits is (weights - mass at the target) / (mass N): it
                    # is cheaper to divide a row of width C than one of width V.
                    weights.scatter_add_(1, target, -mass)
                    share = (mass * N).reciprocal_()
                    dlogits = weights.to(dtype)
                    dx[part] = (dlogits @ matrix).float() * share
                    scaled = (chunk.float() * share).to(dtype)
                    _accumulate(dweight, dlogits, scaled)
        ctx.save_for_backward(dx, dweight)
        ctx.dtypes = x.dtype, weight.dtype
        return total / N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx, dweight = ctx.saved_tensors
        return (dx * g).to(ctx.dtypes[0]), (dweight * g).to(ctx.dtypes[1]), None, None, None


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left.T @ right to `total` in float32."""
    if left.dtype == torch.float32:
        total.addmm_(left.T, right)
    else:
        total.add_(left.T @ right)
