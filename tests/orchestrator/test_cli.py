"""The commands as a user types them, without Ray."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.arguments import parse_where
from orchestrator.cli import ORDER
from results.query import Database
from results.store import Store
from schemas.errors import UserError
from schemas.trial import AXES
from tests.conftest import fill, formula_record, formula_rows, make_sweep
from tests.orchestrator.conftest import Xsa
from tests.results.test_record import write_journal

SWEEP = "name: small\nbase: {tokenizer: bytes, seq_len: 16, tokens_per_step: 64, eval_tokens: 64, bias_tokens: 64, steps: 40}\ngrid: {xsa_lambda: [0, 0.5, 1]}\nseeds: [0, 1, 2]\n"


def test_plan_says_what_a_new_sweep_costs(xsa: Xsa, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    code, output, _ = xsa("plan", "s.yaml")
    assert code == 0
    assert "9 (pairs)" in output
    assert "9 new" in output
    assert "0, 0.5, 1  (float)" in output
    assert not list(tmp_path.glob("results.db*"))


def test_plan_knows_what_is_done(xsa: Xsa, tmp_path: Path, filled: Database) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP.replace("[0, 1, 2]", "[0, 1, 2, 3]"))
    code, output, _ = xsa("plan", "s.yaml")
    assert (code, "3 new, 9 done" in output) == (0, True)
    assert "since last run" in output
    assert "+3 arms" in output
    assert "at the speed measured so far" in output
    document = json.loads(xsa("plan", "s.yaml", "--json")[1])
    assert (document["status"], document["trials"]) == ({"new": 3, "done": 9}, 12)


def test_a_finished_sweep_runs_nothing_and_says_so(xsa: Xsa, tmp_path: Path, filled: Database) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    code, output, _ = xsa("run", "s.yaml")
    assert code == 0
    assert "small: 9 arms done, 0 to do" in output
    assert "starting Ray" not in output


def test_status_shows_where_arms_stand_and_why(xsa: Xsa, troubled: Database) -> None:
    code, output, _ = xsa("status", "small")
    assert code == 0
    assert "failed" in output
    assert "boom <b>" in output
    rows = json.loads(xsa("status", "--json")[1])
    assert (rows[0]["sweep"], rows[0]["done"], rows[0]["failed"]) == ("small", 6, 1)


def test_results_in_every_format(xsa: Xsa, filled: Database) -> None:
    assert "SA itself" in xsa("results", "small")[1]
    frame = pd.read_csv(io.StringIO(xsa("results", "small", "--format", "csv", "--where", "xsa_lambda=1")[1]))
    assert len(frame) == 3
    assert len(json.loads(xsa("results", "small", "--format", "json", "--where", "seed=0,1")[1])) == 6


def test_figures_and_tables_and_report_are_written(xsa: Xsa, tmp_path: Path, filled: Database) -> None:
    assert xsa("figures", "small", "fig7", "--out", "out")[0] == 0
    assert xsa("tables", "small", "--out", "out")[0] == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"fig7.png", "fig7.svg", "fig7.pdf", "fig7.csv", "losses.tex", "losses.md"} <= names
    assert "fig1.png" not in names
    code, output, _ = xsa("report", "small")
    assert (code, "report.html" in output) == (0, True)
    assert (tmp_path / "reports" / "small" / "report.html").exists()


def test_figures_take_published_numbers_beside_them(xsa: Xsa, tmp_path: Path, store: Store) -> None:
    fill(store, make_sweep(grid={"n_sinks": [0, 1]}, seeds=[0]), tmp_path / "runs")
    assert xsa("figures", "small", "fig6", "--published", "--out", "out")[0] == 0
    assert pd.read_csv(tmp_path / "out" / "fig6.csv")["quantity"].value_counts()["published"] == 3


def test_axes_lists_every_axis_and_size(xsa: Xsa) -> None:
    output = xsa("axes")[1]
    assert all(name in output for name in AXES)
    assert "2.68 G" in output
    assert json.loads(xsa("axes", "--json")[1])["properties"]["seq_len"]["minimum"] == 8


MISTAKES = {
    "no such file": (["run", "nope.yaml"], "nope.yaml: there is no such file."),
    "unknown axis": (["run", "typo.yaml"], "typo.yaml:1: grid.lamda: Unknown axis 'lamda'."),
    "no store": (["status", "--db", "none.db"], "There is no store at none.db."),
    "not a database": (["run", "s.yaml", "--db", "s.yaml"], "s.yaml is not a database."),
    "directory": (["run", "s.yaml", "--db", "."], "is a directory"),
    "unknown sweep": (["results", "smal"], "Unknown sweep 'smal'. Did you mean 'small'?"),
    "unknown figure": (["figures", "small", "fig77"], "Unknown figure 'fig77'. Did you mean 'fig7'?"),
    "nothing published": (
        ["figures", "small", "fig7", "--published"],
        "no numbers to show in fig7, only in fig4",
    ),
    "unknown table": (["tables", "small", "loses"], "Unknown table 'loses'. Did you mean 'losses'?"),
    "unknown format": (["results", "small", "--format", "cvs"], "Unknown format 'cvs'. Did you mean 'csv'?"),
    "bad where": (["results", "small", "--where", "seed"], "--where seed: write AXIS=VALUE"),
    "bad value": (["results", "small", "--where", "seed=x"], "'x' is text; seed must be a whole number."),
    "where twice": (
        ["results", "small", "--where", "seed=0", "--where", "seed=1"],
        "write all values in one, with commas",
    ),
    "where sweep": (["results", "small", "--where", "sweep=small"], "the sweep is the command's argument"),
    "out": (["figures", "small", "--out", "s.yaml"], "Nothing can be written to s.yaml"),
    "too little data": (
        ["run", "big.yaml"],
        "big.yaml: eval_tokens is 1,000,000,000, but shakespeare holds out",
    ),
    "no arms": (["ingest", "."], "holds no arms"),
    "storage": (["run", "wider.yaml", "--storage", "s.yaml/runs"], "The storage"),
    "dataset": (["run", "data.yaml"], "Unknown dataset 'shakespear'. Did you mean 'shakespeare'?"),
    "plan dataset": (["plan", "data.yaml"], "Unknown dataset 'shakespear'."),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_message_and_changes_nothing(
    case: str, xsa: Xsa, tmp_path: Path, filled: Database
) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    (tmp_path / "wider.yaml").write_text(SWEEP.replace("[0, 1, 2]", "[0, 1, 2, 3]"))
    (tmp_path / "big.yaml").write_text(
        "base: {eval_tokens: 1000000000, tokenizer: bytes, seq_len: 100, tokens_per_step: 100, bias_tokens: 100}\n"
    )
    (tmp_path / "typo.yaml").write_text("grid: {lamda: [1]}\n")
    (tmp_path / "data.yaml").write_text("base: {dataset: shakespear}\n")
    before = filled.sql("SELECT * FROM arm"), filled.sql("SELECT * FROM sweep")
    arguments, message = MISTAKES[case]
    code, output, error = xsa(*arguments)
    assert code == 2
    assert error.startswith("xsa: ")
    assert message in error
    assert error.count("\n") == 1
    assert "Traceback" not in output + error
    after = filled.sql("SELECT * FROM arm"), filled.sql("SELECT * FROM sweep")
    for a, b in zip(before, after, strict=True):
        pd.testing.assert_frame_equal(a, b)


def test_where_knows_the_types_of_other_columns(xsa: Xsa, filled: Database) -> None:
    assert len(json.loads(xsa("results", "small", "--format", "json", "--where", "step=40")[1])) == 9
    assert len(json.loads(xsa("results", "small", "--format", "json", "--where", "status=done")[1])) == 9


def test_ingest_takes_the_good_folders_and_names_the_bad(xsa: Xsa, tmp_path: Path) -> None:
    arms = [trial.xsa for trial in make_sweep().trials()][-2:]
    for arm in arms:
        folder = write_journal(tmp_path / "runs", formula_record(arm), formula_rows(arm))
    (folder / "arm.json").write_text("{")
    code, output, error = xsa("ingest", "runs")
    assert code == 2
    assert "1 of 2 arms brought up to date" in output
    assert "arm.json cannot be read" in error


def test_where_is_a_value_a_list_or_a_range() -> None:
    assert parse_where(["lr=1e-3", "seed=0,1", "seq_len=64..128", "steps=..10", "status=done"]) == {
        "lr": 1e-3,
        "seed": [0, 1],
        "seq_len": (64, 128),
        "steps": (None, 10),
        "status": "done",
    }
    with pytest.raises(UserError, match="write AXIS=VALUE"):
        parse_where(["lr"])


def test_ctrl_c_before_anything_runs_is_one_line(monkeypatch: pytest.MonkeyPatch, xsa: Xsa) -> None:
    from schemas.sweep import Sweep

    def interrupt(path: Path) -> Sweep:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sweep, "load", interrupt)
    code, _, error = xsa("plan", "s.yaml")
    assert code == 130
    assert error.count("\n") == 1


def test_help_lists_the_commands_as_one_needs_them(xsa: Xsa) -> None:
    listed = xsa("--help")[1].partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(ORDER)


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "axes"], capture_output=True, text=True, check=True
    )
    assert "xsa_lambda" in done.stdout


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "ray://127.0.0.1:10001"])
def test_a_cluster_that_is_not_there_is_said_at_once(
    xsa: Xsa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    (tmp_path / "s.yaml").write_text(SWEEP)
    code, _, error = xsa("run", "s.yaml")
    assert code == 2
    assert f"RAY_ADDRESS={address}" in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"], "what was refused leaves nothing behind"


def test_a_store_that_sqlite_cannot_make_is_explained_by_what_is_so(xsa: Xsa, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    name = "x" * 252  # a file can be called so, and the one that SQLite makes beside it cannot
    code, _, error = xsa("run", "s.yaml", "--db", name)
    assert (code, error.count("\n")) == (2, 1)
    assert "SQLite has to make files in its directory, and could not" in error


def test_stop_makes_no_store(xsa: Xsa, tmp_path: Path) -> None:
    code, _, error = xsa("stop", "small", "--db", "typo.db")
    assert (code, "no store at typo.db" in error) == (2, True)
    assert not (tmp_path / "typo.db").exists()


def test_an_id_of_digits_is_a_text(xsa: Xsa, filled: Database) -> None:
    for where in ("sa_arm=123456789012", "sa_arm=1e5", "status=1"):
        assert xsa("results", "small", "--where", where, "--columns", "seed", "--format", "json")[0] == 0
    code, _, error = xsa("results", "small", "--where", "step=x", "--columns", "seed")
    assert (code, "step='x': that column holds whole numbers." in error) == (2, True)
