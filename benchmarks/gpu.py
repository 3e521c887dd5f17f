"""Every check that needs a GPU, in one go of less than ten minutes on an H200.

    python -m benchmarks.gpu [--device cuda] [--sizes toy 124M 1.3B] [--out FILE.json]
    pytest -m gpu

For each size, SA and XSA of one pair take turns, a few steps each, compiled, in bfloat16, cut as a trial on
this GPU is: tokens/s, MFU, what the exclusion costs, and peak memory beside the estimate. Then whether the
same steps give the same bits, the toy model with and without CUDA graphs, small arms side by side on one GPU,
and Figure 2 at the paper's lengths. `--device cpu --sizes toy --turns 1` runs all of it without a GPU.
"""

import argparse
import gc
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from schemas.sweep import Runtime
from schemas.trial import Arm, Trial
from trainer.bench import CannotMeasure, Settings, measure, shapes
from trainer.cost import flops_per_token
from trainer.data import Batches
from trainer.execution import compile_layers
from trainer.memory import choose_portions, trial_bytes
from trainer.model import build
from trainer.optim import make_optimizers
from trainer.peak import peak, wait
from trainer.process import prepare
from trainer.step import take_step

SEQ_LEN = {"toy": 64, "10M": 256}
"""Of the others 2,048, the paper's."""
TOKENS = {"toy": 16_384, "10M": 65_536}
"""Tokens a step; of the others 131,072."""
WARM_UP, STEPS = 3, 4
ARMS_AT_ONCE = (1, 2, 4, 8)


class Runner:
    """One arm's model on a device, ready to take steps."""

    def __init__(self, arm: Arm, device: torch.device, runtime: Runtime) -> None:
        self.arm, self.device = arm, device
        self.batches = Batches.of(arm)
        self.model, _ = build(arm, device)
        self.optimizers = make_optimizers(self.model, arm)
        memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
        self.portions = choose_portions(arm, runtime, memory)
        self.model.activation_checkpointing = self.portions.activation_checkpointing
        self.expected = trial_bytes(arm, runtime, memory)
        self.execution = compile_layers(self.model, runtime, self.portions.micro_batch)
        self.n_steps = 0

    def step(self) -> torch.Tensor:
        """Take a step and return its loss, on the device."""
        loss, _ = take_step(
            self.model,
            self.optimizers,
            self.batches.train(self.n_steps),
            lr=1e-4,
            grad_clip=1.0,
            micro_batch=self.portions.micro_batch,
        )
        self.n_steps += 1
        return loss

    def rate(self, steps: int) -> float:
        """Return the tokens a second of some steps."""
        wait(self.device)
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        wait(self.device)
        return steps * self.arm.tokens_per_step / (time.perf_counter() - begin)


def free() -> None:
    """Release the models of before: compiled ones are in reference cycles."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def pair(size: str) -> Trial:
    """Return the trial that a size is measured with."""
    seq_len = SEQ_LEN.get(size, 2048)
    return Trial(
        model_size=size,
        seq_len=seq_len,
        tokens_per_step=TOKENS.get(size, 131_072),
        eval_tokens=seq_len,
        bias_tokens=seq_len,
        dtype="bfloat16",
    )


def throughput(size: str, device: torch.device, runtime: Runtime, turns: int) -> Iterator[dict[str, Any]]:
    """Yield a row for SA and for XSA, which take turns."""
    trial = pair(size)
    runners = []
    free()
    for arm in trial.arms:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        runner = Runner(arm, device, runtime)
        runner.rate(WARM_UP)
        used = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
        runners.append((runner, used))
    rates: list[list[float]] = [[], []]
    for turn in range(turns):
        for side in (0, 1) if turn % 2 else (1, 0):
            rates[side].append(runners[side][0].rate(STEPS))
    overhead = statistics.median(sa / xsa for sa, xsa in zip(*rates, strict=True))
    for side, (runner, used) in enumerate(runners):
        rate = statistics.median(rates[side])
        yield {
            "size": size,
            "arm": runner.arm.name,
            "execution": runner.execution.execution,
            "compile_error": runner.execution.compile_error,
            "micro_batch": f"{runner.portions.micro_batch} of {trial.batch_size}",
            "checkpointing": runner.portions.activation_checkpointing,
            "tokens_per_s": round(rate),
            "mfu": round(rate * flops_per_token(runner.arm) / peak(device, trial.dtype).flops_per_s, 3),
            "time_to_sa": round(overhead, 4) if side else 1.0,
            "peak_gib": used and round(used / 2**30, 2),
            "expected_gib": round(runner.expected / 2**30, 2),
        }


def repeats(size: str, device: torch.device, runtime: Runtime) -> dict[str, Any]:
    """Return whether two runs of one arm give the same losses, bit for bit."""
    losses = []
    for _ in range(2):
        free()
        runner = Runner(pair(size).xsa, device, runtime)
        losses.append(torch.stack([runner.step() for _ in range(10)]).cpu())
    largest = (losses[0] - losses[1]).abs().max().item()
    return {"size": size, "same_bits": torch.equal(*losses), "largest_difference": largest}


def _beside(size: str, device: torch.device, runtime: Runtime, start: Barrier, results: Any) -> None:
    prepare(1)
    runner = Runner(pair(size).xsa, device, runtime)
    runner.rate(WARM_UP)
    start.wait()
    results.put(runner.rate(5 * STEPS))


def side_by_side(size: str, device: torch.device, n: int) -> dict[str, Any]:
    """Return the tokens a second of `n` arms together, a process each, as fractional GPUs run them."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(n, timeout=300), context.Queue()
    share = 1 / n if device.type == "cuda" else 0.0
    runtime = Runtime(gpus_per_trial=share)
    processes = [
        context.Process(target=_beside, args=(size, device, runtime, start, results), daemon=True)
        for _ in range(n)
    ]
    for process in processes:
        process.start()
    rates = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return {"size": size, "arms_at_once": n, "tokens_per_s": round(sum(rates))}


def figure_2(device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield the cost of a block at each of the device's shapes; compiled, but for a CPU, where that takes minutes."""
    dtype, execution = ("bfloat16", "compiled") if device.type == "cuda" else ("float32", "eager")
    settings = Settings(batch_size=1, dtype=dtype, repeats=10, device=device)  # type: ignore[arg-type]
    for shape in shapes(device, (), ()):
        try:
            rows = {(row.variant, row.direction): row for row in measure(shape, settings, execution)}  # type: ignore[arg-type]
        except CannotMeasure as error:
            yield {"seq_len": shape.seq_len, "d_model": shape.d_model, "error": str(error)}
            continue
        row: dict[str, Any] = {"seq_len": shape.seq_len, "d_model": shape.d_model}
        for direction in ("forward", "forward+backward"):
            sa, xsa = rows["sa", direction], rows["xsa", direction]
            row |= {
                f"{direction}_ms": round(sa.ms, 3),
                f"{direction}_xsa": round(xsa.ms / sa.ms, 3),
                f"{direction}_memory": round(xsa.peak_bytes / sa.peak_bytes, 3),
            }
        yield row


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table."""
    print(f"\n## {title}\n")
    names = list(dict.fromkeys(name for row in rows for name in row))
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for row in rows:
        print(f"| {' | '.join('' if row.get(name) is None else str(row[name]) for name in names)} |")


def main() -> None:
    """Measure, print tables, and write them as JSON."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--sizes", nargs="+", default=["toy", "124M", "1.3B"])
    parser.add_argument("--turns", type=int, default=5, help=f"turns of {STEPS} steps that each arm takes")
    parser.add_argument("--out", type=Path, help="file for the numbers")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --device cpu --sizes toy tries the program without one")
    prepare(1)
    device = torch.device(asked.device)
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else platform.processor() or "cpu"
    print(f"{name}, torch {torch.__version__}, TF32 off ({torch.get_float32_matmul_precision()})")
    on = Runtime(gpus_per_trial=1.0 if cuda else 0.0, compile="on")
    smallest = asked.sizes[0]
    found: dict[str, list[dict[str, Any]]] = {}

    def add(title: str, rows: Iterator[dict[str, Any]]) -> None:
        begin = time.perf_counter()
        found[title] = list(rows)
        show(f"{title} ({time.perf_counter() - begin:.0f} s)", found[title])
        if asked.out is not None:
            asked.out.write_text(json.dumps(found, indent=1))  # what comes next may not come to its end

    add("Throughput", (row for size in asked.sizes for row in throughput(size, device, on, asked.turns)))
    add("The same steps twice", (repeats(size, device, on) for size in asked.sizes[:2]))
    modes = [on.model_copy(update={"compile": mode}) for mode in ("off", "on", "graphs")]
    add(
        "Eager, compiled, CUDA graphs",
        (
            {"compile": mode.compile} | row
            for mode in modes
            for row in throughput(smallest, device, mode, asked.turns)
        ),
    )
    at_once = ARMS_AT_ONCE if cuda else ARMS_AT_ONCE[:2]
    add("Small arms on one device", (side_by_side(smallest, device, n) for n in at_once))
    add("Figure 2", figure_2(device))


if __name__ == "__main__":
    main()
