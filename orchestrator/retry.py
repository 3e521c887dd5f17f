"""Which arms of a sweep are to be tried again, and under what changed runtime."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator.supervise import current_plan
from results.claims import CAUSES
from results.query import Database
from results.schema import FINISHED
from schemas.errors import UserError
from schemas.loader import parse_scalar
from schemas.names import lookup, unknown_name
from schemas.sweep import Runtime, Sweep

RETRIED = ("failed", "interrupted")


def stored_sweep(database: Database, name: str) -> tuple[Sweep, str]:
    """Return a sweep as it was last run, and where its arms' folders are. Raises `UnknownName`."""
    rows = {row["sweep"]: row for row in database.sweeps().to_dict("records")}
    row = lookup("sweep", name, rows)
    return Sweep.parse(row["source"], name), row["storage"]


def chosen_arms(
    database: Database,
    sweep: Sweep,
    *,
    statuses: Collection[str],
    causes: Collection[str],
    where: Mapping[str, Any],
) -> set[str]:
    """Return the ids of the sweep's arms whose last attempt ended so, and whose axes match.

    Raises:
        UserError: for a status or cause that is none, or that is a result.
    """
    for status in statuses:
        if status in FINISHED:
            raise UserError(
                f"--status {status}: that is a result, and the same settings would give it again. "
                "Change them (for a divergence, a lower lr) and run the sweep."
            )
        if status not in RETRIED:
            raise unknown_name("status to retry", status, RETRIED)
    for cause in causes:
        if cause not in CAUSES:
            raise unknown_name("cause", cause, CAUSES)
    attempts = database.attempts(sweep.name, **where).sort_values("attempt")
    last_cause = attempts.groupby("arm", observed=True)["cause"].last()
    plan = current_plan(database.store, sweep)
    return {
        arm_id
        for arm_id in plan.arms
        if arm_id[:12] in last_cause.index
        and plan.status(arm_id) in statuses
        and (not causes or last_cause[arm_id[:12]] in causes)
    }


def changed_runtime(runtime: Runtime, changes: Collection[str]) -> Runtime:
    """Return the runtime with `KEY=VALUE` changes. Raises `UserError` for what is no setting or value."""
    values = runtime.model_dump()
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise UserError(f"--resources {change}: write KEY=VALUE, such as gpus_per_trial=1.")
        if key not in Runtime.model_fields:
            raise unknown_name("runtime setting", key, Runtime.model_fields)
        values[key] = parse_scalar(text)
        try:
            runtime = Runtime(**values)
        except ValidationError as error:
            raise UserError(f"--resources {change}: {error.errors()[0]['msg']}.") from None
    return runtime
