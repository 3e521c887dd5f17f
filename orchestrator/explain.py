"""`xsa plan --ids` and `--explain`: which arms a sweep has, and what tells two of them apart."""

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from orchestrator.find import Found, find, varied_of
from orchestrator.plan import Plan, label
from orchestrator.show import console, print_json
from schemas.trial import AXES, Arm

if TYPE_CHECKING:
    from results.query import Database


def print_ids(plan: Plan, *, as_json: bool) -> None:
    """Print a line an arm: its id, its name within the sweep, and where it stands."""
    varied = varied_of([trial.xsa for trial in plan.trials])
    rows = [
        {"arm": key[:12], "label": label(arm, varied), "status": plan.status(key)}
        for key, arm in plan.arms.items()
    ]
    if as_json:
        print_json(rows)
        return
    width = max(len(row["label"]) for row in rows)
    for row in rows:
        line = f"{row['arm']}  {row['label']:<{width}}  {row['status']}"
        console.print(line, markup=False, soft_wrap=True)


def explain(a: Arm, b: Arm) -> list[tuple[str, Any, Any]]:
    """Return the fields in which two arms differ, with the value of each: none, if they are one arm."""
    pairs = ((name, getattr(a, name), getattr(b, name)) for name in AXES)
    return [(name, of_a, of_b) for name, of_a, of_b in pairs if of_a != of_b]


def print_explanation(
    ids: tuple[str, str], plan: Plan, database: "Database | None", *, as_json: bool
) -> None:
    """Print what tells two arms apart, given by ids of the sweep or of the store."""
    a, b = (find(text, plan=plan, database=database) for text in ids)
    fields = explain(a.arm, b.arm)
    if as_json:
        print_json(
            {
                "a": {"kind": a.kind, "id": a.id, "where": a.where},
                "b": {"kind": b.kind, "id": b.id, "where": b.where},
                "same": a.arm_id == b.arm_id,
                "differences": [
                    {"field": name, "a": of_a, "b": of_b, "type": AXES[name].kind.__name__}
                    for name, of_a, of_b in fields
                ],
            }
        )
        return
    names = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for letter, found in (("A", a), ("B", b)):
        what = f"{found.arm.name} arm" if found.kind == "arm" else "trial, by its XSA arm,"
        names.add_row(letter, found.id[:12], Text(f"{what} of {found.where}"))
    console.print(names)
    if fields:
        console.print()
        console.print(_table(fields))
    else:
        console.print(_without_fields(a, b), markup=False, soft_wrap=True)


def _table(fields: list[tuple[str, Any, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("field", "A", "B", "type"):
        table.add_column(heading)
    for name, of_a, of_b in fields:
        axis = AXES[name]
        kind = axis.kind.__name__ + ("" if axis.identity else " (follows from the others)")
        table.add_row(name, Text(axis.format(of_a)), Text(axis.format(of_b)), kind)
    return table


def _without_fields(a: Found, b: Found) -> str:
    if a.id == b.id:
        return f"They are the same {a.kind}."
    if a.arm_id == b.arm_id:
        trial, arm = (a, b) if a.kind == "trial" else (b, a)
        return f"{arm.id[:12]} is the {arm.arm.name.upper()} arm of the trial {trial.id[:12]}."
    return (
        "No field differs, and yet they are two: the code that trained one of them trained to other numbers "
        "(`semantics_version` in schemas/trial.py)."
    )
