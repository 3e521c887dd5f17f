"""`xsa status --watch`: it goes on until nothing runs, whatever a look at the store brings."""

import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from orchestrator import layout, status
from orchestrator.owner import owner_name
from results import sessions
from results.location import StoreError
from results.query import Database
from results.store import Store
from tests.orchestrator.conftest import Xsa


@dataclass
class Looks:
    """Stands in for looking at the store: each look is the next of these."""

    answers: list[tuple[str, bool] | Exception]
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> tuple[list[Any], bool]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [Text(answer[0])], answer[1]


@pytest.mark.parametrize("terminal", [True, False])
def test_watching_goes_on_until_nothing_runs_and_through_a_locked_store(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(force_terminal=terminal, width=80)
    monkeypatch.setattr(status, "console", console)
    monkeypatch.setattr(layout, "console", console)
    looks = Looks(
        [StoreError("not yet"), ("one", True), StoreError("is locked"), ("two", True), ("three", False)]
    )
    monkeypatch.setattr(time, "sleep", looks.slept.append)
    status.follow(looks)
    output = capsys.readouterr().out
    assert looks.slept == [status.REFRESH_S if terminal else status.QUIET_S] * 4
    assert [output.index(text) for text in ("not yet", "one", "is locked", "two", "three")] == sorted(
        output.index(text) for text in ("not yet", "one", "is locked", "two", "three")
    )


def test_watching_a_mistake_ends_it() -> None:
    with pytest.raises(ValueError, match="gone"):
        status.follow(Looks([("one", False), ValueError("gone")][1:]))


def test_watching_what_does_not_run_returns_at_once(xsa: Xsa, filled: Database) -> None:
    assert xsa("status", "--watch")[0] == 0
    code, output, _ = xsa("status", "small", "--watch")
    assert (code, output) == (0, "small: 9 arms of 9 pairs: 9 done\n")


def test_watching_ends_with_ctrl_c(
    xsa: Xsa, store: Store, troubled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    sessions.begin(store, owner_name(), "small", hostname="here", pid=1)
    monkeypatch.setattr(time, "sleep", interrupt)
    for arguments in (["small"], []):
        code, output, error = xsa("status", *arguments, "--watch")
        assert code == 130
        assert "small" in output
        assert error.count("\n") == 1
