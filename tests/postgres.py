"""A PostgreSQL server of the tests' own: made in a temporary directory, gone at their end."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

USER, PASSWORD = "sweeper", "pass-" + secrets.token_hex(8)
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
}


def binaries() -> Path | None:
    """Return the directory of PostgreSQL's programs, or None where it is not installed."""
    found = [Path(path).resolve() for path in (shutil.which("initdb"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[0].parent if found else None


class Server:
    """A running server. `url` names its databases."""

    def __init__(self, programs: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="xsa-postgres-", dir=_memory()))
        self.as_user: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:  # as which PostgreSQL refuses to run
            name = next(name for name in ("postgres", "nobody") if _exists(name))
            user = pwd.getpwnam(name)
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        data, password = self.folder / "data", self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)  # the folder is closed to other users
        access = ["-U", USER, "-A", "scram-sha-256", f"--pwfile={password}"]
        subprocess.run(
            [programs / "initdb", "-D", data, *access, "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True,
            capture_output=True,
            **self.as_user,
        )
        options = OPTIONS | {"port": self.port, "unix_socket_directories": self.folder}
        self.log = (self.folder / "log").open("w")
        self._command = [
            programs / "postgres",
            "-D",
            data,
            *(f"--{key}={value}" for key, value in options.items()),
        ]
        self._numbers = count()
        self.start()

    def start(self) -> None:
        """Start the server, for the first time or after `crash`."""
        self.process = subprocess.Popen(self._command, stderr=self.log, **self.as_user)
        self._connection = self._connect()

    def crash(self) -> None:
        """End the server at once, as a machine that fails does."""
        self._connection.close()
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(30)

    def _connect(self) -> psycopg.Connection[Any]:
        deadline = time.monotonic() + 30
        while True:
            try:
                return psycopg.connect(self.url("postgres"), autocommit=True)
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def url(self, database: str, *, password: str = PASSWORD) -> str:
        """Return the URL of a database, whether it exists or not."""
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def sql(self, query: str, database: str = "postgres") -> None:
        """Run a statement as somebody else would, outside of any store."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(query)  # type: ignore[call-overload]

    def make(self, template: str = "template0") -> str:
        """Make a database and return its name."""
        name = f"test_{next(self._numbers)}"
        quick = "STRATEGY file_copy" if self._connection.info.server_version >= 150_000 else ""
        self._connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} {quick}")  # type: ignore[call-overload]
        return name

    def drop(self, name: str) -> None:
        """Remove a database, whoever is connected to it."""
        self._connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]

    def stop(self) -> None:
        """End the server and remove it."""
        self.crash()
        self.log.close()
        shutil.rmtree(self.folder)


def _memory() -> Path | None:
    """Return a file system in memory with room, if there is one: databases are made there ten times as fast."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    return memory if roomy else None


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
