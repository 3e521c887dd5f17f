from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from results import claims as claims_module
from results.claims import claim, end_attempt, renew
from results.query import Database
from results.state import arm_states
from results.store import Store
from tests.conftest import ON_BOTH, PROVENANCE, make_sweep

ARM = make_sweep().trials()[3].xsa
pytestmark = ON_BOTH


def test_an_arm_is_claimed_once(wanted: Store, db: Database) -> None:
    assert claim(wanted, ARM.id, "one", PROVENANCE) == 1
    assert claim(wanted, ARM.id, "two", PROVENANCE) is None
    assert claim(wanted, ARM.id, "two", PROVENANCE, dead_owners=["one"]) == 2
    assert db.attempts().status.tolist() == ["interrupted", "running"]


def test_of_two_that_claim_at_once_one_gets_the_arm(wanted: Store, address: str, db: Database) -> None:
    arms = sorted({arm.id for trial in make_sweep().trials() for arm in trial.arms})
    with Store.open(address, mode="write") as other, ThreadPoolExecutor(2) as pool:
        for arm_id in arms:
            ready = Barrier(2)

            def take(claimer: tuple[str, Store], arm_id: str = arm_id, ready: Barrier = ready) -> int | None:
                ready.wait()
                return claim(claimer[1], arm_id, claimer[0], PROVENANCE)

            assert sorted(pool.map(take, [("one", wanted), ("two", other)]), key=str) == [1, None]
    assert db.attempts().attempt.tolist() == [1] * len(arms)


def test_a_lease_that_ran_out_is_taken_over_and_a_renewed_one_is_not(
    wanted: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = claims_module.now_us()
    assert claim(wanted, ARM.id, "one", PROVENANCE) == 1
    monkeypatch.setattr(claims_module, "now_us", lambda: now + 60_000_000)
    renew(wanted, "one")
    monkeypatch.setattr(claims_module, "now_us", lambda: now + 120_000_000)
    assert claim(wanted, ARM.id, "two", PROVENANCE) is None
    monkeypatch.setattr(claims_module, "now_us", lambda: now + 200_000_000)
    assert claim(wanted, ARM.id, "two", PROVENANCE) == 2


def test_a_finished_arm_is_never_claimed(filled: Database, store: Store) -> None:
    assert claim(store, ARM.id, "one", PROVENANCE) is None
    assert arm_states(store, [ARM.id])[ARM.id].finished


def test_failures_keep_their_history(wanted: Store, db: Database) -> None:
    for number, cause in enumerate(("node_lost", "user_error"), start=1):
        assert claim(wanted, ARM.id, "one", PROVENANCE) == number
        end_attempt(wanted, ARM.id, number, cause=cause, error="boom", traceback="Traceback")
    assert db.attempts()[["attempt", "status", "cause", "error"]].values.tolist() == [
        [1, "interrupted", "node_lost", "boom"],
        [2, "failed", "user_error", "boom"],
    ]
    assert set(db.pairs(xsa_lambda=ARM.xsa_lambda, seed=ARM.seed).status) == {"failed"}
    end_attempt(wanted, ARM.id, 1, cause="user_error", error="a zombie's complaint")
    assert arm_states(wanted, [ARM.id])[ARM.id].reason == "boom"


def test_any_text_may_be_an_error(wanted: Store, db: Database) -> None:
    claim(wanted, ARM.id, "one", PROVENANCE)
    end_attempt(wanted, ARM.id, 1, cause="user_error", error="nul \0, half \udcff, λ", traceback="\0")
    (attempt,) = db.attempts().to_dict("records")
    assert (attempt["error"], attempt["traceback"]) == ("nul \\x00, half \\udcff, λ", "\\x00")
