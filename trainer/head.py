"""The tied output head and cross entropy together, without ever holding the logits of a batch.

At a small width nearly all of a step's time and memory is here. Logits are made in tiles that stay in a
core's cache, and become the gradient's weights in place, so that they are gone over once.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.cost import HEAD_BYTES

TILE_BYTES = 2048
"""A row of a tile on a CPU: 512 words in float32, 1,024 in bfloat16. A GPU takes all words at once."""
_LARGEST = 1e30
"""Sums of exponentials beyond this may have overflowed in one of their products."""


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return the mean cross entropy in nats of the logits `x @ weight.T`.

    Args:
        x: hidden states [N, C].
        weight: the embedding [V, C], rows beyond the vocabulary included.
        targets: token ids [N].
        dtype: precision of what the matrix products multiply and give. Each token's own logit, the sums of
            exponentials, and the sums of products are float32. Within a product of bfloat16 a GPU may add
            partial sums in bfloat16, where `torch.backends.cuda.matmul` allows it (records tell whether).
            With float32 the result is that of `F.cross_entropy` to rounding.
    """
    wanted = torch.is_grad_enabled()
    loss: Tensor = _LinearCrossEntropy.apply(x, weight, targets, dtype, wanted)  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    """With w = exp(l - s) for logits l [N, V] and any shift s [N], and of the target apart, in float32,

    o = exp(l[target] - s),    r = the sum of w over all other words,    m = r + o:

    loss = mean(log m + s - l[target]),    N dl = w / m, but -r / m at the target.

    (1 - o / m would cancel where the target is likely.) It is cheaper to divide rows of width C than of
    width V, so the two products of the gradient take w as it is. The shift only has to keep exp within
    float32: the largest logit of the first tile and the target's nearly always do, and where not, the rows
    are done again with the largest of all.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, wanted: bool
    ) -> Tensor:
        (N, C), V = x.shape, len(weight)
        with torch.autocast(x.device.type, enabled=False):
            hidden, matrix = x.to(dtype), weight.to(dtype)
            n_rows = min(N, max(1, HEAD_BYTES["cuda" if x.is_cuda else "cpu"] // (V * dtype.itemsize)))
            width = TILE_BYTES // dtype.itemsize if x.device.type == "cpu" else V
            buffer = hidden.new_empty(n_rows * (V if wanted else min(width, V)))
            dx = torch.empty(N, C, dtype=torch.float32, device=x.device) if wanted else None
            dweight = torch.zeros(V, C, dtype=torch.float32, device=x.device) if wanted else None
            total = torch.zeros((), dtype=torch.float32, device=x.device)
            for start in range(0, N, n_rows):
                rows = hidden[start : start + n_rows]
                target = targets[start : start + n_rows]
                towards = matrix[target].float()
                own = (rows.float() * towards).sum(1)
                tiles = _Tiles(rows, target, matrix, buffer, width, keep=wanted)
                shift, others, mean = tiles.weigh(at_least=own.to(dtype))
                if width < V and not bool((others < _LARGEST).all()):
                    shift, others, mean = tiles.weigh(at_least=tiles.largest())
                mass = others + (own - shift).exp()
                total += (mass.log() + shift - own).sum()
                if dx is not None and dweight is not None and mean is not None:
                    share = (mass * N).reciprocal_()[:, None]
                    missing = others[:, None] * share
                    dx[start : start + n_rows] = mean.mul_(share).sub_(towards.mul_(missing))
                    tiles.add_gradient(dweight, (rows.float() * share).to(dtype))
                    dweight.index_add_(0, target, rows.float() * missing, alpha=-1)
        ctx.save_for_backward(dx, dweight)
        ctx.dtypes = x.dtype, weight.dtype
        return total / N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx, dweight = ctx.saved_tensors
        return (dx * g).to(ctx.dtypes[0]), (dweight * g).to(ctx.dtypes[1]), None, None, None


class _Tiles:
    """Some rows' logits, a tile of words at a time, in one buffer that keeps all tiles or the last one."""

    def __init__(
        self, rows: Tensor, targets: Tensor, matrix: Tensor, buffer: Tensor, width: int, *, keep: bool
    ) -> None:
        self._rows, self._targets, self._matrix, self._buffer = rows, targets, matrix, buffer
        self._width, self._keep = width, keep
        self._starts = range(0, len(matrix), width)
        self._order: Tensor | None = None
        """The rows in the order of their targets, where there are several tiles, and where each tile's begin."""
        self._bounds: list[int] = []
        if len(self._starts) > 1:
            ordered, self._order = targets.sort()
            ends = torch.tensor([*self._starts, len(matrix)])
            self._bounds = torch.searchsorted(ordered, ends).tolist()

    def _words(self, start: int) -> Tensor:
        return self._matrix[start : start + self._width]

    def _tile(self, start: int) -> Tensor:
        n, width = len(self._rows), len(self._words(start))
        begin = start * n if self._keep else 0
        return self._buffer[begin : begin + n * width].view(n, width)

    def logits(self, start: int, less: Tensor | None = None) -> Tensor:
        """Return the logits of the tile that starts at a word, and add `less` [N, 1] to them."""
        words, tile = self._words(start).T, self._tile(start)
        if less is None:
            return torch.mm(self._rows, words, out=tile)
        return torch.addmm(less, self._rows, words, out=tile)

    def largest(self) -> Tensor:
        """Return each row's largest logit."""
        return torch.stack([self.logits(start).amax(1) for start in self._starts]).amax(0)

    def weigh(self, at_least: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Turn the logits l into w = exp(l - shift), the shift being the first tile's largest logit or more.

        The target's w becomes 0. Return the shift, each row's sum of w, and, where tiles are kept, its sum
        of w times the words: each tile's product in the tile's precision, their sum in float32.
        """
        less: Tensor | None = None
        others = torch.zeros_like(at_least, dtype=torch.float32)
        mean = torch.zeros_like(self._rows, dtype=torch.float32) if self._keep else None
        for number, start in enumerate(self._starts):
            tile = self.logits(start, less)
            if less is None:
                less = -torch.maximum(tile.amax(1), at_least)[:, None]
                tile.add_(less)
            tile.exp_()
            self._leave_out_target(tile, number)
            others += tile.sum(1, dtype=torch.float32)
            if mean is not None:
                _accumulate(mean, tile, self._words(start))
        assert less is not None
        return -less.squeeze(1).float(), others, mean

    def _leave_out_target(self, tile: Tensor, number: int) -> None:
        if self._order is None:
            tile.scatter_(1, self._targets[:, None], 0)
            return
        rows = self._order[self._bounds[number] : self._bounds[number + 1]]
        tile[rows, self._targets[rows] - self._starts[number]] = 0

    def add_gradient(self, total: Tensor, scaled: Tensor) -> None:
        """Add w.T @ scaled to `total` [V, C]."""
        for start in self._starts:
            _accumulate(total[start : start + self._width], self._tile(start).T, scaled)


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right, which has their precision, to `total` in float32."""
    if left.dtype == torch.float32:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
