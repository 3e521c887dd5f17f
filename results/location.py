"""Where a store is: paths and URLs, and what must be true of a file before it is opened."""

import os
from pathlib import Path
from typing import Literal

import psutil
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from schemas.errors import UserError

DEFAULT_DB = "results.db"
POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")
"""Schemes of URLs, all of which psycopg 3 opens."""
NETWORK_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "glusterfs",
    "ceph",
    "fuse.sshfs",
    "9p",
    "afs",
)


class StoreError(UserError):
    """The store cannot be opened, read or written; the message says why and what helps."""


def store_exists(db: str | Path | None) -> bool:
    """Whether there is anything to open: a file at the path; a server's URL is taken at its word."""
    address = address_of(db)
    return "://" in address or os.path.lexists(address)


def address_of(db: str | Path | None) -> str:
    """Return the path or URL asked for: `db`, else $XSA_DB, else `results.db` here."""
    return str(db or os.environ.get("XSA_DB") or DEFAULT_DB)


def url_of(address: str) -> sa.URL:
    """Return the URL of an address. A path is taken as it is: `?`, `#` and `%` mean nothing in it.

    Raises `StoreError`, which never shows more than the scheme: the rest may hold a password.
    """
    scheme, is_url, _ = address.partition("://")
    if not is_url:
        return sa.URL.create("sqlite", database=address)
    if scheme not in ("sqlite", *POSTGRESQL):
        raise StoreError(
            f"{scheme}://... is not a database URL that can be opened. "
            "Give a path, or a URL such as postgresql://user@host/name."
        )
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        url = None
    if url is None or "@" in (url.host or ""):
        raise StoreError(
            f"{scheme}://... is not a database URL that can be opened. It has the form "
            "postgresql://user:password@host:5432/name, with @, : and / in a password as %40, %3A and %2F."
        )
    return url


def shown(path: Path) -> str:
    """Return what messages call a path: relative to the working directory where it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def shown_url(url: sa.URL) -> str:
    """Return what messages call a server's database: a URL without what may be secret."""
    where = {key: value for key, value in url.query.items() if key in ("host", "port")}
    shown = sa.URL.create(
        "postgresql", url.username, host=url.host, port=url.port, database=url.database, query=where
    )
    return shown.render_as_string()


def check_file(path: Path, mode: Literal["read", "write"]) -> None:
    """Raise `StoreError` unless SQLite may open the file at `path`: it never harms what is not a database."""
    name = shown(path)
    if path.is_dir():
        raise StoreError(f"{name} is a directory; --db needs the path of a file.")
    if not path.exists():
        if mode == "read":
            raise StoreError(
                f"There is no store at {name}. Run a sweep first (xsa run sweeps/quickstart.yaml), or name it: --db."
            )
        if not path.parent.is_dir():
            raise StoreError(f"{name} cannot be made: the directory {path.parent} does not exist.")
        if not os.access(path.parent, os.W_OK):
            raise StoreError(
                f"{name} cannot be made: there is no write access to {path.parent}. Choose another place with --db."
            )
    else:
        if not path.is_file():
            raise StoreError(f"{name} is not a file; --db needs the path of one.")
        if not os.access(path, os.R_OK):
            raise StoreError(f"{name} cannot be read: there is no read access to it.")
        with path.open("rb") as file:
            head = file.read(16)
        if head and head != b"SQLite format 3\0":
            raise StoreError(
                f"{name} is not a database. Choose another file with --db; this one was left as it is."
            )
        if mode == "write" and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            raise StoreError(f"{name} cannot be written: there is no write access to it or to {path.parent}.")
    if mode == "write" and (kind := _network_file_system(path)):
        raise StoreError(
            f"{name} lies on a network file system ({kind}), where SQLite loses data. "
            "Choose a local path, or a PostgreSQL URL, with --db."
        )


def _network_file_system(path: Path) -> str | None:
    real = path.resolve()
    mounts = [m for m in psutil.disk_partitions(all=True) if real.is_relative_to(m.mountpoint)]
    kind = max(mounts, key=lambda m: len(m.mountpoint)).fstype.lower() if mounts else ""
    return kind if kind.startswith(NETWORK_FILE_SYSTEMS) else None
