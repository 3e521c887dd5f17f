"""What a filter of a query means in SQL: a value, one of several, or a range."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import sqlalchemy as sa

from results.columns import COLUMNS
from schemas.errors import UserError
from schemas.trial import AXES


def conditions(filters: Mapping[str, Any], expressions: Mapping[str, Any]) -> list[sa.ColumnElement[bool]]:
    """Return what the filters ask of those expressions that have their names."""
    return [
        condition(expressions[name], name, wanted) for name, wanted in filters.items() if name in expressions
    ]


def condition(expression: Any, name: str, wanted: Any) -> sa.ColumnElement[bool]:
    """Return what a filter asks of an expression. Raises `UserError` for a value that the axis cannot have."""
    if hasattr(wanted, "tolist"):  # NumPy's scalars and arrays
        wanted = wanted.tolist()
    if wanted is None and name not in AXES:
        return expression.is_(None)  # type: ignore[no-any-return]
    if isinstance(wanted, tuple):
        if len(wanted) != 2:
            raise UserError(f"{name}={wanted}: a range has two ends; write a list for several values.")
        low, high = wanted
        parts = [] if low is None else [expression >= _stored(name, low)]
        parts += [] if high is None else [expression <= _stored(name, high)]
        return sa.and_(sa.true(), *parts)
    if isinstance(wanted, (list, set, frozenset, range)):
        return expression.in_([_stored(name, value) for value in wanted])  # type: ignore[no-any-return]
    return expression == _stored(name, wanted)  # type: ignore[no-any-return]


def _stored(name: str, value: Any) -> Any:
    """Return a value as the database has it: an axis checks its own, a time is in microseconds of UTC."""
    if name in AXES:
        return AXES[name].check(value)
    if not name.endswith("_at"):
        return _of_type(name, value)
    try:
        time = pd.Timestamp(value)
    except (TypeError, ValueError):
        raise UserError(
            f"{name}={value!r}: a time is a datetime, or a text such as '2026-11-29 18:00'."
        ) from None
    return (time.tz_localize("UTC") if time.tz is None else time).value // 1000


_KINDS = {"Int64": int, "int64": int, "float64": float, "bool": bool, "boolean": bool}


def _of_type(name: str, value: Any) -> Any:
    """Return a value in the type of its column: databases do not compare a text with a number, or do it wrongly."""
    kind = _KINDS.get(COLUMNS[name].dtype, str)
    if kind is str:
        return str(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UserError(f"{name}={value!r}: that column holds {_WORDS[kind]}.")
    return value


_WORDS = {int: "whole numbers", float: "numbers", bool: "true or false"}
