"""What is written from the store is told to it, where it can be written to."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator import show
from results import location
from results.query import Database
from results.registry import Entry
from results.report import Made
from tests.orchestrator.conftest import Xsa


def save(entry: Entry[Any], database: Database, directory: Path, **_: Any) -> list[Path]:
    """Write a file as a figure or table does, without drawing it."""
    path = directory / f"{entry.name}.csv"
    path.write_text(entry.name)
    return [path]


def write_report(database: Database, sweep: str, directory: Path, **_: Any) -> Made:
    """Write a page, a figure and a table as a report does, without drawing them."""
    names = {"page": "report.html", "figure": "fig3.csv", "table": "table1.csv"}
    paths = {
        kind: Path(shutil.copy(directory / "losses.csv", directory / name)) for kind, name in names.items()
    }
    return Made(paths["page"], {"fig3": [paths["figure"]]}, {"table1": [paths["table"]]})


def test_what_is_made_is_told_to_the_store(
    xsa: Xsa, filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Entry, "save", save)
    monkeypatch.setattr("results.report.write", write_report)
    for _ in range(2):
        assert xsa("figures", "small", "fig7", "fig1", "--out", "out", "--where", "seed=0,1")[0] == 0
        assert xsa("tables", "small", "losses", "--out", "out")[0] == 0
        assert xsa("report", "small", "--out", "out")[0] == 0
    made = filled.artifacts("small").set_index("name")
    assert made.kind.to_dict() == {
        **dict.fromkeys(["fig1", "fig3", "fig7"], "figure"),
        **dict.fromkeys(["losses", "table1"], "table"),
        "report": "report",
    }
    assert made.filters.to_dict() == {
        **dict.fromkeys(["fig1", "fig7"], '{"seed": [0, 1]}'),
        **dict.fromkeys(["fig3", "losses", "table1", "report"], "{}"),
    }
    assert set(made.path) == {str(path) for path in (tmp_path / "out").iterdir()}
    assert made.bytes.to_dict() == {"fig1": 4, "fig7": 4, "fig3": 6, "losses": 6, "table1": 6, "report": 6}


def test_a_store_in_use_or_read_only_keeps_nobody_waiting(
    xsa: Xsa, filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "NOTE_WAIT_S", 0.1)
    with closing(sqlite3.connect(tmp_path / "results.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        answers = [xsa("tables", "small", "losses")]
    monkeypatch.setattr(
        location.os, "access", lambda path, mode: mode != os.W_OK or "results.db" not in str(path)
    )
    answers.append(xsa("tables", "small", "losses"))
    for code, output, errors in answers:
        assert (code, errors) == (0, "")
        assert output.startswith("losses: ") and output.count("\n") == 1
    assert filled.artifacts().empty
