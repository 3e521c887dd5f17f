"""Documents of a prepared data set as text, for the eyes of who prepared it."""

from collections.abc import Iterator

import numpy as np

from trainer.data_folder import Prepared
from trainer.manifest import Split
from trainer.tokenizer import load_tokenizer

MOST_TOKENS = 200
"""Tokens that are shown of a document."""
_LOOK = 2**16


def documents(prepared: Prepared, split: Split, *, n: int, seed: int) -> Iterator[tuple[int, str]]:
    """Return the first token's place and the beginning of `n` documents, each the next after a random token."""
    tokenizer = load_tokenizer(prepared.manifest.tokenizer)
    tokens = prepared.tokens(split)
    for place in np.random.default_rng(seed).integers(len(tokens), size=n).tolist():
        ends = np.flatnonzero(tokens[place : place + _LOOK] == tokenizer.eot)
        begin = place + int(ends[0]) + 1 if len(ends) else 0
        begin = 0 if begin >= len(tokens) else begin
        ids = tokens[begin : begin + MOST_TOKENS]
        end = np.flatnonzero(ids == tokenizer.eot)
        cut = ids[: end[0]] if len(end) else ids
        yield begin, tokenizer.decode(cut) + ("" if len(end) else " ...")
