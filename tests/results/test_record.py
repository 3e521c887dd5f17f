import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from results.claims import claim, end_attempt
from results.query import Database
from results.record import ingest, record, save_sweep
from results.state import arm_states
from results.store import Store
from schemas.report import (
    ArmRecord,
    DamagedJournal,
    EvalRow,
    LayerRow,
    Report,
    Row,
    StepRow,
    arm_folder,
    row_to_json,
    write_record,
)
from schemas.trial import AXES, Arm
from tests.conftest import ON_BOTH, PROVENANCE, fill, formula_record, formula_rows, make_sweep

ARM = make_sweep().trials()[3].xsa
pytestmark = ON_BOTH


def test_shared_arms_are_stored_once(wanted: Store, db: Database) -> None:
    assert len(db.pairs("small")) == 9
    assert db.sql("SELECT count(*) AS n FROM arm").n[0] == 9  # 3 SA and 6 XSA, not 18
    assert set(db.pairs().status) == {"pending"}


def test_saving_again_changes_nothing_and_an_edited_sweep_keeps_results(
    filled: Database, store: Store, tmp_path: Path
) -> None:
    before = filled.pairs()
    save_sweep(store, make_sweep(), make_sweep().trials(), tmp_path)
    pd.testing.assert_frame_equal(filled.pairs(), before)
    smaller = make_sweep(seeds=[0])
    save_sweep(store, smaller, smaller.trials(), tmp_path)
    assert len(filled.pairs("small")) == 3
    assert len(filled.pairs()) == 9


def test_repeating_a_report_changes_nothing(filled: Database, store: Store) -> None:
    frames = filled.pairs(), filled.curves(), filled.layers()
    assert record(store, Report(formula_record(ARM), formula_rows(ARM)))
    for before, after in zip(frames, (filled.pairs(), filled.curves(), filled.layers()), strict=True):
        pd.testing.assert_frame_equal(before, after)


def test_a_zombie_s_late_rows_are_fenced(wanted: Store, db: Database) -> None:
    claim(wanted, ARM.id, "one", PROVENANCE)
    claim(wanted, ARM.id, "two", PROVENANCE, dead_owners=["one"])
    late = Report(formula_record(ARM, 1), [EvalRow(40, "val", 0.0, 64, 1)])
    assert not record(wanted, late)
    assert db.curves().empty
    assert arm_states(wanted, [ARM.id])[ARM.id].status == "running"


def _part(arm: Arm, attempt: int, first: int, last: int, status: str = "running") -> Report:
    rows: list[Row] = [row for row in formula_rows(arm) if first <= row.step <= last]
    return Report(formula_record(arm, attempt, status=status, step=last), rows)


def test_a_resumed_attempt_replaces_what_its_predecessor_did_after_the_checkpoint(
    wanted: Store, db: Database
) -> None:
    claim(wanted, ARM.id, "one", PROVENANCE)
    record(wanted, _part(ARM, 1, 0, 25))
    claim(wanted, ARM.id, "one", PROVENANCE)
    record(wanted, _part(ARM, 2, 0, 20))
    assert db.curves().step.max() == 20
    sparse = _part(ARM, 2, 21, 40, "done")
    record(wanted, replace(sparse, rows=[row for row in sparse.rows if row.step % 2 == 0]))
    assert db.curves().step.tolist() == [*range(21), *range(22, 41, 2)]
    assert db.pairs(xsa_lambda=ARM.xsa_lambda, seed=ARM.seed).xsa_status.tolist() == ["done"]


def test_a_late_running_message_does_not_undo_a_result(filled: Database, store: Store) -> None:
    assert not record(store, _part(ARM, 1, 0, 10))
    assert arm_states(store, [ARM.id])[ARM.id].status == "done"


def test_nan_and_infinity_survive(wanted: Store, db: Database) -> None:
    claim(wanted, ARM.id, "one", PROVENANCE)
    rows: list[Row] = [
        StepRow(1, math.inf, 1e-3, -math.inf, 1.0, 1),
        StepRow(2, math.nan, 1e-3, math.inf, 1.0, 2),
        EvalRow(2, "val", math.inf, 64, 2),
    ]
    record(wanted, Report(formula_record(ARM, status="diverged", step=2), rows))
    curve = db.curves()
    assert curve.train_loss.tolist()[0] == math.inf
    assert math.isnan(curve.train_loss.tolist()[1])
    assert curve.grad_norm.tolist() == [-math.inf, math.inf]
    assert curve.val_loss.tolist()[1] == math.inf
    kinds = db.sql("SELECT train_loss, train_loss_kind AS kind FROM arm_step")
    assert kinds.kind.tolist() == [2, 1]
    assert kinds.train_loss.isna().all()


def test_numbers_come_back_exactly(wanted: Store, db: Database) -> None:
    claim(wanted, ARM.id, "one", PROVENANCE)
    losses = [5e-324, sys.float_info.max, 0.1 + 0.2, 2.0**53 + 2]
    rows: list[Row] = [StepRow(i, loss, 1e-3, 1.0, 1.0, 2**62) for i, loss in enumerate(losses, start=1)]
    record(wanted, Report(formula_record(ARM, status="running", step=4), rows))
    assert db.curves().train_loss.map(float.hex).tolist() == [loss.hex() for loss in losses]


def test_two_equal_infinities_have_no_difference(wanted: Store, db: Database) -> None:
    for arm in make_sweep().trials()[3].arms:
        claim(wanted, arm.id, "one", PROVENANCE)
        rows: list[Row] = [StepRow(2, math.inf, 1e-3, 1.0, 1.0, 2), EvalRow(2, "val", math.inf, 64, 2)]
        record(wanted, Report(formula_record(arm, status="diverged", step=2), rows))
    both = db.sql(
        "SELECT count(*) AS n FROM v_results WHERE sa_val_loss = xsa_val_loss AND delta_val_loss IS NULL"
    )
    assert both.n.tolist() == [2]  # λ = 0 pairs the SA arm with itself
    assert db.pairs(delta_val_loss=(0, None)).empty


def test_what_an_attempt_took_is_kept_apart_from_its_environment(wanted: Store, db: Database) -> None:
    for number in (1, 2):
        claim(wanted, ARM.id, "one", PROVENANCE)
        took = {"micro_batch": number, "peak_gpu_bytes": 2**40, "peak_rss_bytes": number, "pid": number}
        told = formula_record(ARM, number, status="running", step=1)
        record(wanted, Report(replace(told, environment=told.environment | took), []))
    attempts = db.sql("SELECT micro_batch, peak_gpu_bytes, environment FROM v_attempts ORDER BY attempt")
    assert attempts.micro_batch.tolist() == [1, 2]
    assert attempts.peak_gpu_bytes.tolist() == [2**40] * 2
    assert attempts.environment.nunique() == 1


def test_a_pair_whose_arms_began_differently_is_refused(filled: Database, store: Store) -> None:
    with store.write() as connection:
        connection.exec_driver_sql(f"UPDATE arm SET init_sha256 = 'other' WHERE fingerprint = '{ARM.id}'")
    status = filled.pairs(xsa_lambda=ARM.xsa_lambda).set_index("seed").status
    assert status[ARM.seed] == "refused"
    assert set(status.drop(ARM.seed)) == {"done"}


def write_journal(storage: Path, record: ArmRecord, rows: list[Row]) -> Path:
    folder = arm_folder(storage, record.arm_id)
    folder.mkdir(parents=True)
    write_record(folder, record)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row_to_json(row)) + "\n" for row in rows))
    return folder


def test_a_store_is_rebuilt_from_the_arms_folders(filled: Database, store: Store, tmp_path: Path) -> None:
    sweep = make_sweep()
    folders = [
        write_journal(tmp_path / "runs", formula_record(arm), formula_rows(arm))
        for arm in {arm.id: arm for trial in sweep.trials() for arm in trial.arms}.values()
    ]
    with Store.open(tmp_path / "rebuilt.db", mode="write") as rebuilt:
        for folder in folders * 2:  # twice, because it is idempotent
            assert ingest(rebuilt, folder)
        save_sweep(rebuilt, sweep, sweep.trials(), tmp_path / "runs")
    with Database(tmp_path / "rebuilt.db") as db:
        pd.testing.assert_frame_equal(db.pairs("small"), filled.pairs("small"))
        pd.testing.assert_frame_equal(
            db.curves("small").sort_values(["arm", "step"]).reset_index(drop=True),
            filled.curves("small").sort_values(["arm", "step"]).reset_index(drop=True),
        )
        assert len(db.attempts()) == 9
    assert not ingest(store, tmp_path)


def test_two_sweeps_share_their_arms(filled: Database, store: Store, tmp_path: Path) -> None:
    other = make_sweep(name="other", grid={"xsa_lambda": [1, 2]})
    fill_only_new = [arm for arm in (trial.xsa for trial in other.trials()) if arm.xsa_lambda == 2]
    save_sweep(store, other, other.trials(), tmp_path)
    assert len(filled.pairs("other")) == 6
    assert filled.pairs("other").status.tolist().count("done") == 3
    for arm in fill_only_new:
        assert claim(store, arm.id, "one", PROVENANCE)


def test_fill_fills(store: Store, db: Database, tmp_path: Path) -> None:
    fill(store, make_sweep(), tmp_path)
    assert set(db.pairs("small").status) == {"done"}


def test_a_journal_that_says_running_does_not_bring_a_failed_arm_to_life(
    wanted: Store, tmp_path: Path
) -> None:
    claim(wanted, ARM.id, "one", PROVENANCE)
    told = formula_record(ARM, 1, status="running", step=10)
    rows = [row for row in formula_rows(ARM) if row.step <= 10]
    record(wanted, Report(told, rows))
    end_attempt(wanted, ARM.id, 1, cause="user_error", error="boom")
    folder = write_journal(tmp_path / "runs", told, rows)
    assert ingest(wanted, folder)
    state = arm_states(wanted, [ARM.id])[ARM.id]
    assert (state.status, state.reason) == ("failed", "boom")


def test_a_rebuilt_store_knows_that_nobody_trains_an_unfinished_arm(store: Store, tmp_path: Path) -> None:
    told = formula_record(ARM, 3, status="running", step=10)
    ingest(store, write_journal(tmp_path, told, [row for row in formula_rows(ARM) if row.step <= 10]))
    state = arm_states(store, [ARM.id])[ARM.id]
    assert (state.status, state.attempt, state.lease_owner) == ("interrupted", 3, None)
    assert claim(store, ARM.id, "one", PROVENANCE) == 4


def test_reading_a_live_arm_s_journal_leaves_its_lease_alone(
    wanted: Store, db: Database, tmp_path: Path
) -> None:
    claim(wanted, ARM.id, "one", PROVENANCE)
    told = formula_record(ARM, 1, status="running", step=10)
    rows = [row for row in formula_rows(ARM) if row.step <= 10]
    record(wanted, Report(told, rows), packages=PROVENANCE.packages)
    ingest(wanted, write_journal(tmp_path / "runs", told, rows))
    state = arm_states(wanted, [ARM.id])[ARM.id]
    assert (state.status, state.lease_owner) == ("running", "one")
    assert "2.13.0" in db.attempts().environment[0]
    assert json.loads(db.attempts().environment[0])["packages"] == PROVENANCE.packages


def test_ingest_twice_changes_no_time(filled: Database, store: Store, tmp_path: Path) -> None:
    before = filled.sql("SELECT * FROM arm ORDER BY id"), filled.sql("SELECT * FROM attempt ORDER BY id")
    assert ingest(store, write_journal(tmp_path / "runs", formula_record(ARM), formula_rows(ARM)))
    for frame, after in zip(
        before,
        (filled.sql("SELECT * FROM arm ORDER BY id"), filled.sql("SELECT * FROM attempt ORDER BY id")),
        strict=True,
    ):
        pd.testing.assert_frame_equal(frame, after)


def test_a_cut_journal_is_no_result(store: Store, db: Database, tmp_path: Path) -> None:
    rows = [row for row in formula_rows(ARM) if row.step <= 20]
    with pytest.raises(DamagedJournal, match="it has no last row"):
        ingest(store, write_journal(tmp_path, formula_record(ARM), rows))
    assert db.curves().empty


def test_an_arm_of_other_semantics_is_refused(store: Store, tmp_path: Path) -> None:
    told = formula_record(ARM, arm_id="0" * 64)
    with pytest.raises(DamagedJournal, match="its settings meant something else"):
        ingest(store, write_journal(tmp_path, told, formula_rows(ARM)))
    with pytest.raises(DamagedJournal, match="has settings that are none"):
        record(store, Report(replace(formula_record(ARM), arm={"lr": "fast"}), []))


def test_an_arm_from_before_an_axis_is_read_at_what_was_in_effect(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ARM.model_dump()
    settings.pop("rope_base")
    old = replace(AXES["rope_base"], history={"before": AXES["rope_base"].default})
    monkeypatch.setitem(AXES, "rope_base", old)
    told = replace(formula_record(ARM), arm=settings, arm_id=Arm(**ARM.model_dump()).id)
    assert ingest(store, write_journal(tmp_path, told, formula_rows(ARM)))


def test_a_metric_that_nobody_knows_is_named(wanted: Store) -> None:
    claim(wanted, ARM.id, "one", PROVENANCE)
    with pytest.raises(DamagedJournal, match=r"Unknown metric 'cos_yw'. Did you mean 'cos_yv'"):
        record(wanted, Report(formula_record(ARM), [LayerRow(0, "cos_yw", 0, 1.0)]))
