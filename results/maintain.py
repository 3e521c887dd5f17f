"""Looking after a store: what is in it, whether it is sound, and moving it elsewhere."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from results import schema
from results.explain import explain
from results.location import StoreError
from results.query import snapshot
from results.record import now_us
from results.schema import FINISHED
from results.store import BUSY_TIMEOUT_S, Store
from schemas.evals import read_results
from schemas.report import ArmRecord, DamagedJournal, arm_folder, read_record

BATCH = 10_000
"""Rows that a copy holds in memory."""
TABLES = [
    table for table in schema.metadata.sorted_tables if table.name not in ("alembic_version", "schema_meta")
]
"""The tables that hold data, those that others refer to first."""


def size_bytes(store: Store) -> int:
    """Return how much room the store takes, in bytes: a file with what SQLite keeps beside it."""
    if store.path:
        files = [store.path, *(Path(f"{store.path}{end}") for end in ("-wal", "-shm"))]
        return sum(file.stat().st_size for file in files if file.exists())
    with store.read() as connection:
        return int(connection.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0)


def info(store: Store) -> dict[str, Any]:
    """Return where a store is, what it is, and how much it holds; times in UTC, as ISO texts."""
    with snapshot(store) as connection:
        dialect = connection.dialect
        rows = {
            table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in TABLES
        }
        times = [
            connection.execute(sa.select(sa.func.min(column), sa.func.max(column))).one()
            for table in TABLES
            for column in table.columns
            if column.name.endswith("_at_us")
        ]
        sweeps = list(connection.scalars(sa.select(schema.sweep.c.name).order_by(schema.sweep.c.name)))
    version = ".".join(map(str, dialect.server_version_info or ()))
    return {
        "store": store.name,
        "database": f"{dialect.name} {version}",
        "revision": schema.REVISION,
        "bytes": size_bytes(store),
        "rows": rows,
        "sweeps": sweeps,
        "oldest": _iso(min((low for low, _ in times if low is not None), default=None)),
        "newest": _iso(max((high for _, high in times if high is not None), default=None)),
    }


def _iso(time_us: int | None) -> str | None:
    return (
        None if time_us is None else datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds")
    )


def check(store: Store) -> list[str]:
    """Return what is wrong with a store, a line each: nothing where it is sound.

    Journals are compared where a sweep's storage is on this machine.
    """
    try:
        with snapshot(store) as connection:
            damage = _damage(connection)
            if damage:
                return damage  # nothing that is read from it would mean much
            return [
                *_orphans(connection),
                *_unfinished(connection),
                *_refused(connection),
                *_behind(connection),
            ]
    except StoreError as error:
        return [str(error)]


def _damage(connection: sa.Connection) -> list[str]:
    if connection.dialect.name != "sqlite":
        return []  # a server looks after its own pages
    try:
        found = connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
    except sa.exc.DBAPIError as error:
        return [explain(error, waited=BUSY_TIMEOUT_S)]
    return [f"the file is damaged: {line}" for line in found if line != "ok"]


def _orphans(connection: sa.Connection) -> list[str]:
    """Rows that refer to a row that there is not."""
    found = []
    for table in TABLES:
        for key in table.foreign_keys:
            child, parent = key.parent, key.column
            missing = sa.and_(child.is_not(None), ~sa.exists().where(parent == child))
            if number := connection.scalar(sa.select(sa.func.count()).select_from(table).where(missing)):
                found.append(
                    f"{table.name}: {number:,} rows refer by {child.name} to nothing in {parent.table.name}"
                )
    return found


def _unfinished(connection: sa.Connection) -> list[str]:
    """Arms that are called done and lack their last evaluation."""
    arm, last = schema.arm, schema.arm_eval
    proof = sa.exists().where(last.c.arm_id == arm.c.id, last.c.split == "val", last.c.step == arm.c.steps)
    query = sa.select(arm.c.fingerprint).where(arm.c.status == "done", ~proof).order_by(arm.c.id)
    return [f"arm {name[:12]} is done and has no last evaluation" for name in connection.scalars(query)]


def _refused(connection: sa.Connection) -> list[str]:
    """Pairs whose arms did not begin alike: their difference would not be XSA's alone."""
    query = "SELECT trial, sa_arm, xsa_arm FROM v_results WHERE status = 'refused' ORDER BY trial_id"
    return [
        f"pair {row.trial}: arms {row.sa_arm} and {row.xsa_arm} had other initial weights or batches or data"
        for row in connection.execute(sa.text(query))
    ]


def _behind(connection: sa.Connection) -> list[str]:
    """Arms whose journals say more than the store does, by storage."""
    query = sa.text("""
        SELECT DISTINCT w.storage, a.fingerprint, a.status, a.attempt, a.step, a.lease_until_us,
            (SELECT count(*) FROM eval_result r WHERE r.arm_id = a.id) AS evals
        FROM sweep w JOIN v_sweep_arms v ON v.sweep_id = w.id JOIN arm a ON a.id = v.arm_id
        ORDER BY w.storage, a.fingerprint""")
    found = []
    for row in connection.execute(query):
        if row.status == "running" and (row.lease_until_us or 0) > now_us():
            continue  # its worker is ahead of its own reports
        try:
            found += _behind_folder(row, arm_folder(Path(row.storage), row.fingerprint))
        except DamagedJournal as error:
            found.append(str(error))
    return found


def _behind_folder(row: Any, folder: Path) -> list[str]:
    told = read_record(folder)
    if told is None or told.arm_id != row.fingerprint:
        return []
    found, name, way_out = [], f"arm {row.fingerprint[:12]}", f"xsa ingest {row.storage}"
    if _says_more(told, row):
        where = f"at step {row.step:,} here and at {told.step:,} ({told.status}) in its journal"
        found.append(f"{name} is {where}: {way_out}")
    if (number := len(read_results(folder))) > row.evals:
        found.append(f"{name} has {row.evals} evaluations here and {number} in its journal: {way_out}")
    if told.weights and not (folder / told.weights.path).is_dir():
        found.append(
            f"{name} has lost its final weights, {folder / told.weights.path}: it cannot be evaluated"
        )
    return found


def _says_more(told: ArmRecord, row: Any) -> bool:
    if told.attempt != row.attempt:
        return bool(told.attempt > row.attempt)
    return bool(told.step > row.step or (told.status in FINISHED and row.status not in FINISHED))


def copy(source: Store, target: Store) -> dict[str, int]:
    """Copy every row, with its ids, into a store that holds nothing; return how many by table.

    One transaction: what fails half way leaves the target as empty as it was.
    """
    counts: dict[str, int] = {}
    with snapshot(source) as reader, target.write() as writer:
        for table in TABLES:
            if table is not schema.metric and writer.execute(sa.select(table).limit(1)).first():
                raise StoreError(
                    f"{target.name} holds results already (table {table.name}). Name a store that is new or empty."
                )
        writer.execute(schema.metric.delete())  # a new store has its own, under its own ids
        for table in TABLES:
            counts[table.name] = 0
            rows = reader.execution_options(stream_results=True).execute(sa.select(table))
            for batch in rows.mappings().partitions(BATCH):
                writer.execute(table.insert(), [dict(row) for row in batch])
                counts[table.name] += len(batch)
            if writer.dialect.name == "postgresql" and "id" in table.columns:
                # Rows that bring their ids do not move the sequence on from which the next ones come.
                last = sa.select(sa.func.max(table.c.id)).scalar_subquery()
                sequence = sa.func.pg_get_serial_sequence(table.name, "id")
                writer.execute(
                    sa.select(sa.func.setval(sequence, sa.func.coalesce(last, 1), last.is_not(None)))
                )
    return counts


def vacuum(store: Store) -> tuple[int, int]:
    """Give back the room of deleted rows; return the size in bytes before and after."""
    before = size_bytes(store)
    with store.read() as connection:
        if store.path:
            connection.exec_driver_sql("VACUUM")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        else:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql("VACUUM (ANALYZE)")
    return before, size_bytes(store)
