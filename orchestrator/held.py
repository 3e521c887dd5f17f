"""Arms that a run wants and another one has claimed."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from orchestrator.owner import is_alive
from orchestrator.plan import Job, is_held
from results.claims import LEASE_S
from results.state import ArmState, arm_states
from results.store import Store


@dataclass
class _Holder:
    """Who held an arm when it was last looked at."""

    owner: str | None
    lease_until_us: int | None
    heard: float | None = None
    """When its lease was last seen to grow, by this process's clock."""

    @property
    def is_silent(self) -> bool:
        """Whether it may have died: it runs elsewhere, and did not renew its lease twice over."""
        if self.owner is not None and is_alive(self.owner):
            return False
        return self.heard is None or time.monotonic() - self.heard > LEASE_S / 2


class Held:
    """Jobs whose arms another run holds.

    They come back when that run gives them up, or falls silent until its lease ends: the driver of a run that is
    begun again on another machine, or in another container, cannot know what became of its predecessor.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._holders: dict[str, _Holder] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    @property
    def silent(self) -> int:
        """How many arms are held by a run that has given no sign of life, and so may yet be due."""
        return sum(holder.is_silent for holder in self._holders.values())

    def add(self, job: Job, states: Mapping[str, ArmState]) -> None:
        """Keep a job of which every arm is held."""
        self._jobs.append(job)
        for arm in job.arms:
            self._holders[arm.id] = _Holder(states[arm.id].lease_owner, states[arm.id].lease_until_us)

    def due(self, store: Store) -> list[Job]:
        """Look again, and return what nobody holds any more. What failed there meanwhile is not due again."""
        if not self._jobs:
            return []
        states = arm_states(store, list(self._holders))
        due, kept = [], []
        for job in self._jobs:
            held = [arm for arm in job.arms if is_held(states[arm.id])]
            free = [arm for arm in job.arms if arm not in held and not _is_settled(states[arm.id])]
            due += [replace(job, arms=tuple(free))] if free else []
            kept += [replace(job, arms=tuple(held))] if held else []
        self._jobs = kept
        self._holders = {arm.id: self._heard(arm.id, states[arm.id]) for job in kept for arm in job.arms}
        return due

    def _heard(self, arm_id: str, state: ArmState) -> _Holder:
        before = self._holders[arm_id]
        renewed = state.lease_until_us != before.lease_until_us
        heard = time.monotonic() if renewed else before.heard
        return _Holder(state.lease_owner, state.lease_until_us, heard)


def _is_settled(state: ArmState) -> bool:
    return state.finished or state.status == "failed"
