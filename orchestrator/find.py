"""Which arm or trial an id means: all of its digits, or as many of the first as tell it apart."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.plan import Plan, label
from orchestrator.show import records
from schemas.errors import UserError
from schemas.trial import AXES, Arm

if TYPE_CHECKING:
    import pandas as pd

    from results.query import Database

LEAST = 4
"""Digits that an id must at least be given with."""
_SHOWN = 12
"""Digits that messages show, and candidates that they list."""
_SOURCES = (
    "`xsa status SWEEP` and `xsa plan SWEEP.yaml --ids` list the ids of arms, `db.pairs()` those of trials."
)
_FROM = {"arm": "arm o JOIN arm a ON a.id = o.id", "trial": "trial o JOIN arm a ON a.id = o.xsa_arm_id"}


@dataclass(frozen=True)
class Found:
    """What an id means."""

    kind: Literal["arm", "trial"]
    id: str
    arm: Arm
    """The arm, or the trial's XSA arm, whose settings are the trial's."""
    arm_id: str
    where: str
    """The sweep's or the store's name."""


def find(text: str, *, plan: Plan | None = None, database: "Database | None" = None) -> Found:
    """Return what an id means in the planned sweep or else in the store. Raises `UserError`."""
    start = text.lower()
    if not re.fullmatch(f"[0-9a-f]{{{LEAST},64}}", start):
        raise UserError(f"'{text}' is no id: write {LEAST} or more of its hexadecimal digits. {_SOURCES}")
    found = _in_plan(start, plan) if plan else []
    if not found and database:
        found = _in_store(start, database)
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(text, found)
    known = [*(_plan_ids(plan) if plan else []), *(_store_ids(database) if database else [])]
    near = get_close_matches(start[:_SHOWN], known, n=1, cutoff=0.7)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise UserError(f"No arm or trial has an id that begins with '{text}'.{hint} {_SOURCES}")


def _in_plan(start: str, plan: Plan) -> list[Found]:
    arms = [Found("arm", key, arm, key, plan.sweep.name) for key, arm in plan.arms.items()]
    trials = [Found("trial", trial.id, trial.xsa, trial.xsa.id, plan.sweep.name) for trial in plan.trials]
    return [found for found in [*arms, *trials] if found.id.startswith(start)]


def _in_store(start: str, database: "Database") -> list[Found]:
    axes = ", ".join(f"a.{name}" for name in AXES)
    kinds: tuple[Literal["arm", "trial"], ...] = ("arm", "trial")
    return [
        Found(kind, row["id"], arm_of(row), row["arm_id"], database.store.name)
        for kind in kinds
        for row in records(
            database.sql(
                f"SELECT o.fingerprint AS id, a.fingerprint AS arm_id, {axes} FROM {_FROM[kind]} "
                "WHERE o.fingerprint LIKE :start ORDER BY o.fingerprint",
                start=f"{start}%",
            )
        )
    ]


def arm_of(row: dict[str, Any]) -> Arm:
    """Return the arm whose settings are columns of `row`; the store has checked them when it took them."""
    return Arm.model_construct(**{name: row[name] for name in AXES if name in row})


def varied_of(arms: Sequence[Arm]) -> list[str]:
    """Return the axes that `varied` finds in these arms' settings."""
    import pandas as pd

    return varied(pd.DataFrame({name: [getattr(arm, name) for arm in arms] for name in AXES}))


def varied(settings: "pd.DataFrame") -> list[str]:
    """Return the axes that name an arm among these: those that vary, but for what a size's name says."""
    from results import frames

    return frames.varied(settings) + (["seed"] if settings["seed"].nunique() > 1 else [])


def _plan_ids(plan: Plan) -> list[str]:
    return [key[:_SHOWN] for key in [*plan.arms, *(trial.id for trial in plan.trials)]]


def _store_ids(database: "Database") -> list[str]:
    query = "SELECT fingerprint FROM arm UNION ALL SELECT fingerprint FROM trial"
    return [key[:_SHOWN] for key in database.sql(query)["fingerprint"]]


def _ambiguous(text: str, found: list[Found]) -> UserError:
    names = varied_of([one.arm for one in found])
    lines = [f"{one.id[:_SHOWN]} ({one.kind} {label(one.arm, names)})" for one in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return UserError(f"'{text}' begins {len(found)} ids: {', '.join(lines)}{more}. Write more digits.")
