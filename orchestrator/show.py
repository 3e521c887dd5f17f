"""How the commands print: plans, outcomes, figures, tables and axes."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.progress import quantity
from schemas.names import lookup
from schemas.sizes import SIZES
from schemas.trial import AXES

if TYPE_CHECKING:
    from orchestrator.supervise import Outcome
    from results.query import Database
    from results.record_made import Kind
    from results.registry import Entry

console = Console(highlight=False)
NOTE_WAIT_S = 1.0
"""How long to wait with what is made for others to finish writing to the store."""


def print_json(document: Any) -> None:
    """Print a document as JSON, with its times as ISO 8601 has them."""
    print(json.dumps(document, indent=2, allow_nan=False, default=lambda time: time.isoformat()))


def records(frame: Any) -> list[dict[str, Any]]:
    """Return a frame's rows for a document: None where a value is missing or no finite number."""
    import pandas as pd

    def plain(value: Any) -> Any:
        return None if pd.isna(value) or (isinstance(value, float) and not isfinite(value)) else value

    columns = {name: map(plain, frame[name].tolist()) for name in frame}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def print_outcome(outcome: "Outcome", db: str | None, store_name: str) -> None:
    """Print how a run ended, the paired losses, and where everything is."""
    import results

    plan = outcome.plan
    left = plan.unfinished()
    done = len(plan.arms) - len(left)
    failed = sum(plan.status(arm.id) == "failed" for arm in left)
    console.print(
        f"{plan.sweep.name}: {done} arms done, {len(left)} to do" + (f" ({failed} failed)" if failed else "")
    )
    if failed:
        console.print(f"  why: xsa status {plan.sweep.name} --failed; again: xsa retry {plan.sweep.name}")
    if outcome.foreign:
        console.print(f"  {outcome.foreign} of them in training by another run of xsa.")
    if done:
        with results.open(db) as database:
            console.print(losses(database, plan.sweep.name, {}), markup=False, soft_wrap=True)
    console.print(
        f"Results: {store_name}  (in Python: results.open().pairs(sweep={plan.sweep.name!r}))", soft_wrap=True
    )


def losses(database: "Database", sweep: str, filters: Mapping[str, Any]) -> str:
    """Return the table of paired losses, summarised over seeds, as text."""
    from results.tables import TABLES

    table = lookup("table", "losses", TABLES).load()
    return table.draw(table.data(database, sweep, **filters)).text()


def write(
    kind: Literal["figure", "table"],
    known: "Mapping[str, Entry[Any]]",
    names: Sequence[str] | None,
    *,
    database: "Database",
    sweep: str,
    filters: Mapping[str, Any],
    directory: Path,
    overlays: Mapping[str, Any] | None = None,
) -> dict[str, list[Path]]:
    """Write figures or tables, those that are named or all; what lacks data is an error if named, else a line.

    Returns the files of each.

    Args:
        kind: what they are.
        known: all there are.
        names: those to write.
        database: what they are made from.
        sweep: whose pairs they show.
        filters: axes and values of the pairs they show.
        directory: where to.
        overlays: published numbers to show beside ours, by figure or table.
    """
    from results.frames import MissingData

    made: dict[str, list[Path]] = {}
    for entry in [lookup(kind, name, known) for name in names or known]:
        try:
            more = {"overlay": overlays[entry.name]} if overlays and entry.name in overlays else {}
            paths = made[entry.name] = entry.save(database, directory, sweep=sweep, **filters, **more)
        except MissingData as error:
            if names:
                raise
            console.print(f"{entry.name}: not made. {escape(str(error))}", soft_wrap=True)
        else:
            console.print(f"{entry.name}: {', '.join(map(str, paths))}", soft_wrap=True)
    return made


def note(
    db: str | None,
    made: "Mapping[Kind, Mapping[str, Sequence[Path]]]",
    *,
    sweep: str,
    filters: Mapping[str, Any],
) -> None:
    """Tell the store what was made of it, where it can be written to.

    Args:
        db: the store.
        made: of each kind the files, as `record_artifacts` takes them.
        sweep: the name of the sweep that they show.
        filters: axes and values of the pairs that they show.
    """
    from results.location import StoreError
    from results.record_made import record_artifacts
    from results.store import Store

    try:
        with Store.open(db, mode="write", wait_s=NOTE_WAIT_S) as store:
            for kind, files in made.items():
                record_artifacts(store, kind, files, sweep=sweep, filters=filters)
    except StoreError:
        return  # it is read-only, or in use for long: the files are there, and that is what was asked for


def print_axes() -> None:
    """Print every axis with its type, default, limits and meaning, and the named sizes."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("axis", "type", "default", "limits", "meaning"):
        table.add_column(name, no_wrap=name != "meaning")
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    for axis in AXES.values():
        limits = " ".join(f"{signs[key]} {bound:g}" for key, bound in axis.limits.items())
        meaning = axis.description + (f" [dim]({', '.join(axis.choices)})[/]" if axis.choices else "")
        table.add_row(axis.name, axis.kind.__name__, axis.format(axis.default), limits, meaning)
    console.print(table)
    sizes = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("model_size", "n_layer", "d_model", "n_head", "d_head", "non-embedding"):
        sizes.add_column(name, justify="left" if name == "model_size" else "right")
    for name, size in SIZES.items():
        sizes.add_row(name, *(f"{number:,}" for number in size[:4]), quantity(size.non_embedding))
    console.print()
    console.print(sizes)
