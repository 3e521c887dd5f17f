"""One `xsa run`: which jobs are left, who holds them, and what happened to each."""

import shutil
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.markup import escape

from orchestrator.failures import (
    Failure,
    Judge,
    RunEnded,
    TuneEnded,
    explain,
    killed_for_memory,
    lighter,
)
from orchestrator.held import Held
from orchestrator.owner import Place, is_dead
from orchestrator.plan import Job
from orchestrator.progress import Progress
from orchestrator.reach import Reach
from orchestrator.room import Room
from orchestrator.running import Running
from results import sessions
from results.claims import LEASE_S, Provenance, claim, end_attempt, renew
from results.record import ingest, record
from results.state import arm_states
from results.store import Store
from schemas.report import DamagedJournal, Report, arm_folder
from schemas.sweep import Sweep
from schemas.trial import Arm

LOOK_S = 2.0
"""Seconds between looks at the store for a wish that this run stop."""


class Session:
    """The queue of one run, and everything the driver writes to the store for it.

    No method lets a store that is locked or unreachable stop the training: it is said once, and
    what was missed is read from the arms' journals when their trials end.
    """

    def __init__(
        self,
        store: Store,
        sweep: Sweep,
        storage: Path,
        jobs: Sequence[Job],
        provenance: Provenance,
        progress: Progress,
        *,
        owner: str,
        room: Room,
    ) -> None:
        self.sweep = sweep
        self.storage = storage
        self.provenance = provenance
        self.progress = progress
        self._reach = Reach(store, progress.say)
        self.owner = owner
        self.stop_file = storage / "sessions" / f"{self.owner.translate({ord(':'): '-', ord('/'): '-'})}.stop"
        self.queue = deque(jobs)
        self.arms = {arm.id: arm for job in jobs for arm in job.arms}
        """Every arm that this run may train."""
        self.held = Held()
        self.running: dict[str, Running] = {}
        """The jobs under way by Tune's trial id."""
        self.halted: str | None = None
        """Why nothing more is started at all."""
        self.room = room
        self._judge = Judge(sweep.runtime)
        self._renewed = self._looked = time.monotonic()
        self._not_compiled: set[str] = set()
        self._told_silent = 0
        self._unsettled: deque[tuple[Running, BaseException | None]] = deque()
        """Trials that ended while the store did not answer."""

    @property
    def stopping(self) -> bool:
        """Whether somebody asked this run to end."""
        return self.stop_file.exists()

    @property
    def outcome(self) -> str:
        """Why this run ends, where nothing went wrong with it."""
        return self.halted or ("it was asked to stop" if self.stopping else "nothing was left to do")

    def stop(self) -> None:
        """Ask every worker to checkpoint and end, and start nothing more."""
        self.stop_file.touch()

    @property
    def finished(self) -> bool:
        """Whether nothing runs and nothing more will."""
        left = self.queue or self._unsettled or self.held.silent
        return not self.running and (not left or self.stopping or self.halted is not None)

    def next_job(self, tune_id: str) -> Running | None:
        """Claim and return the next job for a Tune trial, or None if there is none to take now."""
        self._check_space()
        while self.queue and not self.stopping and not self.halted:
            job, attempts = self.queue[0], {}
            with self._reach.attempt():
                attempts = self._claim(job)
                self.queue.popleft()
            if self._reach.lost:
                return None
            if attempts:
                own = replace(job, arms=tuple(arm for arm in job.arms if arm.id in attempts))
                self.running[tune_id] = Running(own, attempts)
                return self.running[tune_id]
        return None

    def _claim(self, job: Job) -> dict[str, int]:
        """Return the attempt number of each arm of the job that could be had."""
        states = arm_states(self.store, [arm.id for arm in job.arms])
        owners = {state.lease_owner for state in states.values()}
        dead = [owner for owner in owners if owner and is_dead(owner)]
        numbers = {
            arm.id: claim(self.store, arm.id, self.owner, self.provenance, dead_owners=dead)
            for arm in job.arms
        }
        held = tuple(arm for arm in job.arms if numbers[arm.id] is None and not states[arm.id].finished)
        if held:
            self.held.add(replace(job, arms=held), states)
        return {arm_id: number for arm_id, number in numbers.items() if number is not None}

    def _check_space(self) -> None:
        if self.halted:
            return
        try:
            free = shutil.disk_usage(self.storage).free / 2**30
        except OSError as error:
            self.halt(f"the storage cannot be reached ({error})")
            return
        floor = self.sweep.runtime.min_free_gib
        if free < floor:
            self.halt(
                f"{self.storage} has {free:.2f} GiB free, and runtime.min_free_gib is {floor:g}; free some, or lower it"
            )

    def halt(self, reason: str) -> None:
        """Start nothing more, and keep why; what runs goes on to its end."""
        self.halted = reason
        self._say("halted", f"Nothing more is started: {reason}.")

    def _say(self, kind: str, message: str) -> None:
        self.progress.say(f"[red]{escape(message)}[/]")
        with self._reach.attempt():
            sessions.note(self.store, kind, message, sweep=self.sweep.name)

    def on_start(self, tune_id: str, place: Place) -> None:
        """Keep where a job's worker is."""
        self.running[tune_id].place = place

    def on_report(self, tune_id: str, report: Report) -> None:
        """Write a worker's report, and show it."""
        running = self.running[tune_id]
        running.told = report.record.environment
        behind, running.behind = running.behind, running.behind | {report.record.arm_id}
        with self._reach.attempt(), suppress(DamagedJournal, OSError):  # judged when the trial ends
            for arm_id in behind:
                ingest(self.store, arm_folder(self.storage, arm_id))
            record(self.store, report, packages=self.provenance.packages)
            running.behind = set()
        why = running.told.get("compile_error")
        if why and why not in self._not_compiled:
            self._not_compiled.add(why)
            compiled = running.told.get("execution") == "compiled"
            what = (
                "Layers are compiled, but with"
                if compiled
                else "torch.compile failed, and trials run eagerly:"
            )
            self._say("not_compiled", f"{what} {why}")
        if report.record.status in ("done", "diverged"):
            self._judge.on_success(running.node)
        self.progress.on_report(report)

    def on_end(self, tune_id: str, error: BaseException | None) -> None:
        """Settle a Tune trial that ended, at once or when the store answers again."""
        self._unsettled.append((self.running.pop(tune_id), error))
        self.settle()

    @property
    def store(self) -> Store:
        """The store. Raises `StoreError` for some seconds after it did not answer."""
        return self._reach.store

    def settle(self) -> None:
        """Settle what ended: what it left in its journals, and why it failed if it did."""
        while self._unsettled:
            with self._reach.attempt():
                self._settle(*self._unsettled[0])
                self._unsettled.popleft()
            if self._reach.lost:
                return

    def _settle(self, ended: Running, error: BaseException | None) -> None:
        job, attempts, failure = ended.job, ended.attempts, explain(error)
        states = arm_states(self.store, list(attempts))
        for arm in job.arms:
            if states[arm.id].finished or failure.cause == "timeout":
                continue  # it has said all that it had to say
            try:
                ingest(self.store, arm_folder(self.storage, arm.id))
            except DamagedJournal as damage:
                failure = explain(error or damage)
            except OSError as unread:  # which is not the arm's doing
                failure = explain(error or RunEnded(f"its journal could not be read: {unread}"))
        states = arm_states(self.store, list(attempts))
        left = [
            arm
            for arm in job.arms
            if states[arm.id].status == "running" and states[arm.id].attempt == attempts[arm.id]
        ]
        if not left:
            return
        # Arms are trained one after the other: what failed is the first that has not ended.
        failed, waiting = left[0], left[1:]
        end_attempt(
            self.store,
            failed.id,
            attempts[failed.id],
            cause=failure.cause,
            error=failure.message,
            traceback=failure.traceback,
            hostname=ended.place.hostname if ended.place else None,
        )
        for arm in waiting:
            end_attempt(self.store, arm.id, attempts[arm.id], cause="cancelled", error="not begun")
        self._carry_on(failure, ended, left)

    def _carry_on(self, failure: Failure, ended: Running, left: list[Arm]) -> None:
        """Do what comes after a failure: try again, avoid the node, or start nothing more."""
        less, how = lighter(ended.job, failure.cause, ended.told, self.sweep.runtime)
        verdict = self._judge.on_failure(
            replace(ended.job, arms=tuple(left)), failure, ended.node, possible=less is not None
        )
        again = less if verdict.again and not self.stopping else None
        if wanted := left if again else left[1:]:
            self.queue.append(replace(again or ended.job, arms=tuple(wanted)))
        then = f"it is tried again{how}" if again else "not tried again in this run"
        self.progress.on_failure(left[0], failure, then if failure.is_fault or again else "")
        if verdict.bad_node and self._avoid(ended):
            return
        if verdict.halt and not self.halted:
            self.halt(f"{verdict.halt}; `xsa status {self.sweep.name} --failed` shows them")

    def _avoid(self, ended: Running) -> bool:
        """Use the other nodes alone from now on, if there is one that can; what failed there is due again."""
        place = ended.place
        if place is None or not self.room.avoid(place.node):
            return False
        others = [*self.running.values(), *(run for run, _ in self._unsettled if run is not ended)]
        known = {
            arm.id for job in [*self.queue, *self.held, *(run.job for run in others)] for arm in job.arms
        }
        for job in self._judge.forgive(place.node):
            if due := tuple(arm for arm in job.arms if arm.id not in known):
                self.queue.append(replace(job, arms=due))
                known |= {arm.id for arm in due}
        self._say(
            "node_avoided",
            f"Node {place.hostname} ({place.node[:8]}) is avoided from now on: "
            f"{self.sweep.runtime.avoid_node_after} trials in a row failed there. They are tried elsewhere.",
        )
        return True

    def beat(self) -> None:
        """Keep the leases of this run alive and hear whether it should stop; called often, works rarely."""
        now = time.monotonic()
        if now - self._looked > LOOK_S and not self.stopping:
            self._looked = now
            with self._reach.attempt():
                if sessions.is_asked_to_stop(self.store, self.owner):
                    self.progress.say("Somebody asked for it (xsa stop): trials checkpoint and end.")
                    self.stop()
        if now - self._renewed > LEASE_S / 4 or self._reach.lost:
            self._renewed = now
            with self._reach.attempt():
                renew(self.store, self.owner)
        self.settle()
        if self.room.is_due:
            for unfit in self.room.look():
                self._say("node_avoided", unfit)
            if counted := self.room.recount():
                self.progress.say(counted)
            with self._reach.attempt():
                self._look_again()

    def _look_again(self) -> None:
        """Take back what another run held and gave up."""
        self.queue += self.held.due(self.store)
        if not self.running and not self.queue and (silent := self.held.silent) != self._told_silent:
            self._told_silent = silent
            if silent:
                self.progress.say(
                    f"{silent} arms are held by a run of which nothing is heard: if it gives no sign of life, "
                    f"they are taken over when its lease ends, within {LEASE_S} s."
                )

    def abandon(self, error: BaseException | None) -> None:
        """Settle every trial that was under way when Tune itself ended, of which few are to blame."""
        self._reach.at_once()
        killed = killed_for_memory(error) if error is not None else set()
        to_blame = {tune_id for tune_id, run in self.running.items() if run.place and run.place.pid in killed}
        if not to_blame:  # one that had not said yet where it is, or all where nobody is named
            to_blame = {tune_id for tune_id, run in self.running.items() if not (killed and run.place)}
        for tune_id in list(self.running):
            innocent = TuneEnded("Ray Tune ended: another trial ran out of memory")
            self.on_end(tune_id, error if tune_id in to_blame else innocent)
