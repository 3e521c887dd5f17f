"""What a user's type checker knows of the answers."""

from pathlib import Path

import pytest
from mypy import api

from results.query import Database

PACKAGE = Path(__file__).parents[2] / "results"
QUESTIONS = (
    *("pairs", "curves", "layers", "attempts", "evals", "eval_pairs", "eval_items", "checkpoints"),
    *("provenance", "mixed", "artifacts", "bench", "sweeps", "sql"),
)


@pytest.mark.slow
def test_a_type_checker_knows_pandas_from_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["import pandas, pyarrow, results", "from typing import assert_type", "db = results.open()"]
    for name in QUESTIONS:
        ask = f'db.{name}("SELECT 1", ' if name == "sql" else f"db.{name}("
        lines.append(f"assert_type({ask}seed=1), pandas.DataFrame)")
        lines.append(f"assert_type({ask}to='arrow'), pyarrow.Table)")
    lines.append("db.pairs(to='polars')")
    (tmp_path / "user.py").write_text("\n".join(lines))
    for module, kind in {"pandas": "DataFrame", "pyarrow": "Table"}.items():  # mypy has no types of either
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.pyi").write_text(f"class {kind}: ...")
    monkeypatch.setenv("MYPYPATH", f"{tmp_path}:{PACKAGE.parent}")
    monkeypatch.chdir(tmp_path)
    files = [str(PACKAGE / f"{name}.py") for name in ("__init__", "query", "answers")]
    stubs = [str(tmp_path / module / "__init__.pyi") for module in ("pandas", "pyarrow")]
    options = ["--config-file=", "--no-incremental", "--follow-imports=skip", "--ignore-missing-imports"]
    said, trouble, _ = api.run([*options, "user.py", *files, *stubs])
    assert trouble == ""
    errors = [line for line in said.splitlines() if line.startswith("user.py") and ": error: " in line]
    assert len(errors) == 1 and f"user.py:{len(lines)}: error: No overload variant" in errors[0], said


def test_every_question_is_one_of_these() -> None:
    public = {name for name, value in vars(Database).items() if callable(value) and not name.startswith("_")}
    assert public - {"close"} == set(QUESTIONS)
