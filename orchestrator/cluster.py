"""Whether the nodes of a Ray cluster can do a sweep's work: asked of each of them before anything is spent."""

import builtins
import platform
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Container, Mapping, Sequence
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
"""How long the nodes may take to answer: the first task on each starts a Python."""
NEWCOMER_S = 20.0
"""How long nodes that join a run may take, which waits for them."""
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
    return _reports(living_nodes(), storage, sweep, ANSWER_S)


def check_cluster(storage: Path, sweep: Sweep) -> set[str]:
    """Return the ids of the nodes, which are all fit. A node alone shares all with itself.

    The arguments are those of `check_nodes`. Raises `UserError` that names every problem of every node.
    """
    nodes = living_nodes()
    if len(nodes) == 1:
        return set(nodes)
    reports = check_nodes(storage, sweep)
    lines = [f"  {report.address}: {problem}" for report in reports for problem in report.problems]
    if lines:
        raise UserError("\n".join(["The cluster is not fit for this sweep (xsa cluster check):", *lines]))
    return {report.node for report in reports}


def unfit_nodes(
    node_ids: Collection[str], storage: Path, sweep: Sweep, wait_s: float = NEWCOMER_S
) -> dict[str, str]:
    """Ask nodes that joined a run what `check_cluster` asked the first ones.

    Args:
        node_ids: Ray's ids of them.
        storage: the folder that they and this driver must share.
        sweep: whose prepared data each must be able to read.
        wait_s: seconds to wait for them, all together.

    Returns:
        by id, why a node is unfit; the fit ones are not in it. One that is late or gone is unfit, and so
        are all where the driver itself cannot write to the storage.
    """
    living = living_nodes()
    asked = {node: living[node] for node in node_ids if node in living}
    try:
        reports = _reports(asked, storage, sweep, wait_s)
    except OSError as error:
        why = f"the driver itself cannot use the storage {storage} ({error.strerror})."
        return dict.fromkeys(node_ids, why)
    gone = dict.fromkeys(set(node_ids) - set(asked), "it is gone.")
    return gone | {report.node: " ".join(report.problems) for report in reports if report.problems}


def living_nodes() -> dict[str, dict[str, Any]]:
    """Return what Ray knows of each node that is alive, by its id."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def _reports(
    nodes: Mapping[str, dict[str, Any]], storage: Path, sweep: Sweep | None, wait_s: float
) -> list[NodeReport]:
    """Ask these nodes, and return what they said within `wait_s`. Raises `OSError` for the driver's own storage."""
    token, own = uuid.uuid4().hex, versions()
    data_ids = sorted({trial.data_id for trial in sweep.trials()} - {""}) if sweep else []
    later: list[_Question] = [(_by_value(_now), ())]  # when a Python runs there
    if sweep and data_ids:
        later.append((_why_unreadable, (data_ids, sweep.runtime.data)))
    # A node that is late may write its mark while the folder is being removed.
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=storage, ignore_cleanup_errors=True) as marks:
        Path(marks, "driver").write_text(token, encoding="utf-8")
        probe = _by_value(_probe)
        answers = _ask({node: [(probe, (marks, token, node)), *later] for node in nodes}, wait_s)
        marked = {path.name for path in Path(marks).iterdir()}
    reports = []
    for node, told in nodes.items():
        report = NodeReport(node, told["NodeManagerAddress"], told["Resources"])
        probed, *rest = answers[node]
        _judge(report, probed, own, storage, marked)
        if rest:
            _judge_clock(report, rest[0])
        # Where something else is wrong, the program may not be there to say anything of the data.
        if rest[1:] and not report.problems and (problem := rest[1].value) is not None:
            report.problems.append(str(problem))
        reports.append(report)
    return reports


_Question = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that a node is to run, and its arguments."""


class _Answer(NamedTuple):
    """What a node said to a question, and between which times of the driver's clock."""

    value: Any
    """The answer, or the error where there is none."""
    began: float
    ended: float


def _ask(questions: Mapping[str, Sequence[_Question]], wait_s: float) -> dict[str, list[_Answer]]:
    """Put to each of these nodes its questions, one after the other, until it fails one or the time is over."""
    pending: dict[Any, tuple[str, float]] = {}
    answers: dict[str, list[_Answer]] = {node: [] for node in questions}

    def ask_next(node: str) -> None:
        function, arguments = questions[node][len(answers[node])]
        pinned = NodeAffinitySchedulingStrategy(node, soft=False)
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=pinned)(function)
        began = time.time()
        pending[task.remote(*arguments)] = node, began

    for node in questions:
        ask_next(node)
    deadline = time.monotonic() + wait_s
    while pending and (left := deadline - time.monotonic()) > 0:
        ready, _ = ray.wait(list(pending), timeout=left)
        for reference in ready:
            node, began = pending.pop(reference)
            ended = time.time()
            try:
                value = ray.get(reference)
            except ray.exceptions.RayError as error:
                value = error
            answers[node].append(_Answer(value, began, ended))
            if not isinstance(value, Exception) and len(answers[node]) < len(questions[node]):
                ask_next(node)
    late = TimeoutError(f"it did not answer within {wait_s:g} s; look at its Ray logs, or remove it.")
    for node, began in pending.values():
        answers[node].append(_Answer(late, began, time.time()))
    return answers


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
        report.problems.append(str(told))
        return
    if isinstance(told, Exception):
        report.problems.append(
            f"it failed to answer: {(str(told).strip().splitlines() or [type(told).__name__])[-1]}"
        )
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
