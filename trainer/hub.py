"""Data sets of the Hugging Face Hub, streamed at one commit, and tried again where the Hub does not answer."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from schemas.dataset import Source
from schemas.errors import UserError
from schemas.names import unknown_name
from trainer.manifest import Origin
from trainer.sources import Cursor, Documents, texts

T = TypeVar("T")
TRIES = 6
"""How often in a row the Hub may fail to answer."""
FIRST_WAIT_S = 1.0
"""Wait before the second try; each further one is twice as long."""
_ROWS = 256
_PASSING = (408, 429)
"""HTTP statuses below 500 that may be others in a moment."""
STARTS = {"Salesforce/wikitext": re.compile(r" = [^=].* = \n")}
"""Repositories whose rows are lines: what a row looks like that begins a document."""


class HubSource:
    """A repository at a commit. A cursor is the state of `datasets`' stream, and rows to skip from there."""

    def __init__(self, source: Source, revision: str | None) -> None:
        self._source = source
        self._starts = STARTS.get(source.where)
        sha = _answered(lambda: _commit(source, revision), source)
        self.origin = Origin(source=source.label, revision=sha)

    def read(self, cursor: Cursor | None) -> Documents:
        """Return the documents from `cursor` on, or all; what fails on the way goes on from where it was."""
        failures = 0
        while True:
            try:
                for text, after in self._documents(cursor or {"state": None, "skip": 0, "row": 0}):
                    yield text, after
                    cursor, failures = after, 0
                return
            except Exception as error:
                failures += 1
                _wait_or_raise(error, failures, self._source)

    def place(self, cursor: Cursor) -> str:
        """Return what messages call the document that ends at `cursor`."""
        return f"{self._source.label}, row {cursor['row']:,}"

    def share(self, cursor: Cursor) -> float | None:
        """The Hub does not say how much there is."""
        return None

    def _documents(self, cursor: Cursor) -> Documents:
        """Return the rows, or what the rows between two that begin a document make together."""
        if self._starts is None:
            yield from self._rows(cursor)
            return
        parts: list[str] = []
        before = cursor
        for row, after in self._rows(cursor):
            if self._starts.fullmatch(row) and any(part.strip() for part in parts):
                yield "".join(parts), before
                parts = []
            parts.append(row)
            before = after
        if any(part.strip() for part in parts):
            yield "".join(parts), before

    def _rows(self, cursor: Cursor) -> Documents:
        state, skip, number = cursor["state"], cursor["skip"], cursor["row"]
        number -= skip
        stream = self._open()
        if state is not None:
            stream.load_state_dict(state)
        for table in stream.iter(batch_size=_ROWS):
            for i, text in enumerate(texts(table.column(0), self._source.label, number)):
                if i >= skip:
                    yield text, {"state": state, "skip": i + 1, "row": number + i + 1}
            state, skip, number = stream.state_dict(), 0, number + table.num_rows

    def _open(self) -> Any:
        import datasets

        source = self._source
        try:
            stream = datasets.load_dataset(
                source.where, source.config, split="train", streaming=True, revision=self.origin.revision
            )
        except (ValueError, FileNotFoundError) as error:
            if not re.search("BuilderConfig|Config name", str(error)):
                raise UserError(f"{source.label}: {error}") from None
            known = datasets.get_dataset_config_names(source.where, revision=self.origin.revision)
            raise unknown_name(f"configuration of {source.where}", source.config, known) from None
        names = list(stream.features or {})
        if names and source.field not in names:
            raise UserError(
                f"{source.label}: there is no field '{source.field}', only {', '.join(names)}. "
                f"Name the field: {source.label.partition('#')[0]}#FIELD."
            )
        return stream.select_columns([source.field]).with_format("arrow")


def _commit(source: Source, revision: str | None) -> str:
    """Return the commit that a revision (None: the newest) is now. Raises `UserError` where there is none."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return str(HfApi().dataset_info(source.where, revision=revision, timeout=20).sha)
    except GatedRepoError:
        raise UserError(
            f"{source.label}: its owner asks you to accept terms. Do so on the Hub, and set HF_TOKEN."
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"{source.label}: the Hub has no data set {source.where}, or it is private and HF_TOKEN is not set."
        ) from None
    except RevisionNotFoundError:
        raise UserError(f"{source.label}: {source.where} has no revision {revision}.") from None


def _answered(ask: Callable[[], T], source: Source) -> T:
    """Return what the Hub answers, which may take some tries."""
    for failures in _count():
        try:
            return ask()
        except Exception as error:
            _wait_or_raise(error, failures, source)
    raise AssertionError("the count does not end")


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield (number := number + 1)


def _wait_or_raise(error: Exception, failures: int, source: Source) -> None:
    """Wait before the next try, or raise: what waiting does not help, or what it has not helped often enough."""
    status = _status(error)
    if status is not None and status < 500 and status not in _PASSING:
        raise UserError(
            f"{source.label}: the Hub refuses it (HTTP {status}: {_first_line(error)}). "
            "If it is private, set HF_TOKEN."
        ) from error
    if status is None and not _is_passing(error):
        raise error
    if failures >= TRIES:
        raise UserError(
            f"{source.label}: the Hub does not answer ({type(error).__name__}: {_first_line(error)}), "
            f"tried {failures} times. What was prepared is kept: run it again when the network is back."
        ) from error
    time.sleep(FIRST_WAIT_S * 2 ** (failures - 1))


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error is about, if it is about one."""
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None)
    return status if isinstance(status, int) else None


def _is_passing(error: BaseException) -> bool:
    """Whether an error without a status is the network's, which may be another in a moment."""
    if isinstance(error, UserError):
        return False
    libraries = ("httpx", "httpcore", "aiohttp", "requests")
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.startswith(libraries)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
