import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.report import (
    DamagedJournal,
    EvalRow,
    LayerRow,
    Report,
    StepRow,
    parse_rows,
    read_finished,
    read_record,
    read_rows,
    row_from_json,
    row_to_json,
    write_record,
)
from tests.conftest import formula_record, make_sweep

number = st.floats()
rows = st.one_of(
    st.builds(StepRow, st.integers(0), number, number, number, number, st.integers(0)),
    st.builds(EvalRow, st.integers(0), st.just("val"), number, st.integers(0), st.integers(0)),
    st.builds(LayerRow, st.integers(0), st.sampled_from(["cos_yv", "a_ii"]), st.integers(0), number),
)


def same(a: object, b: object) -> bool:
    return type(a) is type(b) and all(
        x == y or (isinstance(x, float) and math.isnan(x) and math.isnan(y))
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


@given(rows)
def test_every_row_survives_json_bit_for_bit(row: StepRow | EvalRow | LayerRow) -> None:
    text = json.dumps(row_to_json(row), allow_nan=False)
    assert same(row_from_json(json.loads(text)), row)


def test_a_report_survives_json() -> None:
    arm = make_sweep().trials()[1].xsa
    report = Report(formula_record(arm), [LayerRow(0, "a_ii", 1, math.nan)])
    back = Report.loads(report.dumps())
    assert back.record == report.record
    assert same(back.rows[0], report.rows[0])


def test_a_line_cut_short_is_left_out() -> None:
    line = json.dumps(row_to_json(LayerRow(0, "a_ii", 1, 0.5))) + "\n"
    assert parse_rows([line, line[:20]]) == [LayerRow(0, "a_ii", 1, 0.5)]


def test_a_record_is_replaced_whole(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    record = formula_record(make_sweep().trials()[1].xsa)
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == ["arm.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"status": "odd"}', "\x00"])
def test_a_damaged_record_is_named_with_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "arm.json").write_text(text)
    with pytest.raises(DamagedJournal, match=r"arm\.json cannot be read .*the arm is then trained anew"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    "line", ["", "nonsense", '{"row": "odd"}', '{"row": "layer", "step": 1}', "\x00", "[1]"]
)
def test_a_damaged_journal_is_named_with_the_way_out(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(DamagedJournal, match=r"metrics\.jsonl cannot be read"):
        read_rows(tmp_path)


def test_a_finished_arm_needs_its_last_row(tmp_path: Path) -> None:
    record = formula_record(make_sweep().trials()[1].xsa)
    last = EvalRow(record.step, "val", 2.5, 64, 1)
    journal = tmp_path / "metrics.jsonl"
    journal.write_text(json.dumps(row_to_json(last)) + "\n")
    assert read_finished(tmp_path, record) == [last]
    journal.write_text(json.dumps(row_to_json(replace(last, step=record.step - 1))) + "\n")
    with pytest.raises(DamagedJournal, match="it has no last row, of step 40"):
        read_finished(tmp_path, record)
