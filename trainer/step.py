"""One optimizer step."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from trainer.data import Windows
from trainer.metrics import micro_batches
from trainer.model import GPT
from trainer.optim import set_learning_rate


def take_step(
    model: GPT,
    optimizers: Sequence[Optimizer],
    windows: Windows,
    *,
    lr: float,
    grad_clip: float,
    micro_batch: int,
) -> tuple[Tensor, Tensor]:
    """Update the model on `windows` [B, T + 1]; return the mean loss before it and its gradient's norm.

    Both stay on the device: nothing here waits for it.
    """
    device = model.cos.device
    total = torch.zeros((), device=device)
    for part in micro_batches(windows, micro_batch, device):
        loss = model.loss(part) * (len(part) / len(windows))
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    grad_norm = clip_grad_norm_(model.parameters(), grad_clip)
    set_learning_rate(optimizers, lr)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return total, grad_norm
