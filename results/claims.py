"""Who trains an arm now: claims with a lease, and how an attempt ends that does not finish."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from results import schema
from results.record import now_us
from results.schema import FINISHED
from results.store import Store, as_text

LEASE_S = 90
"""A running arm whose lease was not renewed for this long may be taken over."""


CAUSES = (
    "user_error",
    "host_oom",
    "cuda_oom",
    "timeout",
    "node_lost",
    "preempted",
    "store_error",
    "cancelled",
    "interrupted",
)
"""Why an attempt ended without a result."""
INTERRUPTIONS = ("interrupted", "cancelled", "node_lost", "preempted", "store_error")
"""Causes that say nothing against the arm itself."""


@dataclass(frozen=True)
class Provenance:
    """Which code trains, as the driver sees it."""

    git_sha: str | None
    dirty: bool | None
    packages: dict[str, str]


def claim(
    store: Store, arm_id: str, owner: str, provenance: Provenance, *, dead_owners: Sequence[str] = ()
) -> int | None:
    """Take an arm for `owner` and return the number of the new attempt, or None if it is taken or finished."""
    arm, attempt, now = schema.arm, schema.attempt, now_us()
    free = sa.or_(
        arm.c.lease_owner.is_(None), arm.c.lease_until_us < now, arm.c.lease_owner.in_([owner, *dead_owners])
    )
    with store.write() as connection:
        taken = connection.execute(
            arm.update()
            .where(arm.c.fingerprint == arm_id, arm.c.status.not_in(FINISHED), free)
            .values(
                status="running",
                reason=None,
                attempt=arm.c.attempt + 1,
                lease_owner=owner,
                lease_until_us=now + LEASE_S * 1_000_000,
            )
        )
        if taken.rowcount != 1:
            return None
        row = connection.execute(sa.select(arm.c.id, arm.c.attempt).where(arm.c.fingerprint == arm_id)).one()
        connection.execute(
            attempt.update()
            .where(attempt.c.arm_id == row.id, attempt.c.ended_at_us.is_(None))
            .values(
                status="interrupted",
                cause="interrupted",
                error="its run ended without a word",
                ended_at_us=now,
            )
        )
        values = {
            "arm_id": row.id,
            "no": row.attempt,
            "status": "running",
            "owner": owner,
            "git_sha": provenance.git_sha,
            "dirty": provenance.dirty,
            "started_at_us": now,
        }
        connection.execute(attempt.insert().values(**values))
        return int(row.attempt)


def renew(store: Store, owner: str) -> None:
    """Give a sign of life: extend the lease of every arm that `owner` holds."""
    now = now_us()
    with store.write() as connection:
        connection.execute(
            schema.arm.update()
            .where(schema.arm.c.lease_owner == owner)
            .values(lease_until_us=now + LEASE_S * 1_000_000)
        )
        connection.execute(
            schema.session.update().where(schema.session.c.owner == owner).values(seen_at_us=now)
        )


def end_attempt(
    store: Store,
    arm_id: str,
    number: int,
    *,
    cause: str,
    error: str,
    traceback: str | None = None,
    hostname: str | None = None,
) -> None:
    """Close an attempt that did not finish: `interrupted` for what was not the arm's own fault, else `failed`.

    The next run tries both again. `hostname` is kept where the worker did not live to tell it.
    """
    status = "interrupted" if cause in INTERRUPTIONS else "failed"
    error, traceback = as_text(error), None if traceback is None else as_text(traceback)
    with store.write() as connection:
        arm, attempt = schema.arm, schema.attempt
        connection.execute(
            arm.update()
            .where(arm.c.fingerprint == arm_id, arm.c.attempt == number, arm.c.status.not_in(FINISHED))
            .values(status=status, reason=error, lease_owner=None, lease_until_us=None)
        )
        key = sa.select(arm.c.id).where(arm.c.fingerprint == arm_id).scalar_subquery()
        connection.execute(
            attempt.update()
            .where(attempt.c.arm_id == key, attempt.c.no == number, attempt.c.ended_at_us.is_(None))
            .values(
                status=status,
                cause=cause,
                error=error,
                traceback=traceback,
                hostname=sa.func.coalesce(attempt.c.hostname, hostname),
                ended_at_us=now_us(),
            )
        )
