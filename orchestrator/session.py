"""One `xsa run`: which jobs are left, who holds them, and what happened to each."""

import socket
import time
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

import psutil

from orchestrator.plan import Job
from orchestrator.progress import Progress
from results.record import LEASE_S, Provenance, claim, end_attempt, ingest, record, renew
from results.state import arm_states
from results.store import Store, StoreError
from schemas.report import Report, arm_folder

RETRIES = {"node_lost": 5, "preempted": 5, "host_oom": 1, "cuda_oom": 1}
"""How often each cause is tried again within one run; a cause not named here is not."""


def owner_name() -> str:
    """Return this process's name in leases: host, process id and when the process began."""
    process = psutil.Process()
    return f"{socket.gethostname()}:{process.pid}:{process.create_time():.2f}"


def is_dead(owner: str) -> bool:
    """Whether an owner is known to have ended: it ran on this host, and its process is gone."""
    host, _, process = owner.partition(":")
    pid, _, began = process.partition(":")
    if host != socket.gethostname():
        return False
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" != began
    except psutil.NoSuchProcess:
        return True


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
        self.stop_file = storage / "sessions" / f"{self.owner.replace(':', '-')}.stop"
        self.queue = deque(jobs)
        self.running: dict[str, tuple[Job, dict[str, int]]] = {}
        """Job and attempt numbers by arm, of each Tune trial under way, by Tune's trial id."""
        self._failures: Counter[tuple[str, str]] = Counter()
        self._renewed = time.monotonic()
        self._outage = False

    @property
    def stopping(self) -> bool:
        """Whether somebody asked this run to end."""
        return self.stop_file.exists()

    def stop(self) -> None:
        """Ask every worker to checkpoint and end, and start nothing more."""
        self.stop_file.touch()

    def next_job(self, tune_id: str) -> Job | None:
        """Claim and return the next job for a Tune trial, or None if there is none left to take."""
        while self.queue and not self.stopping:
            job = self.queue[0]
            owners = {
                state.lease_owner for state in arm_states(self.store, [arm.id for arm in job.arms]).values()
            }
            dead = [owner for owner in owners if owner and is_dead(owner)]
            attempts = {
                arm.id: number
                for arm in job.arms
                if (number := claim(self.store, arm.id, self.owner, self.provenance, dead_owners=dead))
            }
            self.queue.popleft()
            if attempts:
                own = Job(job.trial_id, tuple(arm for arm in job.arms if arm.id in attempts))
                self.running[tune_id] = (own, attempts)
                return own
        return None

    def on_report(self, report: Report) -> None:
        """Write a worker's report, and show it."""
        with _Guard(self):
            record(self.store, report, packages=self.provenance.packages)
        self.progress.on_report(report)

    def on_end(self, tune_id: str, error: BaseException | None) -> None:
        """Settle a Tune trial that ended: what it left in its journals, and why it failed if it did."""
        job, attempts = self.running.pop(tune_id)
        with _Guard(self):
            for arm in job.arms:
                ingest(self.store, arm_folder(self.storage, arm.id))
            states = arm_states(self.store, list(attempts))
            open_arms = [arm for arm in job.arms if states[arm.id].status == "running"]
            if not open_arms:
                return
            cause, message, details = explain(error)
            for arm in open_arms:
                end_attempt(
                    self.store, arm.id, attempts[arm.id], cause=cause, error=message, traceback=details
                )
            self._failures[job.trial_id, cause] += 1
            again = self._failures[job.trial_id, cause] <= RETRIES.get(cause, 0) and not self.stopping
            if again:
                self.queue.append(Job(job.trial_id, tuple(open_arms)))
            self.progress.on_failure(open_arms, cause, message, again)

    def beat(self) -> None:
        """Keep the leases of this run alive; called often, writes rarely."""
        if time.monotonic() - self._renewed > LEASE_S / 4:
            self._renewed = time.monotonic()
            with _Guard(self):
                renew(self.store, self.owner)

    def abandon(self, error: BaseException | None) -> None:
        """Settle every trial that was under way when Tune itself ended."""
        for tune_id in list(self.running):
            self.on_end(tune_id, error)

    def on_outage(self, error: StoreError) -> None:
        """Say once that the store does not answer."""
        if not self._outage:
            self.progress.say(f"[yellow]{error} Training goes on; its journals are read when it ends.[/]")
        self._outage = True


class _Guard:
    """Lets a `StoreError` in its body pass as an outage, because training must outlive the store."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, StoreError):
            self.session.on_outage(error)
            return True
        return False


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
