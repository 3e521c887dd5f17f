"""Whether the nodes of a Ray cluster can do a sweep's work: asked of each of them before anything is spent."""

import builtins
import platform
import tempfile
import time
import uuid
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.arguments import why_unwritable
from orchestrator.provenance import code_sha256, packages
from schemas.errors import UserError
from schemas.sweep import Sweep

ANSWER_S = 120.0
"""How long a node may take to answer: the first task on it starts a Python."""
CLOCK_S = 10.0
"""How far a node's clock may be from the driver's: leases are compared across machines."""


@dataclass
class NodeReport:
    """What a node said, and what is wrong with it."""

    node: str
    """Ray's id of it."""
    address: str
    resources: dict[str, float]
    clock_s: float | None = None
    """Its clock less the driver's, at least; 0 where the round trip can explain the difference."""
    versions: dict[str, str] = field(default_factory=dict)
    storage: bool = False
    """Whether it and the driver see each other's files there."""
    problems: list[str] = field(default_factory=list)
    """One line for each, with the way out."""


def check_nodes(storage: Path, sweep: Sweep | None = None) -> list[NodeReport]:
    """Ask every living node of the connected cluster, all at once.

    Args:
        storage: the folder that all nodes and this driver must share. Made if it is not there.
        sweep: whose prepared data each node must be able to read, if any.

    Raises `UserError` where the driver itself cannot write to the storage.
    """
    if reason := why_unwritable(storage):
        raise UserError(f"The storage {storage} cannot be written: {reason}. Choose another with --storage.")
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    token, own = uuid.uuid4().hex, versions()
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=storage) as marks:
        Path(marks, "driver").write_text(token, encoding="utf-8")
        probe = _by_value(_probe)
        answers = _ask({node: (probe, (marks, token, node)) for node in nodes})
        marked = {path.name for path in Path(marks).iterdir()}
    heard = [node for node in nodes if isinstance(answers[node].value, dict)]
    clocks = _ask(dict.fromkeys(heard, (_by_value(_now), ())))  # again, now that a Python runs there
    reports = []
    for node, told in nodes.items():
        report = NodeReport(node, told["NodeManagerAddress"], told["Resources"])
        _judge(report, answers[node], own, storage, marked)
        if node in clocks:
            _judge_clock(report, clocks[node])
        reports.append(report)
    if sweep is not None and (ids := {trial.data_id for trial in sweep.trials()} - {""}):
        sound = [report for report in reports if not report.problems]  # else the program may not be there
        question = (_why_unreadable, (sorted(ids), sweep.runtime.data))
        found = _ask({report.node: question for report in sound})
        for report in sound:
            if (problem := found[report.node].value) is not None:
                report.problems.append(str(problem))
    return reports


class _Answer(NamedTuple):
    """What a node said to a question, and between which times of the driver's clock."""

    value: Any
    """The answer; the error where it failed to give one; None where there is none."""
    began: float
    ended: float


def _ask(questions: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]]) -> dict[str, _Answer]:
    """Run a function on each of these nodes, and return what came back within `ANSWER_S`."""
    began = time.time()
    pending = {}
    for node, (function, arguments) in questions.items():
        pinned = NodeAffinitySchedulingStrategy(node, soft=False)
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=pinned)(function)
        pending[task.remote(*arguments)] = node
    answers, deadline = {}, time.monotonic() + ANSWER_S
    while pending and (left := deadline - time.monotonic()) > 0:
        ready, _ = ray.wait(list(pending), timeout=left)
        for reference in ready:
            ended = time.time()
            try:
                value = ray.get(reference)
            except ray.exceptions.RayError as error:
                value = error
            answers[pending.pop(reference)] = _Answer(value, began, ended)
    return answers | {node: _Answer(TimeoutError(), began, time.time()) for node in pending.values()}


def check_cluster(storage: Path, sweep: Sweep) -> None:
    """Raise `UserError` that names every problem of every node. A node alone shares all with itself.

    The arguments are those of `check_nodes`.
    """
    if sum(node["Alive"] for node in ray.nodes()) == 1:
        return
    reports = check_nodes(storage, sweep)
    lines = [f"  {report.address}: {problem}" for report in reports for problem in report.problems]
    if lines:
        raise UserError("\n".join(["The cluster is not fit for this sweep (xsa cluster check):", *lines]))


@cache
def versions() -> dict[str, str]:
    """Return what must be equal everywhere: Python, the packages, and this program's own code."""
    return {"python": platform.python_version(), **packages(), "code": code_sha256()[:12]}


def _probe(marks: str, token: str, node: str) -> dict[str, Any]:
    """Run on a node: leave a mark, look for the driver's, and tell what is installed."""
    from pathlib import Path

    found: dict[str, Any] = {"storage": None, "versions": {}, "missing": None}
    try:
        seen = Path(marks, "driver").read_text(encoding="utf-8")
        found["storage"] = None if seen == token else "it sees another file there than the driver wrote"
        Path(marks, node).write_text(token, encoding="utf-8")
    except OSError as error:
        found["storage"] = f"{error.strerror}: {error.filename}"
    try:
        from orchestrator.cluster import versions

        found["versions"] = versions()
    except ImportError as error:
        found["missing"] = str(error)
    return found


def _now() -> float:
    """Run on a node: tell the time."""
    import time

    return time.time()


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy that travels to a node as it is, so that one without this program can say so."""
    copy = FunctionType(function.__code__, {"__builtins__": builtins}, function.__name__)
    copy.__module__ = "__main__"
    return copy


def _judge(
    report: NodeReport, answer: _Answer, own: Mapping[str, str], storage: Path, marked: Container[str]
) -> None:
    """Add to a report what a node's probe said."""
    told = answer.value
    if isinstance(told, TimeoutError):
        why = f"it did not answer within {ANSWER_S:g} s; look at its Ray logs, or remove it."
        report.problems.append(why)
        return
    if isinstance(told, Exception):
        report.problems.append(f"it failed to answer: {str(told).strip().splitlines()[-1]}")
        return
    report.storage = told["storage"] is None and report.node in marked
    if not report.storage:
        why = told["storage"] or "the driver does not see what it wrote"
        report.problems.append(
            f"it does not share the storage {storage} ({why}); mount the same folder there, "
            "or choose another --storage."
        )
    report.versions = told["versions"]
    if told["missing"]:
        report.problems.append(
            f"this program is not installed there ({told['missing']}); install it, or use xsa submit."
        )
        return
    there = report.versions
    differ = [
        f"{name} {there.get(name, 'missing')} (here {own.get(name, 'missing')})"
        for name in [*own, *(there.keys() - own.keys())]
        if there.get(name) != own.get(name)
    ]
    if differ:
        report.problems.append(f"it has other versions: {', '.join(differ)}. Install the same everywhere.")


def _judge_clock(report: NodeReport, answer: _Answer) -> None:
    """Add how far a node's clock is off at least: what the way there and back can explain does not count."""
    if isinstance(answer.value, Exception):
        report.problems.append("it did not tell the time; look at its Ray logs, or remove it.")
        return
    report.clock_s = min(0.0, answer.value - answer.began) + max(0.0, answer.value - answer.ended)
    if abs(report.clock_s) > CLOCK_S:
        report.problems.append(
            f"its clock is {report.clock_s:+.0f} s from the driver's; set it (NTP), since leases compare times."
        )


def _why_unreadable(data_ids: list[str], folder: str) -> str | None:
    """Run on a node: return why prepared data cannot be read there, or None."""
    from trainer.data_folder import Library

    try:
        for data_id in data_ids:
            Library(folder).with_id(data_id)
    except UserError as error:
        return str(error)
    return None
