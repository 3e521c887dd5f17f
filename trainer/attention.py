"""Exclusive self attention and rotary positions, an autograd function each."""

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
        because y . v cancels: in bfloat16 a hundredth of the removed part would stay. In memory it is
        [B, T, H, D], which the output projection takes as it is.

    For the backward pass `y` and `v` are saved, which attention itself has saved, and a number for each
    token and head.
    """
    if xsa_lambda == 0:
        return y
    z: Tensor = _Exclusive.apply(y, v, xsa_lambda)  # type: ignore[no-untyped-call]
    return z


class _Exclusive(torch.autograd.Function):
    """With r = max(|v|, eps), u = v / r, s = y . u, a = g . u (g the gradient of z):

    dy = g - λ a u,    dv = -(λ / r) sum over the group of (a y + s g - 2 a s u),

    where the last term is that of a direction and falls away if r = eps, a constant. Of the gradients only
    sums are float32: nothing cancels in them as it does in z.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, v: Tensor, xsa_lambda: float) -> Tensor:
        wide = torch.float64 if y.dtype == torch.float64 else torch.float32
        (y_wide, v_wide) = (part.to(wide) for part in _grouped(v, y, v))
        s = (y_wide * v_wide).sum(-1, keepdim=True).div_(_clamped_square(v_wide))  # s / r
        if xsa_lambda != 1:
            s.mul_(xsa_lambda)
        ctx.save_for_backward(y, v, s)
        ctx.xsa_lambda = xsa_lambda
        z = y.new_empty(y.transpose(1, 2).shape).transpose(1, 2)
        (z_grouped,) = _grouped(v, z)
        z_grouped.copy_(torch.addcmul(y_wide, s, v_wide, value=-1))  # not out=, which does not compile
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        y, v, s = ctx.saved_tensors
        y, v, g = _grouped(v, y, v, g)
        square = _clamped_square(v, dtype=s.dtype)
        a = (g * v).sum(-1, keepdim=True, dtype=s.dtype).div_(square)
        if ctx.xsa_lambda != 1:
            a.mul_(ctx.xsa_lambda)
        turning = (a * s).sum(2, keepdim=True).mul_(2 / ctx.xsa_lambda).where(square > EPS**2, 0.0)
        a, s, turning = (part.to(v.dtype) for part in (a, s, turning))
        dy = torch.addcmul(g, a, v, value=-1)
        dv = (y * -a).addcmul_(s, g, value=-1)
        if dv.shape[2] > 1:
            dv = dv.sum(2, keepdim=True)
        dv.addcmul_(turning, v)
        return dy.flatten(1, 2), dv.squeeze(2), None


def _grouped(v: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """View heads as groups that share a value head of v: [B, H_kv, G, T, D] (G is 1 of v itself)."""
    return tuple(torch.unflatten(part, 1, (v.shape[1], -1)) for part in parts)


def _clamped_square(v: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return max(|v|, eps)^2 over the last dimension, which is kept: no square root, no 0 / 0."""
    return v.square().sum(-1, keepdim=True, dtype=dtype).clamp_(min=EPS**2)


def rope_table(length: int, d_head: int, base: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [length, d_head / 2] of rotary position embedding (Su et al. 2021)."""
    frequency = base ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (j, j + D/2) of queries or keys [B, H, T, D] by their position's angles [T, D / 2].

    In float32 whatever the precision of x, to which the result returns.
    """
    turned: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return turned


class _Rotate(torch.autograd.Function):
    """A turn, whose gradient is the turn back: autograd's own takes three times as long."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(g, cos, -sin), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return what attention is fastest with: [B, H, T, D] in the order of its dimensions."""
    half = x.shape[-1] // 2
    wide = x.to(
        torch.float32, memory_format=torch.contiguous_format
    ).contiguous()  # in one pass, if not float32
    turned = wide * torch.cat((cos, cos), dim=-1)
    turned[..., :half].addcmul_(wide[..., half:], sin, value=-1)
    turned[..., half:].addcmul_(wide[..., :half], sin)
    return turned.to(x.dtype)
