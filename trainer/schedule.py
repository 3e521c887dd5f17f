"""The learning rate of each step."""

import math

from schemas.trial import Trial


def learning_rate(trial: Trial, step: int) -> float:
    """Return the learning rate of update `step`, from 1: linear warm-up, then a cosine.

    The same numbers as nanoGPT's `get_lr` with `lr_decay_iters = max_iters` (its iteration is
    `step - 1`): warm-up is lr * step / (warmup_steps + 1), the cosine heads for min_lr_ratio * lr.
    """
    if step <= trial.warmup_steps:
        return trial.lr * step / (trial.warmup_steps + 1)
    progress = (step - 1 - trial.warmup_steps) / (trial.steps - trial.warmup_steps)
    floor = trial.min_lr_ratio
    return trial.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))
