"""What a downstream evaluation of a finished arm found, and the journal that keeps it, `evals.jsonl`."""

import json
import os
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from schemas.report import DamagedJournal

EVALS = "evals.jsonl"
"""The file in an arm's folder: one `TaskResult` a line."""

PAPER8 = {
    "arc_easy": "acc_norm",
    "boolq": "acc",
    "hellaswag": "acc_norm",
    "lambada_openai": "acc",
    "openbookqa": "acc_norm",
    "piqa": "acc_norm",
    "social_iqa": "acc",
    "winogrande": "acc",
}
"""The tasks of the paper's Table 2 in its order, and of each the metric that it reports (without solved examples)."""
PRESETS = {"paper8": tuple(PAPER8)}
"""Names for several tasks at once."""


@dataclass(frozen=True)
class Score:
    """One metric of one task."""

    value: float
    """Mean over the items, such as a share of correct answers between 0 and 1."""
    stderr: float | None
    """Standard error of `value` over the items; None where the harness gives none."""
    items: list[float] | None
    """The metric of each item in the task's order (1 correct, 0 wrong); None where it is not a mean of items."""


class EvalKey(NamedTuple):
    """What makes two evaluations of an arm the same one."""

    task: str
    n_shot: int
    limit: int | None


@dataclass(frozen=True)
class TaskResult:
    """One task on one arm's final weights: its scores, or the error that it ended in."""

    task: str
    """The harness's name of the task, such as `arc_easy`."""
    n_shot: int
    """Solved examples in each prompt."""
    limit: int | None
    """Only this many first items were asked for; None: all of them."""
    step: int
    """Updates that the weights had."""
    n_items: int
    task_version: str
    """The task's own version in the harness."""
    harness_version: str
    data_sha256: str
    """Hash of the items in order: equal in both arms of a pair, or they are not compared."""
    batch_size: int
    device: str
    scores: dict[str, Score]
    """By metric, such as `acc` and `acc_norm`; empty where there is an error."""
    error: str | None
    """Why there are no scores, in a line."""
    wall_s: float
    time_us: int
    """When it ended: UTC, microseconds since 1970."""

    @property
    def key(self) -> EvalKey:
        """What a later result of the same evaluation replaces this one by."""
        return EvalKey(self.task, self.n_shot, self.limit)

    def counts(self, since_us: int) -> bool:
        """Return whether it has scores, and did not end before this time."""
        return self.error is None and self.time_us >= since_us

    def dumps(self) -> str:
        """Return this result as one JSON text. Scores are finite: the harness divides by the number of items."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def loads(cls, text: str) -> "TaskResult":
        """Return the result that `dumps` wrote."""
        document = json.loads(text)
        scores = {name: Score(**score) for name, score in document.pop("scores").items()}
        return cls(scores=scores, **document)


def metric_of(task: str, known: Collection[str]) -> str | None:
    """Return the metric that stands for a task: the paper's, else `acc_norm`, else `acc`; None if it has neither."""
    wanted = [PAPER8[task]] if task in PAPER8 else ["acc_norm", "acc"]
    return next((metric for metric in wanted if metric in known), None)


def append_results(folder: Path, results: Iterable[TaskResult]) -> None:
    """Add results to the journal of the arm in `folder`, durably, in the place of a line cut short.

    The caller holds the folder: no other process writes to it meanwhile.
    """
    with (folder / EVALS).open("a+b") as journal:
        journal.seek(0)
        journal.truncate(journal.read().rfind(b"\n") + 1)
        journal.writelines(result.dumps().encode() + b"\n" for result in results)
        journal.flush()
        os.fsync(journal.fileno())


def read_results(folder: Path) -> list[TaskResult]:
    """Return the results in the journal of the arm in `folder`, up to a line cut short.

    Of each key the last that has scores, or else the last error.

    Raises `DamagedJournal` where a whole line is none of ours.
    """
    path = folder / EVALS
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        found = [TaskResult.loads(line) for line in lines if line.endswith("\n")]
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise DamagedJournal(
            f"{path} cannot be read ({error}). Remove it; the arm is then evaluated anew."
        ) from error
    found.sort(key=lambda result: result.error is None)
    return list({result.key: result for result in found}.values())
