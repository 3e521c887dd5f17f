"""Training steps of ours beside nanoGPT's, at the same sizes, on the same tokens.

    python -m benchmarks.throughput [--nanogpt DIR] [--case toy] [--rounds 7] [--sweep]

Each variant is a process of its own, because the allocator's settings are a process's, and one process
works at a time: they take turns, a step each, and the order turns with the rounds. Times are CPU seconds
of one thread. Without a checkout of nanoGPT the peer is `benchmarks.peer.PlainGPT`, the same model.

`ours` is our trainer on nanoGPT's model and weights: its losses are compared with the peer's, step by step.
`SA` and `XSA` are our own models (rotary positions, a LayerNorm more, λ = 1) on the same batches.
`--sweep` measures wall time on all cores instead: an arm a core, ours and the peer's, against the peer with
as many threads, as it runs by itself.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from benchmarks.peer import CASES, Case, arm_of, make_ours, make_peer, make_twin
from trainer.data import Batches, Windows
from trainer.optim import make_optimizers
from trainer.process import prepare
from trainer.step import take_step

LR, WEIGHT_DECAY, BETAS, GRAD_CLIP = 1e-3, 0.1, (0.9, 0.95), 1.0
LR_STEPS = 100
"""Steps over which the learning rate rises to LR, as in nanoGPT's configuration for small models."""
WARM_UP = 3
"""Steps that are not timed: compiling, and an allocator that settles late."""
SHIPPED, BEST = "nanoGPT as shipped", "nanoGPT compiled, bfloat16"


class Variant(NamedTuple):
    """What one process does: `twin` is our trainer on nanoGPT's model, `sa` and `xsa` are our own."""

    kind: Literal["peer", "twin", "sa", "xsa"]
    dtype: Literal["float32", "bfloat16"]
    compiled: bool = False
    tuned: bool = True
    """Whether the allocator keeps large blocks. Who runs nanoGPT can have that too, and seldom does."""


VARIANTS = {
    SHIPPED: Variant("peer", "float32", tuned=False),
    "nanoGPT compiled, float32": Variant("peer", "float32", compiled=True, tuned=False),
    BEST: Variant("peer", "bfloat16", compiled=True, tuned=False),
    "nanoGPT compiled, bfloat16, our allocator": Variant("peer", "bfloat16", compiled=True),
    "ours, float32": Variant("twin", "float32"),
    "ours, bfloat16": Variant("twin", "bfloat16"),
    "SA, float32": Variant("sa", "float32"),
    "XSA, float32": Variant("xsa", "float32"),
    "SA, bfloat16": Variant("sa", "bfloat16"),
    "XSA, bfloat16": Variant("xsa", "bfloat16"),
}


class Took(NamedTuple):
    """What a step took, and the loss before it."""

    cpu_s: float
    wall_s: float
    loss: float


def lr_of(step: int) -> float:
    """Return nanoGPT's learning rate of a step."""
    return LR * min(1.0, (step + 1) / (LR_STEPS + 1))


def windows_of(case: Case, step: int) -> Windows:
    """Return a step's sequences of real text; of a small vocabulary, their ids by the remainder."""
    return Batches.of(arm_of(case, "float32", 0.0)).train(step) % case.vocab


def peer_step(case: Case, variant: Variant, checkout: Path | None) -> Callable[[int], float]:
    """Return nanoGPT's loop, bfloat16 by autocast as on a GPU: on a CPU it trains in float32 as it ships."""
    model = make_peer(case, checkout)
    optimizer = model.configure_optimizers(WEIGHT_DECAY, LR, BETAS, "cpu")
    forward = torch.compile(model) if variant.compiled else model

    def step(number: int) -> float:
        windows = torch.from_numpy(windows_of(case, number))
        with torch.autocast("cpu", torch.bfloat16, enabled=variant.dtype == "bfloat16"):
            _, loss = forward(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        for group in optimizer.param_groups:
            group["lr"] = lr_of(number)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return step


def our_step(case: Case, variant: Variant, checkout: Path | None) -> Callable[[int], float]:
    """Return our step on nanoGPT's model or ours."""
    kind, dtype = variant.kind, variant.dtype
    xsa_lambda = 1.0 if kind == "xsa" else 0.0
    model = make_twin(case, dtype, checkout) if kind == "twin" else make_ours(case, dtype, xsa_lambda)
    optimizers = make_optimizers(model, model.trial)

    def step(number: int) -> float:
        loss, _ = take_step(
            model,
            optimizers,
            windows_of(case, number),
            lr=lr_of(number),
            grad_clip=GRAD_CLIP,
            micro_batch=case.batch_size,
        )
        return loss.item()

    return step


def serve(pipe: Connection, case: Case, variant: Variant, checkout: Path | None, threads: int) -> None:
    """Take a step whenever asked, until told None."""
    if variant.tuned:
        prepare(threads)
    torch.set_num_threads(threads)
    step = (peer_step if variant.kind == "peer" else our_step)(case, variant, checkout)
    while (number := pipe.recv()) is not None:
        cpu, wall = time.process_time(), time.perf_counter()
        loss = step(number)
        pipe.send(Took(time.process_time() - cpu, time.perf_counter() - wall, loss))


class Worker:
    """A process that holds one variant."""

    def __init__(self, case: Case, name: str, checkout: Path | None, threads: int = 1) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, case, VARIANTS[name], checkout, threads), daemon=True
        )
        self._process.start()
        theirs.close()

    def ask(self, number: int) -> None:
        """Let it begin step `number`."""
        self._pipe.send(number)

    def answer(self) -> Took:
        """Wait until it has done so."""
        took: Took = self._pipe.recv()
        return took

    def close(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join()


def one_thread(case: Case, names: list[str], rounds: int, checkout: Path | None) -> None:
    """Print CPU time, rates and trajectories of the variants, a thread each, in turns."""
    workers = {name: Worker(case, name, checkout) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    losses: dict[str, list[float]] = {name: [] for name in names}
    for number in range(WARM_UP + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            workers[name].ask(number)
            took = workers[name].answer()
            losses[name].append(took.loss)
            if number >= WARM_UP:
                times[name].append(took.cpu_s)
    for worker in workers.values():
        worker.close()

    peaks = {dtype: gemm_peak(dtype) for dtype in ("float32", "bfloat16")}
    print("\n| 1 thread | ms CPU a step | tokens/s | of the GEMM peak | to shipped | to its best | losses |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        median = statistics.median(times[name])
        cells = [f"{1e3 * median:,.0f}", f"{case.tokens / median:,.0f}"]
        cells.append(f"{case.flops / median / peaks[VARIANTS[name].dtype]:.0%}")
        for peer in (SHIPPED, BEST):
            ratios = [theirs / own for theirs, own in zip(times.get(peer, []), times[name], strict=False)]
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        same = VARIANTS[name].kind in ("peer", "twin") and SHIPPED in losses
        gaps = [abs(a - b) for a, b in zip(losses[name], losses.get(SHIPPED, []), strict=False)]
        told = f"{max(gaps):.1e}, {statistics.mean(gaps):.1e}" if same else ""
        print(f"| {name} | {' | '.join(cells)} | {told} |", flush=True)
    print(
        f"\n{case.tokens:,} tokens a step, {rounds} rounds; peaks "
        + ", ".join(f"{dtype} {peak / 1e9:.0f} GFLOP/s" for dtype, peak in peaks.items())
        + f"; losses: largest and mean difference to the first line's in {WARM_UP + rounds} steps"
    )


def all_cores(case: Case, names: list[str], rounds: int, checkout: Path | None) -> None:
    """Print wall time of an arm a core, against the peer with as many threads, in turns."""
    cores = len(os.sched_getaffinity(0))
    teams = {
        f"{name}, {cores} arms at once": [Worker(case, name, checkout) for _ in range(cores)]
        for name in names
    }
    first = f"{SHIPPED}, {cores} threads"
    teams = {first: [Worker(case, SHIPPED, checkout, cores)]} | teams
    times: dict[str, list[float]] = {name: [] for name in teams}
    for number in range(WARM_UP + rounds):
        for name, team in teams.items():
            for worker in team:
                worker.ask(number)
            wall = max(worker.answer().wall_s for worker in team)
            if number >= WARM_UP:
                times[name].append(wall / len(team))
    print(f"\n| {cores} cores, wall time | tokens/s of all arms | to the first line |\n|---|---|---|")
    for name, team in teams.items():
        ratio = statistics.median(a / b for a, b in zip(times[first], times[name], strict=True))
        print(f"| {name} | {case.tokens / statistics.median(times[name]):,.0f} | {ratio:.2f} |")
        for worker in team:
            worker.close()


def gemm_peak(dtype: str, width: int = 2048) -> float:
    """Return the FLOP/s of a large matrix product on one thread."""
    torch.set_num_threads(1)
    a, b = (torch.randn(width, width).to(getattr(torch, dtype)) for _ in range(2))
    seconds: list[float] = []
    for _ in range(6):
        begin = time.process_time()
        torch.mm(a, b)
        seconds.append(time.process_time() - begin)
    return 2 * width**3 / min(seconds)


def main() -> None:
    """Measure and print tables."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, metavar="DIR", help="a checkout of nanoGPT")
    parser.add_argument("--case", choices=CASES, default="toy")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--sweep", action="store_true", help="all cores, wall time")
    asked: Any = parser.parse_args()
    if asked.nanogpt is not None and not (asked.nanogpt / "model.py").is_file():
        parser.error(f"{asked.nanogpt} is no checkout of nanoGPT: there is no model.py in it")
    print(f"{asked.case}: {CASES[asked.case]}; peer: {(asked.nanogpt and 'nanoGPT') or 'PlainGPT'}")
    if asked.nanogpt is None:
        print("(what the tables call nanoGPT is PlainGPT: no checkout was given)")
    measure = all_cores if asked.sweep else one_thread
    measure(CASES[asked.case], asked.only, asked.rounds, asked.nanogpt)


if __name__ == "__main__":
    main()
