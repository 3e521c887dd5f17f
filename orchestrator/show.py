"""How the commands print: plans, states, tables and rows."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.plan import Plan, cost, label
from orchestrator.progress import duration
from orchestrator.session import is_dead
from schemas.names import lookup, unknown_name
from schemas.sizes import SIZES
from schemas.trial import AXES

if TYPE_CHECKING:
    from orchestrator.supervise import Outcome
    from results.figures import FigureEntry
    from results.query import Database
    from results.tables import TableEntry

console = Console(highlight=False)
FORMATS = ("table", "csv", "json")
_ORDER = ("new", "pending", "interrupted", "running", "failed", "diverged", "done")


def print_json(document: Any) -> None:
    """Print a document as JSON."""
    print(json.dumps(document, indent=2, allow_nan=False))


def _quantity(value: float) -> str:
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g} "


def print_plan(plan: Plan, speed: float | None) -> None:
    """Print what a sweep would train: its trials and arms, where each stands, and the cost."""
    sweep = plan.sweep
    counts = plan.counts()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("sweep", escape(sweep.name))
    varied = {name: list(dict.fromkeys(getattr(t, name) for t in plan.trials)) for name in sweep.varied()}
    for name, values in varied.items():
        kind = AXES[name].kind.__name__
        table.add_row(
            f"  {name}", escape(", ".join(AXES[name].format(v) for v in values)) + f"  [dim]({kind})[/]"
        )
    shared = sum(len(trial.arms) for trial in plan.trials) - len(plan.arms)
    table.add_row("trials", f"{len(plan.trials):,} (pairs)")
    table.add_row(
        "arms",
        f"{len(plan.arms):,}"
        + (f" ({shared:,} fewer than its pairs have, because they are shared)" if shared else ""),
    )
    table.add_row("", ", ".join(f"{counts[status]:,} {status}" for status in _ORDER if counts[status]))
    spent = cost(plan)
    small, large = spent.parameters
    table.add_row("parameters", f"{_quantity(small)}" + (f" to {_quantity(large)}" if large != small else ""))
    table.add_row("to train", f"{_quantity(spent.tokens)}tokens, {_quantity(spent.flops)}FLOP")
    if speed and spent.tokens:
        table.add_row(
            "time",
            f"about {duration(spent.tokens / speed)} of one worker, at the {speed:,.0f} tok/s measured so far",
        )
    console.print(table)
    for arm in plan.unfinished():
        state = plan.states.get(arm.id)
        if state and state.reason:
            console.print(
                f"[red]{plan.status(arm.id)}[/] {escape(label(arm, list(varied)))}: {escape(state.reason)}"
            )


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
        console.print(f"  why: xsa status {plan.sweep.name}; `xsa run` tries them again.")
    if outcome.foreign:
        console.print(f"  {outcome.foreign} of them in training by another run of xsa.")
    if done:
        with results.open(db) as database:
            print_results(database, plan.sweep.name, {}, "table")
    console.print(
        f"Results: {store_name}  (in Python: results.open().pairs(sweep={plan.sweep.name!r}))", soft_wrap=True
    )


def print_status(database: "Database", sweep: str | None, *, as_json: bool) -> None:
    """Print how far the sweeps are, what runs, and what failed and why."""
    from results.schema import ARM_STATUS

    frame = database.sweeps()
    if sweep is not None:
        if sweep not in set(frame["sweep"]):
            raise unknown_name("sweep", sweep, frame["sweep"])
        frame = frame[frame["sweep"] == sweep]
    columns = ["sweep", "trials", "arms", *ARM_STATUS]
    if as_json:
        print(frame[columns].to_json(orient="records", indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name == "sweep" else "right")
    for row in frame[columns].itertuples(index=False):
        table.add_row(*(escape(str(value)) if value else "·" for value in row))
    console.print(table)
    if sweep is None:
        return
    arms = database.sql(
        """SELECT a.*, substr(a.fingerprint, 1, 12) AS arm FROM arm a
        WHERE a.status IN ('running', 'failed', 'interrupted', 'diverged') AND a.id IN (
            SELECT v.arm_id FROM v_sweep_arms v JOIN sweep w ON w.id = v.sweep_id WHERE w.name = :sweep)
        ORDER BY a.status, a.id""",
        sweep=sweep,
    )
    for row in arms.to_dict("records"):
        axes = " ".join(f"{name}={AXES[name].format(row[name])}" for name in ("xsa_lambda", "seed"))
        reason = f": {row['reason']}" if isinstance(row["reason"], str) else ""
        if row["status"] == "running" and isinstance(row["lease_owner"], str) and is_dead(row["lease_owner"]):
            reason = ": its run has ended; the next `xsa run` goes on with it"
        console.print(
            f"{row['status']:<12}{row['arm']}  {axes}  step {row['step']}/{row['steps']}{escape(reason)}"
        )


def print_results(database: "Database", sweep: str, filters: Mapping[str, Any], format: str) -> None:
    """Print the summary table of paired losses, or every pair."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if format == "table":
        from results.tables import TABLES

        table = lookup("table", "losses", TABLES).load()
        drawn = table.draw(table.data(database, sweep, **filters))
        console.print(drawn.text(), markup=False, soft_wrap=True)
        return
    pairs = database.pairs(sweep, **filters)
    print(
        pairs.to_csv(index=False)
        if format == "csv"
        else pairs.to_json(orient="records", indent=2, double_precision=15),
        end="",
    )


def write_figures(
    database: "Database", sweep: str, names: list[str], filters: Mapping[str, Any], directory: Path
) -> None:
    """Write the named figures, or all."""
    from results.figures import FIGURES

    _write(
        [lookup("figure", name, FIGURES) for name in names or FIGURES],
        database,
        sweep,
        filters,
        directory,
        names,
    )


def _write(
    entries: "Sequence[FigureEntry | TableEntry]",
    database: "Database",
    sweep: str,
    filters: Mapping[str, Any],
    directory: Path,
    named: list[str],
) -> None:
    """Write each of these; what lacks data is an error where it was asked for by name, else a line."""
    from results.frames import MissingData

    for entry in entries:
        try:
            paths = entry.save(database, directory, sweep=sweep, **filters)
        except MissingData as error:
            if named:
                raise
            console.print(f"{entry.name}: not made. {escape(str(error))}", soft_wrap=True)
        else:
            console.print(f"{entry.name}: {', '.join(map(str, paths))}", soft_wrap=True)


def write_tables(
    database: "Database", sweep: str, names: list[str], filters: Mapping[str, Any], directory: Path
) -> None:
    """Write the named tables, or all."""
    from results.tables import TABLES

    _write(
        [lookup("table", name, TABLES) for name in names or TABLES],
        database,
        sweep,
        filters,
        directory,
        names,
    )


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
        sizes.add_row(name, *(f"{number:,}" for number in size[:4]), _quantity(size.non_embedding))
    console.print()
    console.print(sizes)
