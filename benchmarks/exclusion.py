"""What the exclusion costs: training steps and saved activations of XSA beside SA, and measuring the bias.

    python -m benchmarks.exclusion [--rounds 15] [--threads 1] [--execution eager compiled]

One process holds both models of a pair, which share initial weights and batches; they take turns, and who
begins changes with the round (SA XSA, XSA SA). Times are CPU seconds; the ratio is the median of the
rounds' ratios. The models have 3 layers of width 384 and a vocabulary of 4,096, 2,048 tokens a step.

Saved memory is what autograd keeps of a forward pass, counted exactly.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.peer import build_with
from schemas.sweep import Runtime
from schemas.trial import Trial
from trainer.bias import measure_rows
from trainer.data import Batches
from trainer.execution import compile_layers
from trainer.model import GPT
from trainer.optim import make_optimizers
from trainer.process import prepare
from trainer.step import take_step

VOCAB, TOKENS, LENGTHS = 4096, 2048, (64, 256, 1024)
WARM_UP = 3


def make_pair(seq_len: int, dtype: str) -> tuple[list[GPT], Batches]:
    """Return the models of a pair, their vocabulary cut, and its batches."""
    trial = Trial.model_validate(
        {
            "n_layer": 3,
            "d_model": 384,
            "n_head": 6,
            "d_head": 64,
            "model_size": "3L-384d-6x64",
            "seq_len": seq_len,
            "tokens_per_step": TOKENS,
            "eval_tokens": seq_len,
            "bias_tokens": 16_384,
            "dtype": dtype,
        }
    )
    return [build_with(arm, VOCAB) for arm in trial.arms], Batches.of(trial)


def saved_bytes(model: GPT, windows: Tensor) -> int:
    """Return the bytes that autograd keeps of a forward pass, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}  # the tensors too, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        if (address := tensor.untyped_storage().data_ptr()) not in weights:
            kept[address] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model.loss(windows)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def compare(seq_len: int, dtype: str, execution: str, rounds: int) -> str:
    """Return a line of the table: a pair's steps in turns."""
    models, batches = make_pair(seq_len, dtype)
    extra = float("nan")
    if execution == "compiled":
        torch.compiler.reset()  # or the cases reach the limit of recompilations
        for model in models:
            told = compile_layers(model, Runtime(compile="on"), batches.trial.batch_size)
            assert told.execution == "compiled", told.compile_error
    else:
        windows = torch.from_numpy(batches.train(0) % VOCAB)
        sa, xsa = (saved_bytes(model, windows) for model in models)
        extra = (xsa - sa) / (3 * TOKENS * 384 * (2 if dtype == "bfloat16" else 4))
    optimizers = [make_optimizers(model, model.trial) for model in models]
    times: list[list[float]] = [[], []]
    for number in range(WARM_UP + rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            begin = time.process_time()
            take_step(
                models[side],
                optimizers[side],
                batches.train(number) % VOCAB,
                lr=1e-3,
                grad_clip=1.0,
                micro_batch=batches.trial.batch_size,
            )
            if number >= WARM_UP:
                times[side].append(time.process_time() - begin)
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    sa_ms, xsa_ms = (1e3 * statistics.median(side) for side in times)
    memory = "" if extra != extra else f"{extra:.2f}"
    return f"| {seq_len} | {dtype} | {execution} | {sa_ms:.0f} | {xsa_ms:.0f} | {ratio:.3f} | {memory} |"


def bias_share() -> str:
    """Return what measuring the bias takes of an arm of 1,000 steps at the default cadence."""
    models, batches = make_pair(256, "float32")
    model = models[1]
    optimizers = make_optimizers(model, model.trial)
    settings = {"lr": 1e-3, "grad_clip": 1.0, "micro_batch": batches.trial.batch_size}
    steps, looks = [], []
    for number in range(WARM_UP + 10):
        begin = time.process_time()
        take_step(model, optimizers, batches.train(number) % VOCAB, **settings)  # type: ignore[arg-type]
        middle = time.process_time()
        measure_rows(model, batches.bias() % VOCAB, step=number)
        if number >= WARM_UP:
            steps.append(middle - begin)
            looks.append(time.process_time() - middle)
    step, look, every = statistics.median(steps), statistics.median(looks), Runtime().bias_every
    share = look / (look + every * step)
    return f"bias metrics: {1e3 * look:.0f} ms every {every} steps of {1e3 * step:.0f} ms, {share:.1%} of the time"


def main() -> None:
    """Measure and print a table."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--execution", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"]
    )
    asked: Any = parser.parse_args()
    prepare(asked.threads)
    print("| seq_len | precision | | SA ms | XSA ms | XSA / SA | saved, of [B, T, C] a layer |")
    print("|---|---|---|---|---|---|---|")
    for execution in asked.execution:
        for seq_len in LENGTHS:
            for dtype in ("float32", "bfloat16"):
                print(compare(seq_len, dtype, execution, asked.rounds), flush=True)
    print(f"\n{bias_share()}; {asked.threads} thread(s), {asked.rounds} rounds")


if __name__ == "__main__":
    main()
