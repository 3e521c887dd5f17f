"""Preparation gives the same bytes whatever happens on the way, splits by document, and leaves nothing that lies."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.dataset import parse_source
from schemas.errors import UserError
from tests.trainer.corpora import (
    DOCUMENTS,
    contents,
    document,
    prepared,
    write_jsonl,
    write_parquet,
    write_text,
)
from trainer import prepare, writing
from trainer.data_folder import Library, Prepared
from trainer.manifest import MANIFEST
from trainer.sources import FileSource
from trainer.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]


def texts(made: Prepared, split: Any) -> list[str]:
    tokenizer = load_tokenizer(made.manifest.tokenizer)
    tokens = made.tokens(split)[0 : made.manifest.tokens(split)]
    return tokenizer.decode(tokens).split("<|endoftext|>")[:-1]


def test_every_document_is_there_once_on_one_side(tmp_path: Path) -> None:
    twice = DOCUMENTS + DOCUMENTS[:100]
    made = prepared(tmp_path, f"jsonl:{write_jsonl(tmp_path / 'a.jsonl', twice)}", held_out=0.2)
    train, val = texts(made, "train"), texts(made, "val")
    assert sorted(train + val) == sorted(twice)
    assert not set(train) & set(val), "a document that comes twice falls on one side"
    assert train == [text for text in twice if text in set(train)], "in order"
    assert 0.1 < len(val) / len(twice) < 0.3
    manifest = made.manifest
    assert (manifest.train_documents, manifest.val_documents) == (len(train), len(val))
    assert manifest.text_bytes == sum(len(text.encode()) for text in twice)
    other = prepared(tmp_path / "other", f"jsonl:{tmp_path / 'a.jsonl'}", held_out=0.2, seed=1)
    assert set(texts(other, "val")) != set(val)


def test_the_number_of_processes_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.sources.BATCH_CHARACTERS", 2000)
    monkeypatch.setattr(writing, "SHARD_TOKENS", 5000)
    source = f"parquet:{write_parquet(tmp_path / 'a.parquet')}"
    one, two = (prepared(tmp_path / str(n), source, "gpt2", workers=n) for n in (1, 2))
    assert contents(one) == contents(two)
    assert len(one.manifest.train) > 2 and one.manifest.train[0].tokens == 5000
    encoder = load_tokenizer("gpt2")
    assert texts(one, "train") + texts(one, "val") != DOCUMENTS
    ids = np.concatenate([np.append(encoder.encode(text), encoder.eot) for text in texts(one, "train")])
    assert np.array_equal(one.tokens("train")[0 : len(ids)], ids) and len(one.tokens("train")) == len(ids)


def test_what_is_asked_for_ends_with_a_whole_document(tmp_path: Path) -> None:
    source = f"text:{write_text(tmp_path / 'a.txt')}"
    made = prepared(tmp_path, source, tokens=5000, held_out=0.2)
    found = made.manifest.tokens("train") + made.manifest.tokens("val")
    lengths = np.cumsum([len(text) + 2 for text in DOCUMENTS])
    assert found == lengths[np.searchsorted(lengths, 5000)]
    again, new = made, True
    again, new = Library(str(tmp_path)).prepare(
        *_source(source), prepare.Asked(tokens=5000, held_out=0.2), workers=1, tell=lambda told: None
    )
    assert not new and again.manifest == made.manifest
    with pytest.raises(UserError, match=r"was prepared with tokens 5000 and not None.*--data"):
        prepared(tmp_path, source, held_out=0.2)


def _source(dataset: str) -> tuple[Any, str]:
    return parse_source(dataset), "bytes"


KILLED = """
import os, sys
from pathlib import Path
from trainer import prepare, sources, writing
sources.BATCH_CHARACTERS, writing.SHARD_TOKENS, prepare.SAVE_EVERY_S = 3000, 7000, float(sys.argv[3])
from tests.trainer.corpora import prepared
if __name__ == "__main__":
    take, left = prepare._take, int(sys.argv[4])
    def slow(*arguments):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), 9)  # as if somebody did, between two writes
        return take(*arguments)
    prepare._take = slow
    prepared(Path(sys.argv[1]), sys.argv[2], "bytes", workers=int(sys.argv[5]), held_out=0.1)
"""


def test_a_killed_preparation_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SHARD_TOKENS", 7000)
    source = f"jsonl:{write_jsonl(tmp_path / 'a.jsonl', [document(i) for i in range(600)])}"
    script = tmp_path / "killed.py"
    script.write_text(KILLED)

    def killed(left: int, every: float, workers: int) -> bool:
        """Prepare, saving every so many seconds, and die before the batch number `left`."""
        arguments = [tmp_path / "killed", source, str(every), str(left), str(workers)]
        done = subprocess.run(
            [sys.executable, script, *arguments], env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60
        )
        return done.returncode == -signal.SIGKILL

    undisturbed = prepared(tmp_path / "undisturbed", source, held_out=0.1)
    assert killed(17, every=0, workers=2)
    library = Library(str(tmp_path / "killed"))
    assert library.all() == ([], {}), "nothing that looks whole"
    (progress,) = (tmp_path / "killed").glob(".preparing/*/data/progress.json")
    done = json.loads(progress.read_text())
    assert done["counts"]["tokens"] > 0 and len(done["sizes"]["train"]) > 2
    # What was written after the last save is cut off again.
    shard = sorted(progress.parent.glob("train_*.bin"))[-1]
    shard.write_bytes(shard.read_bytes() + b"torn")
    (progress.parent / "train_00099.bin").write_bytes(b"more")
    assert killed(5, every=1000, workers=1)
    assert json.loads(progress.read_text()) == done, "killed before it saved again"
    resumed = prepared(tmp_path / "killed", source, held_out=0.1)
    assert contents(resumed) == contents(undisturbed)
    assert not list((tmp_path / "killed").glob(".preparing/*"))


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


END: dict[str, tuple[Any, str]] = {
    "while it hashes": (writing.SplitWriter, "finish"),
    "before its manifest": (prepare, "_complete"),
    "after its manifest": (Path, "unlink"),
    "before it has its name": (Library, "_publish"),
}


@pytest.mark.parametrize("tokens", [5000, None])
@pytest.mark.parametrize("place", END)
def test_a_kill_at_the_end_changes_no_byte(
    place: str, tokens: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.sources.BATCH_CHARACTERS", 2000)
    source = f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}"
    undisturbed = prepared(tmp_path / "undisturbed", source, tokens=tokens, held_out=0.2)
    for _ in range(2):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(*END[place], interrupt)
            prepared(tmp_path / "killed", source, tokens=tokens, held_out=0.2)
    assert contents(prepared(tmp_path / "killed", source, tokens=tokens, held_out=0.2)) == contents(
        undisturbed
    )


def test_what_is_whole_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Library, "_publish", interrupt)
        prepared(tmp_path, source, held_out=0.2)
    with pytest.raises(UserError, match="the beginning of another preparation: recipe was"):
        prepared(tmp_path, source, held_out=0.3)
    monkeypatch.setattr(prepare, "encoded", lambda *_: pytest.fail("it is made again"))
    assert prepared(tmp_path, source, held_out=0.2).manifest.train_documents


def test_a_whole_preparation_keeps_its_revision(tmp_path: Path) -> None:
    opened = FileSource(parse_source(f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}"))
    opened.origin = opened.origin.model_copy(update={"revision": "abc"})
    recipe = prepare.Asked(held_out=0.2).recipe(parse_source("hf:me/books"))
    prepare.prepare_shards(opened, recipe, "bytes", tmp_path, workers=1, tell=lambda told: None)
    assert prepare.recorded_revision(tmp_path) == "abc"


def test_processes_end_with_the_one_that_began_them(tmp_path: Path) -> None:
    """A kill -9 leaves nobody to tell them."""
    script = tmp_path / "orphans.py"
    script.write_text(
        "import os\nfrom trainer.encoding import _pool\nfrom trainer.manifest import Recipe\n"
        "if __name__ == '__main__':\n"
        "    with _pool(1, 'bytes', Recipe(tokens=None, held_out=0.1, seed=1, empty='skip')) as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True)\n        os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, script], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    child = int(done.stdout)
    for _ in range(100):
        status = Path(f"/proc/{child}/stat")
        if not status.exists() or status.read_text().split(")")[1].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("it still runs")


def test_a_full_disk_is_told_and_what_was_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.sources.BATCH_CHARACTERS", 2000)
    monkeypatch.setattr(prepare, "SAVE_EVERY_S", 0.0)
    source = f"text:{write_text(tmp_path / 'a.txt')}"
    write, left = writing.SplitWriter._write, 12

    def full(self: Any, tokens: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            with writing.writing(self._path(0)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, tokens)

    monkeypatch.setattr(writing.SplitWriter, "_write", full)
    with pytest.raises(
        UserError, match=r"bin cannot be written: No space left on device.*make room there and run"
    ):
        prepared(tmp_path / "data", source)
    assert Library(str(tmp_path / "data")).all() == ([], {})
    monkeypatch.setattr(writing.SplitWriter, "_write", write)
    assert contents(prepared(tmp_path / "data", source)) == contents(
        prepared(tmp_path / "undisturbed", source)
    )


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A file-size limit is the disk that any user can fill."""
    source = f"text:{write_text(tmp_path / 'a.txt')}"
    code = (
        "import resource, signal, sys\nfrom tests.trainer.corpora import prepared\nfrom schemas.errors import UserError\n"
        "if __name__ == '__main__':\n    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "    try:\n        prepared(sys.argv[1], sys.argv[2])\n    except UserError as error:\n        print(error)\n"
    )
    script = tmp_path / "full.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "data", source],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "train_00000.bin cannot be written: File too large." in done.stdout and not done.stderr
    assert not list((tmp_path / "data").glob(f"*/{MANIFEST}"))


def test_an_error_in_the_middle_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl")
    path.write_bytes(path.read_bytes() + b"{bad\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 301: no JSON"):
        prepared(tmp_path, f"jsonl:{path}")
    assert Library(str(tmp_path)).all() == ([], {})


def test_another_wish_does_not_go_on_with_what_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl")
    whole = path.read_bytes()
    monkeypatch.setattr("trainer.sources.BATCH_CHARACTERS", 2000)
    monkeypatch.setattr(prepare, "SAVE_EVERY_S", 0.0)
    stop = pytest.raises(KeyboardInterrupt)

    def stop_later(told: prepare.Told) -> None:
        if told.documents > 100:
            raise KeyboardInterrupt

    with stop:
        Library(str(tmp_path)).prepare(*_source(f"jsonl:{path}"), prepare.Asked(), workers=1, tell=stop_later)
    with pytest.raises(UserError, match="the beginning of another preparation: recipe was"):
        prepared(tmp_path, f"jsonl:{path}", held_out=0.3)
    assert path.read_bytes() == whole
    assert prepared(tmp_path, f"jsonl:{path}").manifest.train_documents


@pytest.mark.parametrize(
    ("share", "message"), [(0.0, "holds out none of its 300"), (1.0, "trains on none of its 300")]
)
def test_both_sides_must_have_something(tmp_path: Path, share: float, message: str) -> None:
    source = f"text:{write_text(tmp_path / 'a.txt')}"
    with pytest.raises(UserError, match=rf"{message} documents at a held-out share of .*--held-out"):
        prepared(tmp_path, source, held_out=share)
    assert prepared(tmp_path, source, held_out=0.2).manifest.val_documents, "what the message advises"


def test_no_text_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match="holds no text"):
        prepared(tmp_path, f"text:{tmp_path / 'a.txt'}")
