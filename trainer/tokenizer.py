"""Text to token ids and back: GPT-2's byte-pair encoding from an embedded file, plain bytes, or tiktoken's."""

import functools
import hashlib
import lzma
import os
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from schemas.dataset import VOCABULARIES, check_tokenizer
from schemas.errors import UserError

if TYPE_CHECKING:
    import tiktoken

Tokens = npt.NDArray[np.unsignedinteger[Any]]
"""Token ids in order: of 16 bits, or of 32 where the vocabulary needs them (`token_dtype`)."""

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


class BytePairs:
    """A byte-level byte-pair encoding (Radford et al. 2019), run by tiktoken."""

    def __init__(self, encoding: "tiktoken.Encoding") -> None:
        self.n_vocab = encoding.n_vocab
        self.eot = encoding.eot_token
        self._dtype = token_dtype(encoding.name)
        self._encoding = encoding

    def encode(self, text: str) -> Tokens:
        """Return the ids of `text`."""
        # As `encode_ordinary`, without a list of Python's integers between.
        ids: Tokens
        try:
            ids = self._encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:  # half a surrogate pair: U+FFFD in its place
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = self._encoding.encode_to_numpy(whole, disallowed_special=())
        return ids.astype(self._dtype)

    def decode(self, ids: Tokens) -> str:
        """Return the text of `ids`."""
        return str(self._encoding.decode(ids.tolist()))


def token_dtype(name: str) -> np.dtype[np.unsignedinteger[Any]]:
    """Return what holds an id of the tokenizer called `name`: 16 bits, or 32 where the vocabulary needs them."""
    return np.dtype(np.uint16 if VOCABULARIES[check_tokenizer(name)] <= 2**16 else np.uint32)


def padded_vocab(name: str) -> int:
    """Return the rows of the embedding: the vocabulary, rounded up to a multiple of 64 as in nanoGPT."""
    return -(-VOCABULARIES[check_tokenizer(name)] // 64) * 64


def tokenizer_rules(name: str) -> str:
    """Return a text that is another where a tokenizer would encode otherwise. Loads nothing."""
    rules = {"bytes": Bytes.rules, "gpt2": GPT2_VOCAB_SHA256 + _GPT2_PATTERN}
    return f"{check_tokenizer(name)},{rules.get(name, 'tiktoken')}"  # which pins the hash of every file


@functools.cache
def load_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer called `name`. Raises `UnknownName`, and `UserError` where its file is not at hand."""
    if check_tokenizer(name) == "bytes":
        return Bytes()
    import tiktoken

    if name == "gpt2":
        return BytePairs(
            tiktoken.Encoding(
                "gpt2",
                pat_str=_GPT2_PATTERN,
                mergeable_ranks=gpt2_ranks(),
                special_tokens={END_OF_TEXT: VOCABULARIES["gpt2"] - 1},
                explicit_n_vocab=VOCABULARIES["gpt2"],
            )
        )
    try:
        return BytePairs(tiktoken.get_encoding(name))
    except (OSError, ValueError) as error:
        folder = os.environ.get("TIKTOKEN_CACHE_DIR")
        raise UserError(
            f"tokenizer {name}: its file is not in {folder or 'the folder that TIKTOKEN_CACHE_DIR names (it is unset)'}"
            f", and cannot be downloaded: {type(error).__name__}. Put tiktoken's file there, or use gpt2, which ships "
            "with the program."
        ) from error


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
