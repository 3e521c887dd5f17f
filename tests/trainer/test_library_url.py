"""Prepared data at a URL: copies on the node, uploads that fail, and machines that do not know of each other."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from schemas.dataset import parse_source
from schemas.errors import UserError
from schemas.trial import Trial
from tests.trainer.conftest import TINY
from tests.trainer.corpora import prepared, write_jsonl
from trainer import prepare, writing
from trainer.data import Batches
from trainer.data_folder import Library, Prepared
from trainer.shards import DamagedData
from trainer.token_cache import cache_root


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def on(made: Prepared) -> Trial:
    return Trial(**TINY | {"dataset": made.manifest.origin.source, "data_id": made.manifest.data_id})


@pytest.fixture
def bucket() -> Iterator[str]:
    """A data folder that is no folder."""
    yield "memory://bucket/data"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_a_data_folder_by_url_with_copies_on_the_node(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SHARD_TOKENS", 7000)
    source = f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}"
    here, there = prepared(tmp_path / "data", source, held_out=0.2), prepared(bucket, source, held_out=0.2)
    assert here.manifest == there.manifest
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another node"))
    mine, theirs = (Batches.of(on(here), folder) for folder in (str(tmp_path / "data"), bucket))
    assert np.array_equal(theirs.evaluation(), mine.evaluation())
    kept = cache_root() / "data" / here.manifest.data_id
    assert sorted(path.name for path in kept.glob("*.bin")) == ["val_00000.bin"], "only what is needed"
    assert all(np.array_equal(theirs.train(step), mine.train(step)) for step in range(100))
    fsspec.filesystem("memory").rm("/bucket/data/*/train_*")
    assert np.array_equal(Batches.of(on(here), bucket).train(0), mine.train(0)), "from the copies"
    missing = there.problems(lambda shard: None)
    assert len(missing) == len(there.manifest.train) and all("is missing" in problem for problem in missing)


def test_a_copy_that_is_not_what_was_prepared_is_refused(bucket: str, tmp_path: Path) -> None:
    made = prepared(bucket, f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}", held_out=0.2)
    copy = cache_root() / "data" / made.manifest.data_id / "val_00000.bin"
    copy.unlink()
    files = fsspec.filesystem("memory")
    files.pipe_file(f"{made.path}/val_00000.bin", files.cat_file(f"{made.path}/val_00000.bin")[::-1])
    with pytest.raises(DamagedData, match=r"val_00000.bin is not what its manifest says"):
        Batches.of(on(made), bucket).evaluation()
    assert not copy.exists()
    files.rm(f"{made.path}/val_00000.bin")
    with pytest.raises(DamagedData, match=r"val_00000.bin is missing"):
        Batches.of(on(made), bucket).evaluation()


REMOTE_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "other bytes": (lambda content: content[::-1], "is not what was written"),
    "cut short": (lambda content: content[:-1], "bytes, not"),
}


@pytest.mark.parametrize("case", REMOTE_DAMAGE)
def test_what_lies_at_a_url_is_verified_and_not_the_copies(case: str, bucket: str, tmp_path: Path) -> None:
    made = prepared(bucket, f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}", held_out=0.2)
    assert made.problems(lambda shard: None) == []
    files, path = fsspec.filesystem("memory"), f"{made.path}/train_00000.bin"
    damage, message = REMOTE_DAMAGE[case]
    files.pipe_file(path, damage(files.cat_file(path)))
    (problem,) = made.problems(lambda shard: None)
    assert problem.startswith(f"{path} ") and message in problem


def interrupted(*_: Any, **__: Any) -> None:
    raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


@pytest.mark.parametrize("number", range(3))
def test_a_failed_upload_is_all_that_is_done_again(
    number: int, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}"
    put = MemoryFileSystem.put_file
    calls = iter(range(9))
    with monkeypatch.context() as patched, pytest.raises(UserError, match=r"Connection reset.*is kept"):
        patched.setattr(
            MemoryFileSystem, "put_file", lambda *told: (interrupted if next(calls) == number else put)(*told)
        )
        prepared(bucket, source, held_out=0.2)
    assert Library(bucket).all() == ([], {})
    monkeypatch.setattr("trainer.prepare.encoded", interrupted)
    assert prepared(bucket, source, held_out=0.2).problems(lambda shard: None) == []


def test_two_machines_that_prepare_one_source_mix_no_shards(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}"
    publish = Library._publish

    def on_one(self: Library, *told: Any) -> str:
        """The other machine begins and ends in the middle of this one's upload."""
        monkeypatch.setattr(Library, "_publish", publish)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another node"))
        prepared(bucket, source, tokens=9000, held_out=0.2)
        return publish(self, *told)

    monkeypatch.setattr(Library, "_publish", on_one)
    prepared(bucket, source, tokens=4000, held_out=0.2)
    both, damaged = Library(bucket).all()
    assert len(both) == 2 and not damaged
    assert [made.problems(lambda shard: None) for made in both] == [[], []]
    with pytest.raises(UserError, match=f"{both[0].name}, {both[1].name} of it; keep one"):
        Library(bucket).of(parse_source(source), "bytes")


def test_what_another_machine_made_meanwhile_is_kept(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}"
    make = prepare.prepare_shards

    def meanwhile(*told: Any, **more: Any) -> Any:
        monkeypatch.setattr("trainer.data_folder.prepare_shards", make)
        with monkeypatch.context() as there:
            there.setenv("XDG_CACHE_HOME", str(tmp_path / "another node"))
            prepared(bucket, source, tokens=9000, held_out=0.2)
        return make(*told, **more)

    monkeypatch.setattr("trainer.data_folder.prepare_shards", meanwhile)
    with pytest.raises(UserError, match="was prepared with tokens 9000 and not 4000"):
        prepared(bucket, source, tokens=4000, held_out=0.2)
    assert len(Library(bucket).all()[0]) == 1
