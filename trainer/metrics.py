"""Training losses, left on the device until somebody has to know them, and held-out losses."""

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from schemas.report import EvalRow, StepRow
from trainer.data import Windows
from trainer.model import GPT

READ_EVERY_S = 1.0
"""How long losses stay on the device where nothing else needs them: each read makes the host wait for it."""


class _Step(NamedTuple):
    step: int
    loss: Tensor
    grad_norm: Tensor
    lr: float
    time_us: int


class Losses:
    """The steps since the last `read`, none of which has made the device wait."""

    def __init__(self, *, tokens_per_step: int, log_every: int, last_step: int) -> None:
        self._tokens_per_step = tokens_per_step
        self._log_every = log_every
        self._last_step = last_step
        self._steps: list[_Step] = []
        self._n_timed, self._seconds = 0, 0.0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Begin the time that counts for tokens per second: looks, reports and checkpoints are not training."""
        self._begin = time.perf_counter()

    @property
    def tokens_per_s(self) -> float | None:
        """Training tokens a second in all steps so far, or None before the first `read`."""
        return self._n_timed * self._tokens_per_step / self._seconds if self._n_timed else None

    def add(self, step: int, loss: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Note the loss before update `step`, the norm of its gradient and its learning rate."""
        self._steps.append(_Step(step, loss, grad_norm, lr, time.time_ns() // 1000))

    @property
    def waiting_long(self) -> bool:
        """Whether the steps at hand should be read although nothing else is due."""
        return time.perf_counter() - self._begin >= READ_EVERY_S

    def read(self) -> tuple[list[StepRow], int | None]:
        """Return the rows due, and the first step whose loss is not finite.

        Rows are due at multiples of `log_every` and at the last step. A step that is not finite
        has a row in any case, and nothing comes after it. Their rate is that of all steps read at once.
        """
        if not self._steps:
            return [], None
        columns = [torch.stack([getattr(s, name) for s in self._steps]) for name in ("loss", "grad_norm")]
        values = torch.stack(columns, dim=1).tolist()
        elapsed = time.perf_counter() - self._begin
        rate = len(self._steps) * self._tokens_per_step / elapsed
        self._n_timed, self._seconds = self._n_timed + len(self._steps), self._seconds + elapsed
        steps, self._steps = self._steps, []
        self.restart_clock()
        rows = []
        for s, (loss, grad_norm) in zip(steps, values, strict=True):
            finite = math.isfinite(loss)
            if s.step % self._log_every == 0 or s.step == self._last_step or not finite:
                rows.append(StepRow(s.step, loss, s.lr, grad_norm, rate, s.time_us))
            if not finite:
                return rows, s.step
        return rows, None


def micro_batches(windows: Windows, size: int, device: torch.device) -> Iterator[Tensor]:
    """Yield at most `size` sequences at a time of `windows` [B, T + 1], on the device."""
    for start in range(0, len(windows), size):
        part = torch.from_numpy(windows[start : start + size])
        yield part.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else part


@torch.no_grad()
def evaluate(model: GPT, windows: Windows, *, step: int, micro_batch: int) -> EvalRow:
    """Return the mean loss on held-out `windows` [B, T + 1]. Draws no random numbers."""
    total = torch.zeros((), dtype=torch.float64, device=model.cos.device)
    for part in micro_batches(windows, micro_batch, total.device):
        total += model.loss(part).double() * len(part)
    n_tokens = windows[:, 1:].size
    return EvalRow(step, "val", total.item() / len(windows), n_tokens, time.time_ns() // 1000)
