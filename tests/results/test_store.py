import multiprocessing
import os
import sqlite3
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
import sqlalchemy as sa

from results import location, schema, upgrade
from results.location import StoreError, store_exists
from results.query import Database
from results.store import Store
from schemas.axis import Axis, axis
from schemas.report import METRICS
from schemas.trial import AXES
from tests.conftest import ON_BOTH, fill, make_sweep


def test_a_missing_store_is_made_by_a_writer_only(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    assert not store_exists(path)
    with pytest.raises(StoreError, match="no store at"):
        Store.open(path)
    assert not path.exists()
    Store.open(path, mode="write").close()
    assert store_exists(path)


def test_the_environment_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XSA_DB", str(tmp_path / "other.db"))
    with Store.open(mode="write") as opened:
        assert opened.path == tmp_path / "other.db"
        assert opened.default_storage() == tmp_path / "runs"


@ON_BOTH
def test_axes_are_typed_not_null_columns(store: Store) -> None:
    with store.read() as connection:
        columns = {c["name"]: c for c in sa.inspect(connection).get_columns("arm")}
    assert set(AXES) <= set(columns)
    assert not any(columns[name]["nullable"] for name in AXES)
    assert isinstance(columns["lr"]["type"], sa.Double | sa.DOUBLE_PRECISION)
    assert isinstance(columns["seq_len"]["type"], sa.BigInteger)


def refused(path: Path, mode: str, message: str) -> None:
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError, match=message):
        Store.open(path, mode=mode)  # type: ignore[arg-type]
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("mode", ["read", "write"])
def test_what_is_no_store_is_refused_and_left_as_it_was(tmp_path: Path, mode: str) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all")
    refused(text, mode, "is not a database")
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE songs (id INTEGER)")
    refused(other, mode, "database of another program .it has a table 'songs'")
    refused(tmp_path, mode, "is a directory")
    with pytest.raises(StoreError, match=r"does not exist|no store"):
        Store.open(tmp_path / "no" / "where.db", mode=mode)  # type: ignore[arg-type]


@ON_BOTH
@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_newer_store_is_refused(store: Store, address: str, mode: str) -> None:
    with store.write() as connection:
        connection.execute(schema.alembic_version.update().values(version_num="9999"))
    with pytest.raises(StoreError, match=r"newer version of xsa .store revision 9999.*Update xsa"):
        Store.open(address, mode=mode)  # type: ignore[arg-type]


def read_all(path: Path, mode: str) -> None:
    with Store.open(path, mode=mode) as opened, opened.read() as connection:  # type: ignore[arg-type]
        connection.exec_driver_sql("SELECT count(*) FROM arm_step JOIN arm ON 1").fetchall()
        connection.exec_driver_sql("PRAGMA integrity_check").fetchall()


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_truncated_store_is_named_damaged(store: Store, tmp_path: Path, mode: str) -> None:
    fill(store, make_sweep(), tmp_path / "runs")
    assert store.path
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = store.path.read_bytes()
    store.path.write_bytes(data[:4096] + b"\x55" * (len(data) // 2))
    with pytest.raises(StoreError, match=r"damaged|malformed"):
        read_all(store.path, mode)


def test_a_locked_store_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "wait_s", 0.2)
    assert store.path
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program"), store.write():
            pass
        Database(store.path).close()  # readers do not wait for a writer
        other.execute("ROLLBACK")
    with store.write():
        pass


def _open_as_nobody(path: str, mode: Literal["read", "write"], answers: "multiprocessing.Queue[str]") -> None:
    os.setresuid(65534, 65534, 65534)
    try:
        Store.open(path, mode=mode).close()
        answers.put("opened")
    except StoreError as error:
        answers.put(str(error))


@pytest.fixture
def as_nobody() -> Callable[[Path, str], str]:
    """Opens a store as a user without rights (root, as which CI runs, may write everywhere)."""

    def opened(path: Path, mode: str) -> str:
        if os.geteuid() != 0:
            try:
                Store.open(path, mode=mode).close()  # type: ignore[arg-type]
            except StoreError as error:
                return str(error)
            return "opened"
        fork = multiprocessing.get_context("fork")
        answers: multiprocessing.Queue[str] = fork.Queue()
        child = fork.Process(target=_open_as_nobody, args=(str(path), mode, answers))
        child.start()
        answer = answers.get(timeout=30)
        child.join()
        return answer

    return opened


def test_no_write_access_is_named(as_nobody: Callable[[Path, str], str]) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        Store.open(folder / "results.db", mode="write").close()
        (folder / "results.db").chmod(0o444)
        folder.chmod(0o555)
        assert "cannot be made: there is no write access" in as_nobody(folder / "new.db", "write")
        assert "cannot be written: there is no write access" in as_nobody(folder / "results.db", "write")
        assert as_nobody(folder / "results.db", "read") == "opened"
        folder.chmod(0o755)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = type("Mount", (), {"mountpoint": str(tmp_path), "fstype": "nfs4"})()
    monkeypatch.setattr(location.psutil, "disk_partitions", lambda all: [mount])
    with pytest.raises(StoreError, match=r"network file system .nfs4"):
        Store.open(tmp_path / "results.db", mode="write")


@ON_BOTH
def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    def boom() -> None:
        with store.write() as connection:
            connection.exec_driver_sql("INSERT INTO environment (fingerprint, document) VALUES ('a', 'b')")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        boom()
    with store.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM environment").scalar() == 0


@ON_BOTH
def test_several_may_create_at_once(new: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        for opened in pool.map(lambda _: Store.open(new, mode="write"), range(8)):
            opened.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresq://x/y",
        "foo://",
        "sqlite3:///x",
        "mysql+nothing://u:secret@h/d",
        "postgresql://u:se@cret@h/d",
        "postgresql://h:secret/d",
        "postgresql://u:p@h:5432:secret/d",
        "foo://h/d?password=top@secret",
    ],
)
def test_a_url_that_cannot_be_opened_says_so_without_its_password(url: str) -> None:
    with pytest.raises(
        StoreError, match=r"is not a database URL that can be opened\. .* form|Give a path"
    ) as caught:
        Store.open(url, mode="write")
    assert "cret" not in str(caught.value)


def _later_axis(**history: object) -> Axis:
    field = axis(0.1, "dropout", ge=0, **history)
    field.annotation = float
    return Axis.from_field("dropout", field)


@ON_BOTH
def test_a_later_axis_gets_its_column_from_before(
    filled: Database, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AXES, "dropout", _later_axis(before=0.0))
    grown = schema.arm.to_metadata(sa.MetaData())
    grown.append_column(sa.Column("dropout", sa.Double, nullable=False))
    monkeypatch.setattr(schema, "arm", grown)
    with pytest.raises(StoreError, match="older than this version"):
        Store.open(address)
    with Store.open(address, mode="write") as opened, opened.read() as connection:
        assert set(connection.exec_driver_sql("SELECT dropout FROM arm").scalars()) == {0.0}
        assert not opened.notes


@ON_BOTH
def test_a_later_axis_without_before_is_refused_by_name(
    filled: Database, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AXES, "dropout", _later_axis())
    with pytest.raises(StoreError, match=r"Axis 'dropout' is newer .* before=VALUE"):
        Store.open(address, mode="write")


@ON_BOTH
def test_an_axis_that_vanished_is_refused_by_name(store: Store, address: str) -> None:
    with store.write() as connection:
        connection.exec_driver_sql("ALTER TABLE arm ADD COLUMN dropout FLOAT")
    with pytest.raises(StoreError, match=r"axis 'dropout'.*Put the field back"):
        Store.open(address, mode="write")


@pytest.mark.parametrize("name", ["a?b.db", "100%41.db", "a#b.db", "ä ö.db", "a:b.db"])
def test_a_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    assert not store_exists(tmp_path / name)
    Store.open(tmp_path / name, mode="write").close()
    assert name in {path.name for path in tmp_path.iterdir()}
    assert store_exists(tmp_path / name)
    Store.open(tmp_path / name).close()


@ON_BOTH
def test_a_new_metric_reaches_a_store_that_has_results(
    filled: Database, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = METRICS | {"new": METRICS["a_ii"]}
    monkeypatch.setattr(upgrade, "METRICS", metrics)
    monkeypatch.setattr(upgrade, "DEFINITIONS_SHA256", "other")
    with Store.open(address, mode="write") as opened, opened.read() as connection:
        assert "new" in set(connection.exec_driver_sql("SELECT name FROM metric").scalars())


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StoreError, match="is not a file"):
        Store.open(tmp_path / "fifo")
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.open(tmp_path / ("x" * 300))
