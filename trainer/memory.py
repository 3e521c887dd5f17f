"""The micro-batch that fits the memory, chosen from the arm's shape alone.

By estimate and not by trial, because the micro-batch decides how sums are rounded: the same
settings have to choose the same one on every machine, and again when an arm is resumed.
"""

import math
from typing import NamedTuple

from schemas.errors import UserError
from schemas.sweep import Runtime
from schemas.trial import Trial
from trainer.cost import Device, fixed_bytes, memory_bytes, sequence_bytes

CPU_GIB = 4.0
"""What a CPU trial may take where `Runtime.memory_gib_per_trial` does not say."""
GPU_SHARE = 0.8
"""Part of a GPU's memory that the estimates may fill: the rest is CUDA's own, and fragmentation."""
_GIB = 2**30


class ShareTooSmall(UserError):
    """A trial was given a part of a GPU that it is not expected to fit."""


class Portions(NamedTuple):
    """How a step is cut so that it fits."""

    micro_batch: int
    """Sequences that go through the model at once."""
    activation_checkpointing: bool
    """Whether blocks are computed again in the backward pass."""


def choose_portions(trial: Trial, runtime: Runtime, gpu_bytes: int | None) -> Portions:
    """Return how a step is cut: in as few equal parts as fit, keeping activations where one sequence's fit.

    What `Runtime.micro_batch` and `Runtime.activation_checkpointing` say holds; where even one sequence does
    not fit, it is one.

    Args:
        trial: what is trained.
        runtime: how.
        gpu_bytes: memory of the GPU it is trained on; None for a CPU.
    """
    if gpu_bytes is None:
        device: Device = "cpu"
        room = int((runtime.memory_gib_per_trial or CPU_GIB) * _GIB)
    else:
        device = "cuda"
        room = int(gpu_bytes * min(runtime.gpus_per_trial, 1.0) * GPU_SHARE)
    room -= fixed_bytes(trial, device)

    again = runtime.activation_checkpointing
    if again is None:
        least = min(runtime.micro_batch or 1, trial.batch_size)
        again = least * sequence_bytes(trial) > room
    if runtime.micro_batch is not None:
        return Portions(min(runtime.micro_batch, trial.batch_size), again)
    most = max(1, room // sequence_bytes(trial, activation_checkpointing=again))
    parts = math.ceil(trial.batch_size / most)
    return Portions(math.ceil(trial.batch_size / parts), again)


def trial_bytes(trial: Trial, runtime: Runtime, gpu_bytes: int | None = None) -> int:
    """Return the bytes that a trial is expected to take, cut as `choose_portions` does."""
    micro_batch, again = choose_portions(trial, runtime, gpu_bytes)
    device: Device = "cpu" if gpu_bytes is None else "cuda"
    return memory_bytes(trial, micro_batch, device, activation_checkpointing=again)


def check_share(trial: Trial, runtime: Runtime, gpu_bytes: int) -> None:
    """Raise `ShareTooSmall` where a trial that shares a GPU needs more than its part of the memory."""
    share = runtime.gpus_per_trial
    needed = trial_bytes(trial, runtime, gpu_bytes)
    if share >= 1 or needed <= share * gpu_bytes:
        return
    least = needed / gpu_bytes + 0.005
    remedy = f"give it at least {least:.2f}" if least < 1 else "give it a GPU of its own, or a larger one"
    raise ShareTooSmall(
        f"gpus_per_trial {share:g} of a GPU of {gpu_bytes / _GIB:.1f} GiB is {share * gpu_bytes / _GIB:.1f} GiB, "
        f"and the trial needs about {needed / _GIB:.1f} GiB; {remedy}"
        + (", or a smaller micro_batch." if runtime.micro_batch else ".")
    )
