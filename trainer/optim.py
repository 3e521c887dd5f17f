"""The optimizers of an arm."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from schemas.trial import Trial


def make_optimizers(model: nn.Module, trial: Trial) -> list[Optimizer]:
    """Return the optimizers that together update every parameter once.

    `adamw`: AdamW on everything, as in nanoGPT. `muon`: Muon (Jordan et al. 2024) on the blocks'
    matrices and AdamW on embeddings, norms and sinks; updates are scaled to AdamW's size
    (Liu et al. 2025), so that one learning rate and weight decay serve both.

    Matrices and embeddings decay; norms and sink logits, which are no directions, do not.
    """
    hidden, decayed, free = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or name.endswith("sinks.logit"):
            free.append(parameter)
        elif trial.optimizer == "muon" and name.startswith("blocks.") and parameter.ndim == 2:
            hidden.append(parameter)
        else:
            decayed.append(parameter)
    adamw = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": trial.weight_decay},
            {"params": free, "weight_decay": 0.0},
        ],
        lr=trial.lr,
        betas=(trial.beta1, trial.beta2),
        fused=True,
    )
    if not hidden:
        return [adamw]
    muon = torch.optim.Muon(
        hidden, lr=trial.lr, weight_decay=trial.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [adamw, muon]


def set_learning_rate(optimizers: Sequence[Optimizer], lr: float) -> None:
    """Give every parameter the learning rate `lr`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
