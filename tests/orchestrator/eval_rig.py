"""A sweep that asks for evaluations, and a cluster of which the tests decide what it does."""

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from orchestrator.eval_jobs import Job, jobs_of
from orchestrator.evaluate import Outcome, evaluate
from results.query import Database
from results.store import Store
from schemas.evals import Score, TaskResult
from schemas.sweep import Evals, Sweep
from tests.conftest import SMALL, fill

ASKED = Evals(tasks=["piqa", "boolq"], limit=2)
TEXT = json.dumps(
    {
        "base": SMALL,
        "grid": {"xsa_lambda": [0, 1]},
        "seeds": [0, 1],
        "evals": {"tasks": ["piqa", "boolq"], "limit": 2},
    }
)
Tell = Callable[[Job], Iterator[Any]]


def result(task: str, **changes: Any) -> TaskResult:
    values: dict[str, Any] = {
        "task": task,
        "n_shot": 0,
        "limit": 2,
        "step": 40,
        "n_items": 2,
        "task_version": "1.0",
        "harness_version": "0.4.13",
        "data_sha256": "ab" * 32,
        "batch_size": 16,
        "device": "cpu",
        "scores": {name: Score(0.5, 0.5, [0.0, 1.0]) for name in ("acc", "acc_norm")},
        "error": None,
        "wall_s": 1.0,
        "time_us": 1,
    }
    return TaskResult(**values | changes)


class Rig:
    """A sweep of four arms, of which one diverged, and a cluster that does as it is told."""

    def __init__(self, store: Store, storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.sweep = Sweep.parse(TEXT, "small")
        fill(store, self.sweep, storage, {(1.0, 1): "diverged"})
        self.printed = io.StringIO()
        self.begun: list[list[Job]] = []
        self.tell: Tell = lambda job: iter([None, *(result(task) for task in job.evals.tasks)])
        launch = SimpleNamespace(connected_ray=nullcontext, run_evaluations=self._run)
        monkeypatch.setitem(sys.modules, "orchestrator.launch", launch)

    def _run(self, jobs: Sequence[Job], stop_file: Path, data: Path | None) -> Iterator[Any]:
        self.begun.append(list(jobs))
        for job in jobs:
            for told in self.tell(job):
                yield job, told
            yield None, None

    def __call__(self, evals: Evals = ASKED, **changes: Any) -> Outcome:
        console = Console(file=self.printed, width=200)
        jobs = [replace(job, **changes) for job in jobs_of(self.store, self.sweep, evals)]
        return evaluate(self.store, jobs, console, data=None)

    def evals(self) -> Any:
        with Database(self.store.path) as db:
            return db.evals("small")
