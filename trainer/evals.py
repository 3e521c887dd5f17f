"""The downstream evaluation of a finished arm: lm-eval's tasks on its final weights, one by one."""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from schemas.errors import UserError
from schemas.evals import EvalKey, Score, TaskResult, append_results, read_results
from schemas.sweep import Evals, Runtime
from schemas.trial import Arm
from trainer import checkpoint
from trainer.journal import hold
from trainer.model import restore

_log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Somebody asked for it in the middle of a task, of which nothing is kept."""


def check_evals(evals: Evals, data: Path | None) -> None:
    """Raise `UserError` where the harness is not installed, knows no such task, or `data` is no folder."""
    if find_spec("lm_eval") is None:
        raise UserError("Evaluations are lm-eval's, which is not installed: pip install 'xsa-sweeps[evals]'")
    if data is not None and not data.is_dir():
        raise UserError(f"There is no folder {data} of task data; see docs/evals.md for what goes into it.")
    from trainer.evals_tasks import check_names

    check_names(evals.tasks)


def evaluate(
    arm: Arm,
    folder: Path,
    evals: Evals,
    runtime: Runtime,
    *,
    data: Path | None,
    should_stop: Callable[[], bool],
    since_us: int = 0,
) -> Iterator[TaskResult]:
    """Yield the result of each task, after it is in the arm's journal. One that is there is not done again.

    A task that fails has its error as its result, and the others go on.

    Args:
        arm: a finished arm.
        folder: its folder, held under a lock meanwhile.
        evals: the tasks, and how they are asked.
        runtime: on what the arm runs; its `threads` are set by the caller.
        data: folder of local task data, or None for the Hub's.
        should_stop: is asked before each batch; if true, the task at hand is dropped and the rest left.
        since_us: a result that ended before is done again: UTC, microseconds since 1970.

    Raises:
        FolderBusy: another worker has the folder.
        DamagedCheckpoint: the final weights are not there, or not what they were.
    """
    from trainer.lm import ArmLM

    def tick() -> None:
        if should_stop():
            raise _Stopped

    with hold(folder):
        device = torch.device("cuda" if runtime.gpus_per_trial > 0 else "cpu")
        model = restore(arm, checkpoint.load_final(folder), device)
        lm = ArmLM(model, batch_size=evals.batch_size, tick=tick)
        known = {result.key: result for result in read_results(folder) if result.counts(since_us)}
        for key in evals.wanted():
            if key not in known:
                began = time.monotonic()
                try:
                    tick()
                    scored = _evaluate_task(lm, key, data)
                except _Stopped:
                    return
                except Exception as error:  # whatever a task's own code or data raises is the task's result
                    _log.exception("task %s", key.task)
                    scored = {"error": _explain(error)}
                known[key] = TaskResult(
                    **{
                        **key._asdict(),
                        "step": arm.steps,
                        "n_items": 0,
                        "task_version": "",
                        "harness_version": version("lm_eval"),
                        "data_sha256": "",
                        "batch_size": evals.batch_size,
                        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
                        "scores": {},
                        "error": None,
                        "wall_s": time.monotonic() - began,
                        "time_us": time.time_ns() // 1000,
                        **scored,
                    }
                )
                append_results(folder, [known[key]])
            yield known[key]


def _explain(error: Exception) -> str:
    """Return an error in a line."""
    if isinstance(error, UserError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        told += " (a smaller batch_size takes less memory)"
    return told


def _evaluate_task(lm: Any, key: EvalKey, data: Path | None) -> dict[str, Any]:
    """Return the fields of a `TaskResult` that the harness fills."""
    from lm_eval.evaluator import evaluate as run_harness

    from trainer.evals_tasks import load_task

    task = load_task(key.task, n_shot=key.n_shot, data=data)
    told = run_harness(lm, {"tasks": {key.task: task}}, limit=key.limit, bootstrap_iters=0)
    samples = told["samples"][key.task]
    scores = _scores(told["results"][key.task], samples, task.aggregation())
    for metric, score in scores.items():
        if not math.isfinite(score.value):
            raise UserError(f"{metric} is {score.value}, which is no score")
    return {
        "n_items": len({sample["doc_id"] for sample in samples}),
        "task_version": str(task.VERSION),
        "data_sha256": _hash(samples),
        "scores": scores,
    }


def _scores(
    values: dict[str, Any], samples: list[dict[str, Any]], aggregations: dict[str, Any]
) -> dict[str, Score]:
    """Return the harness's scores, each with its items where it is their mean.

    A metric that is taken after one of several filters is called `metric,filter`.
    """
    from lm_eval.api.metrics import mean

    scores = {}
    for column, value in values.items():
        metric, comma, filter = column.partition(",")
        if not comma or metric not in aggregations:
            continue  # its alias, its own standard errors
        items = None
        if aggregations[metric] is mean:
            items = [float(s[metric]) for s in samples if s["filter"] == filter]
        name = metric if filter == "none" else column
        scores[name] = Score(float(value), _stderr(items) if items else None, items)
    return scores


def _stderr(items: list[float]) -> float | None:
    """Return the standard error of the mean, s / √n with n - 1 in s, as the harness has it; None for one item."""
    n = len(items)
    if n == 1:
        return None
    center = sum(items) / n
    return math.sqrt(sum((item - center) ** 2 for item in items) / (n - 1) / n)


def _hash(samples: list[dict[str, Any]]) -> str:
    """Return the sha256 of all that was asked and of what counts as right, in order."""
    digest = hashlib.sha256()
    for sample in samples:
        asked = [sample["arguments"], sample["target"]]
        digest.update(json.dumps(asked, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()
