"""`xsa status`: how far sweeps are, who trains what now, and what failed and why.

What is read is one document; JSON is the document itself, and the terminal a view of it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.find import arm_of, varied
from orchestrator.layout import print_parts
from orchestrator.owner import is_dead
from orchestrator.plan import label
from orchestrator.show import console, print_json, records
from orchestrator.status_view import failures_view, sweep_view, sweeps_view
from schemas.errors import UserError
from schemas.names import unknown_name
from schemas.trial import AXES

if TYPE_CHECKING:
    from results.query import Database

REFRESH_S, QUIET_S = 2.0, 10.0
"""Seconds between two looks of `--watch`: on a terminal, and where none can redraw."""
EVENTS = 5
"""How many of a sweep's newest events are shown."""

_ARMS = """
SELECT substr(a.fingerprint, 1, 12) AS arm, a.name AS variant, {axes}, a.status, a.step, a.steps,
    a.attempt AS attempts, a.lease_owner, a.lease_until_us, a.reason, t.cause, t.hostname, t.ended_at_us{more}
FROM (
    SELECT m.arm_id, min(m.ordinal) AS place FROM (
        SELECT p.sa_arm_id AS arm_id, st.ordinal, st.sweep_id
        FROM sweep_trial st JOIN trial p ON p.id = st.trial_id
        UNION ALL
        SELECT p.xsa_arm_id, st.ordinal, st.sweep_id FROM sweep_trial st JOIN trial p ON p.id = st.trial_id
    ) m JOIN sweep w ON w.id = m.sweep_id WHERE w.name = :sweep GROUP BY m.arm_id
) v JOIN arm a ON a.id = v.arm_id LEFT JOIN attempt t ON t.arm_id = a.id AND t.no = a.attempt
WHERE a.status IN ({statuses}) ORDER BY v.place, a.name, a.id"""
_TROUBLE = ("failed", "diverged")
_NOTABLE = ("running", "interrupted", *_TROUBLE)
"""Statuses of the arms that are named one by one."""
_MORE = (
    ", t.device, t.threads, t.micro_batch, t.execution, t.compile_error, t.peak_rss_bytes, t.peak_gpu_bytes, "
    "t.traceback"
)
_SETTINGS = """
SELECT {axes} FROM sweep_trial st JOIN sweep w ON w.id = st.sweep_id JOIN trial p ON p.id = st.trial_id
JOIN arm a ON a.id = p.xsa_arm_id WHERE w.name = :sweep"""
_RUNS = """
SELECT s.owner, s.hostname, s.pid, s.started_at_us, s.seen_at_us, s.stop_at_us
FROM session s JOIN sweep w ON w.id = s.sweep_id WHERE w.name = :sweep AND s.ended_at_us IS NULL
ORDER BY s.started_at_us, s.id"""
_EVALS = """
SELECT e.task, e.error, count(*) AS arms FROM eval_result e JOIN v_sweep_arms v ON v.arm_id = e.arm_id
JOIN sweep w ON w.id = v.sweep_id WHERE w.name = :sweep GROUP BY e.task, e.error ORDER BY e.task, e.error"""
_EVENTS = """
SELECT e.time_us AS noted_at_us, e.level, e.kind, e.message, substr(a.fingerprint, 1, 12) AS arm
FROM event e JOIN sweep w ON w.id = e.sweep_id LEFT JOIN arm a ON a.id = e.arm_id WHERE w.name = :sweep
ORDER BY e.time_us DESC, e.id DESC LIMIT {count}"""


def print_status(
    database: "Database", sweep: str | None, *, failed: bool, watch: bool, as_json: bool
) -> None:
    """Print how far the sweeps are; of one sweep what runs, what failed and why, or its failures alone."""
    if failed and sweep is None:
        raise UserError("--failed shows the failures of one sweep: xsa status SWEEP --failed.")
    if watch and as_json:
        raise UserError("--watch redraws what --json would print once; leave one of them out.")
    only = _TROUBLE if failed else None if as_json else _NOTABLE

    def look() -> tuple[list[RenderableType], bool]:
        if sweep is None:
            return sweeps_view(sweeps(database)), runs_anywhere(database)
        found = of_sweep(database, sweep, only=only, details=failed)
        return (failures_view(found) if failed else sweep_view(found)), runs(found)

    if as_json:
        known = sweeps(database) if sweep is None else of_sweep(database, sweep, only=only, details=failed)
        print_json(known)
    elif watch:
        follow(look)
    else:
        print_parts(look()[0])


def sweeps(database: "Database") -> list[dict[str, Any]]:
    """Return how many arms of each sweep stand where."""
    from results.schema import ARM_STATUS

    return records(database.sweeps(columns=["sweep", "trials", "arms", *ARM_STATUS]))


def of_sweep(
    database: "Database", sweep: str, *, only: Sequence[str] | None = None, details: bool = False
) -> dict[str, Any]:
    """Return where a sweep stands: its counts, arms, live runs, newest events and downstream evaluations.

    Args:
        database: the store.
        sweep: the sweep's name.
        only: statuses of the arms to return; None for all.
        details: whether to return what each arm's newest attempt ran on, and its traceback.
    """
    from results.schema import ARM_STATUS

    counts = {row["sweep"]: row for row in sweeps(database)}
    if sweep not in counts:
        raise unknown_name("sweep", sweep, counts)
    every = ", ".join(f"a.{name}" for name in AXES)
    names = varied(database.sql(_SETTINGS.format(axes=every), sweep=sweep))
    query = _ARMS.format(
        axes=", ".join(f"a.{name}" for name in dict.fromkeys(["xsa_lambda", *names]) if name != "steps"),
        statuses=", ".join(map(repr, only or ARM_STATUS)),
        more=_MORE if details else "",
    )
    events = database.sql(_EVENTS.format(count=EVENTS), sweep=sweep)
    return counts[sweep] | {
        "varied": names,
        "arms": [_arm(row, names) for row in records(database.sql(query, sweep=sweep))],
        "runs": [_run(row) for row in records(database.sql(_RUNS, sweep=sweep))],
        "events": records(events)[::-1],
        "evals": records(database.sql(_EVALS, sweep=sweep)),
    }


def _arm(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    from results.claims import LEASE_S

    owner, until = row.pop("lease_owner"), row.pop("lease_until_us")
    settings = {name: row.pop(name) for name in AXES if name in row and name != "steps"}
    seen = None if until is None else max(0.0, time.time() - until / 1e6 + LEASE_S)
    known = {"arm": row["arm"], "variant": row["variant"], "label": label(arm_of(settings | row), names)}
    shown = {name: settings[name] for name in names if name in settings}
    state = _liveness(owner, seen) if row["status"] == "running" else None
    error = row.pop("reason")
    return known | shown | row | {"error": error, "seen_s_ago": seen, "run": state}


def _run(row: dict[str, Any]) -> dict[str, Any]:
    seen = max(0.0, time.time() - row["seen_at"].timestamp())
    return row | {"seen_s_ago": seen, "run": _liveness(row["owner"], seen)}


def _liveness(owner: str | None, seen_s_ago: float | None) -> str:
    """Return whether a run is `alive`, `dead` as this machine knows, or `silent` for longer than a lease."""
    from results.claims import LEASE_S

    if owner is not None and is_dead(owner):
        return "dead"
    return "alive" if seen_s_ago is not None and seen_s_ago <= LEASE_S else "silent"


def runs(found: dict[str, Any]) -> bool:
    """Whether anything is done for a sweep now."""
    return any(row["run"] == "alive" for row in [*found["arms"], *found["runs"]])


def runs_anywhere(database: "Database") -> bool:
    """Whether any run of the store is alive."""
    rows = database.sql("SELECT owner, seen_at_us FROM session WHERE ended_at_us IS NULL")
    return any(_run(row)["run"] == "alive" for row in records(rows))


def follow(look: Callable[[], tuple[list[RenderableType], bool]]) -> None:
    """Show what is seen again and again until nothing runs.

    A store that is locked for a moment is a line below what was seen last, and it goes on.
    """
    from results.location import StoreError

    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    parts: list[RenderableType] = []
    with live or nullcontext():
        active = True
        while active:
            trouble = None
            try:
                parts, active = look()
            except StoreError as error:
                trouble = Text(str(error), style="yellow")
            shown = [*parts, trouble] if trouble else parts
            if live:
                live.update(Group(*shown), refresh=True)
            else:
                print_parts(shown)
            if active:
                time.sleep(REFRESH_S if live else QUIET_S)
