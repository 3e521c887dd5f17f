"""Exclusive self attention as one autograd function, and rotary positions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

EPS = 1e-6
"""Least |v| that is divided by: below it a value counts as having no direction."""


def exclusive(y: Tensor, v: Tensor, xsa_lambda: float) -> Tensor:
    """Remove from each attention output the part along the token's own value.

        z_i = y_i - λ (y_i . v_i) v_i / max(|v_i|, eps)^2          (Zhai 2026, Algorithm 1, for λ = 1)

    Args:
        y: attention outputs [B, H, T, D].
        v: the values that entered the attention [B, H_kv, T, D], not rotated. Query head h has
            the value head h // (H / H_kv), as grouped-query attention has.
        xsa_lambda: λ. 0 returns `y` itself: standard attention is this branch, not a product with 0.

    Returns:
        z [B, H, T, D] in y's precision. The arithmetic is in float32 (float64 for float64 inputs),
        because y . v cancels: in bfloat16 a hundredth of the removed part would stay.

    Nothing is saved for the backward pass but `y` and `v`, which attention itself has saved.
    """
    if xsa_lambda == 0:
        return y
    z: Tensor = _Exclusive.apply(y, v, xsa_lambda)  # type: ignore[no-untyped-call]
    return z


def _grouped(y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """View heads as groups that share a value head: [B, H_kv, G, T, D] and [B, H_kv, 1, T, D]."""
    wide = torch.float64 if y.dtype == torch.float64 else torch.float32
    B, H_kv, T, D = v.shape
    return y.view(B, H_kv, -1, T, D).to(wide), v.unsqueeze(2).to(wide)


class _Exclusive(torch.autograd.Function):
    """With r = max(|v|, eps), u = v / r, s = y . u, a = g . u (g the gradient of z):

    dy = g - λ a u,    dv = -(λ / r) sum over the group of (a y + s g - 2 a s u),

    where the last term is that of a direction and falls away if r = eps, a constant.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, v: Tensor, xsa_lambda: float) -> Tensor:
        ctx.save_for_backward(y, v)
        ctx.xsa_lambda = xsa_lambda
        y_wide, v_wide = _grouped(y, v)
        along = (y_wide * v_wide).sum(-1, keepdim=True).div_(_clamped_square(v_wide))
        if xsa_lambda != 1:
            along.mul_(xsa_lambda)
        return torch.addcmul(y_wide, along, v_wide, value=-1).to(y.dtype).flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        y, v = ctx.saved_tensors
        y_wide, v_wide = _grouped(y, v)
        g_wide, _ = _grouped(g, v)
        square = _clamped_square(v_wide)
        a = (g_wide * v_wide).sum(-1, keepdim=True).mul_(ctx.xsa_lambda).div_(square)  # λ a / r
        s = (y_wide * v_wide).sum(-1, keepdim=True).mul_(ctx.xsa_lambda).div_(square)  # λ s / r
        dy = torch.addcmul(g_wide, a, v_wide, value=-1)
        dv = (a * y_wide).addcmul_(s, g_wide).sum(2, keepdim=True).neg_()
        turning = (a * s).sum(2, keepdim=True).mul_(2 / ctx.xsa_lambda)
        dv.addcmul_(torch.where(square > EPS**2, turning, 0.0), v_wide)
        return dy.to(y.dtype).flatten(1, 2), dv.squeeze(2).to(v.dtype), None


def _clamped_square(v: Tensor) -> Tensor:
    """Return max(|v|, eps)^2 over the last dimension, which is kept: no square root, no 0 / 0."""
    return v.square().sum(-1, keepdim=True).clamp_(min=EPS**2)


def rope_table(length: int, d_head: int, base: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [length, d_head / 2] of rotary position embedding (Su et al. 2021)."""
    frequency = base ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (j, j + D/2) of queries or keys [B, H, T, D] by their position's angles.

    In float32 whatever the precision of x, to which the result returns.
    """
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)
