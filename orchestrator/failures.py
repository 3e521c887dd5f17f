"""Why a trial failed, and what a run does about it: try again, avoid a node, or stop."""

import re
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.plan import Job
from schemas.sweep import Runtime

RETRIES = {"node_lost": 5, "preempted": 5, "host_oom": 1, "cuda_oom": 20}
"""How often each cause is tried again within one run; a cause not named here is not. Of a GPU's memory a trial
takes less each time, until nothing about it can be made smaller."""
_MEMORY = ("host_oom", "cuda_oom")
"""Causes that are tried again with less, which is no failure of the sweep or of a node while there is less."""
_OUTSIDE = ("node_lost", "preempted")
"""Causes that say nothing about the sweep, however often they come."""
_DEATHS = {"ActorDiedError", "ActorUnavailableError", "RayActorError", "NodeDiedError", "WorkerCrashedError"}


class TuneEnded(Exception):
    """Ray Tune ended under a trial that had no part in it, and is begun again."""


class RunEnded(Exception):
    """A run ended under its trials of something that was not theirs."""


@dataclass(frozen=True)
class Failure:
    """How a trial ended that did not finish."""

    cause: str
    message: str
    """One line."""
    traceback: str | None = None
    blameless: bool = False
    """Whether it ended for something that was not its own doing, and so is simply begun again."""
    node_is_sound: bool = False
    """Whether nothing speaks against the node on which it ended."""

    @property
    def is_fault(self) -> bool:
        """Whether anything went wrong: a trial that was asked to stop did not fail."""
        return self.cause != "interrupted"

    @property
    def signature(self) -> str:
        """What failures of one kind have in common: everything but numbers, addresses and ids."""
        return f"{self.cause}: {re.sub(r'0x[0-9a-f]+|[0-9a-f]{8,}|[0-9]+', '#', self.message)}"


def explain(error: BaseException | None) -> Failure:
    """Return what an error means for the trial that it ended; None is a trial that returned too early."""
    if error is None:
        return Failure("interrupted", "it was stopped before its end")
    names = {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}
    details = re.sub(r"\x1b\[[0-9;]*m", "", "".join(traceback.format_exception(error)))  # Ray's colours
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[-1] if lines else type(error).__name__
    if "OutOfMemoryError" in names and any("CUDA" in str(link) for link in _chain(error)):
        return Failure("cuda_oom", message, details)
    if "StoreError" in names:
        return Failure("store_error", message, details)
    if isinstance(error, TuneEnded):
        return Failure("interrupted", message, blameless=True)
    if names & {"StaleAttempt", "RunEnded"}:
        return Failure("interrupted", message, details)
    if "FolderBusy" in names:  # by a worker whose node is taken for dead, and which does not know it yet
        return Failure("node_lost", message, details, node_is_sound=True)
    if "StorageNotSeen" in names:
        return Failure("node_lost", message, details)
    if "TrialTimeout" in names:
        return Failure("timeout", message, details)
    memory = _memory_message(details)  # Tune may keep no more of the error than its text
    if memory or names & {"OutOfMemoryError", "MemoryError"}:
        return Failure("host_oom", memory or message, details)
    if names & _DEATHS:
        preempted = any(getattr(link, "preempted", False) for link in _chain(error))
        message = "the process that trained it was killed or its node died"
        return Failure("preempted" if preempted else "node_lost", message, details)
    return Failure("user_error", message, details)


def _chain(error: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = getattr(error, "cause", None) or error.__cause__
    return links


def _memory_message(text: str) -> str | None:
    """Return the sentence that matters of the page that Ray's memory monitor writes."""
    used = re.search(r"was ([\d.]+ ?[KMGT]?B) used / ([\d.]+ ?[KMGT]?B) limit", text)
    own = re.search(r"actual memory used=([\d.]+ ?[KMGT]?B)", text)
    if used is None:
        return None
    share = f", this trial {own[1]} of it" if own else ""
    return f"Ray's memory monitor killed it: its node had {used[1]} of {used[2]} in use{share}"


def killed_for_memory(error: BaseException) -> set[int]:
    """Return the process ids that Ray's memory monitor says it killed."""
    text = "\n".join(str(link) for link in _chain(error))
    selected = re.search(r"Selected to kill: (.*?)\n\]", text, re.DOTALL)
    return {int(pid) for pid in re.findall(r"pid=(\d+)", selected[1])} if selected else set()


def lighter(job: Job, cause: str, told: Mapping[str, Any], runtime: Runtime) -> tuple[Job | None, str]:
    """Return a job as it is to be tried again, taking less memory where it ran out of it, and what is new about it.

    There is None where nothing about it can be made smaller. `told` is its worker's record of how it was trained.
    """
    if cause == "host_oom":
        return replace(job, alone=True), ", alone on a node"
    if cause != "cuda_oom":
        return job, ""
    micro_batch = told.get("micro_batch")
    if micro_batch is None:  # the weights alone did not fit, for this is told before the first step
        return None, ""
    if micro_batch > 1:
        half = micro_batch // 2
        return replace(job, lighter={**job.lighter, "micro_batch": half}), f", {half} sequences at a time"
    if told.get("activation_checkpointing") or runtime.activation_checkpointing is not None:
        return None, ""
    least = {"micro_batch": 1, "activation_checkpointing": True}
    return replace(job, lighter=least), ", with activation checkpointing"


@dataclass(frozen=True)
class Verdict:
    """What comes after a failure."""

    again: bool
    """Whether the job is tried again in this run."""
    bad_node: bool = False
    """Whether its node has now failed too often in a row."""
    halt: str | None = None
    """Why nothing more should be started, if so."""


class Judge:
    """Counts what failed, and passes sentence. Knows neither the store nor Ray."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tries: Counter[tuple[str, str]] = Counter()
        self._signature = ""
        self._in_a_row = 0
        self._of_node: defaultdict[str, list[Job]] = defaultdict(list)
        """Jobs that failed on a node since it last finished one."""
        self._last_node: dict[str, str | None] = {}
        """Where a trial last failed."""

    def on_success(self, node: str | None) -> None:
        """Take note that an arm has got its result."""
        self._in_a_row = 0
        if node is not None:
            self._of_node.pop(node, None)

    def on_failure(self, job: Job, failure: Failure, node: str | None, *, possible: bool = True) -> Verdict:
        """Take note of a failure, and say what comes after it; `possible` is whether the job can be tried again."""
        if not failure.is_fault:
            return Verdict(again=failure.blameless)
        self._tries[job.trial_id, failure.cause] += 1
        again = possible and self._tries[job.trial_id, failure.cause] <= RETRIES.get(failure.cause, 0)
        if again and failure.cause in _MEMORY:
            return Verdict(again)
        if failure.cause not in _OUTSIDE:
            self._in_a_row = self._in_a_row + 1 if failure.signature == self._signature else 1
            self._signature = failure.signature
        if failure.node_is_sound:
            node = None
        self._last_node[job.trial_id] = node
        if node is not None:
            self._of_node[node].append(job)
        halt = None
        if self._in_a_row >= self._runtime.stop_after_failures:
            halt = f"{self._in_a_row} failures in a row were alike ({failure.cause}: {failure.message})"
        bad = node is not None and len(self._of_node[node]) >= self._runtime.avoid_node_after
        return Verdict(again, bad_node=bad, halt=halt)

    def forgive(self, node: str) -> Iterator[Job]:
        """Return the jobs that last failed on a node which is avoided from now on: it was not their fault.

        Of a trial that failed there several times, each time's job.
        """
        self._in_a_row = 0
        for job in self._of_node.pop(node, []):
            if self._last_node[job.trial_id] == node:
                for cause in RETRIES:
                    self._tries.pop((job.trial_id, cause), None)
                yield job
