"""The rules of the house, as tests: who may import whom, and what must answer at once."""

import ast
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "schemas": {"schemas"},
    "trainer": {"trainer", "schemas"},
    "results": {"results", "schemas"},
    "orchestrator": {"orchestrator", "trainer", "results", "schemas"},
}
HEAVY = {
    "schemas": {"torch", "ray", "sqlalchemy", "pandas", "numpy", "matplotlib", "typer", "rich"},
    "trainer": {"ray", "sqlalchemy", "pandas", "matplotlib", "typer", "rich"},
    "results": {"torch", "ray", "typer", "rich", "tiktoken", "datasets"},
    "orchestrator": {"sqlalchemy", "matplotlib", "tiktoken", "datasets"},
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_they_may(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        found = set(imports(path))
        assert found & MAY_IMPORT.keys() <= MAY_IMPORT[package], path
        assert not found & HEAVY[package], path
        if path.name not in ("launch.py", "worker.py", "cluster.py", "jobs.py"):
            assert "ray" not in found, path


def test_help_answers_at_once_because_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys, orchestrator.cli; "
        "print([m for m in ('torch', 'ray', 'sqlalchemy', 'pandas', 'numpy', 'matplotlib', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    best = min(_seconds_of_help() for _ in range(5))
    assert best < 2, "far above what it takes on any machine"


def _seconds_of_help() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "orchestrator", "--help"], capture_output=True, check=True)
    return time.perf_counter() - began


COMMANDS = sorted(
    command.name or command.callback.__name__ for command in app.registered_commands if command.callback
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    text = CliRunner().invoke(app, [command, "--help"]).output
    assert f"Example: xsa {command}" in text


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [command for command in COMMANDS if f"xsa {command}" not in readme] == []


def test_no_file_names_a_path_of_somebody_s_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in tracked:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".yaml", ".toml", ".html", "") and name != "tests/test_house.py":
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not re.search(r"/(root|home|Users)/\w", text), name


def test_files_are_short_enough_to_read() -> None:
    for package in (*MAY_IMPORT, "tests"):
        for path in (ROOT / package).rglob("*.py"):
            assert len(path.read_text().splitlines()) <= 330, path
