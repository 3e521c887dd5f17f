"""The arms of a pair, as a worker is given them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.report import Report, arm_folder, read_record
from schemas.sweep import Runtime
from schemas.trial import Arm
from trainer.pair import PairMismatch, train_pair


def both(tiny: Callable[..., Arm]) -> tuple[Arm, Arm]:
    return tiny(xsa_lambda=0), tiny(xsa_lambda=1)


def test_both_arms_begin_equal_and_end_in_their_folders(tiny: Callable[..., Arm], tmp_path: Path) -> None:
    arms = both(tiny)
    reports: list[Report] = []
    records = train_pair(
        arms,
        tmp_path,
        Runtime(),
        attempts={arms[0].id: 1, arms[1].id: 4},
        report=reports.append,
        should_stop=lambda: False,
    )
    assert [(record.arm_id, record.status, record.attempt) for record in records] == [
        (arms[0].id, "done", 1),
        (arms[1].id, "done", 4),
    ]
    assert len({(record.init_sha256, record.batch_sha256, record.data_sha256) for record in records}) == 1
    assert [read_record(arm_folder(tmp_path, arm.id)) for arm in arms] == records
    assert [Report.loads(report.dumps()) for report in reports] == reports


def test_an_interruption_leaves_the_second_arm_alone(tiny: Callable[..., Arm], tmp_path: Path) -> None:
    arms = both(tiny)
    records = train_pair(
        arms,
        tmp_path,
        Runtime(),
        attempts={arm.id: 1 for arm in arms},
        report=lambda report: None,
        should_stop=lambda: True,
    )
    assert [record.status for record in records] == ["interrupted"]
    assert not arm_folder(tmp_path, arms[1].id).exists()


@pytest.mark.parametrize("name", ["init_sha256", "batch_sha256", "data_sha256"])
def test_arms_that_began_otherwise_are_refused(
    tiny: Callable[..., Arm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arms = both(tiny)
    reports: list[Report] = []

    def other_train(arm: Arm, folder: Path, runtime: Runtime, **options: object) -> object:
        def send(report: Report) -> None:
            record = replace(report.record, **{name: "0" * 64}) if arm == arms[1] else report.record
            options["report"](replace(report, record=record))

        return train(arm, folder, runtime, **options | {"report": send})

    from trainer.train import train

    monkeypatch.setattr("trainer.pair.train", other_train)
    with pytest.raises(PairMismatch, match=name):
        train_pair(
            arms,
            tmp_path,
            Runtime(),
            attempts={arm.id: 1 for arm in arms},
            report=reports.append,
            should_stop=lambda: False,
        )
    assert {report.record.arm_id for report in reports} == {arms[0].id}
    record = read_record(arm_folder(tmp_path, arms[1].id))
    assert record is not None and record.step == 0, "refused before its first step"
