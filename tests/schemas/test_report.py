import json
import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from schemas.report import (
    EvalRow,
    LayerRow,
    Report,
    StepRow,
    parse_rows,
    read_record,
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
