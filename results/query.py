"""Every read: one question, one tidy DataFrame with the right types."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import sqlalchemy as sa

from results.store import Store
from schemas.errors import UserError
from schemas.names import unknown_name
from schemas.trial import AXES

_DTYPES: dict[type, str] = {float: "float64", int: "int64", str: "str", bool: "bool"}
_COLUMNS = {
    "text": "trial arm variant status sa_arm xsa_arm sa_status xsa_status metric cause error traceback hostname "
    "device git_sha environment sweep description source storage",
    "Int64": "step tokens layer n_params attempt threads peak_rss_bytes arms trials",
    "float64": "sa_train_loss xsa_train_loss delta_train_loss sa_val_loss xsa_val_loss delta_val_loss train_loss "
    "lr_now grad_norm tok_per_s val_loss value wall_s",
    "boolean": "dirty",
}
_KNOWN = {
    name: "str" if dtype == "text" else dtype for dtype, names in _COLUMNS.items() for name in names.split()
}


class Database:
    """A store opened for reading. `results.open()` makes one.

    Filters are axis names or columns: `seq_len=64`, one of several `seq_len=[64, 128]`, or a range
    `lr=(1e-4, 1e-3)` with both ends in it (`None` leaves an end open). An unknown name raises
    `schemas.names.UnknownName` with the nearest one.
    """

    def __init__(self, db: str | Path | None = None) -> None:
        self.store = Store.open(db, mode="read")

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def pairs(self, sweep: str | None = None, **filters: Any) -> pd.DataFrame:
        """One row a trial: its axes, both arms' losses (nats/token) and delta = XSA - SA.

        The losses are those at `step`, the last step at which both arms were evaluated: the final
        ones where `status` is `done`, provisional ones otherwise.
        """
        frame = self._select("v_results", sweep, filters, order=[*AXES, "trial"])
        return frame.drop(columns="trial_id")

    def curves(self, sweep: str | None = None, **filters: Any) -> pd.DataFrame:
        """One row an arm and step: training loss, schedule and held-out loss (nats/token).

        `lr` is the axis (the peak), `lr_now` the rate at the step; `val_loss` is missing where a
        step was not evaluated.
        """
        return self._select("v_curves", sweep, filters, order=["arm_id", "step"]).drop(columns="arm_id")

    def layers(self, sweep: str | None = None, **filters: Any) -> pd.DataFrame:
        """One row an arm, step, bias metric and layer; the metrics are `schemas.report.METRICS`."""
        order = ["arm_id", "step", "metric", "layer"]
        return self._select("v_layers", sweep, filters, order=order).drop(columns="arm_id")

    def attempts(self, sweep: str | None = None, **filters: Any) -> pd.DataFrame:
        """One row an attempt at an arm: where it ran, with what, and how it ended."""
        frame = self._select("v_attempts", sweep, filters, order=["arm_id", "attempt"]).drop(columns="arm_id")
        frame["wall_s"] = (frame["ended_at"] - frame["started_at"]).dt.total_seconds()
        return frame

    def sweeps(self) -> pd.DataFrame:
        """One row a sweep, with how many of its arms stand where."""
        query = """
            SELECT w.name AS sweep, w.description, w.source, w.storage, w.created_at_us, w.updated_at_us,
                (SELECT count(*) FROM sweep_trial st WHERE st.sweep_id = w.id) AS trials
            FROM sweep w ORDER BY w.name"""
        frame = self.sql(query)
        counts = self.sql("SELECT sweep, status, arms FROM v_status")
        wide = counts.pivot(index="sweep", columns="status", values="arms") if len(counts) else pd.DataFrame()
        from results.schema import ARM_STATUS

        for status in ARM_STATUS:
            known = wide[status] if status in wide else pd.Series(dtype="Int64")
            frame[status] = frame["sweep"].map(known).fillna(0).astype("int64")
        frame["arms"] = frame[list(ARM_STATUS)].sum(axis=1)
        return frame

    def sql(self, query: str, **parameters: Any) -> pd.DataFrame:
        """The rows of any SELECT, with `:name` parameters."""
        with self.store.read() as connection:
            result = connection.execute(sa.text(query), parameters)
            return _typed(list(result.keys()), [tuple(row) for row in result])

    def _select(
        self, view: str, sweep: str | None, filters: dict[str, Any], *, order: Iterable[str]
    ) -> pd.DataFrame:
        with self.store.read() as connection:
            columns = [column["name"] for column in sa.inspect(connection).get_columns(view)]
            source = sa.table(view, *(sa.column(name) for name in columns))
            conditions = [_condition(source.c, name, wanted, columns) for name, wanted in filters.items()]
            if sweep is not None:
                conditions.append(self._of_sweep(connection, source, sweep))
            query = sa.select(source).where(*conditions).order_by(*(source.c[name] for name in order))
            rows = [tuple(row) for row in connection.execute(query)]
        return _typed(columns, rows)

    def _of_sweep(
        self, connection: sa.Connection, source: sa.TableClause, name: str
    ) -> sa.ColumnElement[bool]:
        sweeps = {row.name: row.id for row in connection.execute(sa.text("SELECT name, id FROM sweep"))}
        if name not in sweeps:
            raise unknown_name("sweep", name, sweeps)
        key, members = ("trial_id", "sweep_trial") if "trial_id" in source.c else ("arm_id", "v_sweep_arms")
        member = sa.table(members, sa.column(key), sa.column("sweep_id"))
        return source.c[key].in_(sa.select(member.c[key]).where(member.c.sweep_id == sweeps[name]))


def _condition(columns: Any, name: str, wanted: Any, known: list[str]) -> sa.ColumnElement[bool]:
    if name not in known:
        raise unknown_name("filter", name, known)
    column = columns[name]
    check = AXES[name].check if name in AXES else lambda value: value
    if hasattr(wanted, "tolist"):  # NumPy's scalars and arrays
        wanted = wanted.tolist()
    if isinstance(wanted, tuple):
        if len(wanted) != 2:
            raise UserError(f"{name}={wanted}: a range has two ends; write a list for several values.")
        low, high = wanted
        parts = [] if low is None else [column >= check(low)]
        parts += [] if high is None else [column <= check(high)]
        return sa.and_(sa.true(), *parts)
    if isinstance(wanted, (list, set, frozenset, range)):
        return column.in_([check(value) for value in wanted])  # type: ignore[no-any-return]
    return column == check(wanted)  # type: ignore[no-any-return]


def _typed(columns: list[str], rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records(rows, columns=columns)
    for name in columns:
        if name.endswith("_at_us"):
            frame[name] = pd.to_datetime(frame[name], unit="us", utc=True).astype("datetime64[us, UTC]")
        elif name in AXES:
            frame[name] = frame[name].astype(_DTYPES[AXES[name].kind])
        elif name in _KNOWN:
            frame[name] = frame[name].astype(_KNOWN[name])
    return frame.rename(
        columns={name: name.removesuffix("_us") for name in columns if name.endswith("_at_us")}
    )
