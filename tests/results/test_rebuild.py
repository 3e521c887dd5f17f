"""What a lost or full disk takes: the store is rebuilt from the arms' folders, and half written never."""

from pathlib import Path

import pandas as pd
import pytest

from results.location import StoreError
from results.query import Database
from results.record import ingest, record, save_sweep
from results.record_evals import record_evals
from results.store import Store
from results.views import VIEWS
from schemas.evals import Score, append_results
from schemas.report import Report, Weights
from tests.conftest import ON_BOTH, PROVENANCE, SMALL, fill, formula_record, formula_rows, make_sweep
from tests.results.made_up import ARMS, TASKS, failure, task_result
from tests.results.test_record import write_journal

FROM_FOLDERS = set(VIEWS) - {"v_attempts", "v_provenance", "v_bench", "v_artifacts"}
"""The others tell who trained with which code, and what is not of an arm: no folder has that."""


def rows(db: Database, view: str, columns: str = "*") -> list[str]:
    """Return a view's rows in no order, without the numbers that rows have in tables."""
    frame = db.sql(f"SELECT {columns} FROM {view}")
    frame = frame[[name for name in frame if name == "data_id" or not name.endswith("_id")]]
    return sorted(map(repr, frame.itertuples(index=False, name=None)))


@ON_BOTH
def test_every_view_is_rebuilt_from_the_arms_folders(
    wanted: Store, db: Database, new: str, tmp_path: Path
) -> None:
    fill(wanted, make_sweep(), tmp_path / "runs")
    folders = []
    for i, arm in enumerate(ARMS):
        weights = Weights(40, "checkpoints/final", 10 * i, f"{i:064}", 1000 + i)
        told = formula_record(arm, weights=weights)
        folder = write_journal(tmp_path / "runs", told, formula_rows(arm))
        folders.append(folder)
        results = [task_result(arm, task, limit=limit) for task in TASKS for limit in (None, 5)]
        results.append(failure(task_result(arm, "piqa")))
        append_results(folder, results)
        record(wanted, Report(told, []), packages=PROVENANCE.packages)
        record_evals(wanted, arm.id, results)
    with Store.open(new, mode="write") as rebuilt:
        for folder in reversed(folders):
            assert ingest(rebuilt, folder)
        save_sweep(rebuilt, make_sweep(), make_sweep().trials(), tmp_path / "runs")
    with Database(new) as again:
        for view in FROM_FOLDERS:
            assert rows(again, view) == rows(db, view), view
            assert rows(db, view) or view == "v_mixed"
        seen = "arm, variant, status, step, attempts, hostname, device, threads, micro_batch, mixed"
        assert rows(again, "v_provenance", seen) == rows(db, "v_provenance", seen)


def test_a_full_disk_loses_nothing_and_recording_goes_on_when_there_is_room(
    wanted: Store, db: Database, tmp_path: Path
) -> None:
    first, second = (trial.xsa for trial in make_sweep(base=SMALL | {"steps": 1000}).trials()[3:5])
    assert record(wanted, Report(formula_record(first), formula_rows(first)))
    before = db.pairs(), db.curves(), db.layers()
    folder = write_journal(tmp_path / "runs", formula_record(second), formula_rows(second))
    append_results(folder, [task_result(second)])

    with wanted.read() as connection:  # the one that stays open, and that writes
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    large = task_result(first, scores={"acc": Score(0.5, None, [1.0, 0.0] * 1000)})
    for write in (
        lambda: ingest(wanted, folder),
        lambda: record(wanted, Report(formula_record(second), formula_rows(second))),
        lambda: record_evals(wanted, first.id, [large]),
    ):
        with pytest.raises(StoreError, match=r"the disk is full\. Nothing was lost: free some space"):
            write()
    for old, now in zip(before, (db.pairs(), db.curves(), db.layers()), strict=True):
        pd.testing.assert_frame_equal(old, now)
    assert db.evals().empty

    with wanted.read() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert ingest(wanted, folder)
    record_evals(wanted, first.id, [large])
    assert len(db.curves()) == 2 * 1001
    assert set(db.evals().arm) == {first.id[:12], second.id[:12]}
