"""Evaluations and measurements by formula: nothing is evaluated or timed for these."""

import hashlib
from dataclasses import replace
from typing import Any

from schemas.bench import BenchRow
from schemas.evals import Score, TaskResult
from schemas.trial import Arm
from tests.conftest import make_sweep

TASKS = ("arc_easy", "lambada_openai")
ARMS = list({arm.id: arm for trial in make_sweep().trials() for arm in trial.arms}.values())


def task_result(arm: Arm, task: str = "arc_easy", **changes: Any) -> TaskResult:
    """The result of twenty items, of which an arm with more λ has more right."""
    right = 8 + round(4 * arm.xsa_lambda) + arm.seed
    items = [float((3 * i) % 20 < right) for i in range(20)]
    values: dict[str, Any] = {
        "task": task,
        "n_shot": 0,
        "limit": None,
        "step": arm.steps,
        "n_items": 20,
        "task_version": "1.0",
        "harness_version": "0.4.13",
        "data_sha256": hashlib.sha256(task.encode("utf-8", "replace")).hexdigest(),
        "batch_size": 8,
        "device": "cpu",
        "scores": {"acc": Score(right / 20, 0.1, items), "ppl": Score(2.0, None, None)},
        "error": None,
        "wall_s": 1.5,
        "time_us": 10,
    }
    return TaskResult(**values | changes)


def failure(result: TaskResult, error: str = "no such data", **changes: Any) -> TaskResult:
    """The same evaluation as one that ended in an error."""
    return replace(result, **{"scores": {}, "error": error, "n_items": 0, "data_sha256": ""} | changes)


def bench_row(**changes: Any) -> BenchRow:
    """One measurement of a small block."""
    values: dict[str, Any] = {
        "variant": "sa",
        "seq_len": 128,
        "d_model": 64,
        "n_head": 2,
        "d_head": 32,
        "batch_size": 1,
        "dtype": "float32",
        "execution": "eager",
        "direction": "forward",
        "repeats": 5,
        "ms": 2.0,
        "ms_low": 1.5,
        "ms_high": 3.5,
        "peak_bytes": 2**40,
        "device": "cpu",
        "threads": 1,
        "time_us": 10,
    }
    return BenchRow(**values | changes)
