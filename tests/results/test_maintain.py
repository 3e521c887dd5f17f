"""What looks after a store: `xsa db`'s work."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet
import pytest

from results import maintain
from results.export import export
from results.location import StoreError
from results.query import Database
from results.record import ingest, record
from results.record_evals import record_evals
from results.record_made import record_artifacts, record_bench
from results.store import Store
from results.views import VIEWS
from schemas.evals import append_results
from schemas.report import Report, Weights
from tests.conftest import ON_BOTH, PROVENANCE, formula_record, formula_rows, make_sweep
from tests.results.made_up import ARMS, bench_row, failure, task_result
from tests.results.test_record import write_journal

LAST = make_sweep().trials()[-1].xsa


def contents(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    with store.read() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(table.select()).all())) for table in maintain.TABLES
        }  # fmt: skip


@ON_BOTH
def test_info_says_where_what_and_how_much(troubled: Database) -> None:
    found = maintain.info(troubled.store)
    assert found["store"] == troubled.store.name
    assert found["database"].startswith(("sqlite 3.", "postgresql "))
    assert (found["rows"]["arm"], found["rows"]["trial"], found["sweeps"]) == (9, 9, ["small"])
    assert found["bytes"] > 50_000
    assert found["oldest"] <= found["newest"]
    assert found["oldest"].endswith("+00:00")


@ON_BOTH
def test_info_of_a_store_without_results(store: Store) -> None:
    found = maintain.info(store)
    assert (found["sweeps"], found["oldest"], found["newest"]) == ([], None, None)


@ON_BOTH
def test_a_sound_store_has_no_problems(troubled: Database) -> None:
    assert maintain.check(troubled.store) == []


def test_check_names_what_is_wrong(filled: Database, store: Store, address: str) -> None:
    with closing(sqlite3.connect(address)) as connection:  # as another program could
        connection.execute("DELETE FROM arm_eval WHERE arm_id = 1 AND step = 40")
        connection.execute("UPDATE arm SET init_sha256 = 'other' WHERE id = 2")
        connection.execute("INSERT INTO sweep_trial VALUES (77, 1, 0)")
        connection.execute("UPDATE attempt SET arm_id = 99 WHERE arm_id = 3")
        connection.commit()
    problems = maintain.check(store)
    assert sum("has no last evaluation" in line for line in problems) == 1
    assert sum("had other initial weights" in line for line in problems) == 1
    assert "sweep_trial: 1 rows refer by sweep_id to nothing in sweep" in problems
    assert "attempt: 1 rows refer by arm_id to nothing in arm" in problems
    assert len(problems) == 4


def test_check_knows_a_damaged_file(filled: Database, tmp_path: Path, address: str) -> None:
    damaged = tmp_path / "damaged.db"
    with closing(sqlite3.connect(address)) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'arm_step'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    content = bytearray(Path(address).read_bytes())
    content[(page - 1) * size : page * size] = b"\xff" * size
    damaged.write_bytes(content)
    with Store.open(damaged) as store:
        problems = maintain.check(store)
    assert problems and all("damaged" in line for line in problems)


def test_check_compares_the_journals_that_are_here(troubled: Database, store: Store, tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    with store.write() as connection:
        connection.exec_driver_sql(f"UPDATE sweep SET storage = '{storage}'")
    folder = write_journal(storage, formula_record(LAST), formula_rows(LAST))  # done; at step 20 in the store
    assert maintain.check(store) == [], "its worker is ahead of its own reports"
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE arm SET lease_until_us = 1 WHERE status = 'running'")
    (problem,) = maintain.check(store)
    assert (
        f"arm {LAST.id[:12]} is at step 20 here and at 40 (done) in its journal: xsa ingest {storage}"
        in problem
    )
    (folder / "arm.json").write_text("{")
    (problem,) = maintain.check(store)
    assert "arm.json cannot be read" in problem


@pytest.mark.parametrize(
    "there",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
@ON_BOTH
def test_a_copy_is_the_same_store(
    troubled: Database,
    there: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintain, "BATCH", 100)
    target = str(tmp_path / "copy.db")
    if there == "postgresql":
        server = request.getfixturevalue("server")
        target = server.url(server.make())
    with Store.open(target, mode="write") as copied:
        counts = maintain.copy(troubled.store, copied)
        assert contents(copied) == contents(troubled.store)
        assert counts["arm_step"] == len(contents(copied)["arm_step"])
        with copied.write() as connection:  # ids go on after those that were copied
            connection.exec_driver_sql("INSERT INTO environment (fingerprint, document) VALUES ('new', '{}')")
        with pytest.raises(StoreError, match="holds results already"):
            maintain.copy(troubled.store, copied)
    with Database(target) as db:
        pd.testing.assert_frame_equal(db.pairs(), troubled.pairs())
        pd.testing.assert_frame_equal(db.attempts(), troubled.attempts())
        assert maintain.check(db.store) == []


def test_a_copy_that_fails_leaves_the_target_empty(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "copy.db", mode="write") as copied:
        before = contents(copied)
        tables = maintain.TABLES
        monkeypatch.setattr(maintain, "TABLES", [*tables, tables[0]])  # the first again: its ids are there
        with pytest.raises(StoreError, match="UNIQUE"):
            maintain.copy(filled.store, copied)
        assert contents(copied) == before


@ON_BOTH
def test_an_export_holds_every_view(
    troubled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.export.ARMS", 4)
    paths = export(troubled, tmp_path)
    assert [path.name for path in paths] == [f"{name}.parquet" for name in [*VIEWS, "sweeps"]]
    assert sorted(path.name for path in tmp_path.glob("*.parquet")) == sorted(path.name for path in paths)
    assert not list(tmp_path.glob(".*.part"))
    for view, whole in {
        "v_results": troubled.pairs,
        "v_curves": troubled.curves,
        "v_layers": troubled.layers,
        "v_attempts": troubled.attempts,
        "sweeps": troubled.sweeps,
    }.items():
        table = pyarrow.parquet.read_table(tmp_path / f"{view}.parquet")
        assert table.to_pylist() == whole(to="arrow").to_pylist()


def test_an_export_of_nothing_has_the_columns(store: Store, tmp_path: Path, address: str) -> None:
    with Database(address) as db:
        export(db, tmp_path)
        table = pyarrow.parquet.read_table(tmp_path / "v_curves.parquet")
        assert (table.num_rows, table.column_names) == (0, list(db.curves()))


@ON_BOTH
def test_what_comes_after_training_is_kept_like_the_rest(
    filled: Database, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text("<html>")
    for arm in ARMS:
        record_evals(store, arm.id, [task_result(arm), failure(task_result(arm, "piqa"))])
        record(store, Report(formula_record(arm, weights=Weights(40, "final", 1, "0" * 64, 1)), []))
    record_bench(store, [bench_row()], environment={"hostname": "laptop"}, provenance=PROVENANCE)
    record_artifacts(store, "report", {"report": [tmp_path / "page.html"]}, sweep="small", filters={})
    counts = maintain.info(store)["rows"]
    expected = {"eval_result": 18, "eval_score": 18, "eval_item": 180, "checkpoint": 9}
    assert counts | expected | {"bench": 1, "artifact": 1} == counts
    assert maintain.check(store) == []
    before = contents(store)
    maintain.vacuum(store)
    with Store.open(tmp_path / "copy.db", mode="write") as copied:
        assert maintain.copy(store, copied).items() >= expected.items()
        assert contents(copied) == contents(store) == before
        record_evals(copied, LAST.id, [task_result(LAST, "boolq")])  # ids go on after those that were copied
    (tmp_path / "exported").mkdir()
    export(filled, tmp_path / "exported")
    for view, ask in {
        "v_evals": filled.evals,
        "v_eval_items": filled.eval_items,
        "v_bench": filled.bench,
    }.items():
        table = pyarrow.parquet.read_table(tmp_path / "exported" / f"{view}.parquet")
        assert table.num_rows > 0
        assert table.to_pylist() == ask(to="arrow").to_pylist()


def test_check_knows_what_evaluations_lack(filled: Database, store: Store, tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    with store.write() as connection:
        connection.exec_driver_sql(f"UPDATE sweep SET storage = '{storage}'")
    told = formula_record(LAST, weights=Weights(40, "checkpoints/final", 1, "0" * 64, 1))
    folder = write_journal(storage, told, formula_rows(LAST))
    append_results(folder, [task_result(LAST)])
    evals, weights = maintain.check(store)
    assert evals.startswith(f"arm {LAST.id[:12]} has 0 evaluations here and 1 in its journal: xsa ingest")
    assert f"has lost its final weights, {folder / 'checkpoints' / 'final'}" in weights
    (folder / "checkpoints" / "final").mkdir(parents=True)
    assert ingest(store, folder)
    assert maintain.check(store) == []
    assert store.path
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("DELETE FROM eval_score WHERE metric = 'acc'")
        connection.commit()
    assert maintain.check(store) == ["eval_item: 20 rows refer by eval_score_id to nothing in eval_score"]


@ON_BOTH
def test_vacuum_keeps_every_row(filled: Database, store: Store) -> None:
    with store.write() as connection:
        connection.exec_driver_sql("DELETE FROM layer_metric")
    kept = contents(store)
    before, after = maintain.vacuum(store)
    assert contents(store) == kept
    assert after <= before or not store.path
