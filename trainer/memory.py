"""The micro-batch that fits the memory, chosen from the arm's shape alone.

By estimate and not by trial, because the micro-batch decides how sums are rounded: the same
settings have to choose the same one on every machine, and again when an arm is resumed.
"""

import math

from schemas.sweep import Runtime
from schemas.trial import Trial
from trainer.cost import Device, fixed_bytes, sequence_bytes

CPU_GIB = 4.0
"""What a CPU trial may take where `Runtime.memory_gib_per_trial` does not say."""
GPU_SHARE = 0.8
"""Part of a GPU's memory that the estimates may fill: the rest is CUDA's own, and fragmentation."""
_GIB = 2**30


def choose_micro_batch(trial: Trial, runtime: Runtime, gpu_bytes: int | None) -> int:
    """Return how many sequences go through the model at once: the step's in as few equal parts as fit.

    What `Runtime.micro_batch` says holds; where even one sequence does not fit, it is one.

    Args:
        trial: what is trained.
        runtime: how.
        gpu_bytes: memory of the GPU it is trained on; None for a CPU.
    """
    if runtime.micro_batch is not None:
        return min(runtime.micro_batch, trial.batch_size)
    if gpu_bytes is None:
        device: Device = "cpu"
        room = int((runtime.memory_gib_per_trial or CPU_GIB) * _GIB)
    else:
        device = "cuda"
        room = int(gpu_bytes * min(runtime.gpus_per_trial, 1.0) * GPU_SHARE)
    most = max(1, (room - fixed_bytes(trial, device)) // sequence_bytes(trial))
    parts = math.ceil(trial.batch_size / most)
    return math.ceil(trial.batch_size / parts)
