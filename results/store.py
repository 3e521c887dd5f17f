"""Opening the store: who may write, what is refused, and how a transaction is made."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from results.explain import explain
from results.location import StoreError, address_of, check_file, shown, shown_url, url_of
from results.upgrade import bring_up_to_date, check_readable, is_current, revision_of

BUSY_TIMEOUT_S = 10
"""How long to wait for another's lock, and for a server to accept a connection."""
_CONNECTION = {
    "application_name": "xsa",
    "keepalives_idle": 30,  # a server that is gone without a word is noticed in a minute, not in two hours
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class Store:
    """A store that is open. Make one with `Store.open`; use as a context manager or `close()`."""

    def __init__(
        self,
        engine: sa.Engine,
        name: str,
        path: Path | None,
        mode: Literal["read", "write"],
        wait_s: float,
    ) -> None:
        self.engine = engine
        self.path = path
        """The SQLite file, or None where a server holds the store."""
        self.name = name
        """What messages call this store: a path, or a URL without its password."""
        self.mode = mode
        self.wait_s = wait_s
        """How long a transaction waits for another's lock."""
        self.notes: list[str] = []
        """What was done to the database when it was opened, for the user to know."""

    @classmethod
    def open(
        cls,
        db: str | Path | None = None,
        *,
        mode: Literal["read", "write"] = "read",
        wait_s: float | None = None,
    ) -> "Store":
        """Open the store at a path or URL; `None` is $XSA_DB, else `results.db` here.

        `mode="write"` creates a missing store and brings an older one up to date. `mode="read"`
        never writes. `wait_s` is how long to wait for another's lock, `BUSY_TIMEOUT_S` unless given.
        Raises `StoreError`.
        """
        wait_s = BUSY_TIMEOUT_S if wait_s is None else wait_s
        url = url_of(address_of(db))
        if url.drivername == "sqlite":
            path = Path(url.database or "").absolute()
            try:
                check_file(path, mode)
            except OSError as error:
                raise StoreError(
                    f"{path} cannot be opened: {error.strerror}. Choose another store with --db."
                ) from None
        store = cls._at(url, mode, wait_s)
        try:
            store._prepare()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def _at(cls, url: sa.URL, mode: Literal["read", "write"], wait_s: float) -> "Store":
        """Return the store at a URL, whatever is there."""
        if url.drivername == "sqlite":
            path = Path(url.database or "").absolute()
            return cls(_sqlite_engine(path, mode), shown(path), path, mode, wait_s)
        return cls(_postgresql_engine(url, mode), shown_url(url), None, mode, wait_s)

    @classmethod
    def standing(cls, db: str | Path | None) -> tuple[str, str]:
        """Return a store's name, and what the next run will do to it, if anything. Changes nothing.

        Raises `StoreError` where a run could not write it.
        """
        url = url_of(address_of(db))
        if url.drivername == "sqlite":
            path = Path(url.database or "").absolute()
            check_file(path, "write")
            if not path.exists():
                return shown(path), "the first run makes it"
        with cls._at(url, "read", BUSY_TIMEOUT_S) as store, store.read() as connection:
            revision = revision_of(connection, store.name)
            if revision is None:
                return store.name, "the first run makes its tables"
            current = is_current(connection, revision, store.name)
            return store.name, "" if current else "the next run brings it up to date"

    def default_storage(self) -> Path:
        """Return where arms' folders go unless somebody says otherwise: `runs/` beside the store."""
        return (self.path.parent if self.path else Path.cwd()) / "runs"

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One transaction that takes the write lock at once; rolled back if the body raises."""
        assert self.mode == "write"
        with self._explained(), self.engine.connect() as connection:
            if self.path:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(self.wait_s * 1000)}")
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(self.wait_s * 1000)}")
            yield connection
            connection.commit()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection to read from."""
        with self._explained(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise StoreError(f"{self.name}: {explain(error, waited=self.wait_s)}") from error

    def _prepare(self) -> None:
        with self.read() as connection:
            revision = revision_of(connection, self.name)
            if self.mode == "read":
                check_readable(connection, revision, self.name)
                return
            if (
                revision is None and self.path
            ):  # outside of a transaction, and never on a file that is not ours
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        with self.write() as connection:
            self.notes += bring_up_to_date(connection, self.name, self.path)


def _sqlite_engine(path: Path, mode: str) -> sa.Engine:
    # A reader that could create the file would turn a mistyped path into an empty store.
    access = "ro" if mode == "read" else "rwc"
    if mode == "read" and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        access = "ro&immutable=1"  # SQLite could not make the files beside it that reading otherwise needs

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={access}", uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys = ON")
        if mode == "write":
            connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    # One connection stays open: closing the last one checkpoints the WAL, which took longer than most writes.
    return sa.create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=1, max_overflow=-1)


def _postgresql_engine(url: sa.URL, mode: str) -> sa.Engine:
    def connect() -> Any:
        return engine.dialect.connect(*arguments, **options)

    try:
        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=connect,  # so that the engine does not hold the password, and cannot show it
            pool_pre_ping=True,  # a server may have been restarted since the last transaction
            execution_options={"postgresql_readonly": mode == "read"},
        )
    except ImportError as error:
        raise StoreError(
            f"{shown_url(url)} needs the driver psycopg 3 ({error}): pip install 'xsa-sweeps[postgres]'"
        ) from None
    arguments, given = engine.dialect.create_connect_args(url)
    options = {"connect_timeout": BUSY_TIMEOUT_S, **_CONNECTION, **given}
    return engine


def as_text(text: str) -> str:
    """Return a text that every database takes: PostgreSQL has no NUL, and none has half a surrogate pair."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def as_kind(value: float | None) -> tuple[Any, int]:
    """Return the value and kind columns for a float (see `results.schema`)."""
    if value is None or value != value:
        return None, 1
    if value in (float("inf"), float("-inf")):
        return None, 2 if value > 0 else 3
    return value, 0
