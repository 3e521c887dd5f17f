"""Asking the runs of a sweep to stop, from any machine that reaches the store."""

import time
from collections.abc import Callable

from orchestrator.owner import is_dead
from results import sessions
from results.claims import LEASE_S
from results.record import now_us
from results.store import Store

POLL_S = 0.5


def stop(store: Store, sweep: str, say: Callable[[str], None], *, wait: bool) -> None:
    """Ask the runs of a sweep to stop; with `wait`, return when they have. Raises `UnknownName`."""
    asked = live_runs(store, sweep)
    if not asked:
        say(f"No run of {sweep} is alive, so there is nothing to stop.")
        return
    sessions.ask_to_stop(store, [run.owner for run in asked])
    for run in asked:
        say(f"Asked the run on {run.hostname} (process {run.pid}) to stop: its trials checkpoint and end.")
    owners = {run.owner for run in asked}
    while wait and (left := [run for run in live_runs(store, sweep) if run.owner in owners]):
        silent = [run for run in left if now_us() - run.seen_at_us > LEASE_S * 1_000_000]
        for run in silent:
            say(f"The run on {run.hostname} (process {run.pid}) has given no sign of life for {LEASE_S} s.")
            owners.remove(run.owner)
        time.sleep(POLL_S)
    say(f"`xsa run` or `xsa retry {sweep} --status interrupted` goes on where they stop.")


def live_runs(store: Store, sweep: str) -> list[sessions.LiveSession]:
    """Return the runs that have not ended, and close the books on those whose process is gone."""
    alive = []
    for run in sessions.live(store, sweep):
        if is_dead(run.owner):
            sessions.end(store, run.owner, "it ended without a word")
        else:
            alive.append(run)
    return alive
