"""What a worker runs. Kept apart from the driver's side, so that a worker loads no database."""

import gc
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import ray
from ray import tune

from orchestrator.owner import Place
from schemas.errors import UserError
from schemas.report import Report, read_record
from schemas.sweep import Evals, Runtime
from schemas.trial import Arm

PLACE = "place"
"""Key of the first value that is given to `tune.report`: where the worker is."""
REPORT = "report"
"""Key of every later one: a `Report` as text."""


class NoWeights(UserError):
    """An arm's folder is not there, or not that of a finished arm."""


class StorageNotSeen(Exception):
    """A worker's node does not see the storage."""


class TrialTimeout(Exception):
    """A trial took longer than `Runtime.max_hours`."""


@cache
def import_torch() -> None:
    """Import torch, once in a process, with its compiler: whoever makes a model or an optimizer loads that too.

    Meanwhile no garbage is collected: walking what imports make, which all stays, takes a quarter of their time.
    """
    gc.disable()
    try:
        import torch._dynamo  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def train_trial(
    config: dict[str, Any], *, arms: dict[str, dict[str, Any]], storage: str, runtime: str, stop_file: str
) -> None:
    """Tune's trainable: train the arms that `config["attempts"]` numbers, of those in `arms`."""
    place = Place(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid())
    tune.report({PLACE: asdict(place)})  # before anything that a broken node may fail at

    if not Path(stop_file).parent.is_dir():  # which the run has made; here it would be another disk's
        raise StorageNotSeen(f"its node {place.hostname} does not see the storage {storage}")

    import_torch()
    from trainer.pair import train_pair
    from trainer.process import prepare

    settings = Runtime.model_validate_json(runtime).model_copy(update=config["lighter"])
    prepare(settings.threads)
    attempts: dict[str, int] = config["attempts"]
    stop, late = Path(stop_file), (settings.max_hours or float("inf")) * 3600 + time.monotonic()

    def report(message: Report) -> None:
        if message.record.status == "interrupted" and not stop.exists():
            # Out of time: the driver gets it as the error below, which a settled arm would hide.
            message = replace(message, record=replace(message.record, status="running"))
        tune.report({REPORT: message.dumps()})

    records = train_pair(
        [Arm(**values) for arm_id, values in arms.items() if arm_id in attempts],
        Path(storage),
        settings,
        attempts=attempts,
        report=report,
        should_stop=lambda: stop.exists() or time.monotonic() > late,
    )
    if records[-1].status == "interrupted" and not stop.exists():
        raise TrialTimeout(
            f"it took more than {settings.max_hours:g} h (runtime.max_hours), and was checkpointed"
        )


def evaluate_arm(
    *, folder: str, evals: str, runtime: str, data: str | None, stop_file: str, since_us: int
) -> Iterator[str | None]:
    """Ray task: ask a finished arm's weights; yield None at the beginning, then each `TaskResult` as text."""
    import_torch()
    from trainer.evals import evaluate
    from trainer.process import prepare

    settings = Runtime.model_validate_json(runtime)
    prepare(settings.threads)
    record = read_record(Path(folder))
    if record is None or record.status != "done":
        found = "there is no arm" if record is None else f"the arm is {record.status}"
        raise NoWeights(f"{folder}: {found}, where finished weights are needed.")
    yield None
    results = evaluate(
        Arm(**record.arm),
        Path(folder),
        Evals.model_validate_json(evals),
        settings,
        data=Path(data) if data else None,
        should_stop=Path(stop_file).exists,
        since_us=since_us,
    )
    yield from (result.dumps() for result in results)
