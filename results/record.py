"""Every write to the store. Each function is one transaction, and repeating it changes nothing."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from results import schema
from results.schema import FINISHED
from results.store import Store, as_kind
from schemas.report import ArmRecord, EvalRow, LayerRow, Report, StepRow, read_record, read_rows
from schemas.sweep import Sweep
from schemas.trial import Arm, Trial

LEASE_S = 90
"""A running arm whose lease was not renewed for this long may be taken over."""


@dataclass(frozen=True)
class Provenance:
    """Which code trains, as the driver sees it."""

    git_sha: str | None
    dirty: bool | None
    packages: dict[str, str]


def now_us() -> int:
    """Return the time in UTC microseconds since 1970."""
    return time.time_ns() // 1000


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def _insert_new(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(_insert(connection, table).on_conflict_do_nothing(), rows)


def _upsert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows; on conflict the row of the higher attempt stays."""
    if not rows:
        return
    insert = _insert(connection, table)
    keys = [column.name for column in table.primary_key]
    changed = {
        column.name: insert.excluded[column.name] for column in table.columns if column.name not in keys
    }
    fenced = insert.excluded.attempt >= table.c.attempt
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=changed, where=fenced), rows)


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
        insert = _insert(connection, schema.sweep)
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
        _insert_new(connection, schema.arm, [_arm_row(arm) for arm in arms.values()])
        arm_ids = _ids(connection, schema.arm, list(arms))
        rows = [
            {
                "fingerprint": trial.id,
                "sa_arm_id": arm_ids[trial.sa.id],
                "xsa_arm_id": arm_ids[trial.xsa.id],
                "created_at_us": now,
            }
            for trial in trials
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


def claim(
    store: Store, arm_id: str, owner: str, provenance: Provenance, *, dead_owners: Sequence[str] = ()
) -> int | None:
    """Take an arm for `owner` and return the number of the new attempt, or None if it is taken or finished."""
    arm, attempt, now = schema.arm, schema.attempt, now_us()
    free = sa.or_(
        arm.c.lease_owner.is_(None), arm.c.lease_until_us < now, arm.c.lease_owner.in_([owner, *dead_owners])
    )
    with store.write() as connection:
        taken = connection.execute(
            arm.update()
            .where(arm.c.fingerprint == arm_id, arm.c.status.not_in(FINISHED), free)
            .values(
                status="running",
                reason=None,
                attempt=arm.c.attempt + 1,
                lease_owner=owner,
                lease_until_us=now + LEASE_S * 1_000_000,
            )
        )
        if taken.rowcount != 1:
            return None
        row = connection.execute(sa.select(arm.c.id, arm.c.attempt).where(arm.c.fingerprint == arm_id)).one()
        connection.execute(
            attempt.update()
            .where(attempt.c.arm_id == row.id, attempt.c.ended_at_us.is_(None))
            .values(
                status="interrupted",
                cause="interrupted",
                error="its run ended without a word",
                ended_at_us=now,
            )
        )
        values = {
            "arm_id": row.id,
            "no": row.attempt,
            "status": "running",
            "owner": owner,
            "git_sha": provenance.git_sha,
            "dirty": provenance.dirty,
            "started_at_us": now,
        }
        connection.execute(attempt.insert().values(**values))
        return int(row.attempt)


def renew(store: Store, owner: str) -> None:
    """Extend the lease of every arm that `owner` holds."""
    with store.write() as connection:
        connection.execute(
            schema.arm.update()
            .where(schema.arm.c.lease_owner == owner)
            .values(lease_until_us=now_us() + LEASE_S * 1_000_000)
        )


def record(store: Store, report: Report, *, packages: dict[str, str] | None = None) -> bool:
    """Write a worker's report. Returns False, and writes nothing, if a newer attempt has the arm."""
    told = report.record
    with store.write() as connection:
        arm = schema.arm
        row = connection.execute(
            sa.select(arm.c.id, arm.c.attempt, arm.c.status).where(arm.c.fingerprint == told.arm_id)
        ).one_or_none()
        if row is None:
            connection.execute(arm.insert().values(**_arm_row(Arm(**told.arm))))
            return _record(connection, report, _ids(connection, arm, [told.arm_id])[told.arm_id], packages)
        if told.attempt < row.attempt:
            return False
        if row.status in FINISHED and told.status not in FINISHED:
            return False
        return _record(connection, report, row.id, packages)


def _record(connection: sa.Connection, report: Report, arm_id: int, packages: dict[str, str] | None) -> bool:
    told = report.record
    key = {"arm_id": arm_id, "attempt": told.attempt}
    # An attempt goes on from its last checkpoint: what earlier ones did beyond that never happened.
    first = min((row.step for row in report.rows), default=told.step + 1)
    for table in (schema.arm_step, schema.arm_eval, schema.layer_metric):
        superseded = sa.and_(table.c.arm_id == arm_id, table.c.attempt < told.attempt, table.c.step >= first)
        connection.execute(table.delete().where(superseded))
    steps, evals, layers = [], [], []
    metric_ids = {
        row.name: row.id for row in connection.execute(sa.select(schema.metric.c.name, schema.metric.c.id))
    }
    for row in report.rows:
        if isinstance(row, StepRow):
            steps.append(key | _with_kinds(row, "train_loss", "grad_norm"))
        elif isinstance(row, EvalRow):
            evals.append(key | _with_kinds(row, "loss"))
        else:
            values = _with_kinds(row, "value")
            layers.append(key | {"metric_id": metric_ids[values.pop("metric")]} | values)
    _upsert(connection, schema.arm_step, steps)
    _upsert(connection, schema.arm_eval, evals)
    _upsert(connection, schema.layer_metric, layers)
    values = {
        "status": told.status,
        "attempt": told.attempt,
        "step": told.step,
        "n_params": told.n_params,
        "init_sha256": told.init_sha256,
        "batch_sha256": told.batch_sha256,
        "data_sha256": told.data_sha256,
        "wall_s": told.wall_s,
    }
    if told.status != "running":
        values |= {"lease_owner": None, "lease_until_us": None}
    if told.status in FINISHED:
        values |= {"finished_at_us": now_us(), "reason": None}
    connection.execute(schema.arm.update().where(schema.arm.c.id == arm_id).values(**values))
    _record_attempt(connection, told, arm_id, packages or {})
    return True


def _with_kinds(row: StepRow | EvalRow | LayerRow, *floats: str) -> dict[str, Any]:
    values = dict(vars(row))
    for name in floats:
        values[name], values[f"{name}_kind"] = as_kind(values[name])
    return values


def _record_attempt(
    connection: sa.Connection, told: ArmRecord, arm_id: int, packages: dict[str, str]
) -> None:
    attempt, seen = schema.attempt, told.environment
    fixed = {key: value for key, value in seen.items() if key not in ("pid", "peak_rss_bytes")}
    document = json.dumps(fixed | {"packages": packages}, sort_keys=True)
    fingerprint = hashlib.sha256(document.encode()).hexdigest()
    _insert_new(connection, schema.environment, [{"fingerprint": fingerprint, "document": document}])
    values = {
        "status": told.status,
        "hostname": seen.get("hostname"),
        "device": seen.get("device"),
        "threads": seen.get("threads"),
        "peak_rss_bytes": seen.get("peak_rss_bytes"),
        "environment_id": _ids(connection, schema.environment, [fingerprint])[fingerprint],
    }
    if told.status != "running":
        values |= {
            "ended_at_us": now_us(),
            "cause": "interrupted" if told.status == "interrupted" else None,
            "error": None,
        }
    this = sa.and_(attempt.c.arm_id == arm_id, attempt.c.no == told.attempt)
    updated = connection.execute(
        attempt.update().where(this, attempt.c.ended_at_us.is_(None)).values(**values)
    )
    if updated.rowcount == 0:
        row = {"arm_id": arm_id, "no": told.attempt, "owner": "ingested", "started_at_us": now_us()} | values
        _insert_new(connection, attempt, [row])


def end_attempt(
    store: Store, arm_id: str, number: int, *, cause: str, error: str, traceback: str | None = None
) -> None:
    """Close an attempt that did not finish: `interrupted` arms are wanted again, `failed` ones need a retry."""
    status = "interrupted" if cause in ("interrupted", "cancelled", "node_lost", "preempted") else "failed"
    with store.write() as connection:
        arm, attempt = schema.arm, schema.attempt
        connection.execute(
            arm.update()
            .where(arm.c.fingerprint == arm_id, arm.c.attempt == number, arm.c.status.not_in(FINISHED))
            .values(status=status, reason=error, lease_owner=None, lease_until_us=None)
        )
        key = sa.select(arm.c.id).where(arm.c.fingerprint == arm_id).scalar_subquery()
        connection.execute(
            attempt.update()
            .where(attempt.c.arm_id == key, attempt.c.no == number, attempt.c.ended_at_us.is_(None))
            .values(status=status, cause=cause, error=error, traceback=traceback, ended_at_us=now_us())
        )


def ingest(store: Store, folder: Path) -> bool:
    """Bring the store up to the journal of the arm in `folder`; False if there is none or it is fenced."""
    told = read_record(folder)
    if told is None:
        return False
    return record(store, Report(told, read_rows(folder)))


def log_event(store: Store, kind: str, message: str, *, level: str = "info") -> None:
    """Write down something that happened, for those who ask later."""
    with store.write() as connection:
        connection.execute(
            schema.event.insert().values(time_us=now_us(), level=level, kind=kind, message=message)
        )
