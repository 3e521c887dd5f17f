"""What only a server can do to a store."""

import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa

from results.claims import claim, renew
from results.location import StoreError
from results.query import Database
from results.record import record, save_sweep
from results.store import Store
from schemas.report import Report
from schemas.trial import AXES
from tests.conftest import ON_SERVER, PROVENANCE, formula_record, formula_rows, make_sweep
from tests.postgres import PASSWORD, USER, Server

pytestmark = pytest.mark.postgres


@ON_SERVER
def test_each_scheme_opens_the_store(filled: Database, address: str) -> None:
    rest = address.partition("://")[2]
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        with Database(f"{scheme}://{rest}") as db:
            assert len(db.pairs("small")) == 9


def said(address: str, **options: Any) -> str:
    """Return the message of a store that cannot be opened: one line, without the password."""
    with pytest.raises(StoreError) as caught:
        Store.open(address, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert PASSWORD not in message and "wrong" not in message
    return message


@ON_SERVER
def test_a_server_that_cannot_be_had_is_named(address: str, server: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        down = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{free.getsockname()[1]}/x"
        assert "the server cannot be reached (" in said(down)
    assert "the server cannot be reached (" in said(f"postgresql://u:{PASSWORD}@nowhere.invalid/x")
    assert "refuses the user or the password" in said(server.url("postgres", password="wrong"))
    assert "refuses the user or the password" in said(address.replace(f":{PASSWORD}", ""))
    missing = said(server.url("nowhere"))
    assert missing.startswith(
        f"postgresql://{USER}@127.0.0.1:{server.port}/nowhere: the server has no such database"
    )


@ON_SERVER
def test_the_driver_that_is_missing_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "pip install 'xsa-sweeps[postgres]'" in said(address)


@pytest.mark.parametrize("table", ["songs", "alembic_version"])
def test_another_program_s_database_is_refused(server: Server, table: str) -> None:
    name = server.make()
    server.sql(f"CREATE TABLE {table} (version_num VARCHAR(32))", name)
    for mode in ("read", "write"):
        assert f"another program (it has a table '{table}')" in said(server.url(name), mode=mode)


def test_a_user_without_rights_is_told_what_to_ask_for(server: Server) -> None:
    name = server.make()
    server.sql(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    server.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC", name)  # as it is since PostgreSQL 15
    url = server.url(name).replace(f"//{USER}", f"//{name}")
    assert "this user lacks a right (permission denied for schema public)" in said(url, mode="write")


def test_an_empty_database_has_no_results_yet(server: Server) -> None:
    assert "has no results yet" in said(server.url(server.make()))


@ON_SERVER
@pytest.mark.parametrize("where", ["userinfo", "query"])
def test_the_password_is_kept_nowhere(filled: Database, address: str, where: str, tmp_path: Path) -> None:
    if where == "query":
        address = address.replace(f":{PASSWORD}", "") + f"?password={PASSWORD}"
    with Store.open(address, mode="write") as store:
        save_sweep(store, make_sweep(), make_sweep().trials(), tmp_path)
        claim(store, make_sweep(seeds=[7]).trials()[0].sa.id, "one", PROVENANCE)
        seen = [
            repr(store),
            repr(vars(store)),
            store.name,
            repr(store.engine.url),
            str(store.default_storage()),
        ]
        with store.read() as connection:
            tables = sa.inspect(connection).get_table_names()
            seen += [repr(connection.execute(sa.text(f"SELECT * FROM {table}")).all()) for table in tables]
            seen += connection.exec_driver_sql("SELECT application_name FROM pg_stat_activity").scalars()
            with pytest.raises(StoreError) as caught, store.write() as other:
                other.exec_driver_sql("SELECT nonsense")
        seen += [str(caught.value), repr(caught.value.__cause__)]
    assert PASSWORD not in "".join(filter(None, seen))


@ON_SERVER
def test_rows_are_ordered_by_bytes_whatever_the_server_s_locale(store: Store) -> None:
    with store.read() as connection:
        query = "SELECT table_name, column_name FROM information_schema.columns WHERE collation_name = 'C'"
        ordered = {tuple(row) for row in connection.exec_driver_sql(query)}
    texts = {name for name, axis in AXES.items() if axis.kind is str}
    assert {("arm", name) for name in texts} | {("v_results", name) for name in texts} <= ordered
    assert {("metric", "name"), ("v_layers", "metric"), ("sweep", "name")} <= ordered


@ON_SERVER
def test_a_lost_connection_is_said_once_and_made_again(store: Store, address: str, server: Server) -> None:
    def cut() -> None:
        name = address.rpartition("/")[2]
        server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")

    cut()  # between two transactions: nobody notices
    renew(store, "one")
    with pytest.raises(StoreError, match="connection to the server was lost"), store.write() as connection:
        cut()
        connection.exec_driver_sql("SELECT 1")
    renew(store, "one")


@ON_SERVER
def test_a_lock_is_waited_for_but_not_for_ever(
    filled: Database, store: Store, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "wait_s", 0.2)
    leave = "UPDATE arm SET lease_owner = NULL"
    with Store.open(address, mode="write") as other, other.write() as connection:
        connection.exec_driver_sql(leave)
        with (
            pytest.raises(StoreError, match=r"locked by another program .waited 0.2 s"),
            store.write() as mine,
        ):
            mine.exec_driver_sql(leave)
        assert len(filled.pairs()) == 9  # readers do not wait for a writer
    with store.write() as mine:
        mine.exec_driver_sql(leave)


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Do work(0), work(1), ... at the same time."""
    ready = Barrier(count)

    def one(number: int) -> Any:
        ready.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@ON_SERVER
def test_sweeps_that_share_arms_are_saved_at_once(
    store: Store, address: str, db: Database, tmp_path: Path
) -> None:
    sweeps = [make_sweep(name=name, seeds=[*range(100)], grid={"xsa_lambda": [1]}) for name in ("one", "two")]
    trials = sweeps[0].trials()
    orders = [trials, trials[::-1]]  # in which each would wait for an arm that the other has
    with Store.open(address, mode="write") as other:
        stores = store, other
        together(2, lambda number: save_sweep(stores[number], sweeps[number], orders[number], tmp_path))
    assert db.sweeps().trials.tolist() == [100, 100]


@ON_SERVER
def test_many_may_record_at_once(store: Store, address: str, tmp_path: Path) -> None:
    sweep = make_sweep(seeds=[*range(16)], grid={"xsa_lambda": [1]})
    save_sweep(store, sweep, sweep.trials(), tmp_path)
    arms = [arm for trial in sweep.trials() for arm in trial.arms]

    stores = [Store.open(address, mode="write") for _ in range(8)]  # each with connections of its own

    def train(number: int) -> None:
        arm, rows = arms[number], [row for row in formula_rows(arms[number]) if row.step % 10 == 0]
        own, owner = stores[number % 8], f"run {number}"
        assert claim(own, arm.id, owner, PROVENANCE) == 1
        for step in (20, 40):
            told = formula_record(arm, status="running" if step < 40 else "done", step=step)
            told = replace(told, environment=told.environment | {"step": step})  # which all insert
            assert record(own, Report(told, [row for row in rows if row.step <= step]))
            renew(own, owner)

    together(32, train)
    for opened in stores:
        opened.close()
    with Database(address) as db:
        assert db.pairs("small").status.tolist() == ["done"] * 16
        assert len(db.curves()) == 32 * 5
        assert db.sql("SELECT count(*) AS n FROM environment").n.tolist() == [2]
