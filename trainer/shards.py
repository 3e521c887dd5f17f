"""Shards of token ids as one stream that is mapped into memory, never loaded: a batch costs its own tokens."""

import bisect
import hashlib
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import UserError
from trainer.journal import hold
from trainer.manifest import Manifest, Shard, Split
from trainer.token_cache import cache_root
from trainer.tokenizer import Tokens
from trainer.writing import sha256_of

FETCH_WAIT_S = 3600.0
"""How long a worker waits for another one of its node that fetches a shard."""
_BLOCK = 2**24


class DamagedData(UserError):
    """A shard that is not what its manifest says; the message names the file."""


class Shards:
    """The tokens of one split. Slices are read from the shards that hold them, each opened when first needed."""

    def __init__(self, manifest: Manifest, split: Split, open_file: Callable[[Shard], Path]) -> None:
        self._shards = manifest.shards(split)
        self._begins = [0, *itertools.accumulate(shard.tokens for shard in self._shards)]
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._n_vocab = manifest.n_vocab
        self._open_file = open_file
        self._maps: dict[int, Tokens] = {}

    def __len__(self) -> int:
        return self._begins[-1]

    def __getitem__(self, where: slice) -> Tokens:
        begin, end, step = where.indices(len(self))
        assert step == 1, "tokens are read in order"
        parts = []
        while begin < end:
            number = bisect.bisect_right(self._begins, begin) - 1
            offset = begin - self._begins[number]
            part = self._map(number)[offset : offset + end - begin]
            parts.append(part)
            begin += len(part)
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, self._dtype)])

    def _map(self, number: int) -> Tokens:
        if number not in self._maps:
            shard = self._shards[number]
            path = self._open_file(shard)
            check_size(str(path), path.stat().st_size if path.exists() else None, shard, self._dtype.itemsize)
            # As a plain array, whose slices cost a tenth of a memmap's.
            self._maps[number] = np.memmap(path, dtype=self._dtype, mode="r").view(np.ndarray)
        return self._maps[number]

    def check_ids(self, begins: Sequence[int], windows: npt.NDArray[np.int64]) -> None:
        """Raise `DamagedData` where windows that were read from here hold an id beyond the vocabulary."""
        if windows.max() < self._n_vocab:
            return
        row = int((windows.max(axis=1) >= self._n_vocab).argmax())
        number = bisect.bisect_right(self._begins, begins[row]) - 1
        raise DamagedData(
            f"{self._open_file(self._shards[number])} holds id {windows[row].max()} near its token "
            f"{begins[row] - self._begins[number]:,}, and the vocabulary ends at {self._n_vocab - 1}: it is damaged. "
            "`xsa data verify` checks the other shards."
        )


def check_size(path: str, size: int | None, shard: Shard, itemsize: int) -> None:
    """Raise `DamagedData` unless a shard's file is as long as it should be; None: it is not there."""
    if size != shard.tokens * itemsize:
        found = "is missing" if size is None else f"has {size:,} bytes, not {shard.tokens * itemsize:,}"
        raise DamagedData(
            f"{path} {found}: the data set is damaged. "
            f"Delete its folder ({path.rpartition('/')[0]}) and prepare it again."
        )


def check_bytes(filesystem: Any, folder: str, shard: Shard, itemsize: int) -> None:
    """Read a whole shard where it lies.

    Raises:
        DamagedData: it is missing, or not what its manifest says.
        UserError: it cannot be read.
    """
    path = f"{folder}/{shard.file}"
    try:
        check_size(path, filesystem.size(path) if filesystem.exists(path) else None, shard, itemsize)
        with filesystem.open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}. Try again.") from error
    if sha256 != shard.sha256:
        raise DamagedData(
            f"{path} is not what was written (another sha256). Delete {folder} and prepare it again."
        )


def fetched(filesystem: Any, folder: str, manifest: Manifest, shard: Shard) -> Path:
    """Return this node's copy of a shard that lies elsewhere, fetched once for all workers of the node.

    Raises `DamagedData` where it is missing there, or what arrives is not what the manifest says.
    """
    own = cache_root() / "data" / manifest.data_id
    path = own / shard.file
    if path.exists():
        return path
    part = own / f"{shard.file}.part"
    with hold(own / f"{shard.file}.lock", wait_s=FETCH_WAIT_S):
        if path.exists():
            return path
        try:
            with filesystem.open(f"{folder}/{shard.file}", "rb") as source, part.open("wb") as target:
                while block := source.read(_BLOCK):
                    target.write(block)
                target.flush()
                os.fsync(target.fileno())
        except FileNotFoundError:
            raise DamagedData(
                f"{folder}/{shard.file} is missing. Delete {folder} and prepare it again."
            ) from None
        except OSError as error:
            raise UserError(
                f"{folder}/{shard.file} cannot be fetched to {own}: {error.strerror or error}. Make room there, "
                "or name another cache with XDG_CACHE_HOME."
            ) from error
        if sha256_of(part) != shard.sha256:
            part.unlink()
            raise DamagedData(
                f"{folder}/{shard.file} is not what its manifest says (another sha256). Prepare it anew."
            )
        part.replace(path)
    return path
