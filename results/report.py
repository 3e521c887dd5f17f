"""One page about a sweep that needs nothing but itself: findings, table, figures, setup, failures."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import pandas as pd

from results import sources, style, tables
from results.figures import FIGURES
from results.findings import findings
from results.frames import MissingData, NotAsked, format_value, varied
from results.render import Table
from results.tables import TABLES
from schemas.names import unknown_name
from schemas.trial import AXES

if TYPE_CHECKING:
    from results.query import Database

_PAIR_STATUS = ("done", "diverged", "running", "interrupted", "pending", "failed", "refused")


@dataclass(frozen=True)
class Shown:
    """A figure on the page, or the reason why it is not there."""

    name: str
    title: str
    caption: str = ""
    uri: str = ""
    """The SVG, as a data URI."""
    reason: str = ""


class Made(NamedTuple):
    """The files of a report."""

    page: Path
    figures: dict[str, list[Path]]
    """Those of each figure, by its name."""
    tables: dict[str, list[Path]]


def write(
    db: "Database", sweep: str, directory: Path, *, overlays: Mapping[str, pd.DataFrame] | None = None
) -> Made:
    """Write the sweep's figures, tables and `report.html` into `directory`; return what was written.

    A figure or table that lacks data is named on the page with its reason. One that the sweep does not ask
    for, such as a figure against an axis that it does not vary, is left out. `overlays` are published
    numbers to show beside ours, by figure or table. Raises `UnknownName` for a sweep that the store does
    not hold.
    """
    sweeps = db.sweeps().set_index("sweep")
    if sweep not in sweeps.index:
        raise unknown_name("sweep", sweep, sweeps.index)
    pairs = db.pairs(sweep)
    attempts = db.attempts(sweep)
    shown = {name: {"overlay": published} for name, published in (overlays or {}).items()}
    made = Made(directory / "report.html", {}, {})
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(
        sweep=sweeps.loc[sweep].to_dict() | {"name": sweep},
        counts=[(status, int((pairs["status"] == status).sum())) for status in _PAIR_STATUS],
        findings=findings(TABLES["losses"].load().data(db, sweep)),
        tables=list(filter(None, (_table(db, sweep, name, made, shown) for name in TABLES))),
        figures=list(filter(None, (_figure(db, sweep, name, made, shown) for name in FIGURES))),
        setup=setup(pairs),
        failures=failures(attempts),
        machines=machines(attempts),
        trained=duration(float(attempts["wall_s"].sum())),
    )
    made.page.write_text(page, encoding="utf-8", newline="\n")
    return made


Overlays = Mapping[str, Mapping[str, pd.DataFrame]]
"""Further arguments of `data`, by figure or table."""


def _table(db: "Database", sweep: str, name: str, made: Made, overlays: Overlays) -> Table | str | None:
    """Return a table, or why it cannot be made yet; None if it is of what was not asked for here."""
    file = TABLES[name].load()
    frame = file.data(db, sweep, **overlays.get(name, {}))
    try:
        table = file.draw(frame)
    except NotAsked:
        return None
    except MissingData as reason:
        return str(reason)
    made.tables[name] = tables.save(table, made.page.parent / "tables", name, frame)
    return table


def _figure(db: "Database", sweep: str, name: str, made: Made, overlays: Overlays) -> Shown | None:
    """Return a figure, or why it cannot be drawn yet; None if it is of what was not asked for here."""
    entry = FIGURES[name]
    file = entry.load()
    frame = file.data(db, sweep, **overlays.get(name, {}))
    try:
        figure = file.draw(frame)
    except NotAsked:
        return None
    except MissingData as reason:
        return Shown(name, entry.title, reason=str(reason))
    made.figures[name] = style.save(figure, made.page.parent / "figures", name, frame)
    uri = "data:image/svg+xml;base64," + base64.b64encode(style.svg(figure)).decode()
    return Shown(name, entry.title, file.caption(frame), uri)


def duration(seconds: float) -> str:
    """Return `45 s`, `3.2 min` or `17.5 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


def setup(pairs: pd.DataFrame) -> list[tuple[str, str]]:
    """Return label and values of every axis, those that vary first, then the parameter count."""
    moving = [*varied(pairs), *(["seed"] if pairs["seed"].nunique() > 1 else [])]
    rows = []
    for name in [*moving, *(name for name in AXES if name not in moving)]:
        values = [format_value(name, value) for value in sorted(pairs[name].unique())]
        unit = AXES[name].unit
        rows.append((AXES[name].label, ", ".join(values) + (f" {unit}" if unit and values else "")))
    sizes = sorted(pairs["n_params"].dropna().unique())
    return [*rows, ("parameters", ", ".join(f"{size:,}" for size in sizes))] if sizes else rows


def failures(attempts: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the attempts that failed or diverged, with their arm's varied axes as `setting`."""
    wanted = attempts[attempts["status"].isin(["failed", "diverged"])]
    moving = [*varied(attempts), *(["seed"] if attempts["seed"].nunique() > 1 else [])]
    rows = []
    for row in wanted.to_dict("records"):
        setting = ", ".join(f"{AXES[name].label} {AXES[name].format(row[name])}" for name in moving)
        shown = {k: "" if pd.isna(row[k]) else row[k] for k in ("cause", "error", "traceback")}
        rows.append(
            {"arm": row["arm"], "attempt": row["attempt"], "status": row["status"], "setting": setting}
            | shown
        )
    return rows


def machines(attempts: pd.DataFrame) -> list[dict[str, str]]:
    """Return the distinct machines and code versions, with how many attempts each ran."""
    counts: dict[tuple[str, ...], int] = {}
    for row in attempts.to_dict("records"):
        torch = sources.environment(row).get("torch")
        values = (row["hostname"], row["device"], row["threads"], torch, sources.code(row))
        key = tuple("unknown" if pd.isna(value) else str(value) for value in values)
        counts[key] = counts.get(key, 0) + 1
    heads = ("machine", "device", "threads", "PyTorch", "code")
    return [dict(zip(heads, key, strict=True)) | {"attempts": str(n)} for key, n in sorted(counts.items())]
