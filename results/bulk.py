"""Curves and layers, of which there are millions of rows: the same rows as their views', read faster.

A view repeats the thirty settings of an arm on each of its rows, and carrying these through the driver
is nine tenths of the time. So the arms are read once; the rows bring numbers alone, go into one array,
and say by a number which arm they belong to. A test holds frames and views equal.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import sqlalchemy as sa

from results import columns
from results.filters import conditions
from results.schema import arm, arm_eval, arm_step, layer_metric, metric
from schemas.trial import AXES

Array = np.ndarray[Any, Any]


def _finite(value: Any, kind: Any) -> Any:
    return sa.case({2: math.inf, 3: -math.inf}, value=kind, else_=value)


_ARM: dict[str, Any] = {
    "arm": sa.func.substr(arm.c.fingerprint, 1, 12),
    "variant": arm.c.name,
    **{name: arm.c[name] for name in AXES},
    "status": arm.c.status,
}
_STEPS: dict[str, Any] = {
    "train_loss": _finite(arm_step.c.train_loss, arm_step.c.train_loss_kind),
    "lr_now": arm_step.c.lr,
    "grad_norm": _finite(arm_step.c.grad_norm, arm_step.c.grad_norm_kind),
    "tok_per_s": arm_step.c.tok_per_s,
}
_EVALS: dict[str, Any] = {"val_loss": _finite(arm_eval.c.loss, arm_eval.c.loss_kind)}
_LAYERS: dict[str, Any] = {"value": _finite(layer_metric.c.value, layer_metric.c.value_kind)}
CURVES = [*_ARM, "step", "tokens", *_STEPS, *_EVALS]
"""Columns of `curves`, those of `v_curves` but for `arm_id`."""
LAYERS = [*_ARM, "step", "metric", "layer", *_LAYERS]
"""Columns of `layers`, those of `v_layers` but for `arm_id`."""


class _Arms:
    """The arms that filters admit: what their rows share."""

    def __init__(
        self, connection: sa.Connection, filters: Mapping[str, Any], members: Any, wanted: Collection[str]
    ) -> None:
        names = [name for name in _ARM if name in wanted]
        self._where = conditions(filters, _ARM) + ([] if members is None else [arm.c.id.in_(members)])
        query = sa.select(arm.c.id, *(_ARM[name] for name in names)).where(*self._where).order_by(arm.c.id)
        rows = cursor(connection, query).fetchall()
        ids, *values = columns.arrays(["arm_id", *names], rows)
        self._ids = np.asarray(ids, dtype="int64")
        self._columns = dict(zip(names, values, strict=True))

    def have(self, table: sa.Table) -> list[Any]:
        """Return the condition that a row of `table` belongs to one of these arms."""
        return [table.c.arm_id.in_(sa.select(arm.c.id).where(*self._where))] if self._where else []

    def places(self, arm_ids: Array) -> Array:
        """Return the place of each arm among these."""
        found: Array = np.searchsorted(self._ids, arm_ids)
        return found

    def column(self, name: str, places: Array) -> Any:
        """Return an arm's column for rows whose arms have these places."""
        return taken(self._columns[name], places)


def taken(values: Any, places: Array) -> Any:
    """Return a column's values at these places, as a column of these alone would be."""
    found = values.take(places)
    return found.remove_unused_categories() if isinstance(found, pd.Categorical) else found


def cursor(connection: sa.Connection, query: sa.Select[Any]) -> Any:
    """Run a query and return the driver's own cursor, which makes no row objects."""
    return connection.execute(query).cursor


def _numbers(connection: sa.Connection, wanted: Sequence[Any], where: Sequence[Any]) -> list[Array]:
    """Return columns that are all numbers, NULL as NaN. Whole numbers are exact up to 2^53."""
    values = chain.from_iterable(cursor(connection, sa.select(*wanted).where(*where)))
    return list(np.fromiter(values, dtype="float64").reshape(-1, len(wanted)).T.copy())


def _whole(values: Array) -> Any:
    """Return whole numbers, none of them missing, as pandas holds a column of such."""
    return pd.arrays.IntegerArray(values.astype("int64"), np.zeros(len(values), dtype=bool))


def _distinct(values: Array) -> Array:
    """Return the distinct values in order. `np.unique` hashes them, which takes ten times as long."""
    ordered: Array = np.sort(values)
    new: Array = np.append(True, ordered[1:] != ordered[:-1])
    return ordered[new[: len(ordered)]]


def curves(
    connection: sa.Connection, filters: Mapping[str, Any], members: Any, wanted: Sequence[str]
) -> pd.DataFrame:
    """Return one row an arm and step, in this order: the rows of `v_curves`.

    Args:
        connection: one that sees a single state of the store.
        filters: by column, as `results.filters` reads them.
        members: a subquery of the ids of a sweep's arms, or None for all.
        wanted: the columns to return, of `CURVES`.
    """
    arms = _Arms(connection, filters, members, {*wanted, "tokens_per_step"})
    parts = [
        _part(connection, arms, filters, wanted, arm_step, _STEPS),
        _part(connection, arms, filters, wanted, arm_eval, _EVALS, arm_eval.c.split == "val"),
    ]
    span = 1 + max(int(part.steps.max(initial=0)) for part in parts)
    keys = [part.places * span + part.steps for part in parts]
    rows = _distinct(np.concatenate(keys))
    found: dict[str, Any] = {}
    kept = np.ones(len(rows), dtype=bool)
    for key, part in zip(keys, parts, strict=True):
        at = np.searchsorted(rows, key)
        for name, values in part.values.items():
            found[name] = np.full(len(rows), math.nan)
            found[name][at] = values
        if part.must:
            has = np.zeros(len(rows), dtype=bool)
            has[at] = True
            kept &= has
    if not kept.all():
        rows, found = rows[kept], {name: values[kept] for name, values in found.items()}
    places, steps = np.divmod(rows, span)
    found["step"] = _whole(steps)
    found["tokens"] = _whole(steps * arms.column("tokens_per_step", places))
    return _frame(arms, places, found, wanted)


class _Part(NamedTuple):
    """One table's share in the curves."""

    places: Array
    steps: Array
    values: dict[str, Array]
    must: bool
    """Whether a filter asks for something of this table: a row without it is none that is wanted."""


def _part(
    connection: sa.Connection,
    arms: _Arms,
    filters: Mapping[str, Any],
    wanted: Sequence[str],
    table: sa.Table,
    values: Mapping[str, Any],
    *where: Any,
) -> _Part:
    per_step = sa.select(arm.c.tokens_per_step).where(arm.c.id == table.c.arm_id).scalar_subquery()
    shared = conditions(filters, {"step": table.c.step, "tokens": table.c.step * per_step})
    own = conditions(filters, values)
    names = [name for name in wanted if name in values]
    arm_ids, steps, *numbers = _numbers(
        connection,
        [table.c.arm_id, table.c.step, *(values[name] for name in names)],
        [*arms.have(table), *where, *shared, *own],
    )
    return _Part(
        arms.places(arm_ids), steps.astype("int64"), dict(zip(names, numbers, strict=True)), bool(own)
    )


def layers(
    connection: sa.Connection, filters: Mapping[str, Any], members: Any, wanted: Sequence[str]
) -> pd.DataFrame:
    """Return one row an arm, step, metric and layer, in this order: the rows of `v_layers`.

    The arguments are those of `curves`; `wanted` is of `LAYERS`.
    """
    arms = _Arms(connection, filters, members, wanted)
    table = layer_metric
    named = conditions(filters, {"metric": metric.c.name})
    metrics = cursor(connection, sa.select(metric.c.id, metric.c.name).where(*named)).fetchall()
    names = sorted(name for _, name in metrics)
    codes = np.zeros(1 + max((key for key, _ in metrics), default=0), dtype="int64")
    for key, name in metrics:
        codes[key] = names.index(name)
    where = [
        *arms.have(table),
        *([table.c.metric_id.in_([key for key, _ in metrics])] if named else []),
        *conditions(filters, {"step": table.c.step, "layer": table.c.layer, **_LAYERS}),
    ]
    arm_ids, keys, steps, nth, value = _numbers(
        connection, [table.c.arm_id, table.c.metric_id, table.c.step, table.c.layer, _LAYERS["value"]], where
    )
    code, places = codes[keys.astype("int64")], arms.places(arm_ids)
    order = np.lexsort((nth, code, steps, places))
    found = {
        "step": _whole(steps[order]),
        "metric": pd.Categorical.from_codes(
            code[order], pd.Index(names, dtype="str")
        ).remove_unused_categories(),
        "layer": _whole(nth[order]),
        "value": value[order],
    }
    return _frame(arms, places[order], found, wanted)


def _frame(arms: _Arms, places: Array, found: Mapping[str, Any], wanted: Sequence[str]) -> pd.DataFrame:
    taken = {name: found[name] if name in found else arms.column(name, places) for name in wanted}
    return pd.DataFrame(taken, columns=pd.Index(wanted, dtype="str"), copy=False)
