"""What a sweep still needs: its trials, the arms each of them trains, and what that costs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from results.state import ArmState
from schemas.sweep import Sweep
from schemas.trial import Arm, Trial


@dataclass(frozen=True)
class Job:
    """What one Ray trial does: the arms of one pair that nobody has trained yet."""

    trial_id: str
    arms: tuple[Arm, ...]


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
        """Return where an arm stands: a status of the store, or `new`."""
        state = self.states.get(arm_id)
        return state.status if state and state.attempt else "new"

    def counts(self) -> Counter[str]:
        """Return how many arms have each status."""
        return Counter(map(self.status, self.arms))

    def unfinished(self) -> list[Arm]:
        """Return the arms without a result."""
        return [
            arm for arm in self.arms.values() if not (arm.id in self.states and self.states[arm.id].finished)
        ]

    def jobs(self) -> list[Job]:
        """Return the work: each unfinished arm goes to the first trial that needs it."""
        wanted = {arm.id for arm in self.unfinished()}
        jobs = []
        for trial in self.trials:
            if own := tuple(arm for arm in trial.arms if arm.id in wanted):
                wanted -= {arm.id for arm in own}
                jobs.append(Job(trial.id, own))
        return jobs


@dataclass(frozen=True)
class Cost:
    """What the unfinished arms of a plan need."""

    tokens: int
    flops: float
    parameters: tuple[int, int]
    """Of the smallest and of the largest model."""


def cost(plan: Plan) -> Cost:
    """Return what is left to spend: tokens, and training FLOPs by the 6N + attention rule."""
    from trainer.cost import count_parameters, flops_per_token

    sizes = [count_parameters(arm) for arm in plan.arms.values()]
    left = plan.unfinished()
    return Cost(
        tokens=sum(arm.tokens for arm in left),
        flops=sum(flops_per_token(arm) * arm.tokens for arm in left),
        parameters=(min(sizes), max(sizes)),
    )


def label(arm: Arm, varied: list[str]) -> str:
    """Return the shortest name of an arm within its sweep: `xsa λ=0.5 seed=1`."""
    from schemas.trial import AXES

    shown = [name for name in varied if not (name == "xsa_lambda" and arm.name == "sa")]
    values = (
        f"{AXES[name].label if name == 'xsa_lambda' else name}={AXES[name].format(getattr(arm, name))}"
        for name in shown
    )
    return " ".join([arm.name, *values])
