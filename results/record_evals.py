"""Writing what evaluations of an arm found: each with its scores and items, or not at all."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from results.schema import arm, eval_item, eval_result, eval_score
from results.store import Store, as_text
from schemas.evals import Score, TaskResult


def record_evals(store: Store, arm_id: str, results: Sequence[TaskResult]) -> None:
    """Write results of the arm of this identity, which the store knows; one transaction.

    A later result of the same task, shots and limit takes the earlier one's place, and one with scores
    that of any with an error. So it does not matter in which order or how often they are told.
    """
    if not results:
        return
    with store.write() as connection:
        query = sa.select(arm.c.id).where(arm.c.fingerprint == arm_id)
        key = connection.execute(query.with_for_update()).scalar_one()  # two writers see each other's results
        for result in results:
            _record(connection, result, key)


def _record(connection: sa.Connection, result: TaskResult, arm_key: int) -> None:
    table = eval_result
    task = as_text(result.task)
    limit = table.c.item_limit.is_not_distinct_from(result.limit)
    same = (table.c.arm_id == arm_key, table.c.task == task, table.c.n_shot == result.n_shot, limit)
    old = connection.execute(sa.select(table.c.id, table.c.error, table.c.ended_at_us).where(*same)).first()
    if old is not None:
        if (result.error is None, result.time_us) <= (old.error is None, old.ended_at_us):
            return
        _delete(connection, old.id)
    values: dict[str, Any] = {
        "arm_id": arm_key,
        "task": task,
        "n_shot": result.n_shot,
        "item_limit": result.limit,
        "step": result.step,
        "n_items": result.n_items,
        "task_version": as_text(result.task_version),
        "harness_version": as_text(result.harness_version),
        "data_sha256": result.data_sha256,
        "batch_size": result.batch_size,
        "device": as_text(result.device),
        "error": None if result.error is None else as_text(result.error),
        "wall_s": result.wall_s,
        "ended_at_us": result.time_us,
    }
    key = _insert(connection, table, values)
    for metric, score in result.scores.items():
        _record_score(connection, as_text(metric), score, key)


def _record_score(connection: sa.Connection, metric: str, score: Score, result_key: int) -> None:
    values = {"eval_result_id": result_key, "metric": metric, "value": score.value, "stderr": score.stderr}
    key = _insert(connection, eval_score, values)
    if score.items:
        mark = "?" if connection.dialect.name == "sqlite" else "%s"
        connection.exec_driver_sql(  # SQLAlchemy's work on a dictionary a row would be most of the time
            f"INSERT INTO eval_item (eval_score_id, item, value) VALUES ({mark}, {mark}, {mark})",
            [(key, item, value) for item, value in enumerate(score.items)],
        )


def _insert(connection: sa.Connection, table: sa.Table, values: dict[str, Any]) -> int:
    key = connection.execute(table.insert().values(**values)).inserted_primary_key
    assert key is not None
    return int(key[0])


def _delete(connection: sa.Connection, key: int) -> None:
    scores = sa.select(eval_score.c.id).where(eval_score.c.eval_result_id == key)
    connection.execute(eval_item.delete().where(eval_item.c.eval_score_id.in_(scores)))
    connection.execute(eval_score.delete().where(eval_score.c.eval_result_id == key))
    connection.execute(eval_result.delete().where(eval_result.c.id == key))
