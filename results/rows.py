"""A report's rows as tuples for the driver: SQLAlchemy's work on a dictionary a row is four fifths of the time."""

from collections.abc import Sequence
from itertools import chain
from math import isfinite
from typing import Any

import sqlalchemy as sa

from results import schema
from results.store import as_kind
from schemas.names import unknown_name
from schemas.report import DamagedJournal, EvalRow, LayerRow, Report, Row, StepRow

_ROWS = 50
"""Rows of one statement to SQLite, which takes two thirds of the time that fifty statements do."""


def record_rows(connection: sa.Connection, report: Report, arm_id: int) -> None:
    """Write a report's rows; where an earlier attempt has a row, this one's replaces it.

    An attempt goes on from its last checkpoint: what earlier ones did beyond that never happened.
    """
    attempt = report.record.attempt
    if attempt > 1:
        first = min((row.step for row in report.rows), default=report.record.step + 1)
        for table in (schema.arm_step, schema.arm_eval, schema.layer_metric):
            superseded = sa.and_(table.c.arm_id == arm_id, table.c.attempt < attempt, table.c.step >= first)
            connection.execute(table.delete().where(superseded))
    _upsert(connection, schema.arm_step, _steps(report.rows, arm_id, attempt))
    _upsert(connection, schema.arm_eval, _evals(report.rows, arm_id, attempt))
    layers = [row for row in report.rows if isinstance(row, LayerRow)]
    _upsert(connection, schema.layer_metric, _layers(connection, layers, arm_id, attempt))


def _steps(rows: Sequence[Row], arm_id: int, attempt: int) -> list[tuple[Any, ...]]:
    return [
        (arm_id, row.step, attempt, row.train_loss, 0, row.lr, row.grad_norm, 0, row.tok_per_s, row.time_us)
        if isfinite(row.train_loss) and isfinite(row.grad_norm)
        else (
            *(arm_id, row.step, attempt, *as_kind(row.train_loss)),
            *(row.lr, *as_kind(row.grad_norm), row.tok_per_s, row.time_us),
        )
        for row in rows
        if isinstance(row, StepRow)
    ]


def _evals(rows: Sequence[Row], arm_id: int, attempt: int) -> list[tuple[Any, ...]]:
    return [
        (arm_id, row.step, row.split, attempt, *as_kind(row.loss), row.n_tokens, row.time_us)
        for row in rows
        if isinstance(row, EvalRow)
    ]


def _layers(
    connection: sa.Connection, rows: Sequence[LayerRow], arm_id: int, attempt: int
) -> list[tuple[Any, ...]]:
    ids = _metric_ids(connection) if rows else {}
    if unknown := {row.metric for row in rows} - ids.keys():
        raise DamagedJournal(str(unknown_name("metric", min(unknown), ids)))
    return [(arm_id, ids[row.metric], row.step, row.layer, attempt, *as_kind(row.value)) for row in rows]


def _metric_ids(connection: sa.Connection) -> dict[str, int]:
    rows = connection.execute(sa.select(schema.metric.c.name, schema.metric.c.id))
    return {row.name: row.id for row in rows}


def _upsert(connection: sa.Connection, table: sa.Table, rows: list[tuple[Any, ...]]) -> None:
    """Insert rows, in the order of the table's columns; on conflict the row of the higher attempt stays."""
    sqlite = connection.dialect.name == "sqlite"
    names = [column.name for column in table.columns]
    keys = [column.name for column in table.primary_key]
    row = f"({', '.join(['?' if sqlite else '%s'] * len(names))})"
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
    for size in (_ROWS, 1) if sqlite else (1,):
        whole = len(rows) - len(rows) % size
        statements = [tuple(chain.from_iterable(rows[i : i + size])) for i in range(0, whole, size)]
        rows = rows[whole:]
        if statements:
            connection.exec_driver_sql(
                f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {', '.join([row] * size)} ON CONFLICT "
                f"({', '.join(keys)}) DO UPDATE SET {changed} WHERE excluded.attempt >= {table.name}.attempt",
                statements,
            )
