import pytest

from orchestrator import owner as owner_module
from orchestrator.owner import is_dead, owner_name


def test_only_a_gone_process_of_this_host_is_dead() -> None:
    mine = owner_name()
    host, pid, _ = mine.rsplit(":", 2)
    assert not is_dead(mine)
    assert is_dead(f"{host}:{pid}:1.00")  # the same number, given to another process since
    assert is_dead(f"{host}:999999999:1.00")
    assert not is_dead("elsewhere:999999999:1.00")


def test_a_clock_that_is_set_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = owner_name()
    monkeypatch.setattr(owner_module.psutil, "boot_time", lambda: 1.0)
    assert not is_dead(mine)
