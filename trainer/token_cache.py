"""Tokens on disk between processes: encoding the embedded text takes 2 s, in each worker of each run."""

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trainer.tokenizer import Tokens

Streams = tuple[Tokens, Tokens]
"""A data set's training and held-out tokens."""


def cache_root() -> Path:
    """Return where this machine keeps what can be made or fetched again: below $XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xsa-sweeps"


def cache_folder() -> Path:
    """Return where the tokens of embedded texts are kept."""
    return cache_root() / "tokens"


def fingerprint(streams: Streams) -> str:
    """Return the hash of both streams."""
    digest = hashlib.sha256(",".join(str(len(tokens)) for tokens in streams).encode())
    for tokens in streams:
        digest.update(tokens.astype(tokens.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def cached(key: str, encode: Callable[[], Streams]) -> tuple[Streams, str]:
    """Return the streams called `key`, and their hash, from the disk or else by encoding them.

    Args:
        key: hash of all that the streams follow from.
        encode: makes them. Called where there is no whole copy; the cache is then made anew.
    """
    path = cache_folder() / f"{key}.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            streams, told = (kept["train"], kept["val"]), str(kept["sha256"])
        if fingerprint(streams) == told:
            return streams, told
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # there is none, or only part of one
    streams = encode()
    told = fingerprint(streams)
    _keep(path, streams, told)
    return streams, told


def _keep(path: Path, streams: Streams, told: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            np.savez(file, train=streams[0], val=streams[1], sha256=np.array(told))
        Path(file.name).replace(path)
    except OSError:
        pass  # a home that cannot be written, or a full disk: the tokens are encoded again next time
