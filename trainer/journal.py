"""The arm's folder as its worker writes it: the journal, `arm.json`, and the reports of both."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.errors import UserError
from schemas.report import ArmRecord, Report, Row, Status, Weights, read_rows, row_to_json, write_record

JOURNAL = "metrics.jsonl"
LOCK_WAIT_S = 60.0
"""How long a worker waits for a predecessor that was killed a moment ago."""
_LOCK_POLL_S = 0.1


class FolderBusy(UserError):
    """Another live worker trains the arm of this folder."""


@contextmanager
def hold(folder: Path, *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Own the folder while the context lasts; the lock ends with the process, however it ends.

    Raises:
        FolderBusy: another process has held it for all of `wait_s` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise FolderBusy(
                        f"{folder} has been in use by another worker for {wait_s:g} s; "
                        "stop that worker, or wait until it is done."
                    ) from None
                time.sleep(_LOCK_POLL_S)
        yield


def journal_size(folder: Path) -> int:
    """Return the size in bytes of the journal in `folder`, 0 where there is none."""
    path = folder / JOURNAL
    return path.stat().st_size if path.exists() else 0


class Journal:
    """`metrics.jsonl`, cut back to `size` bytes and then only appended to."""

    def __init__(self, folder: Path, size: int) -> None:
        path = folder / JOURNAL
        path.touch()
        self._file = path.open("r+b")
        self._file.truncate(size)
        self._file.seek(size)

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows; a reader sees them after the next `flush`."""
        for row in rows:
            self._file.write(json.dumps(row_to_json(row), allow_nan=False).encode() + b"\n")

    def flush(self) -> None:
        """Hand all rows to the operating system: they survive the death of this process."""
        self._file.flush()

    def sync(self) -> int:
        """Put all rows on the disk: they survive the death of the machine. Return the size in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Logbook:
    """One attempt's record of an arm: each row goes to the journal and, with the next report, to the driver.

    The first report carries all rows of the journal, so that a reader that lost some gets them.
    """

    def __init__(
        self,
        folder: Path,
        record: ArmRecord,
        *,
        journal_bytes: int,
        where: Callable[[], dict[str, Any]],
        send: Callable[[Report], None],
    ) -> None:
        self.record = record
        self._folder = folder
        self._where = where
        self._send = send
        self._journal = Journal(folder, journal_bytes)
        self._unsent: list[Row] = read_rows(folder)
        self._wall_s = record.wall_s
        self._begin = time.monotonic()

    def __enter__(self) -> "Logbook":
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    def add(self, rows: Iterable[Row]) -> None:
        """Journal rows and keep them for the next report."""
        rows = list(rows)
        self._journal.append(rows)
        self._unsent += rows

    def sync(self) -> int:
        """Make the journal durable and return its size in bytes."""
        return self._journal.sync()

    def report(self, status: Status, step: int, weights: Weights | None = None) -> ArmRecord:
        """Write `arm.json`, then send the record with the rows since the last report."""
        self._journal.flush()
        self.record = replace(
            self.record,
            status=status,
            step=step,
            wall_s=self._wall_s + time.monotonic() - self._begin,
            environment=self._where(),
            weights=weights,
        )
        write_record(self._folder, self.record)
        rows, self._unsent = self._unsent, []
        self._send(Report(self.record, rows))
        return self.record
