"""One `xsa run`: which jobs are left, who holds them, and what happened to each."""

import os
import socket
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
from rich.markup import escape

from orchestrator.plan import Job
from orchestrator.progress import Progress
from results.claims import LEASE_S, Provenance, claim, end_attempt, renew
from results.location import StoreError
from results.record import ingest, record
from results.state import arm_states
from results.store import Store
from schemas.report import DamagedJournal, Report, arm_folder

RETRIES = {"node_lost": 5, "preempted": 5, "host_oom": 1, "cuda_oom": 1}
"""How often each cause is tried again within one run; a cause not named here is not."""


def owner_name() -> str:
    """Return this process's name in leases: machine, process id, and when the process began."""
    return f"{_machine()}:{os.getpid()}:{_began(os.getpid())}"


def is_dead(owner: str) -> bool:
    """Whether an owner is known to have ended: it ran on this machine, and its process is gone."""
    machine, pid, began = [*owner.split(":"), "", ""][:3]
    return machine == _machine() and _began(int(pid)) != began


@cache
def _machine() -> str:
    """This host since it was started, and the namespace in which a process id means something."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if not boot.exists():
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot.read_text().strip()}/{namespace.stat().st_ino}"


def _began(pid: int) -> str | None:
    """When a process began, or None if it is gone. In ticks since the boot, which no clock change moves."""
    try:
        if Path("/proc/self/stat").exists():
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
            return after_name.split()[19]
        return f"{psutil.Process(pid).create_time():.0f}"
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return None


class Session:
    """The queue of one run, and everything the driver writes to the store for it.

    No method lets a store that is locked or unreachable stop the training: it is said once, and
    what was missed is read from the arms' journals when their trials end.
    """

    def __init__(
        self, store: Store, storage: Path, jobs: Sequence[Job], provenance: Provenance, progress: Progress
    ) -> None:
        self.store = store
        self.storage = storage
        self.provenance = provenance
        self.progress = progress
        self.owner = owner_name()
        self.stop_file = storage / "sessions" / f"{self.owner.translate({ord(':'): '-', ord('/'): '-'})}.stop"
        self.queue = deque(jobs)
        self.running: dict[str, tuple[Job, dict[str, int]]] = {}
        """Job and attempt numbers by arm, of each Tune trial under way, by Tune's trial id."""
        self._failures: Counter[tuple[str, str]] = Counter()
        self._renewed = time.monotonic()
        self._outage = False
        self._unsettled: deque[tuple[Job, dict[str, int], BaseException | None]] = deque()
        """Trials that ended while the store did not answer."""

    @property
    def stopping(self) -> bool:
        """Whether somebody asked this run to end."""
        return self.stop_file.exists()

    def stop(self) -> None:
        """Ask every worker to checkpoint and end, and start nothing more."""
        self.stop_file.touch()

    @property
    def finished(self) -> bool:
        """Whether nothing runs and nothing more will."""
        return not self.running and (not self.queue or self.stopping)

    def next_job(self, tune_id: str) -> Job | None:
        """Claim and return the next job for a Tune trial, or None if there is none to take now."""
        while self.queue and not self.stopping:
            job, attempts = self.queue[0], {}
            with self._outages():
                attempts = self._claim(job)
                self.queue.popleft()
            if self._outage:
                return None
            if attempts:
                own = Job(job.trial_id, tuple(arm for arm in job.arms if arm.id in attempts))
                self.running[tune_id] = (own, attempts)
                return own
        return None

    def _claim(self, job: Job) -> dict[str, int]:
        """Return the attempt number of each arm of the job that could be had."""
        owners = {
            state.lease_owner for state in arm_states(self.store, [arm.id for arm in job.arms]).values()
        }
        dead = [owner for owner in owners if owner and is_dead(owner)]
        numbers = {
            arm.id: claim(self.store, arm.id, self.owner, self.provenance, dead_owners=dead)
            for arm in job.arms
        }
        return {arm_id: number for arm_id, number in numbers.items() if number is not None}

    def on_report(self, report: Report) -> None:
        """Write a worker's report, and show it."""
        with self._outages():
            record(self.store, report, packages=self.provenance.packages)
        self.progress.on_report(report)

    def on_end(self, tune_id: str, error: BaseException | None) -> None:
        """Settle a Tune trial that ended, at once or when the store answers again."""
        self._unsettled.append((*self.running.pop(tune_id), error))
        self.settle()

    def settle(self) -> None:
        """Settle what ended: what it left in its journals, and why it failed if it did."""
        while self._unsettled:
            with self._outages():
                self._settle(*self._unsettled[0])
                self._unsettled.popleft()
            if self._outage:
                return

    def _settle(self, job: Job, attempts: dict[str, int], error: BaseException | None) -> None:
        for arm in job.arms:
            try:
                ingest(self.store, arm_folder(self.storage, arm.id))
            except DamagedJournal as damage:
                error = error or damage
        states = arm_states(self.store, list(attempts))
        left = [
            arm
            for arm in job.arms
            if states[arm.id].status == "running" and states[arm.id].attempt == attempts[arm.id]
        ]
        if not left:
            return
        cause, message, details = explain(error)
        # Arms are trained one after the other: what failed is the first that has not ended.
        failed, waiting = left[0], left[1:]
        end_attempt(self.store, failed.id, attempts[failed.id], cause=cause, error=message, traceback=details)
        for arm in waiting:
            end_attempt(self.store, arm.id, attempts[arm.id], cause="cancelled", error="not begun")
        self._failures[job.trial_id, cause] += 1
        again = self._failures[job.trial_id, cause] <= RETRIES.get(cause, 0) and not self.stopping
        wanted = left if again else waiting
        if wanted:
            self.queue.append(Job(job.trial_id, tuple(wanted)))
        self.progress.on_failure([failed], cause, message, again)

    def beat(self) -> None:
        """Keep the leases of this run alive; called often, writes rarely."""
        if time.monotonic() - self._renewed > LEASE_S / 4:
            self._renewed = time.monotonic()
            with self._outages():
                renew(self.store, self.owner)
            self.settle()

    def abandon(self, error: BaseException | None) -> None:
        """Settle every trial that was under way when Tune itself ended."""
        for tune_id in list(self.running):
            self.on_end(tune_id, error)

    @contextmanager
    def _outages(self) -> Iterator[None]:
        """Let a `StoreError` pass, said once an outage: training must outlive the store."""
        try:
            yield
        except StoreError as error:
            if not self._outage:
                self.progress.say(
                    f"[yellow]{escape(str(error))}[/] Training goes on, and its journals are read later."
                )
            self._outage = True
        else:
            self._outage = False


def explain(error: BaseException | None) -> tuple[str, str, str | None]:
    """Return the cause of a trial's end, its message in a line, and its traceback."""
    if error is None:
        return "interrupted", "it was stopped before its end", None
    names = {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}
    details = "".join(traceback.format_exception(error))
    message = next(
        (line for line in reversed(str(error).strip().splitlines()) if line.strip()), type(error).__name__
    )
    if "OutOfMemoryError" in names and any("CUDA" in str(link) for link in _chain(error)):
        return "cuda_oom", message, details
    if "StoreError" in names:
        return "store_error", message, details
    if names & {"FolderBusy", "StaleAttempt"}:
        return "interrupted", message, details
    if names & {"OutOfMemoryError", "MemoryError"}:
        return "host_oom", message, details
    if names & {
        "ActorDiedError",
        "ActorUnavailableError",
        "RayActorError",
        "NodeDiedError",
        "WorkerCrashedError",
    }:
        preempted = any(getattr(link, "preempted", False) for link in _chain(error))
        return (
            ("preempted" if preempted else "node_lost"),
            "the process that trained it was killed or its node died",
            details,
        )
    return "user_error", message, details


def _chain(error: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = getattr(error, "cause", None) or error.__cause__
    return links
