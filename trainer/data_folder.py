"""The data folder: which data sets it holds, the one that a trial asks for, and making a new one.

A data set is a folder in it, complete from the moment it has its manifest. What is still being made is in
`.preparing` beside them, or on this machine's disk where the data folder is a URL.
"""

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import ValidationError

from schemas.dataset import Source, parse_source
from schemas.errors import UserError
from schemas.names import unknown_name
from trainer.journal import hold
from trainer.manifest import MANIFEST, Manifest, Recipe, Shard, Split
from trainer.prepare import Asked, OneSided, Told, prepare_shards, recorded_revision
from trainer.shards import DamagedData, Shards, check_bytes, fetched
from trainer.sources import are_gone, open_source, source_files
from trainer.token_cache import cache_root
from trainer.writing import writing

PREPARE_WAIT_S = 24 * 3600.0
"""How long a preparation waits for another one of the same data."""


@dataclass(frozen=True)
class Prepared:
    """A data set in a data folder."""

    name: str
    """Of its folder."""
    path: str
    """Of its folder, as its filesystem has it."""
    manifest: Manifest
    filesystem: Any

    def tokens(self, split: Split) -> Shards:
        """Return the tokens of a split."""
        return Shards(self.manifest, split, self.open_shard)

    def open_shard(self, shard: Shard) -> Path:
        """Return where a shard can be mapped: here, or in this node's copy."""
        if isinstance(self.filesystem, LocalFileSystem):
            return Path(self.path) / shard.file
        return fetched(self.filesystem, self.path, self.manifest, shard)

    def problems(self, tell: Callable[[Shard], None]) -> list[str]:
        """Read every shard in the data folder and return what is wrong; `tell` is called before each."""
        found = []
        for shard in [*self.manifest.train, *self.manifest.val]:
            tell(shard)
            try:
                check_bytes(self.filesystem, self.path, shard, self.manifest.itemsize)
            except DamagedData as error:
                found.append(str(error))
        return found


class Library:
    """A data folder, by path or fsspec URL."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        try:
            self.filesystem, path = fsspec.core.url_to_fs(folder)
        except (ImportError, ValueError) as error:
            raise UserError(
                f"The data folder {folder} cannot be opened: {error}. Name another with --data."
            ) from None
        self.path = str(path)
        self.is_local = isinstance(self.filesystem, LocalFileSystem)

    def all(self) -> tuple[list[Prepared], dict[str, DamagedData]]:
        """Return the data sets in it, in the order of their names, and by name what is wrong with the others."""
        sound: list[Prepared] = []
        damaged: dict[str, DamagedData] = {}
        self.filesystem.invalidate_cache()  # other machines write to the folder too
        folders = self.filesystem.ls(self.path, detail=False) if self.filesystem.isdir(self.path) else []
        for folder in sorted(folders):
            path = f"{folder}/{MANIFEST}"
            if self.filesystem.exists(path):
                try:
                    sound.append(self._read(path))
                except DamagedData as error:
                    damaged[folder.rpartition("/")[2]] = error
        return sound, damaged

    def _read(self, path: str) -> Prepared:
        folder = path.rpartition("/")[0]
        try:
            manifest = Manifest.model_validate_json(self.filesystem.cat_file(path))
        except (ValidationError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DamagedData(
                f"{path} is no manifest ({reason}). Delete {folder} and prepare it again."
            ) from None
        if manifest.data_id != manifest.identity():
            raise DamagedData(
                f"{path} was changed: its hash is another. Delete {folder} and prepare it again."
            )
        return Prepared(folder.rpartition("/")[2], folder, manifest, self.filesystem)

    def with_id(self, data_id: str) -> Prepared:
        """Return the data set with these tokens, whatever it is called. Raises `UserError` where there is none."""
        sound, damaged = self.all()
        for prepared in sound:
            if prepared.manifest.data_id == data_id:
                return prepared
        raise UserError(
            f"The data folder {self.folder} has no data with the id {data_id[:12]} that the arm is to be trained on. "
            "Every node needs it: put the data folder on shared storage, and name it in runtime.data."
            + "".join(f" {error}" for error in damaged.values())
        )

    def of(self, source: Source, tokenizer: str) -> Prepared | None:
        """Return what is prepared of a source as it is now, or None.

        Files that are gone are served from what was prepared of them, if their path is absolute: a relative one
        says of many files what one was called. Raises `UserError` where there is more than one data set.
        """
        found = [
            prepared
            for prepared in self.all()[0]
            if prepared.manifest.origin.source == source.label and prepared.manifest.tokenizer == tokenizer
        ]
        if source.is_local and ((files := source_files(source)) or not Path(source.where).is_absolute()):
            found = [prepared for prepared in found if prepared.manifest.origin.files == files]
        if len({prepared.manifest.data_id for prepared in found}) > 1:
            gone = " is gone, and" if are_gone(source) else ":"
            raise UserError(
                f"{source.label}{gone} {self.folder} has {', '.join(p.name for p in found)} of it; keep one."
            )
        return found[0] if found else None

    def named(self, text: str) -> Prepared:
        """Return the data set with this name, source or beginning of its id. Raises `UnknownName` or `DamagedData`."""
        everything, damaged = self.all()
        if text in damaged:
            raise damaged[text]
        try:
            label = parse_source(text).label
        except UserError:
            label = None
        for prepared in everything:
            told = prepared.manifest
            if prepared.name == text or (len(text) >= 4 and told.data_id.startswith(text)):
                return prepared
        found = [prepared for prepared in everything if prepared.manifest.origin.source == label]
        if len(found) == 1:
            return found[0]
        raise unknown_name(
            f"data set in {self.folder}", text, [prepared.name for prepared in found or everything]
        )

    def prepare(
        self, source: Source, tokenizer: str, asked: Asked, *, workers: int, tell: Callable[[Told], None]
    ) -> tuple[Prepared, bool]:
        """Prepare a source, or go on with it; return it, and whether anything was left to do.

        Raises `UserError` where it cannot be read or written, or is there already, prepared otherwise.
        """
        if existing := self._as_asked(source, tokenizer, asked):
            return existing, False
        name = _name(source, tokenizer)
        work = (Path(self.path) / ".preparing" if self.is_local else cache_root() / "preparing") / name
        with writing(work):
            work.mkdir(parents=True, exist_ok=True)
        with hold(work, wait_s=PREPARE_WAIT_S):
            if existing := self._as_asked(source, tokenizer, asked):
                return existing, False  # another process made it meanwhile
            if self.is_local and Path(self.path, name).exists():
                raise DamagedData(f"{self.path}/{name} is not whole. Delete it and prepare it again.")
            opened = open_source(source, asked.revision or recorded_revision(work / "data"))
            recipe = asked.recipe(source)
            try:
                manifest = prepare_shards(
                    opened, recipe, tokenizer, work / "data", workers=workers, tell=tell
                )
            except OneSided:
                shutil.rmtree(work)
                raise
            existing = self._as_asked(source, tokenizer, asked)  # another machine made it meanwhile
            path = existing.path if existing else self._publish(work / "data", name, manifest)
            shutil.rmtree(work)
        return self._read(f"{path}/{MANIFEST}"), existing is None

    def _as_asked(self, source: Source, tokenizer: str, asked: Asked) -> Prepared | None:
        """Return what is prepared of a source, or None. Raises `UserError` where it was prepared otherwise."""
        if existing := self.of(source, tokenizer):
            revision = asked.revision
            if revision not in (None, existing.manifest.origin.revision):
                revision = open_source(source, revision).origin.revision
            _refuse_other(existing, asked.recipe(source), revision)
        return existing

    def _publish(self, made: Path, name: str, manifest: Manifest) -> str:
        """Give a whole data set its name, and return its path. Where the folder is a URL, its manifest goes last.

        Nothing locks a URL. There the name says which tokens they are, so that two machines that make other data
        of one source write to other folders, and two that make the same write the same.
        """
        target = f"{self.path}/{name}"
        with writing(Path(target)):
            if self.is_local:
                made.rename(target)
                return target
            target += f"-{manifest.data_id[:8]}"
            self.filesystem.makedirs(target, exist_ok=True)
            for file in [*(shard.file for shard in [*manifest.train, *manifest.val]), MANIFEST]:
                self.filesystem.put_file(str(made / file), f"{target}/{file}")
            own = cache_root() / "data" / manifest.data_id
            if not own.exists():
                own.parent.mkdir(parents=True, exist_ok=True)
                made.rename(own)
        return target


def _name(source: Source, tokenizer: str) -> str:
    """Return what the folder of a data set is called: another name where its files have changed."""
    files = source_files(source) if source.is_local else []
    key = hashlib.sha256(f"{source.label},{tokenizer},{files}".encode()).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", source.label).strip("-.")
    return f"{words[-60:].lstrip('-.')}-{tokenizer}-{key}"


def _refuse_other(existing: Prepared, recipe: Recipe, revision: str | None) -> None:
    """Raise `UserError` where a data set that is there was made otherwise than is asked for now."""
    was, origin = existing.manifest.recipe, existing.manifest.origin
    asked = recipe.model_dump() | {"revision": revision or origin.revision}
    had = was.model_dump() | {"revision": origin.revision}
    if differing := [name for name in asked if asked[name] != had[name]]:
        told = ", ".join(f"{name} {had[name]} and not {asked[name]}" for name in differing)
        raise UserError(
            f"{existing.path} was prepared with {told}. Take another data folder with --data, or delete that one: arms "
            "that were trained on it keep their results."
        )
