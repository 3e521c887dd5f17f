"""`xsa status`: what a user is told of a sweep that runs, of one in trouble, and of none."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import layout, status
from orchestrator.owner import owner_name
from results import schema
from results.claims import LEASE_S, claim, end_attempt
from results.query import Database
from results.record import save_sweep
from results.store import Store
from schemas.trial import Arm
from tests.conftest import ON_BOTH, PROVENANCE, make_sweep
from tests.orchestrator.conftest import Xsa

SECOND = 1_000_000
DEAD = f"{owner_name().rpartition(':')[0]}:0"
"""A process of this machine that is gone: this one's number, begun at another time."""


NOW = 1_800_000_000
"""The time in these tests, in seconds since 1970."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, however long a test takes."""
    still = SimpleNamespace(time=lambda: float(NOW), sleep=lambda seconds: time.sleep(seconds))
    monkeypatch.setattr(status, "time", still)
    monkeypatch.setattr(layout, "time", still)


@pytest.fixture
def troubled(store: Store, troubled: Database) -> Database:
    """The store whose running arm has just been heard of."""
    with store.write() as connection:
        connection.execute(
            schema.arm.update()
            .where(schema.arm.c.status == "running")
            .values(lease_until_us=(NOW + LEASE_S) * SECOND)
        )
    return troubled


def arm(xsa_lambda: float, seed: int) -> Arm:
    trials = make_sweep().trials()
    return next(t.xsa for t in trials if (t.xsa_lambda, t.seed) == (xsa_lambda, seed))


def add_run(store: Store, owner: str, **changes: Any) -> None:
    now = NOW * SECOND
    values = {"owner": owner, "sweep_id": 1, "hostname": "laptop", "pid": os.getpid()}
    with store.write() as connection:
        connection.execute(
            schema.session.insert().values(**values | {"started_at_us": now, "seen_at_us": now} | changes)
        )


def add_event(store: Store, number: int, arm_id: int | None = None) -> None:
    values = {"time_us": number * SECOND, "level": "warning", "kind": "node_excluded", "sweep_id": 1}
    with store.write() as connection:
        connection.execute(
            schema.event.insert().values(arm_id=arm_id, message=f"number [{number}]", **values)
        )


def fail(store: Store, which: Arm, cause: str, error: str, owner: str = "elsewhere:1:1.00") -> None:
    attempt = claim(store, which.id, owner, PROVENANCE)
    assert attempt
    end_attempt(store, which.id, attempt, cause=cause, error=error, traceback=f"Traceback: {error}")


def test_a_sweep_in_trouble(xsa: Xsa, troubled: Database) -> None:
    code, output, _ = xsa("status", "small")
    assert code == 0
    assert "small: 9 arms of 9 pairs: 6 done, 1 running, 1 failed, 1 diverged" in output
    lines = {line.split()[0]: line for line in output.splitlines() if line.strip()}
    assert "xsa λ=1 seed=2  step 20/40, 50 %  seen 0 s ago on laptop" in lines[arm(1, 2).id[:12]]
    assert "1 failed: 1 user_error" in output
    assert "user_error: boom <b>" in output
    assert "xsa retry small" in output
    assert "xsa λ=1 seed=0  step 20/40  attempt 1 on laptop, " in lines[arm(1, 0).id[:12]]
    assert "xsa λ=0.5 seed=1  step 21/40" in lines[arm(0.5, 1).id[:12]]
    assert "Traceback" not in output


def test_it_fits_eighty_columns(xsa: Xsa, troubled: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.show.console.width", 80)
    output = xsa("status", "small")[1] + xsa("status")[1] + xsa("show", arm(1, 2).id)[1]
    assert max(map(len, output.splitlines())) <= 80


def test_failures_are_grouped_by_cause_and_what_was_said(xsa: Xsa, store: Store) -> None:
    sweep = make_sweep(grid={"xsa_lambda": [0.5, 1]}, seeds=list(range(8)))
    save_sweep(store, sweep, sweep.trials(), Path("runs"))
    for trial in sweep.trials():
        fail(store, trial.xsa, "cuda_oom", "CUDA out of memory")
    fail(store, sweep.trials()[0].sa, "user_error", "boom")
    fail(store, sweep.trials()[1].sa, "node_lost", "its node died")
    output = xsa("status", "small")[1]
    assert "17 failed: 16 cuda_oom, 1 user_error" in output
    assert output.index("cuda_oom: CUDA out of memory") < output.index("user_error: boom")
    assert output.count("xsa λ=") == 10
    assert "and 6 more, which --json lists" in output
    assert "interrupted: the next `xsa run` goes on with them" in output
    assert "its node died" in output
    assert xsa("status", "small", "--failed")[1].count("Traceback: ") == 17


def test_failed_shows_the_traceback_where_it_ran_and_how_much_it_took(
    xsa: Xsa, store: Store, troubled: Database
) -> None:
    with store.write() as connection:
        connection.execute(
            schema.attempt.update()
            .where(schema.attempt.c.status == "failed")
            .values(error="two\nlines", peak_rss_bytes=3 * 2**29, peak_gpu_bytes=2**30, micro_batch=4)
        )
        connection.execute(
            schema.arm.update().where(schema.arm.c.status == "failed").values(reason="two\nlines")
        )
    code, output, _ = xsa("status", "small", "--failed")
    assert code == 0
    assert "xsa λ=0.5 seed=1  diverged at step 21/40" in output
    assert "xsa λ=1 seed=0  failed at step 20/40" in output
    for text in (
        "user_error",
        "laptop, cpu, 1 thread, micro-batch 4",
        "at most 1.50 GiB and 1.00 GiB of the GPU's",
        "error    lines",
        "Traceback: boom <b>",
    ):
        assert text in output
    assert "running" not in output


def test_failed_says_so_where_nothing_failed(xsa: Xsa, filled: Database) -> None:
    assert xsa("status", "small", "--failed")[1] == "small: nothing failed, and nothing diverged.\n"


def test_runs_are_alive_asked_to_stop_silent_or_dead(xsa: Xsa, store: Store, troubled: Database) -> None:
    now = NOW * SECOND
    add_run(store, owner_name())
    add_run(store, "elsewhere:1:1", hostname="asked", stop_at_us=now, started_at_us=now - 200 * SECOND)
    add_run(store, "elsewhere:2:2", hostname="quiet", seen_at_us=now - 300 * SECOND)
    add_run(store, DEAD, hostname="gone")
    add_run(store, "elsewhere:3:3", hostname="ended", ended_at_us=now, outcome="done")
    output = xsa("status", "small")[1]
    assert f"laptop, process {os.getpid()}  seen 0 s ago, began 0 s ago" in output
    assert "asked to stop 0 s ago, seen 0 s ago, began 3 min 20 s ago" in output
    assert "seen 5 min 0 s ago" in output
    assert "ended without a word" in output
    assert "ended, process" not in output
    runs = json.loads(xsa("status", "small", "--json")[1])["runs"]
    assert {run["hostname"]: run["run"] for run in runs} == {
        "laptop": "alive",
        "asked": "alive",
        "quiet": "silent",
        "gone": "dead",
    }


def test_an_arm_whose_run_is_dead_or_silent_says_what_becomes_of_it(
    xsa: Xsa, store: Store, troubled: Database
) -> None:
    with store.write() as connection:
        connection.execute(
            schema.arm.update().where(schema.arm.c.status == "running").values(lease_owner=DEAD)
        )
    assert "its run has ended; the next `xsa run` goes on with it" in xsa("status", "small")[1]
    with store.write() as connection:
        values = {"lease_owner": "elsewhere:1:1", "lease_until_us": (NOW - 1) * SECOND}
        connection.execute(schema.arm.update().where(schema.arm.c.status == "running").values(**values))
    assert "silent for 1 min 31 s; the next `xsa run` goes on with it" in xsa("status", "small")[1]


def test_the_newest_events_are_shown_oldest_first(xsa: Xsa, store: Store, troubled: Database) -> None:
    for number in range(7):
        add_event(store, number, arm_id=1 if number == 6 else None)
    output = xsa("status", "small")[1]
    shown = [f"number [{number}]" in output for number in range(7)]
    assert shown == [False] * 2 + [True] * 5
    assert output.index("number [2]") < output.index("number [6]")
    assert "1970-01-01 00:00:02 UTC  node_excluded: number [2]" in output
    (first,) = troubled.sql("SELECT substr(fingerprint, 1, 12) AS arm FROM arm WHERE id = 1")["arm"]
    assert f"number [6] ({first})" in output


def test_the_json_has_every_arm(xsa: Xsa, troubled: Database) -> None:
    document = json.loads(xsa("status", "small", "--json")[1])
    assert (document["sweep"], document["trials"], document["done"]) == ("small", 9, 6)
    assert document["varied"] == ["xsa_lambda", "seed"]
    assert len(document["arms"]) == 9
    arms = {row["arm"]: row for row in document["arms"]}
    failed = arms[arm(1, 0).id[:12]]
    assert failed == failed | {
        "variant": "xsa",
        "xsa_lambda": 1.0,
        "seed": 0,
        "status": "failed",
        "step": 20,
        "steps": 40,
        "cause": "user_error",
        "error": "boom <b>",
        "attempts": 1,
        "hostname": "laptop",
        "seen_s_ago": None,
    }
    running = arms[arm(1, 2).id[:12]]
    assert running["seen_s_ago"] == 0
    assert running["run"] == "alive"
    assert "traceback" not in failed
    trouble = json.loads(xsa("status", "small", "--failed", "--json")[1])["arms"]
    assert [row["traceback"] for row in trouble] == [None, "Traceback: boom <b>"]


def test_arms_are_named_by_what_varies_be_it_the_steps_or_the_size(xsa: Xsa, store: Store) -> None:
    sweep = make_sweep(grid={"steps": [20, 40], "model_size": ["toy", "10M"]}, seeds=[0])
    save_sweep(store, sweep, sweep.trials(), Path("runs"))
    document = json.loads(xsa("status", "small", "--json")[1])
    assert document["varied"] == ["model_size", "steps"]
    assert {row["label"] for row in document["arms"]} >= {
        "sa model_size=toy steps=20",
        "xsa model_size=10M steps=40",
    }
    assert {row["steps"] for row in document["arms"]} == {20, 40}


@ON_BOTH
def test_every_database_answers_alike(kind: str, store: Store, troubled: Database) -> None:
    add_run(store, owner_name())
    add_event(store, 1)
    found = status.of_sweep(troubled, "small")
    assert [row["label"] for row in found["arms"]][:3] == ["sa seed=0", "sa seed=1", "sa seed=2"]
    assert [row["run"] for row in found["runs"]] == ["alive"]
    assert [row["kind"] for row in found["events"]] == ["node_excluded"]
    assert status.runs(found)
    assert status.runs_anywhere(troubled)
    assert [row["status"] for row in status.of_sweep(troubled, "small", only=["failed"])["arms"]] == [
        "failed"
    ]


def test_no_sweep_yet(xsa: Xsa, store: Store) -> None:
    assert xsa("status")[1] == "No sweep yet: xsa run SWEEP.yaml\n"
    assert json.loads(xsa("status", "--json")[1]) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smal"], "Unknown sweep 'smal'. Did you mean 'small'? Known: small."),
        (["--failed"], "--failed shows the failures of one sweep"),
        (["small", "--watch", "--json"], "leave one of them out"),
        (["small", "--db", "none.db"], "There is no store at none.db."),
    ],
)
def test_a_mistake_is_one_message(arguments: list[str], message: str, xsa: Xsa, filled: Database) -> None:
    code, output, error = xsa("status", *arguments)
    assert (code, output) == (2, "")
    assert message in error
    assert error.count("\n") == 1
