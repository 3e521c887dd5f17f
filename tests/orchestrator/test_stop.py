"""Stopping from another terminal: what is said, and what is written for the runs to hear."""

import threading
import time
from pathlib import Path

import pytest

from orchestrator import stop as stop_module
from orchestrator.owner import owner_name
from orchestrator.stop import stop
from results import sessions
from results.record import save_sweep
from results.store import Store
from schemas.names import UnknownName
from tests.conftest import make_sweep


@pytest.fixture
def saved(store: Store, tmp_path: Path) -> Store:
    sweep = make_sweep()
    save_sweep(store, sweep, sweep.trials(), tmp_path / "runs")
    return store


def test_a_run_that_hears_it_is_waited_for(saved: Store) -> None:
    sessions.begin(saved, owner_name(), "small", hostname="here", pid=7)

    def hear() -> None:
        while not sessions.is_asked_to_stop(saved, owner_name()):
            time.sleep(0.05)
        sessions.end(saved, owner_name(), "it was asked to stop")

    run = threading.Thread(target=hear)
    run.start()
    said: list[str] = []
    stop(saved, "small", said.append, wait=True)
    run.join()
    assert "Asked the run on here (process 7) to stop" in said[0]
    assert not sessions.live(saved, "small")


def test_a_run_whose_process_is_gone_is_closed_and_not_waited_for(saved: Store) -> None:
    host = owner_name().partition(":")[0]
    sessions.begin(saved, f"{host}:999999999:1.00", "small", hostname="here", pid=999999999)
    said: list[str] = []
    stop(saved, "small", said.append, wait=True)
    assert said == ["No run of small is alive, so there is nothing to stop."]
    assert not sessions.live(saved, "small")


def test_a_run_elsewhere_that_is_silent_is_not_waited_for_without_an_end(
    saved: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions.begin(saved, "elsewhere:1:1", "small", hostname="there", pid=1)
    monkeypatch.setattr(stop_module, "LEASE_S", -1)
    said: list[str] = []
    stop(saved, "small", said.append, wait=True)
    assert any("no sign of life" in line for line in said)
    assert sessions.is_asked_to_stop(saved, "elsewhere:1:1")  # it may be alive all the same


def test_an_unknown_sweep_is_answered_with_the_nearest(saved: Store) -> None:
    with pytest.raises(UnknownName, match="small"):
        stop(saved, "smal", print, wait=False)
