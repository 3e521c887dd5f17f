"""Documents to token ids in other processes, in order, with what decides on which side of the split each falls."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from threading import Thread

import numpy as np
import numpy.typing as npt

from schemas.errors import UserError
from trainer.manifest import Recipe
from trainer.sources import Batch, Cursor, Readable, batches
from trainer.tokenizer import Tokens, load_tokenizer, token_dtype

_AHEAD = 2
"""Batches a process that are read before they are needed."""


@dataclass(frozen=True)
class Encoded:
    """A batch's tokens, document after document, each with its end-of-text token."""

    tokens: Tokens
    ends: npt.NDArray[np.int64]
    """Where each document ends among the tokens."""
    held_out: npt.NDArray[np.bool_]
    text_bytes: npt.NDArray[np.int64]


def is_held_out(content: bytes, recipe: Recipe) -> bool:
    """Return whether a document, as UTF-8, is held out: a matter of its bytes and the seed alone.

    So a document that comes twice falls on one side, and what comes later moves nothing.
    """
    digest = hashlib.sha256(f"{recipe.seed},".encode() + content).digest()
    return int.from_bytes(digest[:8]) < recipe.held_out * 2**64


Encode = Callable[[list[str]], Encoded]

_encode_here: Encode
"""What this process, one of several, encodes with."""


def encoder(tokenizer: str, recipe: Recipe) -> Encode:
    """Return what turns documents into tokens."""
    loaded, dtype = load_tokenizer(tokenizer), token_dtype(tokenizer)
    eot = np.array([loaded.eot], dtype=dtype)

    def encode(documents: list[str]) -> Encoded:
        parts: list[Tokens] = [np.empty(0, dtype=dtype)]
        ends, held_out, sizes = [], [], []
        end = 0
        for text in documents:
            content = text.encode()
            ids = loaded.encode(text)
            parts += (ids, eot)
            end += len(ids) + 1
            ends.append(end)
            held_out.append(is_held_out(content, recipe))
            sizes.append(len(content))
        tokens = np.concatenate(parts)
        assert not len(tokens) or tokens.max() < loaded.n_vocab, (
            f"{tokenizer} gave an id beyond its vocabulary"
        )
        return Encoded(tokens, np.array(ends, np.int64), np.array(held_out, bool), np.array(sizes, np.int64))

    return encode


def _start(tokenizer: str, recipe: Recipe) -> None:
    """Set a process up, and let it end with its parent, however that ends."""
    global _encode_here
    Thread(target=_follow_parent, daemon=True).start()
    _encode_here = encoder(tokenizer, recipe)


def _follow_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _encode(documents: list[str]) -> Encoded:
    return _encode_here(documents)


def encoded(
    opened: Readable, recipe: Recipe, tokenizer: str, cursor: Cursor | None, workers: int
) -> Generator[tuple[Batch, Encoded], None, None]:
    """Return the batches from `cursor` on with their tokens, in order; a few are under way meanwhile."""
    encode = encoder(tokenizer, recipe)  # fails here, where its message is seen
    if workers == 1:
        for batch in batches(opened, cursor, empty=recipe.empty):
            yield batch, encode(batch.documents)
        return
    under_way: deque[tuple[Batch, Future[Encoded]]] = deque()
    with _pool(workers, tokenizer, recipe) as pool:
        for batch in batches(opened, cursor, empty=recipe.empty):
            under_way.append((batch, pool.submit(_encode, batch.documents)))
            if len(under_way) > _AHEAD * workers:
                batch, future = under_way.popleft()
                yield batch, future.result()
        while under_way:
            batch, future = under_way.popleft()
            yield batch, future.result()


@contextmanager
def _pool(workers: int, tokenizer: str, recipe: Recipe) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, (tokenizer, recipe))
    try:
        yield pool
    except BrokenProcessPool:
        raise UserError(
            "A tokenising process died, most likely for want of memory. What was prepared is kept: run it again, "
            "with fewer --workers."
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
