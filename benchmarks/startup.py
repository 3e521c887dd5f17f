"""What passes between `xsa run` and the first training step, and what a trial costs beside its training.

    python -m benchmarks.startup [--rounds 3] [--trials 8]

Each round is a real `xsa run` of two trials and one of more, on a store of their own, read from what they
left: times in the store, the arms' locks and the ages of processes. The steps of a driver's and of a
worker's way are timed again in processes that do nothing else.
"""

import argparse
import gc
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from schemas.report import arm_folder

FIRST_STEP, BESIDE, SLOT = "**to the first step**", "**beside its steps**", "**the slot's time**"
BASE: dict[str, Any] = {
    "tokenizer": "bytes",
    "model_size": "toy",
    "seq_len": 64,
    "tokens_per_step": 1024,
    "eval_tokens": 1024,
    "bias_tokens": 1024,
    "steps": 20,
    "xsa_lambda": 0.0,  # one arm a trial
}
RUNTIME = {"log_every": 1, "eval_every": 20, "bias_every": 20, "checkpoint_every": 20, "reuse_workers": True}
RECORDS = """
SELECT arm.fingerprint, attempt.started_at_us / 1e6, min(s.time_us) / 1e6, max(s.time_us) / 1e6,
       sum(arm.tokens_per_step / s.tok_per_s), sum(arm.tokens_per_step / s.tok_per_s) FILTER (WHERE s.step = 1),
       arm.finished_at_us / 1e6
FROM arm JOIN attempt ON attempt.arm_id = arm.id JOIN arm_step s ON s.arm_id = arm.id
GROUP BY arm.id, attempt.id ORDER BY attempt.started_at_us
"""


class Arm(NamedTuple):
    """When things happened to an arm: seconds since 1970, except for the durations."""

    id: str
    claimed: float
    stepped: float
    """End of the first step."""
    last_stepped: float
    steps_s: float
    """All its steps together."""
    first_step_s: float
    finished: float
    locked: float
    """When its worker had imported all and began."""
    pid: int
    """Of its worker."""

    @property
    def began_steps(self) -> float:
        return self.stepped - self.first_step_s


class Run(NamedTuple):
    """A run of a sweep, in seconds since 1970."""

    began: float
    announced: float
    """Just before Ray is started."""
    settled: float
    ended: float
    workers: dict[int, float]
    """When each worker process began."""
    arms: list[Arm]


def run(n_trials: int) -> Run:
    """Let `xsa run` train so many trials, and return what it left behind."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sweep, database = folder / "sweep.yaml", folder / "results.db"
        asked = {"name": "startup", "base": BASE, "seeds": list(range(n_trials)), "runtime": RUNTIME}
        sweep.write_text(json.dumps(asked), encoding="utf-8")  # which is YAML too
        command = [sys.executable, "-m", "orchestrator", "run", str(sweep), "--db", str(database)]
        workers: dict[int, float] = {}
        began = time.time()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in process.stdout or ():  # whenever it says something, workers are asked their age
                for pid in {_worker(path) for path in folder.glob("runs/arms/*/arm.json")} - workers.keys():
                    with suppress(psutil.NoSuchProcess):
                        workers[pid] = psutil.Process(pid).create_time()
        ended = time.time()
        if process.returncode:
            raise RuntimeError(f"xsa run ended with {process.returncode}")
        with closing(sqlite3.connect(database)) as store:
            announced, settled = store.execute(
                "SELECT started_at_us / 1e6, ended_at_us / 1e6 FROM session"
            ).fetchone()
            rows = store.execute(RECORDS).fetchall()
        folders = [arm_folder(folder / "runs", row[0]) for row in rows]
        arms = [
            Arm(*(*row, (path / "lock").stat().st_mtime, _worker(path / "arm.json")))
            for row, path in zip(rows, folders, strict=True)
        ]
    return Run(began, announced, settled, ended, workers, arms)


def _worker(record: Path) -> int:
    return int(json.loads(record.read_text(encoding="utf-8"))["environment"]["pid"])


def stages(run: Run) -> dict[str, float]:
    """Return the seconds of what came before the first step of the arm that was first, and after the last one."""
    first = min(run.arms, key=lambda arm: arm.stepped)
    last = max(arm.last_stepped for arm in run.arms)
    return {
        "Python, imports, the plan": run.announced - run.began,
        "Ray starts, Tune, the first claim": first.claimed - run.announced,
        "a worker for it, and its imports": first.locked - first.claimed,
        "data, model, looks at step 0": first.began_steps - first.locked,
        "the first step": first.first_step_s,
        FIRST_STEP: first.stepped - run.began,
        "to the first step of the slowest": max(arm.stepped for arm in run.arms) - run.began,
        "the last step to the end in the store": run.settled - last,
        "from there to the prompt": run.ended - run.settled,
        "the whole run": run.ended - run.began,
        "how old that worker's process was at the claim": first.claimed - run.workers[first.pid],
    }


def slot_time(run: Run) -> dict[str, float]:
    """Return the mean seconds of a slot that an arm on a reused worker takes, and for what."""
    queues: dict[int, list[Arm]] = defaultdict(list)
    for arm in run.arms:
        queues[arm.pid].append(arm)
    spent: dict[str, list[float]] = defaultdict(list)
    for queue in queues.values():
        for i, arm in enumerate(queue[1:], start=2):
            freed = queue[i].claimed if i < len(queue) else arm.finished
            spent["claim, Tune, the worker hears of it"].append(arm.locked - arm.claimed)
            spent["data, model, looks at step 0"].append(arm.began_steps - arm.locked)
            spent["between steps"].append(arm.last_stepped - arm.began_steps - arm.steps_s)
            spent["last look, weights, report, the slot is free"].append(freed - arm.last_stepped)
            spent[BESIDE].append(freed - arm.claimed - arm.steps_s)
            spent[f"its {BASE['steps']} steps"].append(arm.steps_s)
            spent[SLOT].append(freed - arm.claimed)
    return {name: statistics.mean(values) for name, values in spent.items()}


class Clock:
    """Says how long each step took since the one before."""

    def __init__(self) -> None:
        self.took: dict[str, tuple[float, float]] = {}
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self, name: str, cpu_beside: float = 0.0) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.took[name] = (wall - self._wall, cpu - self._cpu + cpu_beside)
        self._wall, self._cpu = time.perf_counter(), time.process_time()


def driver_steps(clock: Clock) -> None:
    """Go a driver's way to a Ray that can train, and back."""
    gc.set_threshold(100_000)  # as the command line does
    import orchestrator.cli

    clock.lap("driver: the command line")
    import orchestrator.data
    import orchestrator.supervise

    clock.lap("driver: plan and store")
    import orchestrator.launch

    clock.lap("driver: Ray and Tune")
    with orchestrator.launch.connected_ray():
        times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
        clock.lap("driver: ray.init, with Ray's processes", sum(one.user + one.system for one in times))
    clock.lap("driver: ray.shutdown")


def worker_steps(clock: Clock) -> None:
    """Go a worker's way from its process's beginning to its second step."""
    from orchestrator.worker import import_torch

    clock.lap("worker: Ray and Tune")
    import_torch()
    clock.lap("worker: torch and its compiler")
    import torch

    import trainer.pair  # noqa: F401
    from schemas.trial import Trial
    from trainer.data import Batches
    from trainer.metrics import evaluate
    from trainer.model import build
    from trainer.optim import make_optimizers
    from trainer.process import prepare
    from trainer.step import take_step

    clock.lap("worker: the trainer")
    prepare(1)
    arm = Trial(**BASE).sa
    batches = Batches.of(arm)
    clock.lap("worker: data")
    model, _ = build(arm, torch.device("cpu"))
    optimizers = make_optimizers(model, arm)
    clock.lap("worker: model and optimizers")
    evaluate(model, batches.evaluation(), step=0, micro_batch=arm.batch_size)
    clock.lap("worker: an evaluation")
    for name in ("first", "second"):
        windows = batches.train(0)
        loss, _ = take_step(
            model, optimizers, windows, lr=arm.lr, grad_clip=arm.grad_clip, micro_batch=len(windows)
        )
        loss.item()
        clock.lap(f"worker: the {name} step")


WAYS = {"driver": driver_steps, "worker": worker_steps}


def alone(way: str) -> dict[str, tuple[float, float]]:
    """Return the wall and CPU seconds of each step of a way, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.startup", "--way", way]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {name: (wall, cpu) for name, (wall, cpu) in json.loads(done.stdout.splitlines()[-1]).items()}


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def print_table(head: str, rows: dict[str, float], whole: str) -> None:
    """Print seconds, and their share of the row `whole`."""
    print(f"\n| {head} | s | share |\n|---|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value:.2f} | {value / rows[whole]:.0%} |")


def main() -> None:
    """Measure in turns, and print Markdown tables of medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=8, help="of the run that reuses workers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        clock = Clock()
        WAYS[options.way](clock)
        print(json.dumps(clock.took))
        return
    starts, beside, steps = [], [], []
    for i in range(options.rounds):
        starts.append(stages(run(2)))
        beside.append(slot_time(run(options.trials)))
        steps.append({name: took for way in WAYS for name, took in alone(way).items()})
        first, load = starts[-1][FIRST_STEP], os.getloadavg()[0]
        print(f"round {i + 1}: the first step after {first:.2f} s; load {load:.1f}", flush=True)
    print_table("from `xsa run` on", medians(starts), FIRST_STEP)
    print_table("an arm on a worker that is there", medians(beside), SLOT)
    print("\n| alone | wall s | CPU s |\n|---|---|---|")
    for name in steps[0]:
        wall, cpu = (statistics.median(one[name][i] for one in steps) for i in (0, 1))
        print(f"| {name} | {wall:.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
