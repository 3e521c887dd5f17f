"""Checkpoints that are whole or not there: `checkpoints/step-N/` with a manifest, and the final weights.

Each is written to a temporary folder, put on the disk, and renamed. One that is damaged all the
same is told by its sha256, and the one before it is used.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from schemas.report import Weights

_STATE = "state.pt"
_MANIFEST = "manifest.json"
_FINAL = "final"
_log = logging.getLogger(__name__)


class DamagedCheckpoint(Exception):
    """A checkpoint that is not what its manifest says, with what is wrong about it."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    step: int
    """Updates done."""
    journal_bytes: int
    """Size of the journal up to and including the rows of `step`."""
    sha256: str
    """Hash of the state file."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint."""

    step: int
    journal_bytes: int
    state: dict[str, Any]


_START = Checkpoint(step=0, journal_bytes=0, state={})


def save(folder: Path, state: Mapping[str, Any], *, step: int, journal_bytes: int, keep: int) -> None:
    """Save the state of the arm in `folder` after `step` updates, and keep the newest `keep`."""
    _write(_home(folder) / f"step-{step:08d}", state, step=step, journal_bytes=journal_bytes)
    for old in _steps(folder)[:-keep]:
        shutil.rmtree(old)


def save_final(folder: Path, weights: Mapping[str, Tensor], *, step: int, journal_bytes: int) -> Weights:
    """Save the weights of a finished arm, and return where they are."""
    path = _home(folder) / _FINAL
    _write(path, weights, step=step, journal_bytes=journal_bytes)
    return Weights(
        step=step,
        path=path.relative_to(folder).as_posix(),
        bytes=sum(file.stat().st_size for file in path.iterdir()),
        manifest_sha256=_sha256(path / _MANIFEST),
        time_us=time.time_ns() // 1000,
    )


def load_final(folder: Path) -> dict[str, Tensor]:
    """Return the weights of the finished arm in `folder`. Raises `DamagedCheckpoint`."""
    return _read(_home(folder) / _FINAL).state


def load_latest(folder: Path, *, journal_bytes: int) -> Checkpoint:
    """Return the newest sound checkpoint of an unfinished arm, or one of step 0 without a state.

    Damaged ones are removed, with a warning each: they would stand in the way of the next save.

    Args:
        folder: the arm's folder.
        journal_bytes: size of its journal; a checkpoint whose rows are not all there is no use.
    """
    for path in reversed(_steps(folder)):
        try:
            checkpoint = _read(path)
            if checkpoint.journal_bytes > journal_bytes:
                raise DamagedCheckpoint(
                    f"its journal should have {checkpoint.journal_bytes:,} bytes and has {journal_bytes:,}"
                )
        except DamagedCheckpoint as error:
            _log.warning(
                "checkpoint %s is not usable (%s); falling back to the one before, or the start", path, error
            )
            shutil.rmtree(path)
        else:
            return checkpoint
    return _START


def discard_steps(folder: Path) -> None:
    """Remove all checkpoints but the final weights."""
    for path in _steps(folder):
        shutil.rmtree(path)


def _home(folder: Path) -> Path:
    return folder / "checkpoints"


def _steps(folder: Path) -> list[Path]:
    return sorted(_home(folder).glob("step-*"))


def _write(path: Path, state: Mapping[str, Any], *, step: int, journal_bytes: int) -> None:
    temporary = path.with_name(f"writing-{path.name}")
    for leftover in path.parent.glob("writing-*"):
        shutil.rmtree(leftover)
    temporary.mkdir(parents=True)
    with (temporary / _STATE).open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    manifest = Manifest(step, journal_bytes, _sha256(temporary / _STATE))
    with (temporary / _MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(asdict(manifest), file)
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(temporary)
    if path.exists():
        shutil.rmtree(path)
    temporary.rename(path)
    _sync_directory(path.parent)


def _read(path: Path) -> Checkpoint:
    try:
        manifest = Manifest(**json.loads((path / _MANIFEST).read_text(encoding="utf-8")))
        found = _sha256(path / _STATE)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{Path(str(error.filename)).name} is missing") from None
    except OSError as error:
        raise DamagedCheckpoint(str(error)) from None
    except (ValueError, TypeError):
        raise DamagedCheckpoint(f"{_MANIFEST} is not readable") from None
    if found != manifest.sha256:
        raise DamagedCheckpoint(f"the sha256 of {_STATE} is {found[:12]}..., not {manifest.sha256[:12]}...")
    state = torch.load(path / _STATE, map_location="cpu", weights_only=True)
    return Checkpoint(manifest.step, manifest.journal_bytes, state)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
