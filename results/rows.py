"""A report's rows as tuples for the driver: SQLAlchemy's work on a dictionary a row is four fifths of the time."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import sqlalchemy as sa

from results import schema
from results.store import as_kind
from schemas.names import unknown_name
from schemas.report import DamagedJournal, EvalRow, LayerRow, Report, StepRow


def record_rows(connection: sa.Connection, report: Report, arm_id: int) -> None:
    """Write a report's rows; where an earlier attempt has a row, this one's replaces it.

    An attempt goes on from its last checkpoint: what earlier ones did beyond that never happened.
    """
    told = report.record
    attempt = told.attempt
    first = min((row.step for row in report.rows), default=told.step + 1)
    if attempt > 1:
        for table in (schema.arm_step, schema.arm_eval, schema.layer_metric):
            superseded = sa.and_(table.c.arm_id == arm_id, table.c.attempt < attempt, table.c.step >= first)
            connection.execute(table.delete().where(superseded))
    steps: list[tuple[Any, ...]] = []
    evals: list[tuple[Any, ...]] = []
    layers: list[tuple[Any, ...]] = []
    metric_ids = _metric_ids(connection) if any(isinstance(row, LayerRow) for row in report.rows) else {}
    for row in report.rows:
        if isinstance(row, StepRow):
            loss, loss_kind = (row.train_loss, 0) if isfinite(row.train_loss) else as_kind(row.train_loss)
            norm, norm_kind = (row.grad_norm, 0) if isfinite(row.grad_norm) else as_kind(row.grad_norm)
            steps.append(
                (
                    arm_id,
                    row.step,
                    attempt,
                    loss,
                    loss_kind,
                    row.lr,
                    norm,
                    norm_kind,
                    row.tok_per_s,
                    row.time_us,
                )
            )
        elif isinstance(row, EvalRow):
            evals.append(
                (arm_id, row.step, row.split, attempt, *as_kind(row.loss), row.n_tokens, row.time_us)
            )
        else:
            if row.metric not in metric_ids:
                raise DamagedJournal(str(unknown_name("metric", row.metric, metric_ids)))
            layers.append((arm_id, metric_ids[row.metric], row.step, row.layer, attempt, *as_kind(row.value)))
    _upsert(connection, schema.arm_step, steps)
    _upsert(connection, schema.arm_eval, evals)
    _upsert(connection, schema.layer_metric, layers)


def _metric_ids(connection: sa.Connection) -> dict[str, int]:
    rows = connection.execute(sa.select(schema.metric.c.name, schema.metric.c.id))
    return {row.name: row.id for row in rows}


def _upsert(connection: sa.Connection, table: sa.Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, in the order of the table's columns; on conflict the row of the higher attempt stays."""
    if not rows:
        return
    names = [column.name for column in table.columns]
    keys = [column.name for column in table.primary_key]
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join([mark] * len(names))}) "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changed} WHERE excluded.attempt >= {table.name}.attempt",
        list(rows),
    )
