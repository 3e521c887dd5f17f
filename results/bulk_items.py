"""The items of evaluations, side by side for the arms of a pair: the rows of `v_eval_items`, read faster.

Eight tasks have tens of thousands of items a pair, and an SA arm is in many pairs: so the scores are
paired by the database, each score's items are read once, as numbers alone, and both are joined here.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import sqlalchemy as sa

from results import columns
from results.bulk import Array, cursor, taken
from results.filters import conditions
from results.schema import eval_item
from schemas.names import unknown_name
from schemas.trial import AXES

_PAIR = ["trial", *AXES, "status", "task", "metric", "n_shot", "item_limit"]
ITEMS = [*_PAIR, "item", "sa_value", "xsa_value"]
"""Columns of `items`, those of `v_eval_items` but for `trial_id`."""
_KEYS = ["sa_score_id", "xsa_score_id"]
_ORDER = ["trial_id", "task", "metric", "n_shot", "item_limit"]


def items(
    connection: sa.Connection, filters: Mapping[str, Any], members: Any, wanted: Sequence[str]
) -> pd.DataFrame:
    """Return one row a pair, task, metric and item, in this order; items that only one arm has are left out.

    Args:
        connection: one that sees a single state of the store.
        filters: of pairs and tasks, by column, as `results.filters` reads them.
        members: a subquery of the ids of a sweep's trials, or None for all.
        wanted: the columns to return, of `ITEMS`.

    Raises `UnknownName` for a filter of items.
    """
    for name in filters:
        if name not in _PAIR:
            raise unknown_name("filter of pairs and tasks", name, _PAIR)
    names = [name for name in _PAIR if name in wanted]
    source = sa.table(
        "v_eval_pairs", *(sa.column(name) for name in [*_PAIR, "trial_id", "same_data", *_KEYS])
    )
    where = [source.c.same_data, *conditions(filters, dict(source.c))]
    if members is not None:
        where.append(source.c.trial_id.in_(members))
    query = sa.select(*(source.c[name] for name in [*names, *_KEYS])).where(*where)
    rows = cursor(connection, query.order_by(*(source.c[name].nulls_first() for name in _ORDER))).fetchall()
    *pair, sa_keys, xsa_keys = columns.arrays([*names, *_KEYS], rows)
    scores = _values(connection, sorted({*sa_keys, *xsa_keys}))
    places: list[Array] = []
    parts: list[tuple[Array, Array, Array]] = []
    for i, (a, b) in enumerate(zip(sa_keys, xsa_keys, strict=True)):
        if a in scores and b in scores:
            part = _side_by_side(scores[a], scores[b])
            parts.append(part)
            places.append(np.full(len(part[0]), i))
    item, sa_value, xsa_value = _joined(parts)
    place = np.concatenate([*places, np.empty(0, dtype="int64")])
    found: dict[str, Any] = dict(zip(names, (taken(values, place) for values in pair), strict=True))
    found |= {
        "item": pd.array(item.astype("int64"), dtype="Int64"),
        "sa_value": sa_value,
        "xsa_value": xsa_value,
    }
    return pd.DataFrame(
        {name: found[name] for name in wanted}, columns=pd.Index(wanted, dtype="str"), copy=False
    )


def _values(connection: sa.Connection, keys: Sequence[int]) -> dict[int, tuple[Array, Array]]:
    """Return the places and the values of the items of each score that has any."""
    found: dict[int, tuple[Array, Array]] = {}
    table = eval_item
    for key in keys:
        query = sa.select(table.c.item, table.c.value).where(table.c.eval_score_id == int(key))
        rows = cursor(connection, query.order_by(table.c.item))
        item, value = np.fromiter(chain.from_iterable(rows), dtype="float64").reshape(-1, 2).T.copy()
        if len(item):
            found[key] = item, value
    return found


def _side_by_side(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    if np.array_equal(a[0], b[0]):
        return a[0], a[1], b[1]
    both, in_a, in_b = np.intersect1d(a[0], b[0], assume_unique=True, return_indices=True)
    return both, a[1][in_a], b[1][in_b]


def _joined(parts: Sequence[tuple[Array, Array, Array]]) -> list[Array]:
    if not parts:
        return [np.empty(0) for _ in range(3)]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]
