"""What is to be asked of which arms: the work of an evaluation, and what is missing of it."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.find import varied_of
from orchestrator.plan import label
from results.eval_state import evaluated, members
from results.store import Store
from schemas.errors import UserError
from schemas.evals import EvalKey
from schemas.report import arm_folder
from schemas.sweep import Evals, Runtime, Sweep


@dataclass(frozen=True)
class Job:
    """An arm, and what it is to be asked."""

    sweep: str
    arm_id: str
    name: str
    """What it is called among the sweep's arms."""
    status: str
    storage: Path
    runtime: Runtime
    evals: Evals
    since_us: int = 0
    """A result that ended before is not counted, and done again: UTC, microseconds since 1970."""

    @property
    def folder(self) -> Path:
        """The arm's folder."""
        return arm_folder(self.storage, self.arm_id)


def jobs_of(
    store: Store, sweep: Sweep, evals: Evals, only: Collection[str] | None = None, since_us: int = 0
) -> list[Job]:
    """Return a sweep's arms, or `only` these, each with all that is asked of it since then."""
    arms = members(store, sweep.name)
    names = varied_of([member.arm for member in arms])
    return [
        Job(
            sweep.name,
            member.id,
            label(member.arm, names),
            member.status,
            Path(member.storage),
            sweep.runtime,
            evals,
            since_us,
        )
        for member in arms
        if only is None or member.id in only
    ]


def missing(store: Store, jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs whose arms lack something, with just what they lack: what failed is lacking too."""
    jobs = list(jobs)
    arms = [job.arm_id for job in jobs]
    known = {since: evaluated(store, arms, since_us=since) for since in {job.since_us for job in jobs}}

    def lacks(job: Job, key: EvalKey) -> bool:
        has = known[job.since_us].get(job.arm_id, {})
        return key not in has or has[key] is not None

    return only_those(jobs, lacks)


def only_those(jobs: Iterable[Job], is_wanted: Callable[[Job, EvalKey], bool]) -> list[Job]:
    """Return the jobs with those of their evaluations that are wanted, without the jobs that have none."""
    left = [(job, [key.task for key in job.evals.wanted() if is_wanted(job, key)]) for job in jobs]
    return [replace(job, evals=job.evals.model_copy(update={"tasks": tasks})) for job, tasks in left if tasks]


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs without what an earlier one asks of the same arm, which sweeps may share."""
    seen: set[tuple[str, EvalKey]] = set()

    def is_new(job: Job, key: EvalKey) -> bool:
        known = (job.arm_id, key) in seen
        seen.add((job.arm_id, key))
        return not known

    return only_those(jobs, is_new)


def evals_of(sweep: Sweep) -> Evals:
    """Return what a sweep asks of its arms. Raises `UserError` where it asks nothing."""
    if sweep.evals is None:
        raise UserError(
            f"{sweep.name} asks for no evaluations (its file has no `evals:`); name tasks, such as --tasks paper8."
        )
    return sweep.evals
