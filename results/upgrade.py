"""What a database is, and how it becomes what this program reads: tables, axis columns, views."""

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa

from results import schema
from results.location import StoreError, shown
from results.views import INFINITY, VIEWS
from schemas.report import METRICS
from schemas.trial import AXES

DEFINITIONS_SHA256 = hashlib.sha256(repr([*VIEWS.items(), *METRICS.items()]).encode()).hexdigest()
"""What a store's views and metrics were made from."""
_ADVISORY_LOCK = int.from_bytes(b"xsastore")


def revision_of(connection: sa.Connection, name: str) -> str | None:
    """Return the revision of a store's tables, or None where there are none yet.

    Raises `StoreError` for another program's database and for one that a newer version of this made.
    """
    tables = set(sa.inspect(connection).get_table_names())
    if not tables:
        return None
    if "schema_meta" not in tables:
        raise StoreError(
            f"{name} is a database of another program (it has a table '{min(tables)}'). "
            "Choose another file or database with --db."
        )
    if "alembic_version" not in tables:
        return "0001"  # which had no such table
    revision: str = connection.execute(sa.select(schema.alembic_version.c.version_num)).scalar_one()
    if revision != schema.REVISION:
        from results.migrations import revisions  # Alembic takes most of a second to load

        if revision not in revisions():
            raise StoreError(
                f"{name} was written by a newer version of xsa (store revision {revision}; this one knows up to "
                f"{schema.REVISION}). Update xsa, or choose another store with --db."
            )
    return revision


def check_readable(connection: sa.Connection, revision: str | None, name: str) -> None:
    """Raise `StoreError` unless a store can be read as it is."""
    if revision is None:
        raise StoreError(f"{name} has no results yet. Run a sweep first: xsa run sweeps/quickstart.yaml")
    if not is_current(connection, revision, name):
        raise StoreError(
            f"{name} is older than this version of xsa; the next `xsa run` brings it up to date."
        )


def is_current(connection: sa.Connection, revision: str, name: str) -> bool:
    """Whether a store of this revision has the tables, axes and views that this program reads."""
    return revision == schema.REVISION and not _missing_axes(connection, name) and _defined(connection)


def bring_up_to_date(connection: sa.Connection, name: str, path: Path | None) -> list[str]:
    """Make the database what this program reads, in the caller's transaction; return what to tell the user.

    Whoever is second waits for the first, and finds nothing left to do. A file (`path`) is copied
    before its tables change.
    """
    if connection.dialect.name == "postgresql":  # SQLite's writers wait for one another anyway
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    revision = revision_of(connection, name)
    if revision is None:
        schema.metadata.create_all(connection)
        connection.execute(schema.alembic_version.insert().values(version_num=schema.REVISION))
        connection.execute(schema.schema_meta.insert().values(views=""))
    if revision in (None, schema.REVISION):
        _complete(connection, name)
        return []
    note = f"{name} was brought from revision {revision} to {schema.REVISION}"
    if path is None:
        _migrate(connection, revision)
        _complete(connection, name)
        return [f"{note}."]
    with _copied(path, revision) as copy:
        _migrate(connection, revision)
        _complete(connection, name)
    return [f"{note}; {shown(copy)} is a copy of it as it was."]


@contextmanager
def _copied(path: Path, revision: str) -> Iterator[Path]:
    """A copy of a SQLite file whose write lock this process holds. It stays if the body succeeds."""
    names = (f"{path.name}.{revision}.backup{number}" for number in ("", *range(2, 1000)))
    copy = next(p for name in names if not (p := path.with_name(name)).exists())
    part = path.with_name(f"{path.name}.part")  # what is killed half way is never taken for a copy
    try:
        part.unlink(missing_ok=True)
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(part)) as target,
        ):
            source.backup(target)
        shutil.copymode(path, part)
        part.replace(copy)
    except (sqlite3.Error, OSError) as error:
        part.unlink(missing_ok=True)
        raise StoreError(
            f"{shown(path)} is older than this version of xsa, and no copy of it could be made before changing it "
            f"({error}). Nothing was changed; make room beside it, and try again."
        ) from error
    try:
        yield copy
    except BaseException:
        copy.unlink()
        raise


def _migrate(connection: sa.Connection, revision: str) -> None:
    from results.migrations import migrate

    for view in reversed(VIEWS):  # a database lets no column change that a view reads
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {view}")
    if not sa.inspect(connection).has_table("alembic_version"):
        schema.alembic_version.create(connection)
        connection.execute(schema.alembic_version.insert().values(version_num=revision))
    migrate(connection)


def _missing_axes(connection: sa.Connection, name: str) -> list[str]:
    columns = set(connection.exec_driver_sql("SELECT * FROM arm LIMIT 0").keys())
    if gone := columns - set(schema.arm.columns.keys()):
        raise StoreError(
            f"{name} has results for the axis '{min(gone)}', which schemas/trial.py no longer has. "
            "Put the field back, or choose another store with --db."
        )
    missing = [axis for axis in AXES if axis not in columns]
    for axis in missing:
        if "before" not in AXES[axis].history:
            raise StoreError(
                f"Axis '{axis}' is newer than {name}. Say in schemas/trial.py what earlier arms had in "
                f"effect: axis(..., before=VALUE)."
            )
    return missing


def _add_axis(connection: sa.Connection, name: str) -> None:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    kind, axis = schema.arm.columns[name].type, AXES[name]
    before = sa.literal(axis.history["before"], kind)
    column = sa.Column(name, kind, nullable=False, server_default=before, comment=axis.description)
    Operations(MigrationContext.configure(connection)).add_column("arm", column)


def _defined(connection: sa.Connection) -> bool:
    return connection.scalar(sa.select(schema.schema_meta.c.views)) == DEFINITIONS_SHA256


def _complete(connection: sa.Connection, name: str) -> None:
    """Give tables of the newest revision what follows from the program: axis columns, views, metrics."""
    missing = _missing_axes(connection, name)
    for axis in missing:
        _add_axis(connection, axis)
    if missing or not _defined(connection):
        _define(connection)


def _define(connection: sa.Connection) -> None:
    """Make the views and the list of metrics those of this program."""
    infinity = "CAST('Infinity' AS DOUBLE PRECISION)" if connection.dialect.name == "postgresql" else INFINITY
    for name in reversed(VIEWS):
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
    for name, definition in VIEWS.items():
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {definition.replace(INFINITY, infinity)}")
    connection.execute(schema.schema_meta.update().values(views=DEFINITIONS_SHA256))
    known = set(connection.scalars(sa.select(schema.metric.c.name)))
    rows = [{"name": name, **metric._asdict()} for name, metric in METRICS.items() if name not in known]
    if rows:
        connection.execute(schema.metric.insert(), rows)
