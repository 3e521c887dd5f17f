"""Prepared data are found by what they are, read without loading them, and refused where they are not whole."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.dataset import parse_source
from schemas.errors import UserError
from schemas.names import UnknownName
from schemas.trial import Arm, Trial
from tests.trainer.conftest import TINY, Run
from tests.trainer.corpora import DOCUMENTS, document, prepared, write_jsonl, write_parquet, write_text
from trainer import writing
from trainer.data import Batches, NotEnoughData, check_data, draw
from trainer.data_folder import Library, Prepared
from trainer.manifest import MANIFEST
from trainer.sample import documents
from trainer.shards import DamagedData, Shards


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """300 documents in several shards."""
    monkeypatch.setattr(writing, "SHARD_TOKENS", 7000)
    return prepared(tmp_path / "data", f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}", held_out=0.2)


def on(made: Prepared, **changes: Any) -> Trial:
    base = {"dataset": made.manifest.origin.source, "data_id": made.manifest.data_id}
    return Trial(**TINY | base | changes)


def everything(shards: Shards) -> np.ndarray[Any, Any]:
    return np.concatenate([shards[i : i + 1000] for i in range(0, len(shards), 1000)])


def test_slices_cross_shards(small: Prepared) -> None:
    stored = np.concatenate(
        [np.fromfile(Path(small.path) / shard.file, "<u2") for shard in small.manifest.train]
    )
    shards = small.tokens("train")
    assert len(shards) == len(stored) == small.manifest.tokens("train") and len(small.manifest.train) > 1
    for begin, end in (
        (0, 10),
        (6_995, 7_005),
        (6_999, 7_001),
        (0, len(stored)),
        (len(stored) - 3, len(stored) + 9),
    ):
        assert np.array_equal(shards[begin:end], stored[begin:end])
    assert np.array_equal(everything(shards), stored)


def test_batches_are_windows_of_the_stream_each_once_an_epoch(small: Prepared) -> None:
    batches = Batches.of(on(small), str(Path(small.path).parent))
    stream = everything(small.tokens("train"))
    n, size = batches.n_windows, batches.trial.batch_size
    rows = np.concatenate([batches.train(step) for step in range(-(-n // size))])[:n]
    begins = sorted(range(0, n * 16, 16), key=lambda begin: stream[begin : begin + 17].tobytes())
    assert np.array_equal(
        np.array(sorted(rows.tolist())), np.array(sorted(stream[b : b + 17].tolist() for b in begins))
    )
    assert np.array_equal(batches.evaluation()[:, :-1].flatten(), small.tokens("val")[0:128])


def test_random_crops_begin_anywhere_and_follow_from_seed_and_step(small: Prepared) -> None:
    folder = str(Path(small.path).parent)
    crops = Batches.of(on(small, sampling="random_crops"), folder)
    stream = everything(small.tokens("train")).tobytes()
    assert all(row.astype("<u2").tobytes() in stream for row in crops.train(7))
    assert np.array_equal(crops.train(7), Batches.of(on(small, sampling="random_crops"), folder).train(7))
    assert not np.array_equal(crops.train(7), crops.train(8))
    assert not np.array_equal(
        crops.train(7), Batches.of(on(small, sampling="random_crops", seed=1), folder).train(7)
    )
    begins = draw(np.arange(20_000, dtype=np.uint64), 1000, key="k")
    assert begins.min() == 0 and begins.max() == 999
    counts = np.bincount(begins, minlength=1000)
    assert 0.8 < counts.var() / 20 < 1.2, (
        "as many of each as chance gives: Poisson, whose variance is its mean"
    )


def test_a_batch_loads_no_more_than_itself(tmp_path: Path) -> None:
    made = prepared(tmp_path, f"text:{write_text(tmp_path / 'a.txt', [document(i) for i in range(20_000)])}")
    assert made.manifest.tokens("train") > 3_000_000
    batches = Batches.of(on(made), str(tmp_path))
    tracemalloc.start()
    for step in range(50):
        batches.train(step)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000, "a twentieth of the data"


def test_equal_data_are_one_arm_whatever_they_are_called(tmp_path: Path) -> None:
    sources = [
        f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}",
        f"parquet:{write_parquet(tmp_path / 'b.parquet')}",
        f"jsonl:{write_jsonl(tmp_path / 'c.jsonl', field='body')}#body",
    ]
    trials = [on(prepared(tmp_path / "data", source, held_out=0.2)) for source in sources]
    assert len({trial.dataset for trial in trials}) == 3 and len({trial.id for trial in trials}) == 1
    others = [
        on(prepared(tmp_path / "other", sources[0], held_out=0.3)),
        on(prepared(tmp_path / "fewer", sources[0], held_out=0.2, tokens=20_000)),
        on(prepared(tmp_path / "gpt2", sources[0], "gpt2", held_out=0.2), tokenizer="gpt2"),
    ]
    assert len({trial.id for trial in [trials[0], *others]}) == 4


def test_a_file_that_changed_is_other_data(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl")
    source, library = parse_source(f"jsonl:{path}"), Library(str(tmp_path / "data"))
    before = prepared(tmp_path / "data", source.label)
    assert library.of(source, "bytes") == before and library.of(source, "gpt2") is None
    write_jsonl(path, DOCUMENTS[1:])
    assert library.of(source, "bytes") is None
    after = prepared(tmp_path / "data", source.label)
    assert after.manifest.data_id != before.manifest.data_id and len(library.all()[0]) == 2
    assert library.with_id(before.manifest.data_id) == before, "what was begun on it can be finished"
    path.unlink()
    with pytest.raises(UserError, match=r"is gone, and .* has .*; keep one"):
        library.of(source, "bytes")


def test_more_documents_and_other_files_move_none_across(tmp_path: Path) -> None:
    made = {}
    for n in (150, 300):
        sources = (
            f"jsonl:{write_jsonl(tmp_path / f'{n}.jsonl', DOCUMENTS[:n])}",
            f"parquet:{write_parquet(tmp_path / f'{n}.parquet', DOCUMENTS[:n])}",
        )
        made[n], other = (prepared(tmp_path / "data", source) for source in sources)
        assert made[n].manifest.data_id == other.manifest.data_id
        assert made[n].manifest.recipe.held_out == 0.05
    for split in ("train", "val"):
        few, many = (everything(made[n].tokens(split)).tobytes() for n in (150, 300))
        assert many.startswith(few) and len(many) > len(few)


def test_a_relative_path_is_another_file_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, library = parse_source("jsonl:a.jsonl"), Library(str(tmp_path / "data"))
    made = []
    for name, texts in (("one", DOCUMENTS), ("two", [text.upper() for text in DOCUMENTS])):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        write_jsonl(Path("a.jsonl"), texts)
        os.utime("a.jsonl", ns=(10**18, 10**18))
        assert library.of(source, "bytes") is None
        made.append(prepared(tmp_path / "data", source.label))
    assert library.of(source, "bytes") == made[1] != made[0]
    monkeypatch.chdir(tmp_path / "one")
    assert library.of(source, "bytes") == made[0]
    monkeypatch.chdir(tmp_path)
    assert library.of(source, "bytes") is None, "there is none here, and none was"


def test_what_is_there_needs_nothing_written(small: Prepared, tmp_path: Path) -> None:
    preparing = tmp_path / "data" / ".preparing"
    preparing.rmdir()
    assert prepared(tmp_path / "data", small.manifest.origin.source, held_out=0.2) == small
    assert not preparing.exists()


def test_a_data_folder_may_have_any_name(tmp_path: Path) -> None:
    source = f"jsonl:{write_jsonl(tmp_path / 'a.jsonl')}"
    library = Library(str(tmp_path / "run[1] *?"))
    made = prepared(library.folder, source)
    assert library.all() == ([made], {}) and library.with_id(made.manifest.data_id) == made


def test_files_that_are_gone_are_served_from_what_was_prepared(small: Prepared, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").unlink()
    assert Library(str(tmp_path / "data")).of(parse_source(f"jsonl:{tmp_path}/a.jsonl"), "bytes") == small


def test_a_worker_refuses_other_data(small: Prepared, tmp_path: Path, run: Run) -> None:
    folder = str(tmp_path / "data")
    arm = on(small).xsa
    assert run(arm, data=folder).status == "done"
    with pytest.raises(UserError, match=r"has no data with the id 0{12}.*shared storage.*runtime\.data"):
        run(Arm(**arm.model_dump() | {"data_id": "0" * 64}), data=folder)
    with pytest.raises(UserError, match=r"is not prepared: xsa data prepare .*a\.jsonl --tokenizer bytes"):
        run(Arm(**arm.model_dump() | {"data_id": ""}), data=folder)


def test_too_little_data_is_told(small: Prepared, tmp_path: Path) -> None:
    with pytest.raises(
        NotEnoughData, match=r"lower eval_tokens .*, or prepare the data with a larger --held-out"
    ):
        check_data([on(small, eval_tokens=1_600_000)], str(tmp_path / "data"))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has 13,999 bytes, not 14,000"),
    "missing": (lambda path: path.unlink(), "is missing"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_shard_that_is_not_whole_is_refused(case: str, small: Prepared) -> None:
    damage, message = DAMAGE[case]
    path = Path(small.path) / small.manifest.train[0].file
    damage(path)
    batches = Batches.of(on(small), str(Path(small.path).parent))
    with pytest.raises(DamagedData, match=rf"{path} {message}.*Delete its folder"):
        for step in range(batches.n_windows):
            batches.train(step)
    (problem,) = small.problems(lambda shard: None)
    assert str(path) in problem


def test_an_id_beyond_the_vocabulary_is_refused(small: Prepared) -> None:
    path = Path(small.path) / small.manifest.val[0].file
    path.write_bytes(path.read_bytes()[:20] + (300).to_bytes(2, "little") + path.read_bytes()[22:])
    with pytest.raises(
        DamagedData, match=rf"{path} holds id 300 near its token 0, and the vocabulary ends at 256"
    ):
        Batches.of(on(small), str(Path(small.path).parent)).evaluation()
    (problem,) = small.problems(lambda shard: None)
    assert "another sha256" in problem


@pytest.mark.parametrize("edit", ['"tokens": 7000', '"dtype": "uint16"', "{"])
def test_a_manifest_that_was_changed_is_refused(edit: str, small: Prepared, tmp_path: Path) -> None:
    path = Path(small.path) / MANIFEST
    text = path.read_text().replace(
        edit, {"{": "[", '"dtype": "uint16"': '"dtype": "uint32"'}.get(edit, edit[:-1] + "1"), 1
    )
    path.write_text(text)
    library = Library(str(tmp_path / "data"))
    message = r"manifest\.json (was changed|is no manifest).*prepare it again"
    with pytest.raises(DamagedData, match=message):
        library.named(small.name)
    with pytest.raises(UserError, match=rf"has no data with the id.*{message}"):
        library.with_id(small.manifest.data_id)
    with pytest.raises(DamagedData, match=rf"{small.name} is not whole\. Delete it"):
        prepared(tmp_path / "data", small.manifest.origin.source)
    other = prepared(tmp_path / "data", f"text:{write_text(tmp_path / 'b.txt')}")
    sound, damaged = library.all()
    assert sound == [other] and list(damaged) == [small.name], "the others are served"
    assert library.named(other.name) == library.with_id(other.manifest.data_id) == other


def test_names(small: Prepared, tmp_path: Path) -> None:
    library = Library(str(tmp_path / "data"))
    for text in (small.name, small.manifest.data_id[:8], f"jsonl:{tmp_path}/a.jsonl"):
        assert library.named(text) == small
    with pytest.raises(UnknownName, match=f"Did you mean '{small.name}'"):
        library.named(small.name[:-2])
    with pytest.raises(UserError, match=r"data folder nowhere://x cannot be opened.*--data"):
        Library("nowhere://x")


def test_samples_are_documents(small: Prepared) -> None:
    held_out = {text[:150] for text in DOCUMENTS}
    for _, text in documents(small, "val", n=5, seed=1):
        assert text.removesuffix(" ...")[:150] in held_out
