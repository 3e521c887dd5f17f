"""How much memory training an arm takes, and the micro-batch that fits: estimates from its shape alone.

An estimate and not a trial run, because the micro-batch decides how sums are rounded: the same
settings have to choose the same one on every machine, and again when an arm is resumed.
"""

import math

import torch

from schemas.sweep import Runtime
from schemas.trial import Trial
from trainer.head import ROWS
from trainer.model import count_parameters
from trainer.tokenizer import padded_vocab

CPU_GIB = 4.0
"""What a CPU trial may take where `Runtime.memory_gib_per_trial` does not say."""
GPU_SHARE = 0.8
"""Part of a GPU's memory that the estimates may fill: the rest is CUDA's own, and fragmentation."""
_MARGIN = 1.4
"""Measured peaks grow by 1.3 times what is counted, because freed blocks are not all used again."""
_GIB = 2**30
_PROCESS = 400 * 2**20
"""Python with torch and Ray loaded (370 MB measured)."""


def fixed_bytes(trial: Trial) -> int:
    """Return the bytes that no micro-batch makes smaller: process, weights, gradients, optimizer, head."""
    vocab = padded_vocab(trial.tokenizer)
    # The embedding's gradient is there four times: from the head, scaled, from the look-up, and summed.
    head = 4 * vocab * trial.d_model + 2 * ROWS * vocab
    return _PROCESS + 4 * (4 * count_parameters(trial) + head)


def sequence_bytes(trial: Trial) -> int:
    """Return the bytes of activations that training holds for one sequence.

    A block saves, for each token, both LayerNorms' inputs and outputs (4 C), the MLP before and
    after the GELU (8 C), q, k, v, the attention's output and what the projection takes (3 H D +
    2 H_kv D); more with QK-norm or with sinks in front of the keys. One more block's worth is at
    work in the backward pass. Counted in float32, of which bfloat16 takes about two thirds.
    """
    width, kv_width = trial.n_head * trial.d_head, trial.n_kv_head * trial.d_head
    block = 12 * trial.d_model + 3 * width + 2 * kv_width
    if trial.qk_norm:
        block += width + kv_width
    tokens = trial.seq_len
    if trial.n_sinks:
        if trial.sink_kind == "token":
            tokens += trial.n_sinks
        else:
            block += width + 2 * kv_width
    floats = tokens * ((trial.n_layer + 1) * block + 4 * trial.d_model)
    return math.ceil(_MARGIN * 4 * floats)


def memory_bytes(trial: Trial, micro_batch: int) -> int:
    """Return the bytes that training takes with `micro_batch` sequences at a time."""
    return fixed_bytes(trial) + micro_batch * sequence_bytes(trial)


def choose_micro_batch(trial: Trial, runtime: Runtime, device: torch.device) -> int:
    """Return how many sequences go through the model at once: the step's in as few equal parts as fit.

    What `Runtime.micro_batch` says holds; where even one sequence does not fit, it is one.
    """
    if runtime.micro_batch is not None:
        return min(runtime.micro_batch, trial.batch_size)
    most = max(1, (_budget(runtime, device) - fixed_bytes(trial)) // sequence_bytes(trial))
    parts = math.ceil(trial.batch_size / most)
    return math.ceil(trial.batch_size / parts)


def _budget(runtime: Runtime, device: torch.device) -> int:
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return int(total * min(runtime.gpus_per_trial, 1.0) * GPU_SHARE)
    return int((runtime.memory_gib_per_trial or CPU_GIB) * _GIB)
