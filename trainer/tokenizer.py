"""Text to token ids and back: GPT-2's byte-pair encoding from an embedded file, or plain bytes."""

import functools
import hashlib
import lzma
from collections.abc import Callable
from importlib.resources import files
from typing import Protocol

import numpy as np
import numpy.typing as npt

from schemas.names import lookup

Tokens = npt.NDArray[np.uint16]
"""Token ids in order; both vocabularies fit into 16 bits."""

END_OF_TEXT = "<|endoftext|>"
GPT2_VOCAB_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
"""sha256 of OpenAI's `vocab.bpe`, the one that tiktoken checks for `gpt2`."""

_GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


class Tokenizer(Protocol):
    """What the data and the evaluations need of a tokenizer."""

    n_vocab: int
    """Number of distinct ids, the end-of-text token included."""
    eot: int
    """Id of the end-of-text token."""

    def encode(self, text: str) -> Tokens:
        """Return the ids of `text`, in which an end-of-text marker is text like any other."""

    def decode(self, ids: Tokens) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""


class Bytes:
    """The 256 bytes and an end-of-text token: a small vocabulary for small models and tests."""

    n_vocab = 257
    eot = 256
    rules = "UTF-8"

    def encode(self, text: str) -> Tokens:
        """Return the UTF-8 bytes of `text`."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: Tokens) -> str:
        """Return the text of `ids`."""
        pieces = (END_OF_TEXT.encode() if i == self.eot else bytes([i]) for i in ids.tolist())
        return b"".join(pieces).decode(errors="replace")


class GPT2:
    """GPT-2's byte-level byte-pair encoding (Radford et al. 2019), run by tiktoken."""

    n_vocab = 50_257
    eot = 50_256
    rules = GPT2_VOCAB_SHA256 + _GPT2_PATTERN

    def __init__(self) -> None:
        import tiktoken

        self._encoding = tiktoken.Encoding(
            "gpt2",
            pat_str=_GPT2_PATTERN,
            mergeable_ranks=gpt2_ranks(),
            special_tokens={END_OF_TEXT: self.eot},
            explicit_n_vocab=self.n_vocab,
        )

    def encode(self, text: str) -> Tokens:
        """Return the ids of `text`."""
        return np.array(self._encoding.encode_ordinary(text), dtype=np.uint16)

    def decode(self, ids: Tokens) -> str:
        """Return the text of `ids`."""
        return str(self._encoding.decode(ids.tolist()))


_TOKENIZERS: dict[str, type[Bytes] | type[GPT2]] = {"bytes": Bytes, "gpt2": GPT2}


def padded_vocab(name: str) -> int:
    """Return the rows of the embedding: the vocabulary, rounded up to a multiple of 64 as in nanoGPT."""
    return -(-lookup("tokenizer", name, _TOKENIZERS).n_vocab // 64) * 64


def tokenizer_rules(name: str) -> str:
    """Return a text that is another where a tokenizer would encode otherwise. Loads nothing."""
    return f"{name},{lookup('tokenizer', name, _TOKENIZERS).rules}"


@functools.cache
def load_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer called `name`. Raises `UnknownName`."""
    make: Callable[[], Tokenizer] = lookup("tokenizer", name, _TOKENIZERS)
    return make()


def read_asset(name: str) -> bytes:
    """Return the decompressed bytes of an embedded `.xz` file."""
    return lzma.decompress(files("trainer").joinpath("assets", name).read_bytes())


def gpt2_ranks() -> dict[bytes, int]:
    """Return the rank of each of GPT-2's 50,256 byte strings.

    `vocab.bpe` alone decides them: first the 256 bytes, those that print before the others, then
    a merge a line. It spells a byte that does not print as a character from U+0100 on.
    """
    content = read_asset("vocab.bpe.xz")
    assert hashlib.sha256(content).hexdigest() == GPT2_VOCAB_SHA256, "the embedded vocab.bpe is not OpenAI's"
    printing = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in printing]
    byte_of = {chr(b): b for b in printing} | {chr(256 + i): b for i, b in enumerate(others)}
    ranks = {bytes([b]): rank for rank, b in enumerate(printing + others)}
    for line in content.decode().splitlines()[1:]:
        ranks[bytes(byte_of[character] for character in line if character != " ")] = len(ranks)
    return ranks
