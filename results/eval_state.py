"""Which downstream evaluations the store has of given arms, for those who decide what to evaluate."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from results.schema import arm, eval_result
from results.schema import sweep as sweep_table
from results.store import Store
from schemas.evals import EvalKey
from schemas.trial import AXES, Arm


class Member(NamedTuple):
    """An arm of a sweep as it was last run."""

    id: str
    arm: Arm
    status: str
    storage: str
    """The sweep's storage, in which the arm's folder is."""


def members(store: Store, sweep: str) -> list[Member]:
    """Return the arms of a sweep, the baselines first; none if it never was run."""
    those = sa.table("v_sweep_arms", sa.column("arm_id"), sa.column("sweep_id"))
    query = (
        sa.select(arm.c.fingerprint, arm.c.status, sweep_table.c.storage, *(arm.c[name] for name in AXES))
        .join(those, those.c.arm_id == arm.c.id)
        .join(sweep_table, sweep_table.c.id == those.c.sweep_id)
        .where(sweep_table.c.name == sweep)
        .order_by(arm.c.name, arm.c.id)
    )
    with store.read() as connection:
        return [
            Member(row[0], Arm.model_construct(**dict(zip(AXES, row[3:], strict=True))), row[1], row[2])
            for row in connection.execute(query)
        ]


def evaluated(store: Store, arm_ids: Sequence[str]) -> dict[str, dict[EvalKey, str | None]]:
    """Return, for each of these arms that has any, its evaluations: the error of each, None where it has scores."""
    told = eval_result.c
    found: defaultdict[str, dict[EvalKey, str | None]] = defaultdict(dict)
    with store.read() as connection:
        for start in range(0, len(arm_ids), 500):  # databases bound the variables of one statement
            query = (
                sa.select(arm.c.fingerprint, told.error, told.task, told.n_shot, told.item_limit)
                .join(eval_result, told.arm_id == arm.c.id)
                .where(arm.c.fingerprint.in_(arm_ids[start : start + 500]))
            )
            for arm_id, error, *key in connection.execute(query):
                found[arm_id][EvalKey(*key)] = error
    return dict(found)
