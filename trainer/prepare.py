"""A data set's documents to shards of token ids: in many processes, resumable, and the same bytes either way.

Documents are read in order, tokenised in other processes, and written in order, so that neither the
number of processes nor a kill changes a byte. Every few seconds, after the shards are on the disk,
`progress.json` says how far they are; a later call cuts them back to there and goes on.
"""

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from schemas.dataset import Source
from schemas.errors import UserError
from trainer.encoding import Encoded, encoded
from trainer.manifest import MANIFEST, Manifest, Origin, Recipe, Shard, Split, completed
from trainer.sources import Batch, Cursor, Readable, default_share
from trainer.tokenizer import token_dtype
from trainer.writing import SplitWriter, replace_file, writing

PROGRESS = "progress.json"
SAVE_EVERY_S = 5.0
"""Seconds between points to which a preparation that is killed goes back."""
SPLIT_SEED = 2357
"""nanoGPT's."""


@dataclass
class Counts:
    """What has been prepared so far."""

    train_documents: int = 0
    val_documents: int = 0
    empty_documents: int = 0
    text_bytes: int = 0
    tokens: int = 0


@dataclass
class Progress:
    """`progress.json`: what was asked for, and how far it is."""

    recipe: dict[str, Any]
    origin: dict[str, Any]
    tokenizer: str
    cursor: Cursor | None = None
    counts: Counts = field(default_factory=Counts)
    sizes: dict[str, list[int]] = field(default_factory=lambda: {"train": [], "val": []})
    """Tokens of each shard of each split."""


@dataclass(frozen=True)
class Told:
    """What a caller hears while it waits."""

    tokens: int
    documents: int
    share: float | None
    """How much is done, from 0 to 1, where that is known."""


@dataclass(frozen=True)
class Asked:
    """What a user may say about a preparation; None is what fits the source."""

    tokens: int | None = None
    """How many are enough. None: all there are."""
    held_out: float | None = None
    """Share of the documents that are held out. None: 0.05 %, and more of small files."""
    seed: int = SPLIT_SEED
    """Of the choice of those."""
    empty: Literal["refuse", "skip"] | None = None
    """What is done about documents without text. None: refused in files, skipped on the Hub."""
    revision: str | None = None
    """Of a repository. None: the newest, or that at which an earlier call began."""

    def recipe(self, source: Source, origin: Origin) -> Recipe:
        """Return what is asked for, with what fits the source where nothing is said."""
        share = default_share(source, origin) if self.held_out is None else self.held_out
        empty = self.empty or ("refuse" if source.is_local else "skip")
        return Recipe(tokens=self.tokens, held_out=share, seed=self.seed, empty=empty)


def prepare_shards(
    opened: Readable,
    recipe: Recipe,
    tokenizer: str,
    folder: Path,
    *,
    workers: int,
    tell: Callable[[Told], None],
) -> Manifest:
    """Fill `folder` with shards and, last, their manifest; or go on where an earlier call was stopped.

    Args:
        opened: the documents.
        recipe: how many, and which are held out.
        tokenizer: turns them into ids.
        folder: where to; the caller holds its lock.
        workers: processes that tokenise. Their number changes nothing but the time.
        tell: is called after each batch.

    Raises:
        UserError: for a document that cannot be read, a full disk, a Hub that does not answer, or a folder
            in which something else was begun. What was done is kept, and there is no manifest.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    progress = _begin(folder, recipe, opened, tokenizer)
    itemsize = token_dtype(tokenizer).itemsize
    splits: dict[Split, SplitWriter] = {
        split: SplitWriter(folder, split, progress.sizes[split], itemsize) for split in ("train", "val")
    }
    saved = time.monotonic()
    try:
        with closing(encoded(opened, recipe, tokenizer, progress.cursor, workers)) as stream:
            for batch, ids in stream:
                full = _take(batch, ids, progress, splits, recipe)
                if time.monotonic() - saved >= SAVE_EVERY_S:
                    _save(folder, progress, splits)
                    saved = time.monotonic()
                tell(_told(progress, opened, recipe))
                if full:
                    break
        _save(folder, progress, splits)
        shards = {split: writer.finish() for split, writer in splits.items()}
    finally:
        for writer in splits.values():
            writer.close()
    _check(progress, opened, recipe)
    return _complete(folder, progress, opened, shards)


def _begin(folder: Path, recipe: Recipe, opened: Readable, tokenizer: str) -> Progress:
    wanted = Progress(recipe.model_dump(), opened.origin.model_dump(), tokenizer)
    path = folder / PROGRESS
    if not path.exists():
        return wanted
    found = json.loads(path.read_text(encoding="utf-8"))
    begun = Progress(**found | {"counts": Counts(**found["counts"])})
    for name in ("recipe", "origin", "tokenizer"):
        if getattr(begun, name) != getattr(wanted, name):
            raise UserError(
                f"{folder} holds the beginning of another preparation: {name} was {getattr(begun, name)}, "
                f"and now is {getattr(wanted, name)}. Ask as before to go on with it, or delete that folder."
            )
    return begun


def recorded_revision(folder: Path) -> str | None:
    """Return the commit at which a preparation was begun in `folder`, if one was."""
    path = folder / PROGRESS
    return json.loads(path.read_text(encoding="utf-8"))["origin"]["revision"] if path.exists() else None


def _take(
    batch: Batch, ids: Encoded, progress: Progress, splits: dict[Split, SplitWriter], recipe: Recipe
) -> bool:
    """Write a batch, or as many of its documents as are still wanted; return whether that was the end."""
    counts, n = progress.counts, len(ids.ends)
    if recipe.tokens is not None:
        n = min(n, int(np.searchsorted(ids.ends, recipe.tokens - counts.tokens)) + 1)
    held_out, end = ids.held_out[:n], int(ids.ends[n - 1]) if n else 0
    lengths = np.diff(ids.ends[:n], prepend=0)
    of_val = np.repeat(held_out, lengths)
    tokens = ids.tokens[:end]
    splits["train"].write(tokens[~of_val] if held_out.any() else tokens)
    splits["val"].write(tokens[of_val])
    counts.val_documents += int(held_out.sum())
    counts.train_documents += n - int(held_out.sum())
    counts.empty_documents += batch.empty
    counts.text_bytes += int(ids.text_bytes[:n].sum())
    counts.tokens += end
    progress.cursor = batch.cursor
    return recipe.tokens is not None and counts.tokens >= recipe.tokens


def _save(folder: Path, progress: Progress, splits: dict[Split, SplitWriter]) -> None:
    progress.sizes = {split: writer.sync() for split, writer in splits.items()}
    replace_file(folder / PROGRESS, json.dumps(asdict(progress)))


def _told(progress: Progress, opened: Readable, recipe: Recipe) -> Told:
    counts = progress.counts
    assert progress.cursor is not None
    shares = [opened.share(progress.cursor), counts.tokens / recipe.tokens if recipe.tokens else None]
    known = [share for share in shares if share is not None]
    return Told(
        counts.tokens, counts.train_documents + counts.val_documents, min(1.0, max(known)) if known else None
    )


def _check(progress: Progress, opened: Readable, recipe: Recipe) -> None:
    """Raise `UserError` unless there is something to train on and something to evaluate on."""
    counts, name = progress.counts, opened.origin.source
    if not counts.train_documents + counts.val_documents:
        raise UserError(f"{name} holds no text; name another source.")
    for documents, kind, remedy in (
        (counts.train_documents, "trains on", "lower"),
        (counts.val_documents, "holds out", "raise"),
    ):
        if not documents:
            total = counts.train_documents + counts.val_documents
            raise UserError(
                f"{name} {kind} none of its {total:,} documents at a held-out share of {recipe.held_out:g}; {remedy} "
                "it with `xsa data prepare ... --held-out SHARE`, or cut the text into more documents."
            )


def _complete(
    folder: Path, progress: Progress, opened: Readable, shards: dict[Split, list[Shard]]
) -> Manifest:
    counts: dict[str, Any] = asdict(progress.counts)
    del counts["tokens"]
    manifest = completed(
        {
            "origin": opened.origin,
            "recipe": Recipe(**progress.recipe),
            "tokenizer": progress.tokenizer,
            "dtype": token_dtype(progress.tokenizer).name,
            **counts,
            "train": shards["train"],
            "val": shards["val"],
        }
    )
    replace_file(folder / MANIFEST, manifest.dumps())
    (folder / PROGRESS).unlink()
    return manifest
