"""`xsa db` as a user types it; what it does is tested in tests/results/test_maintain.py."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.cli_db import db_app
from results.query import Database
from results.store import Store
from results.views import VIEWS
from tests.conftest import ON_BOTH
from tests.orchestrator.conftest import Xsa

COMMANDS = [command.callback.__name__ for command in db_app.registered_commands if command.callback]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    assert f"Example: xsa db {command}" in CliRunner().invoke(app, ["db", command, "--help"]).output


@ON_BOTH
def test_info(xsa: Xsa, troubled: Database, address: str) -> None:
    code, output, _ = xsa("db", "info", "--db", address)
    lines = {line.split("  ")[0].strip() or line.split()[0]: line for line in output.splitlines()}
    assert code == 0
    assert "1: small" in lines["sweeps"]
    assert "9 rows" in output
    assert json.loads(xsa("db", "info", "--db", address, "--json")[1])["rows"]["trial"] == 9
    assert "pass-" not in output


def test_check(xsa: Xsa, filled: Database, store: Store) -> None:
    assert xsa("db", "check") == (0, "results.db is sound.\n", "")
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE arm SET data_sha256 = 'other' WHERE id = 2")
    code, output, _ = xsa("db", "check")
    assert (code, output.count("\n")) == (1, 1)
    assert "had other initial weights or batches or data" in output


def test_copy_and_vacuum(xsa: Xsa, filled: Database, tmp_path: Path) -> None:
    code, output, _ = xsa("db", "copy", "results.db", "copy.db")
    assert (code, "rows copied from results.db to copy.db." in output) == (0, True)
    with Database(tmp_path / "copy.db") as db:
        assert len(db.pairs("small", status="done")) == 9
    assert xsa("db", "vacuum", "--db", "copy.db")[1].endswith(" MB after.\n")
    code, _, error = xsa("db", "copy", "results.db", "copy.db")
    assert (code, error.count("\n")) == (2, 1)
    assert "copy.db holds results already (table arm). Name a store that is new or empty." in error


def test_export(xsa: Xsa, filled: Database, tmp_path: Path) -> None:
    code, output, _ = xsa("db", "export", "out")
    assert (code, output.splitlines()) == (0, [f"out/{name}.parquet" for name in [*VIEWS, "sweeps"]])
    assert len(list((tmp_path / "out").iterdir())) == len(VIEWS) + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "--db", "none.db"], "There is no store at none.db."),
        (["check", "--db", "none.db"], "There is no store at none.db."),
        (["vacuum", "--db", "none.db"], "There is no store at none.db."),
        (["copy", "none.db", "new.db"], "There is no store at none.db."),
        (["copy", "results.db", "file.txt"], "file.txt is not a database."),
        (["export", "file.txt"], "Nothing can be written to file.txt"),
    ],
)
def test_a_mistake_is_one_message_and_makes_nothing(
    xsa: Xsa, filled: Database, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "file.txt").write_text("no database, and no directory either")
    before = sorted(tmp_path.iterdir())
    code, output, error = xsa("db", *arguments)
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert message in error
    assert sorted(tmp_path.iterdir()) == before
