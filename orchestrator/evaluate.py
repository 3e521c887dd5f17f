"""The downstream evaluation of finished arms: what is missing, done by Ray tasks, recorded as it comes."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from orchestrator.eval_jobs import Job, distinct, missing, only_those
from orchestrator.eval_progress import EvalProgress
from orchestrator.failures import RETRIES, Failure, explain
from orchestrator.owner import owner_name
from orchestrator.session import LOOK_S
from orchestrator.supervise import announced, prepare_storage, signals
from results import sessions
from results.claims import LEASE_S, renew
from results.location import StoreError
from results.record_evals import record_evals
from results.store import Store
from schemas.evals import TaskResult, read_results
from schemas.report import DamagedJournal
from trainer.journal import FolderBusy

_BUSY_TRIES = 60
"""How often, a minute each, a folder is waited for in which another evaluation finds nothing new."""


@dataclass
class Outcome:
    """How an evaluation ended."""

    wanted: int
    """Evaluations that were asked for, of arms that have weights."""
    had: int
    """Of them, those that were there before."""
    results: list[tuple[Job, TaskResult]] = field(default_factory=list)
    """What was found now, errors included."""
    lost: list[tuple[Job, Failure]] = field(default_factory=list)
    """Arms whose evaluation ended otherwise than with results."""
    skipped: Counter[str] = field(default_factory=Counter)
    """How many arms have no weights to be evaluated, by their status."""
    signal: int | None = None
    """The signal that stopped it, if one did."""

    @property
    def done(self) -> int:
        """Evaluations that have scores now."""
        return self.had + sum(result.error is None for _, result in self.results)

    @property
    def exit_code(self) -> int:
        """0 where nothing is missing, 1 where something is, more where a signal stopped it."""
        return 128 + self.signal if self.signal is not None else int(self.done < self.wanted)


def evaluate(store: Store, jobs: Sequence[Job], console: Console, *, data: Path | None) -> Outcome:
    """Evaluate what is missing of these jobs, and record it. Safe to repeat, interrupt and run twice at once.

    Args:
        store: what decides what is missing, and takes the results.
        jobs: arms of one or more sweeps, which may share some; those that are not finished, or diverged,
            have no weights.
        console: says how it goes.
        data: folder of local task data, or None for the Hub's.

    Raises:
        UserError: the harness or its task is not there, or no node can ever do it.
    """
    ready = distinct(job for job in jobs if job.status == "done")
    left = missing(store, ready)
    for job in left:
        _ingest(store, job, console)  # what a run that was killed found and could not record
    left = missing(store, left)
    total = sum(len(job.evals.tasks) for job in ready)
    lacking = sum(len(job.evals.tasks) for job in left)
    skipped = Counter({job.arm_id: job.status for job in jobs if job.status != "done"}.values())
    outcome = Outcome(total, total - lacking, skipped=skipped)
    if not left:
        return outcome

    from trainer.evals import check_evals

    for tasks in {tuple(job.evals.tasks): job.evals for job in left}.values():
        check_evals(tasks, data)
    storage = left[0].storage
    prepare_storage(storage)
    from orchestrator.launch import connected_ray

    with ExitStack() as stack:
        progress = stack.enter_context(EvalProgress(console, had=outcome.had, wanted=total))
        told = [
            stack.enter_context(announced(store, sweep, f"{owner_name()}:eval-{time.time_ns()}"))
            for sweep in dict.fromkeys(job.sweep for job in left)
        ]
        stack.enter_context(connected_ray())
        driver = _Driver(store, storage, progress, outcome, [one.owner for one in told], data)
        # After ray.init, which puts a SIGTERM handler of its own in place.
        note = "Stopping: what is finished is kept. Again to stop at once."
        caught = stack.enter_context(signals(driver, console, note))
        driver.run(left)
        outcome.signal = caught[0] if caught else None
        for one in told:
            one.outcome = "it was asked to stop" if driver.stopping else "nothing was left to do"
    return outcome


def _ingest(store: Store, job: Job, console: Console) -> None:
    try:
        record_evals(store, job.arm_id, read_results(job.folder))
    except DamagedJournal as error:
        console.print(f"[yellow]{escape(str(error))}[/]", soft_wrap=True)


class _Driver:
    """Takes in what the workers tell, until all have ended."""

    def __init__(
        self,
        store: Store,
        storage: Path,
        progress: EvalProgress,
        outcome: Outcome,
        owners: list[str],
        data: Path | None,
    ) -> None:
        self._store = store
        self._progress = progress
        self._outcome = outcome
        self._owners = owners
        self._data = data
        self._tries: Counter[tuple[str, str]] = Counter()
        self._idle: Counter[str] = Counter()
        """How often in a row nothing new was found in an arm's folder that another evaluation has."""
        self._looked = self._renewed = time.monotonic()
        name = owner_name().translate({ord(":"): "-", ord("/"): "-"})
        self.stop_file = storage / "sessions" / f"{name}-eval.stop"

    @property
    def stopping(self) -> bool:
        """Whether somebody asked this run to end."""
        return self.stop_file.exists()

    def stop(self) -> None:
        """Ask every worker to end before its next batch."""
        self.stop_file.touch()

    def run(self, jobs: Sequence[Job]) -> None:
        """Have the jobs done; those whose worker was lost again, as often as a trial is tried again."""
        from orchestrator.launch import run_evaluations

        while jobs:
            now: dict[str, Job] = {}  # one of each arm: its folder takes one worker at a time
            again = [job for job in jobs if now.setdefault(job.arm_id, job) is not job]
            for job, told in run_evaluations(list(now.values()), self.stop_file, self._data):
                if job is None:
                    self._beat()
                elif isinstance(told, TaskResult):
                    self._take(job, told)
                elif isinstance(told, FolderBusy):
                    again += self._wait(job, told)
                elif isinstance(told, Exception):
                    again += self._judge(job, explain(told))
                else:
                    self._progress.on_start(job.arm_id)
                self._beat()
            jobs = [] if self.stopping else again

    def _take(self, job: Job, result: TaskResult) -> None:
        self._outcome.results.append((job, result))
        try:
            record_evals(self._store, job.arm_id, [result])
        except StoreError as error:
            self._progress.say(
                f"[yellow]{escape(str(error))}[/] The result is in the arm's journal, and recorded next time."
            )
        self._progress.on_result(job.arm_id, job.name, result, last=result.task == job.evals.tasks[-1])

    def _judge(self, job: Job, failure: Failure) -> list[Job]:
        """Say that a worker ended without results, and return what is left to do if it is tried again."""
        self._tries[job.arm_id, failure.cause] += 1
        again = self._tries[job.arm_id, failure.cause] <= RETRIES.get(failure.cause, 0)
        self._progress.on_lost(
            job.arm_id, job.name, failure, "it is tried again" if again else "not tried again"
        )
        if not again:
            self._outcome.lost.append((job, failure))
            return []
        return self._rest(job)

    def _rest(self, job: Job) -> list[Job]:
        """Return the job with what nothing is known of yet, if there is any."""
        got = {(other.arm_id, result.key) for other, result in self._outcome.results}
        return only_those([job], lambda job, key: (job.arm_id, key) not in got)

    def _wait(self, job: Job, busy: FolderBusy) -> list[Job]:
        """Take over what the evaluation that has the arm's folder has found, and return what is left to do.

        A folder is held by a process that lives, so the arm is tried again as long as that gets on.
        """
        try:
            found = {result.key: result for result in read_results(job.folder) if result.counts(job.since_us)}
        except DamagedJournal as error:
            return self._judge(job, explain(error))
        taken = [found[key] for key in job.evals.wanted() if key in found]
        for result in taken:
            self._take(job, result)
        rest = self._rest(job)
        self._idle[job.arm_id] = 0 if taken else self._idle[job.arm_id] + 1
        if rest and self._idle[job.arm_id] >= _BUSY_TRIES:
            return self._judge(job, Failure("folder_busy", str(busy)))
        self._progress.on_busy(job.arm_id, job.name)
        return rest

    def _beat(self) -> None:
        """Keep this run alive in the store and hear whether it should stop; called often, works rarely."""
        now = time.monotonic()
        try:
            if now - self._looked > LOOK_S and not self.stopping:
                self._looked = now
                if any(sessions.is_asked_to_stop(self._store, owner) for owner in self._owners):
                    self._progress.say("Somebody asked for it (xsa stop): what is finished is kept.")
                    self.stop()
            if now - self._renewed > LEASE_S / 4:
                self._renewed = now
                for owner in self._owners:
                    renew(self._store, owner)
        except StoreError as error:
            self._progress.say(f"[yellow]{escape(str(error))}[/]")
