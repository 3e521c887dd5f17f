"""Whether the nodes of a Ray cluster can do a sweep's work: asked of each of them before anything is spent."""

import builtins
import platform
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.provenance import PACKAGES, code_sha256
from schemas.errors import UserError
from schemas.sweep import Sweep

ANSWER_S = 120.0
"""How long a node may take to answer: the first task on it starts a Python."""
CLOCK_S = 10.0
"""How far a node's clock may be from the driver's: leases are compared across machines."""
_PROBES = ".probes"


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
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    token, own = uuid.uuid4().hex, versions()
    folder = storage / _PROBES
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="probe-", dir=folder) as marks:
        Path(marks, "driver").write_text(token, encoding="utf-8")
        asked, began = {}, time.time()
        for node in nodes:
            pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=pinned)(_by_value(_probe))
            asked[node["NodeID"]] = task.remote(str(marks), token, node["NodeID"])
        reports = []
        for node in nodes:
            report = NodeReport(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
            _hear(report, asked[node["NodeID"]], own, began, Path(marks), storage)
            reports.append(report)
    if sweep is not None and (ids := {trial.data_id for trial in sweep.trials()} - {""}):
        _ask_for_data(reports, sorted(ids), sweep.runtime.data)
    return reports


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


def versions() -> dict[str, str]:
    """Return what must be equal everywhere: Python, the packages, and this program's own code."""
    packages = {name: metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages, "code": code_sha256()[:12]}


def _probe(marks: str, token: str, node: str) -> dict[str, Any]:
    """Run on a node: leave a mark, look for the driver's, tell the time and what is installed."""
    import time
    from pathlib import Path

    now = time.time()
    found: dict[str, Any] = {"time": now, "storage": None, "versions": {}, "missing": None}
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


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy that travels to a node as it is, so that one without this program can say so."""
    copy = FunctionType(function.__code__, {"__builtins__": builtins}, function.__name__)
    copy.__module__ = "__main__"
    return copy


def _hear(
    report: NodeReport, answer: Any, own: Mapping[str, str], began: float, marks: Path, storage: Path
) -> None:
    try:
        told = ray.get(answer, timeout=ANSWER_S)
    except ray.exceptions.GetTimeoutError:
        report.problems.append(
            f"it did not answer within {ANSWER_S:g} s; look at its Ray logs, or remove it."
        )
        return
    except ray.exceptions.RayError as error:
        report.problems.append(f"it failed to answer: {str(error).strip().splitlines()[-1]}")
        return
    ended = time.time()
    report.clock_s = min(0.0, told["time"] - began) + max(0.0, told["time"] - ended)
    if abs(report.clock_s) > CLOCK_S:
        report.problems.append(
            f"its clock is {report.clock_s:+.0f} s from the driver's; set it (NTP), since leases compare times."
        )
    report.storage = told["storage"] is None and (marks / report.node).exists()
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
    others = [f"{name} {told['versions'].get(name)} (here {own[name]})" for name in own]
    differ = [line for name, line in zip(own, others, strict=True) if told["versions"].get(name) != own[name]]
    if differ:
        report.problems.append(f"it has other versions: {', '.join(differ)}. Install the same everywhere.")


def _ask_for_data(reports: list[NodeReport], data_ids: list[str], folder: str | None) -> None:
    asked = {}
    for report in reports:
        if not report.problems:  # else the program may not be there to ask
            pinned = NodeAffinitySchedulingStrategy(report.node, soft=False)
            task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=pinned)(_why_unreadable)
            asked[report.node] = task.remote(data_ids, folder)
    for report in reports:
        if report.node in asked:
            try:
                problem = ray.get(asked[report.node], timeout=ANSWER_S)
            except ray.exceptions.RayError as error:
                problem = f"looking for the data failed: {str(error).strip().splitlines()[-1]}"
            if problem:
                report.problems.append(problem)


def _why_unreadable(data_ids: list[str], folder: str) -> str | None:
    """Run on a node: return why prepared data cannot be read there, or None."""
    from trainer.library import Library

    try:
        for data_id in data_ids:
            Library(folder).with_id(data_id)
    except UserError as error:
        return str(error)
    return None
