"""`xsa results`: which rows, which columns, which format, and where to."""

import io
import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet
import pytest

from orchestrator.arguments import parse_where
from results.query import Database
from results.record import save_sweep
from results.store import Store
from schemas.errors import UserError
from tests.conftest import SMALL, make_sweep
from tests.orchestrator.conftest import Xsa


def test_columns_are_those_asked_for_in_every_format(xsa: Xsa, filled: Database, tmp_path: Path) -> None:
    ask = ("results", "small", "--where", "xsa_lambda=0.5", "--columns", "seed, delta_val_loss")
    wanted = filled.pairs("small", xsa_lambda=0.5, columns=["seed", "delta_val_loss"])
    table = xsa(*ask)[1]
    assert table.split() == wanted.to_string(index=False).split()
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(xsa(*ask, "--format", "csv")[1])), wanted)
    rows = json.loads(xsa(*ask, "--format", "json")[1])
    pd.testing.assert_frame_equal(pd.DataFrame(rows), wanted)
    assert xsa(*ask, "--out", "pairs.parquet") == (0, "Written: pairs.parquet\n", "")
    assert pyarrow.parquet.read_table(tmp_path / "pairs.parquet").to_pylist() == wanted.to_dict("records")


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        (["--out", "new/pairs.csv"], "trial,"),
        (["--out", "new/pairs.json"], "[\n"),
        (["--out", "new/pairs.txt"], "Final validation loss"),
        (["--out", "new/pairs.txt", "--format", "csv"], "trial,"),
        (["--out", "new/pairs.txt", "--columns", "seed"], " seed"),
    ],
)
def test_a_file_holds_what_its_name_says_or_the_format(
    xsa: Xsa, filled: Database, tmp_path: Path, arguments: list[str], begins: str
) -> None:
    code, output, _ = xsa("results", "small", *arguments)
    assert (code, output) == (0, f"Written: {arguments[1]}\n")
    assert (tmp_path / arguments[1]).read_text().lstrip("\n").startswith(begins)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [Path(arguments[1]).name]


def test_the_table_is_the_summary(xsa: Xsa, filled: Database) -> None:
    output = xsa("results", "small")[1]
    assert "SA itself" in output
    assert "of this table." in output
    assert "sees a true difference of 0.01 nats/token" in output
    assert xsa("results", "small", "--columns", "seed", "--where", "seed=5")[1] == "no pairs\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "parquet"], "Name the file to write: --out pairs.parquet."),
        (["--columns", "seed,xsa_lamda"], "Unknown column 'xsa_lamda'. Did you mean 'xsa_lambda'?"),
        (["--columns", ""], "Unknown column ''."),
        (["--format", "xml"], "Unknown format 'xml'."),
        (["--out", "pairs.cvs"], "Unknown format 'cvs'. Did you mean 'csv'?"),
        (["--out", "."], ". cannot be written: it is a directory. Choose another place with --out."),
        (["--out", "results.db/x.csv"], "results.db/x.csv cannot be written: "),
    ],
)
def test_a_mistake_is_one_message_and_writes_nothing(
    xsa: Xsa, filled: Database, tmp_path: Path, arguments: list[str], message: str
) -> None:
    before = sorted(tmp_path.iterdir())
    code, output, error = xsa("results", "small", *arguments)
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert message in error
    assert sorted(tmp_path.iterdir()) == before


def test_a_comma_is_part_of_a_value_that_may_hold_one(xsa: Xsa, store: Store, tmp_path: Path) -> None:
    assert parse_where(["xsa_layers=0,1", "xsa_layers=all", "seed=0,1"]) == {
        "xsa_layers": ["0,1", "all"],
        "seed": [0, 1],
    }
    with pytest.raises(UserError, match="write all values in one"):
        parse_where(["seed=0", "seed=1"])
    sweep = make_sweep(
        base=SMALL | {"n_layer": 4},
        grid={"xsa_layers": ["0,1", "0,3", "0", "all"], "xsa_lambda": [1]},
        seeds=[0],
    )
    save_sweep(store, sweep, sweep.trials(), tmp_path / "runs")
    ask = ("results", "small", "--columns", "xsa_layers", "--format", "json", "--where")
    rows = json.loads(xsa(*ask, "xsa_layers=0,3")[1])
    assert rows == [{"xsa_layers": "0,3"}]
    rows = json.loads(xsa(*ask, "xsa_layers=0", "--where", "xsa_layers=0,1")[1])
    assert sorted(row["xsa_layers"] for row in rows) == ["0", "0,1"]
