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
from trainer.manifest import MANIFEST, Manifest, Recipe, Shard, Split, completed
from trainer.sources import Batch, Cursor, Readable, default_share
from trainer.tokenizer import token_dtype
from trainer.writing import SplitWriter, replace_file, writing

PROGRESS = "progress.json"
SAVE_EVERY_S = 5.0
"""Seconds between points to which a preparation that is killed goes back."""
SPLIT_SEED = 2357
"""nanoGPT's."""


class OneSided(UserError):
    """No documents, or none on one side of the split: to go on cannot mend that."""


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
    """Share of the documents that are held out. None: 5 % of files, 0.05 % of the Hub."""
    seed: int = SPLIT_SEED
    """Of the choice of those."""
    empty: Literal["refuse", "skip"] | None = None
    """What is done about documents without text. None: refused in files, skipped on the Hub."""
    revision: str | None = None
    """Of a repository. None: the newest, or that at which an earlier call began."""

    def recipe(self, source: Source) -> Recipe:
        """Return what is asked for, with what fits the source where nothing is said."""
        share = default_share(source) if self.held_out is None else self.held_out
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

    Where that had come to the end, nothing is done again.

    Args:
        opened: the documents.
        recipe: how many, and which are held out.
        tokenizer: turns them into ids.
        folder: where to; the caller holds its lock.
        workers: processes that tokenise. Their number changes nothing but the time.
        tell: is called after each batch.

    Raises:
        OneSided: there is nothing to train on, or nothing to evaluate on.
        UserError: for a document that cannot be read, a full disk, a Hub that does not answer, or a folder
            in which something else was begun. What was done is kept, and there is no manifest.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    progress = _begin(folder, recipe, opened, tokenizer)
    if made := _made(folder):
        (folder / PROGRESS).unlink(missing_ok=True)
        return made
    itemsize = token_dtype(tokenizer).itemsize
    splits: dict[Split, SplitWriter] = {
        split: SplitWriter(folder, split, progress.sizes[split], itemsize) for split in ("train", "val")
    }
    saved = time.monotonic()
    try:
        with closing(encoded(opened, recipe, tokenizer, progress.cursor, workers)) as stream:
            while not _is_enough(progress, recipe) and (found := next(stream, None)):
                _take(*found, progress, splits, recipe)
                if time.monotonic() - saved >= SAVE_EVERY_S:
                    _save(folder, progress, splits)
                    saved = time.monotonic()
                tell(_told(progress, opened, recipe))
        _save(folder, progress, splits)
        shards = {split: writer.finish() for split, writer in splits.items()}
    finally:
        for writer in splits.values():
            writer.close()
    _check(progress, opened, recipe)
    return _complete(folder, progress, opened, shards)


def _begin(folder: Path, recipe: Recipe, opened: Readable, tokenizer: str) -> Progress:
    wanted = Progress(recipe.model_dump(), opened.origin.model_dump(), tokenizer)
    begun = _begun(folder)
    if begun is None:
        return wanted
    for name in ("recipe", "origin", "tokenizer"):
        if getattr(begun, name) != getattr(wanted, name):
            raise UserError(
                f"{folder} holds the beginning of another preparation: {name} was {getattr(begun, name)}, "
                f"and now is {getattr(wanted, name)}. Ask as before to go on with it, or delete that folder."
            )
    return begun


def _made(folder: Path) -> Manifest | None:
    path = folder / MANIFEST
    return Manifest.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else None


def _begun(folder: Path) -> Progress | None:
    """Return what was asked for in `folder`, and how far it is where it is not at the end."""
    if made := _made(folder):
        return Progress(made.recipe.model_dump(), made.origin.model_dump(), made.tokenizer)
    path = folder / PROGRESS
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return Progress(**found | {"counts": Counts(**found["counts"])})


def recorded_revision(folder: Path) -> str | None:
    """Return the commit at which a preparation was begun in `folder`, if one was."""
    begun = _begun(folder)
    return begun.origin["revision"] if begun else None


def _is_enough(progress: Progress, recipe: Recipe) -> bool:
    return recipe.tokens is not None and progress.counts.tokens >= recipe.tokens


def _take(
    batch: Batch, ids: Encoded, progress: Progress, splits: dict[Split, SplitWriter], recipe: Recipe
) -> None:
    """Write a batch, or as many of its documents as are still wanted."""
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
    """Raise `OneSided` unless there is something to train on and something to evaluate on."""
    counts, name = progress.counts, opened.origin.source
    if not counts.train_documents + counts.val_documents:
        raise OneSided(f"{name} holds no text; name another source.")
    for documents, kind, remedy in (
        (counts.train_documents, "trains on", "lower"),
        (counts.val_documents, "holds out", "raise"),
    ):
        if not documents:
            total = counts.train_documents + counts.val_documents
            raise OneSided(
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
