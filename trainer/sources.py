"""Documents of a data set in order, from wherever they are, and from any point at which reading stopped.

A reader yields (text, cursor): the cursor says where the next document begins, and is plain JSON.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from schemas.dataset import PRESETS, Source
from schemas.errors import UserError
from trainer.manifest import Origin, SourceFile, total_bytes
from trainer.tokenizer import END_OF_TEXT

Cursor = dict[str, Any]
Documents = Iterator[tuple[str, Cursor]]

BATCH_CHARACTERS = 2**20
"""Text that goes to a process at once: a tenth of a second of its work."""
PAPER_SHARE = 0.0005
"""Share of the documents that the paper (and nanoGPT) holds out: 0.05 %."""
FILES_SHARE = 0.05
"""Share of the documents of files: enough of a small text, and a constant, so that more text moves none across."""
_PIECE_BYTES = 4096
"""A text without end-of-text lines is cut at its blank lines into documents of at least this."""
_LONG_PIECE_BYTES = 2**16
"""And at the end of any line, where there is no blank one for so long."""
_MARK = END_OF_TEXT.encode()


class BadDocument(UserError):
    """A document that cannot be read; the message names the file and the place."""


class Readable(Protocol):
    """A source that is open."""

    origin: Origin

    def read(self, cursor: Cursor | None) -> Documents:
        """Return the documents from `cursor` on, or all."""

    def place(self, cursor: Cursor) -> str:
        """Return what messages call the document that ends at `cursor`."""

    def share(self, cursor: Cursor) -> float | None:
        """Return how much of the source lies before `cursor`, from 0 to 1, where that is known."""


@dataclass(frozen=True)
class Batch:
    """Documents in a row."""

    documents: list[str]
    cursor: Cursor
    """Where the next batch begins."""
    empty: int
    """Documents without text that were left out."""


def open_source(source: Source, revision: str | None) -> Readable:
    """Return an open source: files here, or a repository at a revision (None: its newest).

    Raises `UserError` where there is no such thing.
    """
    if source.kind == "embedded":
        raise UserError(f"{source.label} ships with the program and needs no preparing; use it as it is.")
    if source.kind == "hf":
        from trainer.hub import HubSource

        return HubSource(source, revision)
    if revision is not None:
        raise UserError(f"{source.label} is files, which have no revision; leave --revision out.")
    return FileSource(source)


def default_share(source: Source) -> float:
    """Return the share of documents that is held out unless somebody says otherwise."""
    return FILES_SHARE if source.is_local else PAPER_SHARE


def batches(source: Readable, cursor: Cursor | None, *, empty: Literal["refuse", "skip"]) -> Iterator[Batch]:
    """Return the documents from `cursor` on, many at a time. Raises `BadDocument`."""
    documents: list[str] = []
    characters = skipped = 0
    for text, after in source.read(cursor):
        if not text:
            if empty == "refuse":
                raise BadDocument(
                    f"{source.place(after)}: the document is empty. Take it out, or let such be left out: --empty skip."
                )
            skipped += 1
        else:
            documents.append(text)
        cursor, characters = after, characters + len(text)
        if characters >= BATCH_CHARACTERS:
            yield Batch(documents, after, skipped)
            documents, characters, skipped = [], 0, 0
    if cursor is not None and (documents or skipped):
        yield Batch(documents, cursor, skipped)


def source_files(source: Source) -> list[SourceFile]:
    """Return the files of a local source as they are now, by name; none where they are gone."""
    where = Path(source.where).expanduser()
    root = Path(where.anchor)
    found = [where] if where.exists() else sorted(root.glob(str(where.relative_to(root))))
    paths = [path for path in found if path.is_file()]
    return [_as_now(path) for path in paths]


def _as_now(path: Path) -> SourceFile:
    told = path.stat()
    return SourceFile(
        path=str(path.resolve()), bytes=told.st_size, mtime_ns=told.st_mtime_ns, ctime_ns=told.st_ctime_ns
    )


def are_gone(source: Source) -> bool:
    """Return whether a source is files of which none is there any more."""
    return source.is_local and not source_files(source)


class FileSource:
    """Local files, read one after the other. A cursor is (number of the file, place in it)."""

    def __init__(self, source: Source) -> None:
        files = source_files(source)
        if not files:
            folder = Path(source.where).expanduser().is_dir()
            hint = f"it is a folder: write {source.where}/*" if folder else "there is no such file"
            raise UserError(
                f"{source.label}: {hint} (the working directory is {Path.cwd()}). Also known: {', '.join(PRESETS)}."
            )
        self.origin = Origin(source=source.label, files=files)
        self._read: Callable[[Path, Cursor], Documents] = {
            "text": _text,
            "jsonl": lambda path, at: _jsonl(path, at, source.field),
            "parquet": lambda path, at: _parquet(path, at, source.field),
        }[source.kind]

    def read(self, cursor: Cursor | None) -> Documents:
        """Return the documents from `cursor` on, or all."""
        first, at = (cursor["file"], cursor["at"]) if cursor else (0, {})
        for number, file in enumerate(self.origin.files[first:], start=first):
            for text, after in self._read(Path(file.path), at):
                yield text, {"file": number, "at": after}
            at = {}

    def place(self, cursor: Cursor) -> str:
        """Return what messages call the document that ends at `cursor`."""
        at = cursor["at"]
        unit = next(unit for unit in ("line", "row", "byte") if unit in at)
        return f"{self.origin.files[cursor['file']].path}, {'up to ' if unit == 'byte' else ''}{unit} {at[unit]:,}"

    def share(self, cursor: Cursor) -> float | None:
        """Return how much of the files lies before `cursor`."""
        files = self.origin.files
        number, at = cursor["file"], cursor["at"]
        read: float = at["byte"] if "byte" in at else files[number].bytes * at["row"] / max(1, at["rows"])
        return (total_bytes(files[:number]) + read) / max(1, total_bytes(files))


def _decoded(content: bytes, path: Path, begin: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadDocument(
            f"{path}, byte {begin + error.start:,}: 0x{content[error.start]:02x} is not UTF-8 ({error.reason}). "
            "Convert the file, such as with iconv -t UTF-8."
        ) from None


def _text(path: Path, at: Cursor) -> Documents:
    """Documents end with a line that ends in <|endoftext|>; without any, with a blank line or after 64 KiB."""
    begin = end = at.get("byte", 0)
    marked = _is_marked(path)
    parts: list[bytes] = []
    with path.open("rb") as file:
        file.seek(begin)
        for line in file:
            end += len(line)
            if marked and _ends_document(line):
                parts.append(line.rstrip(b"\r\n").removesuffix(_MARK))
            else:
                parts.append(line)
                size = end - begin
                if marked or size < _PIECE_BYTES or (line.strip() and size < _LONG_PIECE_BYTES):
                    continue
            yield _decoded(b"".join(parts), path, begin), {"byte": end}
            parts, begin = [], end
    if parts:
        yield _decoded(b"".join(parts), path, begin), {"byte": end}


def _ends_document(line: bytes) -> bool:
    return line.rstrip(b"\r\n").endswith(_MARK)


def _is_marked(path: Path) -> bool:
    with path.open("rb") as file:
        return any(_ends_document(line) for line in file)


def _jsonl(path: Path, at: Cursor, field: str) -> Documents:
    end, number = at.get("byte", 0), at.get("line", 0)
    with path.open("rb") as file:
        file.seek(end)
        for line in file:
            text = _decoded(line, path, end)
            end, number = end + len(line), number + 1
            if text.strip():
                yield _field_of(text, path, number, field), {"byte": end, "line": number}


def _field_of(line: str, path: Path, number: int, field: str) -> str:
    place = f"{path}, line {number:,}"
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadDocument(
            f"{place}: no JSON ({error.msg}, column {error.colno}). Mend or remove the line."
        ) from None
    if not isinstance(row, dict) or field not in row:
        there = ", ".join(row) if isinstance(row, dict) else f"a {type(row).__name__}, not an object"
        raise BadDocument(
            f"{place}: there is no field '{field}', only {there}. Name the field: jsonl:{path}#FIELD."
        )
    text = row[field]
    if not isinstance(text, str):
        raise BadDocument(
            f"{place}: field '{field}' is a {type(text).__name__}, not a text. Name another: #FIELD."
        )
    if "\\ud" in line.lower() and any("\ud800" <= character <= "\udfff" for character in text):
        raise BadDocument(
            f"{place}: field '{field}' holds half a surrogate pair, which is no text. Mend the line."
        )
    return text


def _parquet(path: Path, at: Cursor, field: str) -> Documents:
    import pyarrow as pa
    import pyarrow.parquet as pq

    done, end = at.get("row", 0), 0
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        if field not in names:
            raise BadDocument(
                f"{path}: there is no column '{field}', only {', '.join(names)}. "
                f"Name the column: parquet:{path}#COLUMN."
            )
        rows = file.metadata.num_rows
        for group in range(file.num_row_groups):
            begin, end = end, end + file.metadata.row_group(group).num_rows
            if end <= done:
                continue
            for batch in file.iter_batches(batch_size=1024, row_groups=[group], columns=[field]):
                skip, begin = max(0, done - begin), begin + batch.num_rows
                first = begin - batch.num_rows + skip
                for row, text in enumerate(texts(batch.column(0)[skip:], path, first), start=first + 1):
                    yield text, {"row": row, "rows": rows}
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise BadDocument(f"{path}: it is no whole Parquet file ({reason}). Get or write it again.") from None


def texts(column: Any, name: object, first: int) -> Iterable[str]:
    """Return the texts of an Arrow column whose first value is document `first` (from 0) of `name`."""
    values: list[str]
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = [_text_of(column, i, f"{name}, row {first + i + 1:,}") for i in range(len(column))]
    for i, value in enumerate(values):
        if not isinstance(value, str):
            kind = "nothing" if value is None else f"a {type(value).__name__}"
            raise BadDocument(
                f"{name}, row {first + i + 1:,}: it holds {kind}, not a text. Name another field: #FIELD."
            )
    return values


def _text_of(column: Any, i: int, place: str) -> str:
    try:
        return str(column[i].as_py())
    except UnicodeDecodeError as error:
        raise BadDocument(
            f"{place}, byte {error.start:,}: it is not UTF-8 ({error.reason}). Mend the row."
        ) from None
