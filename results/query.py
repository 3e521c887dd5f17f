"""Every read: one question, one tidy frame with the right types."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import sqlalchemy as sa

from results import bulk, bulk_items
from results.answers import Columns, Rows, To, as_general_question, as_query, as_question
from results.columns import check_form, chosen, delivered, frame, shown_name, with_constants
from results.filters import conditions
from results.schema import ARM_STATUS, arm
from results.store import Store
from schemas.errors import UserError
from schemas.names import unknown_name
from schemas.trial import AXES

_SWEEPS = f"""
SELECT w.name AS sweep, w.description, w.source, w.storage, w.created_at_us, w.updated_at_us,
    (SELECT count(*) FROM sweep_trial st WHERE st.sweep_id = w.id) AS trials,
    {", ".join(f"count(CASE a.status WHEN '{status}' THEN 1 END) AS {status}" for status in ARM_STATUS)},
    count(a.id) AS arms
FROM sweep w LEFT JOIN v_sweep_arms v ON v.sweep_id = w.id LEFT JOIN arm a ON a.id = v.arm_id
GROUP BY w.id ORDER BY w.name"""


class Database:
    """A store opened for reading. `results.open()` makes one.

    Filters are axis names or columns: `seq_len=64`, one of several `seq_len=[64, 128]`, or a range
    `lr=(1e-4, 1e-3)` with both ends in it (`None` leaves an end open). `columns=["lr", "step"]` returns
    these alone, `to="arrow"` a `pyarrow.Table` instead of a DataFrame. An unknown name raises
    `schemas.names.UnknownName` with the nearest one. Each call sees one state of the store.
    """

    def __init__(self, db: str | Path | None = None) -> None:
        self.store = Store.open(db, mode="read")
        self._known: dict[str, list[str]] = {}

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @as_question
    def pairs(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row a trial: its axes, both arms' losses (nats/token) and delta = XSA - SA.

        The losses are those at `step`, the last step at which both arms were evaluated: the final
        ones where `status` is `done`, provisional ones otherwise.
        """
        return self._view("v_results", sweep, filters, columns, to, order=[*AXES, "trial"])

    @as_question
    def curves(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row an arm and step: training loss, schedule and held-out loss (nats/token).

        `lr` is the axis (the peak), `lr_now` the rate at the step; `val_loss` is missing where a
        step was not evaluated.
        """
        return self._bulk(bulk.curves, bulk.CURVES, sweep, filters, columns, to)

    @as_question
    def layers(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row an arm, step, bias metric and layer; the metrics are `schemas.report.METRICS`."""
        return self._bulk(bulk.layers, bulk.LAYERS, sweep, filters, columns, to)

    @as_question
    def attempts(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row an attempt at an arm: where it ran, with what, how it ended and in how many seconds.

        `execution` is how its steps ran, `flops_per_s` how fast, and `mfu` the share of the device's peak
        that this is; what an attempt of an earlier version did not tell is missing.
        """
        order = ["arm_id", "attempt"]
        return self._view("v_attempts", sweep, filters, columns, to, order=order, also=_duration)

    @as_question
    def evals(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row an arm, task and metric of a downstream evaluation; one without a metric where it failed."""
        order = ["arm_id", "task", "n_shot", "item_limit", "metric"]
        return self._view("v_evals", sweep, filters, columns, to, order=order)

    @as_question
    def eval_pairs(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row a trial, task and metric that both arms have: both scores and delta = XSA - SA."""
        order = ["trial_id", "task", "n_shot", "item_limit", "metric"]
        return self._view("v_eval_pairs", sweep, filters, columns, to, order=order)

    @as_question
    def eval_items(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row a trial, task, metric and item: what each arm had there, such as 1 for correct and 0 for wrong.

        Of pairs whose arms were asked the same items. Filters are of pairs and tasks, not of items.
        """
        return self._bulk(bulk_items.items, bulk_items.ITEMS, sweep, filters, columns, to, key="trial_id")

    @as_question
    def checkpoints(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row a finished arm: where its final weights are, in its folder."""
        return self._view("v_checkpoints", sweep, filters, columns, to, order=["arm_id"])

    @as_question
    def provenance(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row an arm that was tried: its newest attempt's code and machine, and what its attempts mixed."""
        return self._view("v_provenance", sweep, filters, columns, to, order=["arm_id"])

    @as_question
    def mixed(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row a trial whose arms' numbers come from more than one code, environment, ...: `mixed` says which."""
        return self._view("v_mixed", sweep, filters, columns, to, order=["trial_id"])

    @as_general_question
    def bench(self, *, columns: Columns = None, to: To = "pandas", **filters: Any) -> Rows:
        """One row a block, shape and machine, as it was last measured by `xsa bench`."""
        order = ["hostname", "device", "execution", "direction", "dtype", "d_model", "seq_len", "variant"]
        return self._view("v_bench", None, filters, columns, to, order=[*order, "bench_id"])

    @as_question
    def artifacts(
        self, sweep: str | None = None, *, columns: Columns = None, to: To = "pandas", **filters: Any
    ) -> Rows:
        """One row a file that was made of a sweep's results: figures, tables and reports."""
        return self._view("v_artifacts", sweep, filters, columns, to, order=["sweep", "kind", "path"])

    @as_general_question
    def sweeps(self, *, columns: Columns = None, to: To = "pandas") -> Rows:
        """One row a sweep, with how many of its arms stand where."""
        check_form(to)
        with snapshot(self.store) as connection:
            found = _read(connection, sa.text(_SWEEPS))
        return delivered(found[chosen(list(found), columns)], to)

    @as_query
    def sql(self, query: str, *, to: To = "pandas", **parameters: Any) -> Rows:
        """The rows of any SELECT, with `:name` parameters."""
        check_form(to)
        statement = sa.text(query)
        wanted = set(statement.compile().params)
        for name in wanted ^ parameters.keys():
            if name in parameters:
                raise unknown_name("parameter", name, wanted)
            raise UserError(f"The query has a parameter :{name}; give its value: sql(query, {name}=...).")
        with snapshot(self.store) as connection:
            return delivered(_read(connection, statement, parameters, strict=False), to)

    def _view(
        self,
        view: str,
        sweep: str | None,
        filters: Mapping[str, Any],
        columns: Columns,
        to: To,
        *,
        order: Sequence[str],
        also: Callable[[Any], dict[str, Any]] = lambda source: {},
    ) -> Rows:
        """Return rows of a view, and what `also` computes from its columns."""
        check_form(to)
        with snapshot(self.store) as connection:
            if view not in self._known:
                found = connection.execute(sa.text(f"SELECT * FROM {view} LIMIT 0"))
                self._known[view] = list(found.keys())
            source = sa.table(view, *(sa.column(name) for name in self._known[view]))
            values = {shown_name(name): column for name, column in source.c.items()} | also(source.c)
            shown = [name for name in values if name in AXES or not name.endswith("_id")]
            _check_filters(filters, shown)
            where = conditions(filters, values)
            if sweep is not None:
                where.append(self._belongs(connection, source, sweep))
            names = chosen(shown, columns)
            # What no arm differs in is read once, and is nothing to order by: most of a wide view's time.
            same = {} if filters or not values.keys() >= AXES.keys() else _same_in_all_arms(connection)
            read = [name for name in names if name not in same] or names[:1]
            query = sa.select(*(values[name] for name in read)).where(*where)
            keys = (source.c[name].nulls_first() for name in order if name not in same)
            found = _read(connection, query.order_by(*keys))
        return delivered(with_constants(found, names, same), to)

    def _bulk(
        self,
        read: Callable[..., pd.DataFrame],
        known: Sequence[str],
        sweep: str | None,
        filters: Mapping[str, Any],
        columns: Columns,
        to: To,
        *,
        key: str = "arm_id",
    ) -> Rows:
        check_form(to)
        names = chosen(known, columns)
        _check_filters(filters, known)
        with snapshot(self.store) as connection:
            members = None if sweep is None else self._members(connection, key, sweep)
            found = read(connection, filters, members, names)
        return delivered(found, to)

    def _belongs(self, connection: sa.Connection, source: Any, sweep: str) -> sa.ColumnElement[bool]:
        """Return what tells a view's rows of a sweep: their trial, their arm, or what was made of the sweep."""
        key = next(name for name in ("trial_id", "arm_id", "sweep") if name in source.c)
        return source.c[key].in_(self._members(connection, key, sweep))  # type: ignore[no-any-return]

    def _members(self, connection: sa.Connection, key: str, sweep: str) -> sa.Select[Any]:
        """Return the query for the keys of a sweep's trials or arms, or for its name. Raises `UnknownName`."""
        sweeps = {row.name: row.id for row in connection.execute(sa.text("SELECT name, id FROM sweep"))}
        if sweep not in sweeps:
            raise unknown_name("sweep", sweep, sweeps)
        if key == "sweep":
            return sa.select(sa.literal(sweep))
        table = {"trial_id": "sweep_trial", "arm_id": "v_sweep_arms"}[key]
        member = sa.table(table, sa.column(key), sa.column("sweep_id"))
        return sa.select(member.c[key]).where(member.c.sweep_id == sweeps[sweep])


@contextmanager
def snapshot(store: Store) -> Iterator[sa.Connection]:
    """A connection all of whose reads see one state of the store."""
    with store.read() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        else:
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        yield connection


def _same_in_all_arms(connection: sa.Connection) -> dict[str, Any]:
    """Return the axes that have one value in all arms, with the value."""
    first = connection.execute(sa.select(*(arm.c[name] for name in AXES)).limit(1)).first()
    if first is None:
        return {}
    others = (sa.func.count(sa.case((arm.c[name] != first._mapping[name], 1))) for name in AXES)
    numbers = connection.execute(sa.select(*others)).one()
    return {name: value for name, value, other in zip(AXES, first, numbers, strict=True) if not other}


def _duration(attempts: Any) -> dict[str, Any]:
    seconds = (attempts.ended_at_us - attempts.started_at_us) / sa.literal(1e6)
    return {"wall_s": seconds.label("wall_s")}


def _check_filters(filters: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in filters:
        if name not in known:
            raise unknown_name("filter", name, known)


def _read(
    connection: sa.Connection,
    query: Any,
    parameters: Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
) -> pd.DataFrame:
    """Return what a query finds, from the driver's own cursor: SQLAlchemy's rows would double the time."""
    result = connection.execute(query, parameters)
    if not result.returns_rows:
        raise UserError("That statement returns no rows; `sql` is for a SELECT.")
    return frame(list(result.keys()), result.cursor.fetchall(), strict=strict)
