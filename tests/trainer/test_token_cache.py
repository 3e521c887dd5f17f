"""Tokens are encoded once on a machine, and anew where the copy on the disk is not whole."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trainer import data
from trainer.data import Corpus
from trainer.token_cache import Streams, cache_folder, cached

STREAMS = np.arange(500, dtype=np.uint16), np.arange(7, dtype=np.uint16)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refuse() -> Streams:
    raise AssertionError("encoded again")


def assert_streams(found: Streams) -> None:
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(found, STREAMS, strict=True))


def test_the_second_time_nothing_is_encoded() -> None:
    first, told = cached("key", lambda: STREAMS)
    again, told_again = cached("key", refuse)
    assert_streams(first)
    assert_streams(again)
    assert told == told_again
    assert not list(cache_folder().glob("*.part"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes().replace(b"\x05\x00\x06\x00", b"\x05\x00\x07\x00", 1)),
        lambda path: np.savez(path, train=STREAMS[0]),
    ],
    ids=["cut", "empty", "altered", "other"],
)
def test_a_damaged_copy_is_made_anew(damage: Callable[[Path], object]) -> None:
    cached("key", lambda: STREAMS)
    damage(cache_folder() / "key.npz")
    assert_streams(cached("key", lambda: STREAMS)[0])
    assert_streams(cached("key", refuse)[0])


def test_a_home_that_cannot_be_written_only_costs_time(home: Path) -> None:
    home.write_text("a file where a folder must go")
    assert_streams(cached("key", lambda: STREAMS)[0])


def test_a_corpus_from_the_disk_is_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    load: Callable[[str, str], Corpus] = data.load_corpus.__wrapped__
    first = load("shakespeare", "bytes")
    monkeypatch.setattr(data, "load_tokenizer", refuse)
    again = load("shakespeare", "bytes")
    assert again.sha256 == first.sha256
    assert np.array_equal(again.train, first.train)
    assert np.array_equal(again.val, first.val)
