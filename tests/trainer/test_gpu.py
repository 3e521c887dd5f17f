"""What only a GPU can show; without one each of these skips."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.report import EvalRow
from schemas.sweep import Runtime
from schemas.trial import Arm, Trial
from trainer.data import Batches
from trainer.execution import compile_layers
from trainer.head import linear_cross_entropy
from trainer.memory import choose_portions, trial_bytes
from trainer.model import build
from trainer.optim import make_optimizers
from trainer.step import take_step
from trainer.train import train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
GPU = torch.device("cuda")
SIZE = {"model_size": "10M", "seq_len": 256, "eval_tokens": 2048, "bias_tokens": 2048, "dtype": "bfloat16"}


def losses(run: Any, arm: Arm, name: str) -> list[float]:
    return [row.loss for row in run.rows(arm, name) if isinstance(row, EvalRow)]


@pytest.mark.parametrize("how", ["on", "graphs"])
def test_layers_are_compiled_and_follow_the_eager_ones(tiny: Callable[..., Arm], run: Any, how: str) -> None:
    arm = tiny(n_sinks=2)
    assert run(arm, "eager", gpus_per_trial=1, compile="off").environment["execution"] == "eager"
    told = run(arm, how, gpus_per_trial=1, compile=how).environment
    assert (told["execution"], told["compile_error"]) == ("compiled", None)
    assert isinstance(told["bf16_reduced_precision_reduction"], bool)
    assert losses(run, arm, how) == pytest.approx(losses(run, arm, "eager"), abs=1e-4)


def test_the_same_arm_twice_differs_by_rounding_at_most(tiny: Callable[..., Arm], run: Any) -> None:
    """Not bit for bit: sums over equal tokens are atomic additions, in no fixed order."""
    arm = tiny(dtype="bfloat16")
    for name in ("first", "second"):
        run(arm, name, gpus_per_trial=1)
    assert losses(run, arm, "first") == pytest.approx(losses(run, arm, "second"), abs=1e-3)


def test_blocks_computed_again_give_the_same_losses(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny()
    run(arm, "kept", gpus_per_trial=1)
    run(arm, "again", gpus_per_trial=1, activation_checkpointing=True)
    assert losses(run, arm, "again") == pytest.approx(losses(run, arm, "kept"), abs=1e-5)


def test_nothing_in_a_step_waits_for_the_gpu() -> None:
    arm = Trial(**SIZE, tokens_per_step=4096).xsa
    model, _ = build(arm, GPU)
    optimizers, batches = make_optimizers(model, arm), Batches.of(arm)
    assert compile_layers(model, Runtime(gpus_per_trial=1), 8).execution == "compiled"

    def step(number: int) -> None:
        take_step(model, optimizers, batches.train(number), lr=1e-4, grad_clip=1.0, micro_batch=8)

    for number in range(3):
        step(number)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(3, 6):
            step(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("how", ["off", "on"])
def test_nothing_between_two_reads_of_the_losses_waits_for_the_gpu(
    tiny: Callable[..., Arm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("trainer.metrics.READ_EVERY_S", math.inf)
    arm, asked = tiny(steps=12, dtype="bfloat16"), 0

    def should_stop() -> bool:
        """Asked after each step: from the third to the ninth, waiting is an error."""
        nonlocal asked
        asked += 1
        torch.cuda.set_sync_debug_mode("error" if 3 <= asked < 9 else "default")
        return False

    try:
        runtime = Runtime(gpus_per_trial=1, compile=how)
        record = train(arm, tmp_path, runtime, attempt=1, report=lambda report: None, should_stop=should_stop)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (record.status, asked) == ("done", 12)


@pytest.mark.parametrize("again", [False, True])
def test_peak_memory_stays_below_the_estimate(again: bool) -> None:
    arm = Trial(**SIZE, tokens_per_step=65_536).xsa
    runtime = Runtime(gpus_per_trial=1, activation_checkpointing=again)
    memory = torch.cuda.get_device_properties(GPU).total_memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model, _ = build(arm, GPU)
    model.activation_checkpointing = again
    optimizers = make_optimizers(model, arm)
    micro_batch = choose_portions(arm, runtime, memory).micro_batch
    for number in range(2):
        windows = Batches.of(arm).train(number)
        take_step(model, optimizers, windows, lr=1e-4, grad_clip=1.0, micro_batch=micro_batch)
    used = torch.cuda.max_memory_allocated() - before
    assert 0.2 * trial_bytes(arm, runtime, memory) < used < trial_bytes(arm, runtime, memory)


def test_the_peak_of_an_arm_is_its_own(tiny: Callable[..., Arm], run: Any) -> None:
    before = torch.empty(2**30, dtype=torch.uint8, device=GPU)
    del before
    assert run(tiny(), gpus_per_trial=1, compile="off").environment["peak_gpu_bytes"] < 2**30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_is_that_of_the_cpu(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 64, generator=generator) for n in (300, 5000))
    targets = torch.randint(5000, (300,), generator=generator)
    found = []
    for device in (torch.device("cpu"), GPU):
        parts = [part.detach().to(device, copy=True).requires_grad_() for part in (x, weight)]
        loss = linear_cross_entropy(*parts, targets.to(device), dtype=dtype)
        loss.backward()
        found.append([loss.detach().cpu(), *(part.grad.cpu() for part in parts if part.grad is not None)])
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() <= tolerance * theirs.norm()
