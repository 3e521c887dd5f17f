"""What the store says about given arms, for those who decide what to train."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from results.schema import FINISHED, arm
from results.schema import sweep as sweep_table
from results.store import Store
from schemas.trial import AXES, Arm


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


def wanted_arms(store: Store, sweep: str) -> list[Arm]:
    """Return the arms of a sweep as it was last run; none if it never was."""
    members = sa.table("v_sweep_arms", sa.column("arm_id"), sa.column("sweep_id"))
    query = (
        sa.select(*(arm.c[name] for name in AXES))
        .join(members, members.c.arm_id == arm.c.id)
        .join(sweep_table, sweep_table.c.id == members.c.sweep_id)
        .where(sweep_table.c.name == sweep)
    )
    with store.read() as connection:
        return [Arm.model_construct(**row._mapping) for row in connection.execute(query)]
