"""Arms that another run holds: it may be alive, on this machine or elsewhere, or have died without a word."""

import pytest

from orchestrator.owner import owner_name
from results import schema
from results.claims import LEASE_S, claim, end_attempt, renew
from results.record import now_us
from results.store import Store
from schemas.trial import Arm
from tests.conftest import PROVENANCE
from tests.orchestrator.conftest import Bench, finish

ELSEWHERE = "elsewhere:1:1.00"


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.room.RECOUNT_S", -1.0)


def take_all(bench: Bench, store: Store, owner: str) -> list[Arm]:
    """Let somebody else have every arm."""
    arms = [arm for job in bench.session.queue for arm in job.arms]
    for arm in arms:
        assert claim(store, arm.id, owner, PROVENANCE)
    assert bench.take("t") is None
    return arms


def let_leases_end(store: Store) -> None:
    with store.write() as connection:
        connection.execute(schema.arm.update().values(lease_until_us=now_us() - 1))


def test_arms_of_a_run_that_fell_silent_are_waited_for_and_taken_over(bench: Bench, store: Store) -> None:
    """As after a head was begun again on another machine, which cannot know what became of its predecessor."""
    arms = take_all(bench, store, ELSEWHERE)
    bench.session.beat()
    bench.session.beat()
    assert not bench.session.finished
    assert bench.take("t") is None
    assert bench.text.count(f"{len(arms)} arms are held by a run of which nothing is heard") == 1
    let_leases_end(store)
    bench.session.beat()
    taken = 0
    while job := bench.take(f"t{taken}"):
        finish(bench, f"t{taken}", job)
        taken += 1
    assert taken == 3
    assert {bench.state(arm) for arm in arms} == {"done"}
    assert bench.session.finished


def test_arms_of_a_run_that_gives_signs_of_life_are_left_to_it(bench: Bench, store: Store) -> None:
    take_all(bench, store, ELSEWHERE)
    assert not bench.session.finished
    renew(store, ELSEWHERE)
    bench.session.beat()
    assert bench.session.finished


def test_signs_of_life_grow_old(bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    take_all(bench, store, ELSEWHERE)
    renew(store, ELSEWHERE)
    bench.session.beat()
    monkeypatch.setattr("orchestrator.held.LEASE_S", -1)
    assert not bench.session.finished


def test_a_run_of_this_machine_is_known_to_be_alive(bench: Bench, store: Store) -> None:
    bench.session.owner = "another run of ours"
    take_all(bench, store, owner_name())
    assert bench.session.finished


def test_what_another_run_gave_up_is_due_and_what_failed_there_is_not(bench: Bench, store: Store) -> None:
    failed, stopped, *rest = take_all(bench, store, ELSEWHERE)
    end_attempt(store, failed.id, 1, cause="user_error", error="no such thing")
    end_attempt(store, stopped.id, 1, cause="interrupted", error="it was stopped before its end")
    bench.session.beat()
    job = bench.take("t")
    assert job
    assert job.arms == (stopped,)
    assert {arm.id for held in bench.session.held for arm in held.arms} == {arm.id for arm in rest}


def test_a_lease_is_waited_for_no_longer_than_it_lasts(
    bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_all(bench, store, ELSEWHERE)
    now = now_us()
    for seconds, is_due in ((LEASE_S - 10, False), (LEASE_S + 1, True)):
        monkeypatch.setattr("orchestrator.plan.now_us", lambda later=seconds: now + later * 1_000_000)
        bench.session.beat()
        assert bool(bench.session.queue) == is_due
