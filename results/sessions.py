"""Runs as the store knows them: who runs which sweep, its signs of life, and wishes that it stop."""

from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from results import schema
from results.record import now_us
from results.store import Store, as_text
from schemas.names import unknown_name


@dataclass(frozen=True)
class LiveSession:
    """A run that has not said that it ended."""

    owner: str
    hostname: str
    pid: int
    seen_at_us: int


def begin(store: Store, owner: str, sweep: str, *, hostname: str, pid: int) -> None:
    """Note that `owner` runs a sweep."""
    now = now_us()
    with store.write() as connection:
        values = {
            "owner": owner,
            "sweep_id": _sweep_id(sweep),
            "hostname": hostname,
            "pid": pid,
            "started_at_us": now,
            "seen_at_us": now,
        }
        connection.execute(schema.session.insert().values(**values))


def end(store: Store, owner: str, outcome: str) -> None:
    """Note that a run has ended, and why. Repeating it changes nothing."""
    session = schema.session
    with store.write() as connection:
        connection.execute(
            session.update()
            .where(session.c.owner == owner, session.c.ended_at_us.is_(None))
            .values(ended_at_us=now_us(), outcome=as_text(outcome))
        )


def is_asked_to_stop(store: Store, owner: str) -> bool:
    """Whether somebody wants this run to stop."""
    query = sa.select(schema.session.c.stop_at_us).where(schema.session.c.owner == owner)
    with store.read() as connection:
        return connection.scalar(query) is not None


def ask_to_stop(store: Store, owners: list[str]) -> None:
    """Let these runs know that somebody wants them to stop; they look every few seconds."""
    session = schema.session
    with store.write() as connection:
        connection.execute(
            session.update()
            .where(session.c.owner.in_(owners), session.c.ended_at_us.is_(None))
            .values(stop_at_us=sa.func.coalesce(session.c.stop_at_us, now_us()))
        )


def live(store: Store, sweep: str) -> list[LiveSession]:
    """Return the runs of a sweep that have not said that they ended, some of which may be dead.

    Raises `UnknownName` where there is no such sweep.
    """
    columns = [schema.session.c[name] for name in LiveSession.__dataclass_fields__]
    query = sa.select(*columns).where(
        schema.session.c.sweep_id == _sweep_id(sweep), schema.session.c.ended_at_us.is_(None)
    )
    with store.read() as connection:
        names = list(connection.scalars(sa.select(schema.sweep.c.name)))
        if sweep not in names:
            raise unknown_name("sweep", sweep, names)
        return [LiveSession(*row) for row in connection.execute(query)]


def note(
    store: Store,
    kind: str,
    message: str,
    *,
    sweep: str,
    level: Literal["info", "warning", "error"] = "warning",
) -> None:
    """Keep what happened to a sweep that no attempt tells."""
    with store.write() as connection:
        connection.execute(
            schema.event.insert().values(
                time_us=now_us(), level=level, kind=kind, sweep_id=_sweep_id(sweep), message=as_text(message)
            )
        )


def _sweep_id(name: str) -> sa.ScalarSelect[int]:
    return sa.select(schema.sweep.c.id).where(schema.sweep.c.name == name).scalar_subquery()
