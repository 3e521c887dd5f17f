"""What a sweep still needs: its trials, the arms each of them trains, and what that costs."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.owner import is_dead
from results.record import now_us
from results.state import ArmState
from schemas.sweep import Sweep
from schemas.trial import AXES, Arm, Trial
from trainer.cost import checkpoint_bytes, count_parameters, flops_per_token
from trainer.memory import trial_bytes

_ANY_GPU = 2**60
"""Bytes of a GPU on which nothing has to be cut."""


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
    lighter: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `Runtime` under which it takes less of a GPU's memory, where it ran out of that."""
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

    def to_train(self) -> list[Arm]:
        """Return the arms without a result that no other run holds."""
        return [arm for arm in self.unfinished() if self.status(arm.id) != "running"]

    def steps_left(self, arm: Arm) -> int:
        """Return how many steps an arm still takes, if it goes on where it was last heard of."""
        state = self.states.get(arm.id)
        return arm.steps - (state.step if state else 0)

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
    """What is left of a plan needs. All of it is estimated from the arms' numbers."""

    tokens: int
    flops: float
    parameters: tuple[int, int]
    """Of the smallest and of the largest model."""
    memory: tuple[int, int]
    """Bytes that the largest trial takes of its device: of a GPU where a step is cut as far as it can be, and where
    it is in one piece; of a CPU, where `runtime` decides how it is cut, twice the same."""
    weights: int
    """Bytes on the disk that final weights take for good."""
    checkpoints: int
    """Bytes on the disk that checkpoints take meanwhile, of the largest `workers` arms."""


def cost(plan: Plan, workers: int = 1) -> Cost:
    """Return what is left to spend, by the 6N + attention rule for training FLOPs.

    What another run is training counts for the disk alone, and what is partly trained from where it is.
    """
    left = plan.to_train()
    runtime = plan.sweep.runtime
    sizes = [count_parameters(arm) for arm in plan.arms.values()]
    tokens = [plan.steps_left(arm) * arm.tokens_per_step for arm in left]
    checkpoints = sorted(map(checkpoint_bytes, plan.unfinished()), reverse=True)
    rooms = (0, _ANY_GPU) if runtime.gpus_per_trial else (None,)
    memory = [max((trial_bytes(arm, runtime, room) for arm in left), default=0) for room in rooms]
    return Cost(
        tokens=sum(tokens),
        flops=sum(flops_per_token(arm) * n for arm, n in zip(left, tokens, strict=True)),
        parameters=(min(sizes), max(sizes)),
        memory=(memory[0], memory[-1]),
        weights=sum(checkpoints) // 3,
        checkpoints=(runtime.keep_checkpoints + 1) * sum(checkpoints[:workers]),
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
    # Fields in which none differ are left out first: tens of thousands of arms may be compared.
    fields = [name for name in AXES if len({getattr(arm, name) for arm in (*gone, *new)}) > 1]
    gone_rows, new_rows = (
        [tuple(getattr(arm, name) for name in fields) for arm in arms] for arms in (gone, new)
    )
    for i, name in enumerate(fields):
        known = {row[:i] + row[i + 1 :]: row[i] for row in gone_rows}
        for row in new_rows:
            rest = row[:i] + row[i + 1 :]
            if rest in known:
                edits[name, known[rest], row[i]] += 1
    return Changes(len(new), len(gone), dict(edits))


def label(arm: Arm, varied: list[str]) -> str:
    """Return the shortest name of an arm within its sweep: `xsa λ=0.5 seed=1`."""
    shown = [name for name in varied if not (name == "xsa_lambda" and arm.name == "sa")]
    values = (
        f"{AXES[name].label if name == 'xsa_lambda' else name}={AXES[name].format(getattr(arm, name))}"
        for name in shown
    )
    return " ".join([arm.name, *values])
