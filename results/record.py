"""Every write to the store. Each function is one transaction, and repeating it changes nothing."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.dialects import postgresql, sqlite

from results import schema
from results.record_evals import record_evals
from results.rows import record_rows
from results.schema import FINISHED
from results.store import Store, as_text
from schemas.evals import read_results
from schemas.report import (
    ArmRecord,
    DamagedJournal,
    Report,
    Weights,
    read_finished,
    read_record,
    read_rows,
)
from schemas.sweep import Sweep
from schemas.trial import AXES, Arm, Trial

_OF_ONE_ATTEMPT = (
    *("micro_batch", "execution", "compile_error", "activation_checkpointing"),
    *("flops_per_s", "peak_flops_per_s", "peak_source", "peak_rss_bytes", "peak_gpu_bytes"),
)
"""What a worker tells of its environment that is the attempt's own. Earlier versions do not tell all of it."""
_OF_NO_ENVIRONMENT = ("pid", *_OF_ONE_ATTEMPT)
"""What a worker tells of its environment that does not describe the machine or the software."""


def now_us() -> int:
    """Return the time in UTC microseconds since 1970."""
    return time.time_ns() // 1000


def insert_into(connection: sa.Connection, table: sa.Table) -> Any:
    """Return an INSERT that may say what happens on conflict, which each database has an own class for."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def _insert_new(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert_into(connection, table).on_conflict_do_nothing(), rows)


def _arm_row(arm: Arm) -> dict[str, Any]:
    return arm.model_dump() | {
        "fingerprint": arm.id,
        "name": arm.name,
        "status": "pending",
        "attempt": 0,
        "step": 0,
        "created_at_us": now_us(),
    }


def save_sweep(store: Store, sweep: Sweep, trials: Sequence[Trial], storage: Path) -> None:
    """Make the store want exactly these trials of this sweep; results of others stay."""
    now = now_us()
    with store.write() as connection:
        insert = insert_into(connection, schema.sweep)
        values = {
            "description": sweep.description,
            "source": sweep.source,
            "storage": str(storage),
            "updated_at_us": now,
        }
        connection.execute(
            insert.values(name=sweep.name, created_at_us=now, **values).on_conflict_do_update(
                index_elements=["name"], set_=values
            )
        )
        sweep_id = connection.scalar(sa.select(schema.sweep.c.id).where(schema.sweep.c.name == sweep.name))
        arms = {arm.id: arm for trial in trials for arm in trial.arms}
        # In one order, or two sweeps that share arms could each wait for the other's.
        _insert_new(connection, schema.arm, [_arm_row(arms[arm_id]) for arm_id in sorted(arms)])
        arm_ids = _ids(connection, schema.arm, list(arms))
        rows = [
            {
                "fingerprint": trial.id,
                "sa_arm_id": arm_ids[trial.sa.id],
                "xsa_arm_id": arm_ids[trial.xsa.id],
                "created_at_us": now,
            }
            for trial in sorted(trials, key=lambda trial: trial.id)
        ]
        _insert_new(connection, schema.trial, rows)
        trial_ids = _ids(connection, schema.trial, [trial.id for trial in trials])
        members = schema.sweep_trial
        connection.execute(members.delete().where(members.c.sweep_id == sweep_id))
        connection.execute(
            members.insert(),
            [{"sweep_id": sweep_id, "trial_id": trial_ids[t.id], "ordinal": i} for i, t in enumerate(trials)],
        )


def _ids(connection: sa.Connection, table: sa.Table, fingerprints: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(fingerprints), 500):  # databases bound the variables of one statement
        part = fingerprints[start : start + 500]
        query = sa.select(table.c.fingerprint, table.c.id).where(table.c.fingerprint.in_(part))
        found |= {row.fingerprint: row.id for row in connection.execute(query)}
    return found


def record(store: Store, report: Report, *, packages: dict[str, str] | None = None) -> bool:
    """Write a worker's report. Returns False, and writes nothing, if a newer attempt has the arm."""
    told = report.record
    with store.write() as connection:
        arm, settings = schema.arm, _arm_of(told)
        query = (
            sa.select(arm.c.id, arm.c.attempt, arm.c.status)
            .where(arm.c.fingerprint == told.arm_id)
            .with_for_update()  # a claim between this and the update would be undone
        )
        row = connection.execute(query).first()
        if row is None:
            _insert_new(connection, arm, [_arm_row(settings)])
            row = connection.execute(query).one()
        if told.attempt < row.attempt or (row.status in FINISHED and told.status not in FINISHED):
            return False
        status = told.status
        if status not in FINISHED and not (row.status == "running" and row.attempt == told.attempt):
            # No claim of this store stands behind it: it is read from a journal whose worker has ended.
            status = "interrupted" if told.attempt > row.attempt else row.status
        record_rows(connection, report, row.id)
        _record_state(connection, told, row.id, status)
        _record_attempt(connection, told, row.id, status, packages)
        if told.weights:
            _record_weights(connection, told.weights, row.id)
        return True


def _arm_of(told: ArmRecord) -> Arm:
    """Return the arm that a record tells of, where this program would train it to the same numbers."""
    before = {name: axis.history["before"] for name, axis in AXES.items() if "before" in axis.history}
    try:
        arm = Arm(**before | told.arm)
    except ValidationError as error:
        raise DamagedJournal(
            f"Arm {told.arm_id[:12]} has settings that are none: {error.errors()[0]['msg']}."
        ) from None
    if arm.id != told.arm_id:
        raise DamagedJournal(
            f"Arm {told.arm_id[:12]} was trained by a version of xsa to which its settings meant something else "
            f"(here they are arm {arm.id[:12]}); its results cannot be mixed with new ones."
        )
    return arm


def _record_state(connection: sa.Connection, told: ArmRecord, arm_id: int, status: str) -> None:
    update = schema.arm.update().where(schema.arm.c.id == arm_id)
    values: dict[str, Any] = {
        "status": status,
        "attempt": told.attempt,
        "step": told.step,
        "n_params": told.n_params,
        "init_sha256": told.init_sha256,
        "batch_sha256": told.batch_sha256,
        "data_sha256": told.data_sha256,
        "wall_s": told.wall_s,
    }
    if status != "running":
        values |= {"lease_owner": None, "lease_until_us": None}
    if status in FINISHED:
        values |= {"reason": None}
        finished = sa.func.coalesce(schema.arm.c.finished_at_us, now_us())
        update = update.values(finished_at_us=finished)
    connection.execute(update, values)


def environment_id(connection: sa.Connection, seen: Mapping[str, Any], packages: Mapping[str, str]) -> int:
    """Return the row in `environment` of what a worker tells of its machine and software, made if need be."""
    fixed = {key: value for key, value in seen.items() if key not in _OF_NO_ENVIRONMENT}
    document = json.dumps(fixed | {"packages": packages}, sort_keys=True)
    fingerprint = hashlib.sha256(document.encode()).hexdigest()
    found = _ids(connection, schema.environment, [fingerprint])
    if not found:
        _insert_new(connection, schema.environment, [{"fingerprint": fingerprint, "document": document}])
        found = _ids(connection, schema.environment, [fingerprint])
    return found[fingerprint]


def _record_weights(connection: sa.Connection, weights: Weights, arm_id: int) -> None:
    values = {
        "step": weights.step,
        "path": weights.path,
        "bytes": weights.bytes,
        "manifest_sha256": weights.manifest_sha256,
        "saved_at_us": weights.time_us,
    }
    insert = insert_into(connection, schema.checkpoint).values(arm_id=arm_id, **values)
    connection.execute(insert.on_conflict_do_update(index_elements=["arm_id"], set_=values))


def _record_attempt(
    connection: sa.Connection, told: ArmRecord, arm_id: int, status: str, packages: dict[str, str] | None
) -> None:
    attempt, seen = schema.attempt, told.environment
    new = environment_id(connection, seen, packages or {})
    names = ("hostname", "device", "threads", *_OF_ONE_ATTEMPT)
    values = {"status": status} | {name: seen.get(name) for name in names}
    if values["compile_error"] is not None:
        values["compile_error"] = as_text(values["compile_error"])
    known = (
        attempt.c.environment_id if packages is None else None
    )  # a journal does not know the driver's packages
    if status != "running":
        cause = "interrupted" if status == "interrupted" else None
        values |= {"ended_at_us": now_us(), "cause": cause, "error": None}
    this = sa.and_(attempt.c.arm_id == arm_id, attempt.c.no == told.attempt)
    updated = connection.execute(
        attempt.update()
        .where(this, attempt.c.ended_at_us.is_(None))
        .values(environment_id=sa.func.coalesce(known, new)),
        values,
    )
    if updated.rowcount == 0:
        row = {"arm_id": arm_id, "no": told.attempt, "owner": "ingested", "started_at_us": now_us()}
        _insert_new(connection, attempt, [row | values | {"environment_id": new}])


def ingest(store: Store, folder: Path) -> bool:
    """Bring the store up to the journals of the arm in `folder`; False if there is none or it is fenced.

    Raises `DamagedJournal` if the folder cannot be read.
    """
    told = read_record(folder)
    if told is None:
        return False
    rows = read_finished(folder, told) if told.status in FINISHED else read_rows(folder)
    evals = read_results(folder)
    taken = record(store, Report(told, rows))
    if taken:
        record_evals(store, told.arm_id, evals)
    return taken
