"""The micro-batch that fits is chosen from the arm alone, and changes nothing but rounding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.exclusion import saved_bytes as kept_bytes
from schemas.report import EvalRow, StepRow
from schemas.sweep import Runtime
from schemas.trial import Arm, Trial
from tests.trainer.test_resume import RUNTIME, assert_same
from trainer.cost import count_parameters, fixed_bytes, memory_bytes, sequence_bytes
from trainer.memory import ShareTooSmall, check_share, choose_portions, trial_bytes
from trainer.model import build
from trainer.tokenizer import padded_vocab

GIB = 2**30


def saved_bytes(trial: Trial, n_sequences: int, again: bool = False) -> int:
    """Bytes that autograd keeps of a forward pass over so many sequences."""
    model, _ = build(trial, torch.device("cpu"))
    model.activation_checkpointing = again
    return kept_bytes(model, torch.zeros(n_sequences, trial.seq_len + 1, dtype=torch.int64))


SHAPE = {"n_layer": 12, "d_model": 64, "n_head": 2, "d_head": 32, "n_kv_head": 2, "tokenizer": "bytes"}
TOKENS = {"seq_len": 128, "tokens_per_step": 512, "eval_tokens": 128, "bias_tokens": 128}


def of_a_sequence(trial: Trial, again: bool = False) -> int:
    return saved_bytes(trial, 2, again) - saved_bytes(trial, 1, again)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"xsa_lambda": 0.0},
        {"n_kv_head": 1},
        {"qk_norm": True},
        {"n_sinks": 4},
        {"n_sinks": 4, "sink_kind": "kv"},
        {"n_sinks": 1, "sink_kind": "logit"},
        {"n_sinks": 1, "sink_kind": "zero"},
        {"n_head": 8, "d_head": 32, "n_kv_head": 8},
    ],
    ids=str,
)
def test_the_estimate_covers_what_autograd_saves(changes: dict[str, Any], dtype: str) -> None:
    trial = Trial(**SHAPE | TOKENS | changes | {"dtype": dtype})
    whole = of_a_sequence(trial)
    assert 1.3 * whole < sequence_bytes(trial) < 2 * whole
    # Where blocks are computed again, one of them is there beside all inputs.
    block = (whole - of_a_sequence(trial.model_copy(update={"n_layer": 1}))) // (trial.n_layer - 1)
    again = of_a_sequence(trial, again=True) + block
    assert 1.3 * again < sequence_bytes(trial, activation_checkpointing=True) < 2.5 * again


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_estimate_covers_the_copies_of_weights(dtype: str) -> None:
    """Of no sequence there would be these alone, the embedding's gradient, and the tables of positions."""
    trial = Trial(**SHAPE | TOKENS | {"d_model": 256, "dtype": dtype})
    tables = 4 * trial.seq_len * trial.d_head
    kept = 2 * saved_bytes(trial, 1) - saved_bytes(trial, 2) - tables
    counted = 4 * (4 * count_parameters(trial) + 3 * padded_vocab("bytes") * trial.d_model)
    logits = 4 * padded_vocab("bytes") * trial.tokens_per_step
    assert kept <= fixed_bytes(trial) - 400 * 2**20 - counted - logits < 1.3 * kept


def test_parts_are_as_few_and_as_equal_as_fit(tiny: Callable[..., Arm]) -> None:
    arm = tiny(tokens_per_step=16 * 10)

    def chosen(sequences: float) -> int:
        room = (fixed_bytes(arm) + sequences * sequence_bytes(arm)) / GIB
        micro_batch, again = choose_portions(arm, Runtime(memory_gib_per_trial=room), None)
        assert again == (sequences < 1)
        assert micro_batch == 1 or memory_bytes(arm, micro_batch) <= room * GIB
        return micro_batch

    assert [chosen(n) for n in (0.1, 1.5, 2.5, 4.5, 9.5, 10.5, 1000)] == [1, 1, 2, 4, 5, 10, 10]
    assert choose_portions(arm, Runtime(), None) == (10, False)
    assert choose_portions(arm, Runtime(micro_batch=3, memory_gib_per_trial=0.001), None) == (3, True)
    assert choose_portions(arm, Runtime(micro_batch=64), None) == (10, False)
    off = Runtime(memory_gib_per_trial=0.001, activation_checkpointing=False)
    assert choose_portions(arm, off, None) == (1, False)
    assert choose_portions(arm, Runtime(activation_checkpointing=True), None) == (10, True)


def test_a_gpus_own_memory_is_what_a_gpu_trial_fits() -> None:
    trial = Trial(model_size="1.3B")
    whole, again = choose_portions(trial, Runtime(gpus_per_trial=1), 80 * GIB)
    assert 1 <= whole < trial.batch_size
    assert not again
    assert memory_bytes(trial, whole, "cuda") < 0.8 * 80 * GIB
    kept = {"activation_checkpointing": False}
    assert choose_portions(trial, Runtime(gpus_per_trial=0.75, **kept), 80 * GIB).micro_batch < whole
    assert choose_portions(trial, Runtime(gpus_per_trial=8), 80 * GIB).micro_batch == whole  # one GPU an arm


def test_a_part_of_a_gpu_that_is_too_small_is_refused_with_one_that_is_not() -> None:
    trial = Trial(model_size="124M")
    check_share(trial, Runtime(gpus_per_trial=0.25), 80 * GIB)
    with pytest.raises(ShareTooSmall, match=r"0\.02 of a GPU of 80\.0 GiB is 1\.6 GiB") as refusal:
        check_share(trial, Runtime(gpus_per_trial=0.02), 80 * GIB)
    least = float(str(refusal.value).split("at least ")[1].rstrip("."))
    check_share(trial, Runtime(gpus_per_trial=least), 80 * GIB)
    with pytest.raises(ShareTooSmall, match="give it a GPU of its own, or a larger one"):
        check_share(Trial(model_size="1.3B"), Runtime(gpus_per_trial=0.5), 16 * GIB)
    check_share(trial, Runtime(gpus_per_trial=1, micro_batch=256), 2 * GIB)  # a whole one: an estimate is one


def test_a_long_sequence_fits_where_blocks_are_computed_again() -> None:
    trial = Trial(model_size="1.3B", seq_len=32_768, bias_tokens=32_768)
    runtime = Runtime(gpus_per_trial=1)
    assert choose_portions(trial, runtime, 80 * GIB) == (1, True)
    assert trial_bytes(trial, runtime, 80 * GIB) < 0.8 * 80 * GIB


def test_blocks_computed_again_change_no_number(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny(n_sinks=2)
    run(arm, "whole")
    record = run(arm, "again", activation_checkpointing=True)
    assert record.environment["activation_checkpointing"] is True
    assert_same(run, arm, "again")


@pytest.mark.parametrize("changes", [{}, {"n_kv_head": 1}, {"n_sinks": 4, "sink_kind": "kv"}], ids=str)
def test_what_is_kept_of_blocks_computed_again_is_their_inputs(changes: dict[str, Any]) -> None:
    trial = Trial(**SHAPE | TOKENS | changes)
    kept = of_a_sequence(trial, again=True)
    assert kept < 4 * trial.seq_len * trial.d_model * (trial.n_layer + 5)
    assert kept < sequence_bytes(trial, activation_checkpointing=True) < of_a_sequence(trial)


def test_too_little_memory_for_a_step_at_once_changes_nothing_but_rounding(
    tiny: Callable[..., Arm], run: Any
) -> None:
    arm = tiny()
    room = (fixed_bytes(arm) + 2.5 * sequence_bytes(arm)) / GIB
    whole = run(arm, "roomy")
    assert whole.environment["micro_batch"] == arm.batch_size == 4
    assert run(arm, "tight", memory_gib_per_trial=room).environment["micro_batch"] == 2
    for kind, value in ((StepRow, "train_loss"), (EvalRow, "loss")):
        tight, roomy = (
            [getattr(row, value) for row in run.rows(arm, name) if isinstance(row, kind)]
            for name in ("tight", "roomy")
        )
        assert tight == pytest.approx(roomy, abs=2e-6)


def test_an_arm_in_parts_resumes_bit_for_bit(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny()
    tight = RUNTIME | {"memory_gib_per_trial": (fixed_bytes(arm) + 1.5 * sequence_bytes(arm)) / GIB}
    run(arm, "whole", **tight)
    assert run(arm, "stopped", stop_after=3, **tight).status == "interrupted"
    run(arm, "stopped", attempt=2, **tight)
    assert_same(run, arm, "stopped")
