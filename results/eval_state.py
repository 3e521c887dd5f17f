"""Which downstream evaluations the store has of given arms, for those who decide what to evaluate."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from results.schema import arm, eval_result
from results.schema import sweep as sweep_table
from results.store import Store
from schemas.evals import EvalKey
from schemas.report import DamagedJournal, arm_folder, read_record
from schemas.trial import AXES, Arm


class Member(NamedTuple):
    """An arm of a sweep as it was last run."""

    id: str
    arm: Arm
    status: str
    storage: str
    """The storage in which the arm was trained: of the sweeps that share it, one may have done it for all."""


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
        rows = connection.execute(query).all()
        storages = _storages(connection, [row[0] for row in rows])
    return [
        Member(
            arm_id,
            Arm.model_construct(**dict(zip(AXES, values, strict=True))),
            status,
            _trained_in(arm_id, list(dict.fromkeys([own, *storages[arm_id]]))),
        )
        for arm_id, status, own, *values in rows
    ]


def _storages(connection: sa.Connection, arm_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return, for each of these arms, the storages of all sweeps that have it."""
    those = sa.table("v_sweep_arms", sa.column("arm_id"), sa.column("sweep_id"))
    found: defaultdict[str, list[str]] = defaultdict(list)
    for start in range(0, len(arm_ids), 500):  # databases bound the variables of one statement
        query = (
            sa.select(arm.c.fingerprint, sweep_table.c.storage)
            .join(those, those.c.arm_id == arm.c.id)
            .join(sweep_table, sweep_table.c.id == those.c.sweep_id)
            .where(arm.c.fingerprint.in_(arm_ids[start : start + 500]))
            .order_by(sweep_table.c.name)
        )
        for arm_id, storage in connection.execute(query):
            found[arm_id].append(storage)
    return found


def _trained_in(arm_id: str, storages: list[str]) -> str:
    """Return the first storage whose folder of the arm is that of a finished one, or else the first."""
    if len(storages) == 1:
        return storages[0]
    return next((s for s in storages if _is_finished(arm_folder(Path(s), arm_id))), storages[0])


def _is_finished(folder: Path) -> bool:
    try:
        record = read_record(folder)
    except DamagedJournal:
        return False  # if no other storage has the arm, its worker says what is wrong
    return record is not None and record.status == "done"


def evaluated(
    store: Store, arm_ids: Sequence[str], *, since_us: int = 0
) -> dict[str, dict[EvalKey, str | None]]:
    """Return, for each of these arms that has any, its evaluations: the error of each, None where it has scores.

    Those that ended before `since_us` (UTC, microseconds since 1970) are left out.
    """
    told = eval_result.c
    found: defaultdict[str, dict[EvalKey, str | None]] = defaultdict(dict)
    with store.read() as connection:
        for start in range(0, len(arm_ids), 500):  # databases bound the variables of one statement
            query = (
                sa.select(arm.c.fingerprint, told.error, told.task, told.n_shot, told.item_limit)
                .join(eval_result, told.arm_id == arm.c.id)
                .where(arm.c.fingerprint.in_(arm_ids[start : start + 500]), told.ended_at_us >= since_us)
            )
            for arm_id, error, *key in connection.execute(query):
                found[arm_id][EvalKey(*key)] = error
    return dict(found)
