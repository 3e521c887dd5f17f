"""Shards as they grow: appended to, put on the disk, and cut back to what a killed process had put there."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from schemas.errors import UserError
from trainer.manifest import Shard, Split
from trainer.tokenizer import Tokens

SHARD_TOKENS = 2**28
"""Tokens of a full shard: 512 MiB of 16-bit ids; FineWeb-100BT makes 390 of them."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `UserError` where nothing, or no more, can be written to `path`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}. What was prepared is kept: make room there and run it "
            "again, or choose another folder with --data."
        ) from error


def replace_file(path: Path, text: str) -> None:
    """Put a file on the disk whole: a reader sees the old one or the new one."""
    part = path.with_name(f"{path.name}.part")
    with writing(path):
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


class SplitWriter:
    """The shards of one split, in order. All but the last are full."""

    def __init__(self, folder: Path, split: Split, sizes: list[int], itemsize: int) -> None:
        self._folder = folder
        self._split = split
        self._itemsize = itemsize
        self._sizes = list(sizes)
        """Tokens of each shard."""
        self._file: BinaryIO | None = None
        for path in sorted(folder.glob(f"{split}_*.bin"))[len(sizes) :]:
            path.unlink()  # begun after what was saved
        for number, tokens in enumerate(sizes):
            self._cut(self._path(number), tokens)
        if sizes and sizes[-1] < SHARD_TOKENS:
            self._open(len(sizes) - 1)

    def write(self, tokens: Tokens) -> None:
        """Append tokens. They are safe after the next `sync`."""
        while len(tokens):
            if not self._sizes or self._sizes[-1] == SHARD_TOKENS:
                self._next()
            part = tokens[: SHARD_TOKENS - self._sizes[-1]]
            self._write(part)
            self._sizes[-1] += len(part)
            tokens = tokens[len(part) :]

    def sync(self) -> list[int]:
        """Put all tokens on the disk: they survive the death of the machine. Return the shards' sizes."""
        if self._file:
            with writing(self._path(len(self._sizes) - 1)):
                os.fsync(self._file.fileno())
        return list(self._sizes)

    def finish(self) -> list[Shard]:
        """Return the shards with their hashes."""
        self.sync()
        paths = [self._path(number) for number in range(len(self._sizes))]
        return [
            Shard(file=path.name, tokens=tokens, sha256=sha256_of(path))
            for path, tokens in zip(paths, self._sizes, strict=True)
        ]

    def close(self) -> None:
        """Close the last shard."""
        if self._file:
            self._file.close()

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._split}_{number:05d}.bin"

    def _cut(self, path: Path, tokens: int) -> None:
        size, told = path.stat().st_size if path.exists() else 0, tokens * self._itemsize
        if size < told:
            raise UserError(
                f"{path} holds {size:,} bytes, but {told:,} were written: it was changed. "
                f"Delete {self._folder} and prepare it again."
            )
        os.truncate(path, told)

    def _next(self) -> None:
        self.sync()
        self.close()
        self._sizes.append(0)
        self._open(len(self._sizes) - 1)

    def _open(self, number: int) -> None:
        with writing(self._path(number)):
            self._file = self._path(number).open("ab", buffering=0)

    def _write(self, tokens: Tokens) -> None:
        assert self._file is not None
        rest = memoryview(tokens.astype(tokens.dtype.newbyteorder("<")).tobytes())
        with writing(self._path(len(self._sizes) - 1)):
            while rest:
                rest = rest[self._file.write(rest) :]


def sha256_of(path: Path) -> str:
    """Return the hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
