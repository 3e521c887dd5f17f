"""What a prepared data set is: `manifest.json`, written last, so that a folder with one is whole."""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from schemas.dataset import VOCABULARIES, check_tokenizer

MANIFEST = "manifest.json"
Split = Literal["train", "val"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class SourceFile(_Part):
    """A file as it was when it was read."""

    path: str
    """Absolute, without symbolic links."""
    bytes: int
    mtime_ns: int
    """When it was last changed."""
    ctime_ns: int
    """When it or what the disk says of it was last changed: unlike the other, no program can set it back."""


class Origin(_Part):
    """Where the documents came from, for people; what it says decides no identity."""

    source: str
    """`schemas.dataset.Source.label`."""
    files: list[SourceFile] = []
    """The files of a local source."""
    revision: str | None = None
    """The commit of a repository of the Hub."""


class Recipe(_Part):
    """What was asked for beside the source and the tokenizer."""

    tokens: int | None
    """Tokens after which no further document was taken; None: all were."""
    held_out: float
    """Share of documents that are held out: those whose sha256, after the seed, lies below it."""
    seed: int
    """Comes before the document in what is hashed."""
    empty: Literal["refuse", "skip"]
    """What is done about a document without text."""


class Shard(_Part):
    """A file of token ids, little-endian, one after the other."""

    file: str
    tokens: int
    sha256: str


class Manifest(_Part):
    """A prepared data set."""

    format: Literal[1] = 1
    origin: Origin
    recipe: Recipe
    tokenizer: str
    dtype: Literal["uint16", "uint32"]
    train_documents: int
    val_documents: int
    empty_documents: int
    """Documents without text that were skipped."""
    text_bytes: int
    """UTF-8 bytes of all documents."""
    train: list[Shard]
    val: list[Shard]
    data_id: str
    """`identity()`, told so that a manifest that somebody changed is found out."""

    def identity(self) -> str:
        """Return the hash of tokenizer and tokens: equal data have one, whatever their source is called."""
        shards = {split: [[s.tokens, s.sha256] for s in getattr(self, split)] for split in ("train", "val")}
        told = json.dumps({"tokenizer": self.tokenizer, "dtype": self.dtype, **shards}, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def n_vocab(self) -> int:
        """Every id is below this."""
        return VOCABULARIES[check_tokenizer(self.tokenizer)]

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an id."""
        return np.dtype(self.dtype).itemsize

    def shards(self, split: Split) -> list[Shard]:
        """Return the files of a split, in order."""
        return self.train if split == "train" else self.val

    def tokens(self, split: Split) -> int:
        """Return the tokens of a split."""
        return sum(shard.tokens for shard in self.shards(split))

    def dumps(self) -> str:
        """Return this manifest as the text of its file."""
        return self.model_dump_json(indent=1) + "\n"


def completed(manifest: dict[str, Any]) -> Manifest:
    """Return the manifest with these fields, and its identity."""
    return (made := Manifest(**manifest, data_id="")).model_copy(update={"data_id": made.identity()})


def total_bytes(files: Iterable[SourceFile]) -> int:
    """Return the bytes of all files."""
    return sum(file.bytes for file in files)
