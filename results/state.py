"""What the store says about given arms, for those who decide what to train."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from results.schema import FINISHED, arm
from results.store import Store


@dataclass(frozen=True)
class ArmState:
    """Where one arm stands."""

    status: str
    reason: str | None
    attempt: int
    step: int
    lease_owner: str | None
    lease_until_us: int | None
    wall_s: float | None

    @property
    def finished(self) -> bool:
        """Whether the arm has its result, be it a divergence."""
        return self.status in FINISHED


def arm_states(store: Store, arm_ids: Sequence[str]) -> dict[str, ArmState]:
    """Return the state of each of these arms that the store knows."""
    columns = [arm.c[name] for name in ArmState.__dataclass_fields__]
    states: dict[str, ArmState] = {}
    with store.read() as connection:
        for start in range(0, len(arm_ids), 500):  # databases bound the variables of one statement
            query = sa.select(arm.c.fingerprint, *columns).where(
                arm.c.fingerprint.in_(arm_ids[start : start + 500])
            )
            states |= {row[0]: ArmState(*row[1:]) for row in connection.execute(query)}
    return states


def measured_speed(store: Store) -> float | None:
    """Return how many tokens a second finished arms were trained on, one worker each, or None."""
    with store.read() as connection:
        total = sa.func.sum(arm.c.step * arm.c.tokens_per_step) / sa.func.sum(arm.c.wall_s)
        value = connection.scalar(sa.select(total).where(arm.c.status == "done", arm.c.wall_s > 0))
    return None if value is None else float(value)
