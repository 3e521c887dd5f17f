import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import bench as measuring
from orchestrator.cli import app
from results.query import Database
from results.store import Store
from schemas.errors import UserError
from trainer.bench import CannotMeasure
from trainer.bench import measure as real_measure

SMALL = ["--seq-len", "16,32", "--d-model", "64", "--execution", "eager", "--repeats", "2", "--device", "cpu"]


def xsa(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    where = ["--db", str(tmp_path / "r.db"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["bench", *arguments, *where])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_blocks_are_measured_kept_and_drawn_and_a_second_time_replaced(tmp_path: Path) -> None:
    code, said = xsa(tmp_path, *SMALL)
    assert code == 0 and said.count("forward+backward") == 2 and "fig2.png" in said
    assert (tmp_path / "out" / "fig2.csv").exists()
    with Database(tmp_path / "r.db") as db:
        first = db.bench()
    assert sorted(first["seq_len"].unique()) == [16, 32] and len(first) == 8
    assert set(first["hostname"].notna()) == {True} and json.loads(first["environment"][0])["torch"]
    xsa(tmp_path, *SMALL)
    with Database(tmp_path / "r.db") as db:
        again = db.bench()
    assert len(again) == 8 and (again["measured_at"] > first["measured_at"]).all()


def test_a_block_that_cannot_be_measured_is_said_and_the_rest_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(shape, *rest):  # type: ignore[no-untyped-def]
        if shape.seq_len == 16:
            raise CannotMeasure("A block 64 wide over 4 x 16 tokens does not fit.")
        return real_measure(shape, *rest)

    monkeypatch.setattr(measuring.bench, "measure", measure)
    code, said = xsa(tmp_path, *SMALL, "--json")
    found = json.loads(said)
    assert code == 1 and {row["seq_len"] for row in found["rows"]} == {32}
    assert found["left_out"] == ["eager: A block 64 wide over 4 x 16 tokens does not fit."]
    code, said = xsa(tmp_path, "--seq-len", "16", "--d-model", "64", "--execution", "eager")
    assert code == 1 and "Left out, eager: A block 64 wide" in said


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_opening_an_older_store_has_done_is_said(
    form: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*arguments: Any, **options: Any) -> Store:
        store = real_open(*arguments, **options)
        store.notes.append("r.db was brought up to date")
        return store

    real_open = Store.open
    monkeypatch.setattr(Store, "open", opened)
    monkeypatch.setattr(measuring, "run", lambda *_, **options: (0, 0))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", *SMALL, *form, "--db", "r.db"])
    assert result.exit_code == 0
    assert (result.stderr if form else result.stdout) == "r.db was brought up to date\n"
    assert (result.stdout if form else result.stderr) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seq-len", "64,1a"], "--seq-len 64,1a: write whole numbers from 8 to"),
        (["--seq-len", "4"], "--seq-len 4: write whole numbers from 8 to"),
        (["--d-model", "100"], "100 wide has no whole number of heads of 64"),
        (["--dtype", "bfloat"], "Did you mean 'bfloat16'"),
        (["--execution", "eagr"], "Did you mean 'eager'"),
        (["--device", "cud"], "Did you mean 'cuda'"),
    ],
)
def test_mistakes_are_answered_before_anything_is_measured(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        xsa(tmp_path, *arguments)
    assert not (tmp_path / "r.db").exists()


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.torch.cuda, "is_available", lambda: False)
    assert measuring.device_for(None).type == "cpu"
    with pytest.raises(UserError, match="--device cuda: PyTorch finds no GPU here"):
        measuring.device_for("cuda")
