"""docs/database.md is what the program says, and its recipes run."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from results import bulk, bulk_items, describe
from results.columns import COLUMNS, shown_name
from results.query import Database
from results.recipes import RECIPES
from results.record_evals import record_evals
from results.schema import attempt, metadata
from results.store import Store
from results.views import VIEWS
from schemas.trial import AXES
from tests.conftest import ON_BOTH
from tests.results.made_up import ARMS, task_result

PAGE = Path(__file__).parents[2] / "docs" / "database.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == describe.describe(), (
        "run: python -m results.describe > docs/database.md"
    )


def test_the_page_has_every_table_view_column_and_axis() -> None:
    page = describe.describe()
    for name in [*VIEWS, *metadata.tables]:
        assert page.count(f"### {name}\n") == 1
    for table in metadata.tables.values():
        section = page.partition(f"### {table.name}\n")[2].partition("\n##")[0]
        for column in table.columns:
            assert f"| `{column.name}` |" in section or column.name in AXES, column
    assert all(f"| `{axis}` |" in page for axis in AXES)
    assert "|  |" not in page


def test_every_column_of_a_view_has_a_type_and_a_meaning(filled: Database) -> None:
    for view in VIEWS:
        for name in filled.sql(f"SELECT * FROM {view} LIMIT 0"):
            assert name in AXES or COLUMNS[shown_name(name)].meaning, name
    assert list(filled.sql("SELECT * FROM v_curves LIMIT 0").drop(columns="arm_id")) == bulk.CURVES
    assert list(filled.sql("SELECT * FROM v_layers LIMIT 0").drop(columns="arm_id")) == bulk.LAYERS
    items = filled.sql("SELECT * FROM v_eval_items LIMIT 0").drop(columns="trial_id")
    assert list(items) == bulk_items.ITEMS


@ON_BOTH
def test_every_recipe_runs(
    filled: Database, store: Store, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arm in ARMS:
        record_evals(store, arm.id, [task_result(arm)])
    with store.write() as connection:
        timed = {"execution": "compiled", "flops_per_s": 3e9, "peak_flops_per_s": 4e9}
        connection.execute(attempt.update().values(timed))
    monkeypatch.setenv("XSA_DB", address)
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == len(RECIPES) == 13
    scope: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("quickstart", "small"), scope)
    assert isinstance(scope["curve"], pd.DataFrame)
    assert (len(scope["curve"]), scope["table"].num_rows) == (41, 9 * 41)
    assert (tmp_path / "curves.parquet").exists()
    assert scope["newest"].mfu.tolist() == [0.75] * 9
    assert len(scope["scores"]) == 9
    assert len(scope["items"]) == 9 * 20
    scope["db"].close()
