"""What a worker sends the driver, with Tune's part played here."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator import worker
from orchestrator.failures import explain
from orchestrator.worker import PLACE, REPORT, StorageNotSeen, TrialTimeout, train_trial
from schemas.report import Report
from schemas.sweep import Runtime
from schemas.trial import Trial
from tests.conftest import SMALL


class Told:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[dict[str, Any]] = []
        monkeypatch.setattr(worker.tune, "report", self.sent.append)
        monkeypatch.setattr(worker.ray, "get_runtime_context", lambda: self)

    def get_node_id(self) -> str:
        return "n1"

    def train(self, folder: Path, lighter: dict[str, Any] | None = None, **runtime: Any) -> list[Report]:
        pair = Trial(**SMALL | {"steps": 3})
        train_trial(
            {"attempts": {arm.id: 1 for arm in pair.arms}, "lighter": lighter or {}},
            arms={arm.id: arm.model_dump() for arm in pair.arms},
            storage=str(folder),
            runtime=Runtime(**runtime).model_dump_json(),
            stop_file=str(folder / "stop"),
        )
        return self.reports

    @property
    def reports(self) -> list[Report]:
        return [Report.loads(message[REPORT]) for message in self.sent if REPORT in message]


def test_a_worker_says_first_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    reports = told.train(tmp_path)
    assert told.sent[0][PLACE]["node"] == "n1"
    assert [told.record.status for told in reports].count("done") == 2


def test_a_trial_that_ran_out_of_memory_is_trained_with_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lighter = {"micro_batch": 1, "activation_checkpointing": True}
    reports = Told(monkeypatch).train(tmp_path, lighter)
    assert all(lighter.items() <= report.record.environment.items() for report in reports)


def test_the_arm_that_runs_out_of_time_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch)
    with pytest.raises(TrialTimeout, match="more than 1e-09 h"):
        told.train(tmp_path, max_hours=1e-9)
    assert {report.record.status for report in told.reports} == {"running"}  # it is the error that ends it
    assert len({report.record.arm_id for report in told.reports}) == 1


def test_a_worker_that_is_asked_to_stop_ends_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stop").touch()
    assert Told(monkeypatch).train(tmp_path)[-1].record.status == "interrupted"


def test_a_worker_that_does_not_see_the_storage_makes_none_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageNotSeen, match="does not see the storage"):
        Told(monkeypatch).train(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    assert explain(StorageNotSeen("its node n1 does not see the storage")).cause == "node_lost"
