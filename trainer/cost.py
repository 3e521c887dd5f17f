"""What training an arm costs: weights, FLOPs and memory, from its numbers alone.

Nothing is built or run, and torch is not loaded, so that a plan of ten thousand trials is a matter
of seconds. C = d_model, H heads (H_kv for keys and values), D = d_head, L layers, T tokens.
"""

import math
from typing import Literal, TypeAlias

from schemas.trial import Trial
from trainer.tokenizer import padded_vocab

Device: TypeAlias = Literal["cpu", "cuda"]
HEAD_BYTES: dict[Device, int] = {"cpu": 104 * 2**20, "cuda": 832 * 2**20}
"""Logits in memory at once: with GPT-2's vocabulary and bfloat16 1,083 tokens' on a CPU, 8,671 on a GPU."""
_MARGIN = 1.4
"""Measured peaks grow by 1.3 times what is counted, because freed blocks are not all used again."""
_PROCESS = 400 * 2**20
"""Python with torch and Ray loaded (370 MB measured)."""


def count_parameters(trial: Trial) -> int:
    """Return the number of weights, the tied embedding counted once."""
    C, width, kv_width = trial.d_model, trial.n_head * trial.d_head, trial.n_kv_head * trial.d_head
    sinks_of_layer = {"kv": 2 * kv_width, "logit": trial.n_head}.get(trial.sink_kind, 0) * trial.n_sinks
    block = 2 * C + C * (2 * width + 2 * kv_width) + 8 * C**2 + sinks_of_layer
    input_sinks = trial.n_sinks * C if trial.sink_kind == "token" else 0
    return padded_vocab(trial.tokenizer) * C + input_sinks + 2 * C + trial.n_layer * block


def count_non_embedding(trial: Trial) -> int:
    """Return the number of weights outside the token embedding."""
    return count_parameters(trial) - padded_vocab(trial.tokenizer) * trial.d_model


def flops_per_token(trial: Trial) -> float:
    """Return the floating-point operations of one token's forward and backward pass.

    6 a weight that multiplies (the head included, the embedding look-up not) and 12 L H D T for
    attention, counted in full as nanoGPT counts it but for the actual attention width.
    """
    width, kv_width = trial.n_head * trial.d_head, trial.n_kv_head * trial.d_head
    layer = trial.d_model * (2 * width + 2 * kv_width) + 8 * trial.d_model**2
    weights = trial.n_layer * layer + padded_vocab(trial.tokenizer) * trial.d_model
    return 6.0 * weights + 12.0 * trial.n_layer * width * trial.seq_len


def fixed_bytes(trial: Trial, device: Device = "cpu") -> int:
    """Return the bytes that no micro-batch makes smaller: process, weights, gradients, optimizer, head.

    And weights that are copied to be multiplied by: in bfloat16 all of them, else those of queries and keys, which
    are put side by side.
    """
    vocab = padded_vocab(trial.tokenizer)
    if trial.dtype == "bfloat16":
        copies = 2 * count_parameters(trial)
    else:
        copies = 4 * trial.n_layer * trial.d_model * (trial.n_head + trial.n_kv_head) * trial.d_head
    logits = min(HEAD_BYTES[device], 4 * vocab * trial.tokens_per_step)
    # The embedding's gradient is there four times: from the head, scaled, from the look-up, and summed.
    return _PROCESS + 4 * (4 * count_parameters(trial) + 4 * vocab * trial.d_model) + copies + logits


def sequence_bytes(trial: Trial, *, activation_checkpointing: bool = False) -> int:
    """Return the bytes of activations that training holds for one sequence.

    A block saves, for each token, both LayerNorms' inputs and outputs (4 C), the MLP before and
    after the GELU (8 C), q, k, v, the attention's output and what the projection takes (3 H D +
    2 H_kv D), XSA a number for each head; more with QK-norm or with sinks in front of the keys. One more
    block's worth is at work in the backward pass. With activation checkpointing each block keeps its input
    alone (C), and one at a time is computed again. In bfloat16 the LayerNorms' inputs, XSA's numbers and what
    QK-norm takes stay float32, and the first LayerNorm's output is there twice, for queries and keys and for values.
    """
    width, kv_width = trial.n_head * trial.d_head, trial.n_kv_head * trial.d_head
    half = trial.dtype == "bfloat16"
    wide, narrow = 2 * trial.d_model + trial.n_head, 10 * trial.d_model + 3 * width + 2 * kv_width
    if half:
        narrow += trial.d_model
    if trial.qk_norm:
        wide += width + kv_width
    tokens = trial.seq_len
    if trial.n_sinks:
        if trial.sink_kind == "token":
            tokens += trial.n_sinks
        else:
            narrow += width + 2 * kv_width
    block = 4 * wide + (2 if half else 4) * narrow
    kept = trial.n_layer * (4 * trial.d_model if activation_checkpointing else block)
    token = kept + (2 if activation_checkpointing else 1) * block + 16 * trial.d_model
    return math.ceil(_MARGIN * tokens * token)


def memory_bytes(
    trial: Trial, micro_batch: int, device: Device = "cpu", *, activation_checkpointing: bool = False
) -> int:
    """Return the bytes that training takes with `micro_batch` sequences at a time."""
    each = sequence_bytes(trial, activation_checkpointing=activation_checkpointing)
    return fixed_bytes(trial, device) + micro_batch * each


def checkpoint_bytes(trial: Trial) -> int:
    """Return the bytes of one checkpoint: weights and AdamW's two moments, in float32.

    Muon keeps one moment of the hidden matrices, and so less.
    """
    return 3 * 4 * count_parameters(trial)
