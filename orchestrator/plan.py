"""What a sweep still needs: its trials, the arms each of them trains, and what that costs."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.owner import is_dead
from results.record import now_us
from results.state import ArmState
from schemas.sweep import Sweep
from schemas.trial import AXES, Arm, Trial
from trainer.cost import checkpoint_bytes, count_parameters, flops_per_token
from trainer.memory import trial_bytes


def is_held(state: ArmState) -> bool:
    """Whether a run that may be alive holds the arm."""
    if state.lease_owner is None or is_dead(state.lease_owner):
        return False
    return state.lease_until_us is not None and state.lease_until_us > now_us()


@dataclass(frozen=True)
class Job:
    """What one Ray trial does: the arms of one pair that nobody has trained yet."""

    trial_id: str
    arms: tuple[Arm, ...]
    micro_batch: int | None = None
    """Sequences at a time, where a larger number has run out of memory."""
    alone: bool = False
    """Whether it gets a node of its own, because beside others it ran out of memory."""


@dataclass(frozen=True)
class Plan:
    """A sweep against what the store has of it."""

    sweep: Sweep
    trials: tuple[Trial, ...]
    arms: Mapping[str, Arm]
    """The distinct arms of all trials by identity: a baseline that trials share is one arm."""
    states: Mapping[str, ArmState]
    """What the store knows of these arms."""

    @classmethod
    def make(cls, sweep: Sweep, states: Mapping[str, ArmState]) -> "Plan":
        """Plan the sweep, given the states of those of its arms that the store knows."""
        trials = tuple(sweep.trials())
        return cls(sweep, trials, {arm.id: arm for trial in trials for arm in trial.arms}, states)

    def status(self, arm_id: str) -> str:
        """Return where an arm stands: a status of the store, or `new`.

        What the store calls `running` is `interrupted` here once its run is known to be gone.
        """
        state = self.states.get(arm_id)
        if state is None or not state.attempt:
            return "new"
        return "interrupted" if state.status == "running" and not is_held(state) else state.status

    def counts(self) -> Counter[str]:
        """Return how many arms have each status."""
        return Counter(map(self.status, self.arms))

    def unfinished(self) -> list[Arm]:
        """Return the arms without a result."""
        return [
            arm for arm in self.arms.values() if not (arm.id in self.states and self.states[arm.id].finished)
        ]

    def jobs(self, only: Collection[str] | None = None) -> list[Job]:
        """Return the work: each unfinished arm, or each of `only` these, goes to the first trial that needs it."""
        wanted = {arm.id for arm in self.unfinished() if only is None or arm.id in only}
        jobs = []
        for trial in self.trials:
            if own := tuple(arm for arm in trial.arms if arm.id in wanted):
                wanted -= {arm.id for arm in own}
                jobs.append(Job(trial.id, own))
        return jobs


@dataclass(frozen=True)
class Cost:
    """What the unfinished arms of a plan need. All of it is estimated from their numbers."""

    tokens: int
    flops: float
    parameters: tuple[int, int]
    """Of the smallest and of the largest model."""
    memory: int
    """Bytes that the largest trial takes, on a CPU."""
    disk: int
    """Bytes that final weights take for good, and checkpoints of `workers` arms meanwhile."""


def cost(plan: Plan, workers: int = 1) -> Cost:
    """Return what is left to spend, by the 6N + attention rule for training FLOPs."""
    left = plan.unfinished()
    runtime = plan.sweep.runtime
    sizes = [count_parameters(arm) for arm in plan.arms.values()]
    checkpoints = sorted(map(checkpoint_bytes, left), reverse=True)
    return Cost(
        tokens=sum(arm.tokens for arm in left),
        flops=sum(flops_per_token(arm) * arm.tokens for arm in left),
        parameters=(min(sizes), max(sizes)),
        memory=max((trial_bytes(arm, runtime) for arm in left), default=0),
        disk=sum(checkpoints) // 3 + (runtime.keep_checkpoints + 1) * sum(checkpoints[:workers]),
    )


@dataclass(frozen=True)
class Changes:
    """What a sweep file asks for beyond what was asked for when it was last run."""

    more: int
    """Arms that are new."""
    fewer: int
    """Arms that are no longer wanted; their results stay."""
    edits: dict[tuple[str, Any, Any], int]
    """How many of the new arms differ from one of the old in just one field: (field, old, new)."""


def changes(plan: Plan, before: Sequence[Arm]) -> Changes:
    """Compare a plan with the arms that the sweep wanted before."""
    old = {arm.id: arm for arm in before}
    gone = [arm for arm_id, arm in old.items() if arm_id not in plan.arms]
    new = [arm for arm_id, arm in plan.arms.items() if arm_id not in old]
    edits: Counter[tuple[str, Any, Any]] = Counter()
    for field in AXES:
        rest = [name for name in AXES if name != field]
        known = {tuple(getattr(arm, name) for name in rest): getattr(arm, field) for arm in gone}
        for arm in new:
            key = tuple(getattr(arm, name) for name in rest)
            if key in known:
                edits[field, known[key], getattr(arm, field)] += 1
    return Changes(len(new), len(gone), dict(edits))


def label(arm: Arm, varied: list[str]) -> str:
    """Return the shortest name of an arm within its sweep: `xsa λ=0.5 seed=1`."""
    shown = [name for name in varied if not (name == "xsa_lambda" and arm.name == "sa")]
    values = (
        f"{AXES[name].label if name == 'xsa_lambda' else name}={AXES[name].format(getattr(arm, name))}"
        for name in shown
    )
    return " ".join([arm.name, *values])
