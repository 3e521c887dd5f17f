"""Opening the store: who may write, what is refused, and how a transaction is made."""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateColumn

from results import schema
from results.location import StoreError, address_of, check_file, shown, url_of, without_password
from results.views import INFINITY, VIEWS
from schemas.report import METRICS
from schemas.trial import AXES

BUSY_TIMEOUT_S = 10
DEFINITIONS_SHA256 = hashlib.sha256(repr([*VIEWS.items(), *METRICS.items()]).encode()).hexdigest()
"""What a store's views and metrics were made from."""


class Store:
    """A store that is open. Make one with `Store.open`; use as a context manager or `close()`."""

    def __init__(
        self, engine: sa.Engine, name: str, path: Path | None, mode: Literal["read", "write"]
    ) -> None:
        self.engine = engine
        self.path = path
        """The SQLite file, or None where a server holds the store."""
        self.name = name
        """What messages call this store: a path, or a URL without its password."""
        self.mode = mode

    @classmethod
    def open(cls, db: str | Path | None = None, *, mode: Literal["read", "write"] = "read") -> "Store":
        """Open the store at a path or URL; `None` is $XSA_DB, else `results.db` here.

        `mode="write"` creates a missing store and brings an older one up to date. `mode="read"`
        never writes. Raises `StoreError`.
        """
        text = address_of(db)
        path = None
        try:
            url = url_of(text)
            if url.get_backend_name() == "sqlite":
                path = Path(url.database or "").absolute()
                check_file(path, mode)
                engine = _sqlite_engine(path, mode)
                name = shown(path)
            else:
                engine = sa.create_engine(url, poolclass=NullPool)
                name = url.render_as_string(hide_password=True)
        except OSError as error:
            raise StoreError(
                f"{text} cannot be opened: {error.strerror}. Choose another store with --db."
            ) from None
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise StoreError(
                f"{without_password(text)} is not a database URL that can be opened: {error}. "
                "Give a path, or a URL such as postgresql+psycopg://user@host/name."
            ) from None
        store = cls(engine, name, path, mode)
        try:
            with store._explained():
                store._prepare()
        except BaseException:
            engine.dispose()
            raise
        return store

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
            if self.engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
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
            raise StoreError(f"{self.name}: {_explain(error)}") from error

    def _prepare(self) -> None:
        with self.read() as connection:
            tables = set(sa.inspect(connection).get_table_names())
            version = None
            if "schema_meta" in tables:
                meta = connection.execute(sa.select(schema.schema_meta)).one()
                version, views = meta.version, meta.views
                missing = self._missing_axes(connection)
        if version is None:
            if tables:
                raise StoreError(
                    f"{self.name} is a database of another program (it has a table '{min(tables)}'). "
                    "Choose another file or database with --db."
                )
            if self.mode == "read":
                raise StoreError(
                    f"{self.name} has no results yet. Run a sweep first: xsa run sweeps/quickstart.yaml"
                )
            self._create()
            return
        if version > schema.SCHEMA_VERSION:
            raise StoreError(
                f"{self.name} was written by a newer version of xsa (store version {version}; this one knows "
                f"up to {schema.SCHEMA_VERSION}). Update xsa, or choose another store with --db."
            )
        if missing or views != DEFINITIONS_SHA256:
            if self.mode == "read":
                raise StoreError(
                    f"{self.name} is older than this version of xsa; the next `xsa run` brings it up to date."
                )
            with self.write() as connection:
                for name in self._missing_axes(connection):  # again: another process may have been first
                    self._add_axis(connection, name)
                self._define(connection)

    def _missing_axes(self, connection: sa.Connection) -> list[str]:
        columns = {column["name"] for column in sa.inspect(connection).get_columns("arm")}
        if gone := columns - set(schema.arm.columns.keys()):
            raise StoreError(
                f"{self.name} has results for the axis '{min(gone)}', which schemas/trial.py no longer has. "
                "Put the field back, or choose another store with --db."
            )
        missing = [name for name in AXES if name not in columns]
        for name in missing:
            if "before" not in AXES[name].history:
                raise StoreError(
                    f"Axis '{name}' is newer than {self.name}. Say in schemas/trial.py what earlier arms had in "
                    f"effect: axis(..., before=VALUE)."
                )
        return missing

    def _add_axis(self, connection: sa.Connection, name: str) -> None:
        column = sa.Column(
            name,
            schema.arm.columns[name].type,
            nullable=False,
            server_default=sa.literal(AXES[name].history["before"], schema.arm.columns[name].type),
        )
        sa.Table("arm", sa.MetaData(), column)
        connection.exec_driver_sql(f"ALTER TABLE arm ADD COLUMN {CreateColumn(column).compile(self.engine)}")

    def _create(self) -> None:
        if self.engine.dialect.name == "sqlite":
            with self.read() as connection:  # outside of a transaction, and never on a file that is not ours
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        with self.write() as connection:
            if sa.inspect(connection).has_table("schema_meta"):
                return  # another process made it while this one waited for the lock
            schema.metadata.create_all(connection)
            connection.execute(schema.schema_meta.insert().values(version=schema.SCHEMA_VERSION, views=""))
            self._define(connection)

    def _define(self, connection: sa.Connection) -> None:
        """Make the views and the list of metrics those of this program."""
        infinity = (
            "CAST('Infinity' AS DOUBLE PRECISION)" if self.engine.dialect.name == "postgresql" else "9e999"
        )
        for name in reversed(VIEWS):
            connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
        for name, definition in VIEWS.items():
            connection.exec_driver_sql(f"CREATE VIEW {name} AS {definition.replace(INFINITY, infinity)}")
        connection.execute(schema.schema_meta.update().values(views=DEFINITIONS_SHA256))
        known = set(connection.scalars(sa.select(schema.metric.c.name)))
        rows = [{"name": name, **metric._asdict()} for name, metric in METRICS.items() if name not in known]
        if rows:
            connection.execute(schema.metric.insert(), rows)


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

    return sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)


def _explain(error: DBAPIError) -> str:
    text = str(error.orig or error).strip().splitlines()[0]
    if "locked" in text:
        return f"the database is locked by another program (waited {BUSY_TIMEOUT_S} s). Close it there, and try again."
    if "malformed" in text or "not a database" in text:
        return f"the database is damaged ({text}). Move it away; `xsa ingest` rebuilds it from the arms' folders."
    if "readonly" in text:
        return "the database cannot be written: there is no write access to it or its directory."
    if "unable to open" in text:
        return "the database cannot be opened: with a -wal file beside it, that needs write access to its directory."
    if "full" in text:
        return "the disk is full. Nothing was lost: free some space and run the sweep again."
    return text


def as_kind(value: float | None) -> tuple[Any, int]:
    """Return the value and kind columns for a float (see `results.schema`)."""
    if value is None or value != value:
        return None, 1
    if value in (float("inf"), float("-inf")):
        return None, 2 if value > 0 else 3
    return value, 0
