"""Benchmarks, final weights, written files, speed and provenance in the store."""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.claims import Provenance, claim, end_attempt
from results.query import Database
from results.record import ingest, record
from results.record_made import record_artifacts, record_bench
from results.store import Store
from schemas.errors import UserError
from schemas.names import UnknownName
from schemas.report import ArmRecord, Report, Weights, read_record
from schemas.trial import Arm
from tests.conftest import ON_BOTH, PROVENANCE, formula_record, formula_rows, make_sweep
from tests.results.made_up import bench_row
from tests.results.test_record import write_journal

pytestmark = ON_BOTH
PAIR = make_sweep().trials()[3]
MACHINE = {"hostname": "laptop", "device": "cpu", "pid": 7, "peak_rss_bytes": 1}
WEIGHTS = Weights(step=40, path="checkpoints/final", bytes=2**33, manifest_sha256="a" * 64, time_us=10)


def test_a_block_measured_again_takes_its_own_place(store: Store, db: Database) -> None:
    rows = [bench_row(), bench_row(variant="xsa", ms=2.5)]
    record_bench(store, rows, environment=MACHINE, provenance=PROVENANCE)
    again = [replace(rows[0], ms=4.0, time_us=20, repeats=9), replace(rows[1], ms=9.0, time_us=5)]
    other = Provenance("1" * 40, True, {"torch": "2.14.0"})
    record_bench(store, again, environment=MACHINE, provenance=other)
    found = db.bench(columns=["variant", "ms", "repeats", "dirty", "peak_bytes", "hostname"])
    assert found.ms.tolist() == [4.0, 2.5]  # the older of two is the one that was told last
    assert (found.repeats.tolist(), found.dirty.tolist()) == ([9, 5], [True, False])
    assert set(found.peak_bytes) == {2**40}
    record_bench(store, rows, environment=MACHINE | {"hostname": "server"}, provenance=PROVENANCE)
    record_bench(store, [bench_row(seq_len=256)], environment=MACHINE, provenance=PROVENANCE)
    assert len(db.bench()) == 5
    assert len(db.bench(hostname="laptop", seq_len=128, dtype="float32")) == 2
    assert db.bench(to="arrow").column("seq_len").to_pylist() == [128, 128, 256, 128, 128]
    with pytest.raises(UserError, match="Unknown filter 'seqlen'"):
        db.bench(seqlen=1)
    assert "2.14.0" in db.bench(ms=4.0).environment[0]


def test_where_final_weights_are_is_told_by_the_arm_s_folder(
    wanted: Store, db: Database, tmp_path: Path
) -> None:
    assert db.checkpoints().empty
    told = formula_record(PAIR.xsa, weights=WEIGHTS)
    folder = write_journal(tmp_path / "runs", told, formula_rows(PAIR.xsa))
    assert read_record(folder) == told
    for _ in range(2):
        assert ingest(wanted, folder)
        (row,) = db.checkpoints("small").to_dict("records")
        assert (row["arm"], row["step"], row["path"]) == (PAIR.xsa.id[:12], 40, "checkpoints/final")
        assert (row["bytes"], row["manifest_sha256"]) == (2**33, "a" * 64)
    assert record(wanted, Report.loads(Report(told, []).dumps()))
    assert len(db.checkpoints(variant="xsa")) == 1


def test_files_that_were_made_are_known_by_their_path(
    filled: Database, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("fig7 ' ä.png")
    for content in (b"one", b"three"):
        path.write_bytes(content)
        record_artifacts(store, "figure", {"fig7": [path]}, sweep="small", filters={"lr": (0.1, None)})
    (row,) = filled.artifacts("small").to_dict("records")
    assert (row["kind"], row["name"], row["path"]) == ("figure", "fig7", str(tmp_path / path))
    assert (row["bytes"], row["sha256"]) == (5, hashlib.sha256(b"three").hexdigest())
    assert row["filters"] == '{"lr": [0.1, null]}'
    with pytest.raises(UnknownName, match=r"Unknown sweep 'smal'\. Did you mean 'small'"):
        filled.artifacts("smal")
    assert filled.artifacts(kind="table").empty


def test_files_are_read_while_others_may_write(
    filled: Database, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now: list[Store] = []
    real_write, real_read = Store.write, Path.read_bytes

    @contextmanager
    def write(self: Store) -> Iterator[Any]:
        with real_write(self) as connection:
            open_now.append(self)
            yield connection
            open_now.remove(self)

    def read_bytes(path: Path) -> bytes:
        assert not open_now
        return real_read(path)

    (tmp_path / "page.html").write_text("page")
    monkeypatch.setattr(Store, "write", write)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    record_artifacts(store, "report", {"report": [tmp_path / "page.html"]}, sweep="small", filters={})
    assert len(filled.artifacts()) == 1


def trained(store: Store, arm: Arm, provenance: Provenance, first: int, last: int, **seen: Any) -> ArmRecord:
    """Claim an arm and record its rows from `first` to `last`."""
    attempt = claim(store, arm.id, "one", provenance)
    assert attempt
    told = formula_record(arm, attempt, status="done" if last == arm.steps else "running", step=last)
    told = replace(told, environment=told.environment | {"micro_batch": 4} | seen)
    rows = [row for row in formula_rows(arm) if first <= row.step <= last]
    assert record(store, Report(told, rows), packages=provenance.packages)
    return told


def test_what_the_arms_of_a_pair_mixed_is_told(wanted: Store, db: Database) -> None:
    others = Provenance("1" * 40, True, PROVENANCE.packages)
    trained(wanted, PAIR.sa, PROVENANCE, 0, 40)
    trained(wanted, PAIR.xsa, others, 0, 40, threads=2, micro_batch=2)
    assert db.provenance("small").mixed.isna().all()  # each arm is of one piece
    (pair,) = db.mixed("small").to_dict("records")
    assert pair["trial"] == PAIR.id[:12]
    assert pair["mixed"] == "code environment threads micro_batch"
    sources = db.provenance(columns=["variant", "git_sha", "dirty", "threads", "micro_batch", "attempts"])
    assert sources.set_index("variant").loc["xsa"].tolist() == ["1" * 40, True, 2, 2, 1]


SPEED = {
    "execution": "eager",
    "compile_error": "no compiler\0\ud800\nis there",
    "activation_checkpointing": True,
    "flops_per_s": 3e13,
    "peak_flops_per_s": 4e13,
    "peak_source": "data sheet",
}
"""What a worker tells of how an attempt was executed and how fast."""


def test_how_an_attempt_was_executed_and_how_fast_is_told(wanted: Store, db: Database) -> None:
    told = formula_record(PAIR.xsa, status="running", step=1)
    fixed = told.environment | {"matmul_precision": "highest"}
    untimed = SPEED | {"compile_error": None, "flops_per_s": None}
    claim(wanted, PAIR.xsa.id, "one", PROVENANCE)
    for seen in (untimed, SPEED):  # an attempt that has been timed by now
        record(wanted, Report(replace(told, environment=fixed | seen), []))
    claim(wanted, PAIR.xsa.id, "one", PROVENANCE)
    no_peak = {"peak_flops_per_s": None, "peak_source": None, "execution": "compiled"}
    seen = fixed | untimed | {"flops_per_s": 1.0} | no_peak
    record(wanted, Report(replace(told, attempt=2, environment=seen), []))
    claim(wanted, PAIR.xsa.id, "one", PROVENANCE)
    record(wanted, Report(replace(told, attempt=3, environment=fixed | untimed), []))

    first, second, third = db.attempts().to_dict("records")
    kept = {**SPEED, "compile_error": "no compiler\\x00\\ud800\nis there", "mfu": 0.75}
    assert {name: first[name] for name in kept} == kept
    assert (second["execution"], second["flops_per_s"]) == ("compiled", 1.0)
    assert (third["execution"], third["peak_flops_per_s"]) == ("eager", 4e13)
    assert math.isnan(second["mfu"]) and math.isnan(third["mfu"])
    (document,) = db.attempts().environment.unique()
    assert json.loads(document)["matmul_precision"] == "highest"
    assert not json.loads(document).keys() & SPEED.keys()
    assert db.attempts(mfu=(0.5, None), activation_checkpointing=True).attempt.tolist() == [1]


def test_what_an_earlier_version_did_not_tell_is_missing(filled: Database, store: Store) -> None:
    assert filled.attempts(columns=[*SPEED, "mfu"]).isna().all(axis=None)
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE attempt SET flops_per_s = 1, peak_flops_per_s = 0")
    assert filled.attempts().mfu.isna().all()  # PostgreSQL divides nothing by zero


def test_a_pair_of_an_eager_and_a_compiled_arm_is_mixed(wanted: Store, db: Database) -> None:
    trained(wanted, PAIR.sa, PROVENANCE, 0, 40, execution="eager", compile_error="no compiler")
    trained(wanted, PAIR.xsa, PROVENANCE, 0, 40, execution="compiled", activation_checkpointing=True)
    assert db.mixed("small").mixed.tolist() == ["execution"]
    found = db.provenance(columns=["variant", "execution", "mixed"]).set_index("variant")
    assert found.execution.to_dict() == {"sa": "eager", "xsa": "compiled"}
    assert found.mixed.isna().all()


def test_an_attempt_of_which_nothing_is_left_mixes_nothing(wanted: Store, db: Database) -> None:
    trained(wanted, PAIR.sa, PROVENANCE, 0, 40, micro_batch=2)
    trained(wanted, PAIR.xsa, PROVENANCE, 0, 10)
    end_attempt(wanted, PAIR.xsa.id, 1, cause="cuda_oom", error="too large")
    trained(wanted, PAIR.xsa, PROVENANCE, 0, 40, micro_batch=2)  # from the start
    assert db.mixed().empty
    assert db.provenance(variant="xsa").attempts.tolist() == [1]


def test_an_attempt_that_went_on_from_another_s_checkpoint_mixes_both(wanted: Store, db: Database) -> None:
    trained(wanted, PAIR.xsa, PROVENANCE, 0, 20)
    end_attempt(wanted, PAIR.xsa.id, 1, cause="interrupted", error="stopped")
    trained(wanted, PAIR.xsa, PROVENANCE, 21, 40, threads=4)
    (row,) = db.provenance().to_dict("records")
    assert (row["mixed"], row["attempts"], row["threads"]) == ("environment threads", 2, 4)
    assert db.mixed().mixed.tolist() == ["environment threads"]
