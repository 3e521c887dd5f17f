"""Every check that needs a GPU, in one go of less than ten minutes on an H200.

    python -m benchmarks.gpu [--device cuda] [--sizes toy 124M 1.3B] [--out FILE.json]
    pytest -m gpu

For each size, SA and XSA of one pair take turns of half a second or more, compiled, in bfloat16, cut as a trial
on this GPU is: tokens/s, MFU, what the exclusion costs, and peak memory beside the estimate. Then whether the
same steps give the same bits, the toy model with and without CUDA graphs, Figure 2 at the paper's lengths, and
small arms side by side on one GPU. What cannot be measured is a row that says why, and the rest goes on.
`--device cpu --sizes toy --turns 1` runs all of it without a GPU.
"""

import argparse
import gc
import json
import math
import multiprocessing
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeAlias

import torch

from schemas.sweep import Runtime
from schemas.trial import Arm, Trial
from trainer.bench import Settings, Shape, measure, shapes
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
TURNS = {"1.3B": 2}
"""Turns at most, where a step takes seconds."""
WARM_UP = 3
STEPS, TURN_S = 4, 0.5
"""A turn has at least so many steps, and takes at least so many seconds."""
ARMS_AT_ONCE = (1, 2, 4, 8)
WAIT_S = 60.0
"""How long one of several processes may keep the others waiting."""
BLOCK_TOKENS = {"cuda": 16_384, "cpu": 1024}
"""Tokens that a block is given at once: of fewer, a GPU takes as long to be told as to do."""

Row: TypeAlias = dict[str, Any]


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

    def turn(self) -> int:
        """Return how many steps a turn should have, after some that warm up."""
        self.rate(WARM_UP - 1)
        return max(STEPS, math.ceil(TURN_S * self.rate(1) / self.arm.tokens_per_step))


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


def throughput(size: str, device: torch.device, runtime: Runtime, turns: int) -> Iterator[Row]:
    """Yield a row for SA and for XSA, which take turns."""
    trial = pair(size)
    runners, steps = [], 0
    free()
    for arm in trial.arms:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        runner = Runner(arm, device, runtime)
        steps = max(steps, runner.turn())
        used = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
        runners.append((runner, used))
    rates: list[list[float]] = [[], []]
    for turn in range(min(turns, TURNS.get(size, turns))):
        for side in (0, 1) if turn % 2 else (1, 0):
            rates[side].append(runners[side][0].rate(steps))
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


def repeats(size: str, device: torch.device, runtime: Runtime) -> Iterator[Row]:
    """Yield whether two runs of one arm give the same losses, bit for bit."""
    losses = []
    for _ in range(2):
        free()
        runner = Runner(pair(size).xsa, device, runtime)
        losses.append(torch.stack([runner.step() for _ in range(10)]).cpu())
    largest = (losses[0] - losses[1]).abs().max().item()
    yield {"size": size, "same_bits": torch.equal(*losses), "largest_difference": largest}


def _beside(size: str, device: torch.device, runtime: Runtime, start: Barrier, results: Any) -> None:
    try:
        prepare(1)
        runner = Runner(pair(size).xsa, device, runtime)
        steps = 2 * runner.turn()
        start.wait()
        results.put(runner.rate(steps))
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")
        raise


def side_by_side(size: str, device: torch.device, n: int) -> Iterator[Row]:
    """Yield the tokens a second of `n` arms together, a process each, as fractional GPUs run them."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(n, timeout=WAIT_S), context.Queue()
    runtime = Runtime(gpus_per_trial=1 / n if device.type == "cuda" else 0.0)
    processes = [
        context.Process(target=_beside, args=(size, device, runtime, start, results), daemon=True)
        for _ in range(n)
    ]
    rates = []
    try:
        for process in processes:
            process.start()
        for _ in processes:
            told = results.get(timeout=2 * WAIT_S)
            if isinstance(told, str):
                raise RuntimeError(f"one of {n} processes failed: {told}")
            rates.append(told)
    finally:
        for process in processes:
            process.terminate()
            process.join()
    yield {"size": size, "arms_at_once": n, "tokens_per_s": round(sum(rates))}


def figure_2(shape: Shape, device: torch.device) -> Iterator[Row]:
    """Yield the cost of a block of one shape; compiled, but for a CPU, where that takes minutes."""
    cuda = device.type == "cuda"
    dtype, execution = ("bfloat16", "compiled") if cuda else ("float32", "eager")
    batch_size = max(1, BLOCK_TOKENS[device.type] // shape.seq_len)
    settings = Settings(batch_size=batch_size, dtype=dtype, repeats=10, device=device)  # type: ignore[arg-type]
    rows = {(row.variant, row.direction): row for row in measure(shape, settings, execution)}  # type: ignore[arg-type]
    row: Row = {"seq_len": shape.seq_len, "d_model": shape.d_model, "batch_size": batch_size}
    for direction in ("forward", "forward+backward"):
        sa, xsa = rows["sa", direction], rows["xsa", direction]
        row |= {
            f"{direction}_ms": round(sa.ms, 3),
            f"{direction}_xsa": round(xsa.ms / sa.ms, 3),
            f"{direction}_memory": round(xsa.peak_bytes / sa.peak_bytes, 3),
        }
    yield row


class Findings:
    """Tables of rows, each printed and written as soon as it is known: what comes next may not come to its end."""

    def __init__(self, out: Path | None) -> None:
        self.failures = 0
        self._begin = time.perf_counter()
        self._out = out
        self._tables: dict[str, list[Row]] = {}
        self._names: list[str] = []

    def add(self, title: str, about: Row, rows: Iterator[Row]) -> None:
        """Add rows to a table; where making them fails, a row says of what and why, and the rest goes on."""
        if title not in self._tables:
            self._tables[title], self._names = [], []
            print(f"\n## {title} (after {time.perf_counter() - self._begin:.0f} s)")
        try:
            for row in rows:
                self._keep(title, row)
        except Exception as error:
            traceback.print_exc()
            self.failures += 1
            reason = f"{type(error).__name__}: {error}"
            self._keep(title, about | {"error": " ".join(reason.split())[:200]})

    def _keep(self, title: str, row: Row) -> None:
        self._tables[title].append(row)
        if list(row) != self._names:
            self._names = list(row)
            print(f"\n| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join('' if value is None else str(value) for value in row.values())} |", flush=True)
        if self._out is not None:
            self._out.write_text(json.dumps(self._tables, indent=1))


def main() -> None:
    """Measure, print tables, and write them as JSON; end with 1 where something could not be measured."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--sizes", nargs="+", default=["toy", "124M", "1.3B"])
    parser.add_argument("--turns", type=int, default=5, help="turns that each arm takes (at 1.3B at most 2)")
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
    found = Findings(asked.out)

    for size in asked.sizes:
        found.add("Throughput", {"size": size}, throughput(size, device, on, asked.turns))
    for size in asked.sizes[:2]:
        found.add("The same steps twice", {"size": size}, repeats(size, device, on))
    for mode in ("off", "on", "graphs"):
        rows = throughput(smallest, device, on.model_copy(update={"compile": mode}), asked.turns)
        about: Row = {"compile": mode, "size": smallest}
        found.add("Eager, compiled, CUDA graphs", about, (about | row for row in rows))
    for shape in shapes(device, (), ()):
        found.add("Figure 2", shape._asdict(), figure_2(shape, device))
    for n in ARMS_AT_ONCE if cuda else ARMS_AT_ONCE[:2]:
        about = {"size": smallest, "arms_at_once": n}
        found.add("Small arms on one device", about, side_by_side(smallest, device, n))
    if found.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
