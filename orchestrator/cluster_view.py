"""How `xsa cluster check` prints what the nodes said."""

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from orchestrator.show import console

if TYPE_CHECKING:
    from orchestrator.cluster import NodeReport


def report_rows(reports: "list[NodeReport]") -> list[dict[str, Any]]:
    """Return one document a node."""
    shown = ("CPU", "GPU", "memory")
    return [
        {
            "node": report.node[:12],
            "address": report.address,
            "storage": report.storage,
            "versions": report.versions,
            "clock_s": report.clock_s,
            "resources": {
                name: amount
                for name, amount in report.resources.items()
                if name in shown or not name.startswith(("node:", "object_store", *shown))
            },
            "problems": report.problems,
        }
        for report in reports
    ]


def print_reports(told: dict[str, Any]) -> None:
    """Print a line a node, then every problem with its way out."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("node", "address", "storage", "code", "torch", "clock", "resources"):
        table.add_column(heading)
    for row in told["nodes"]:
        table.add_row(
            row["node"],
            row["address"],
            "shared" if row["storage"] else "[red]not shared[/]",
            row["versions"].get("code", "[red]missing[/]"),
            row["versions"].get("torch", ""),
            "" if row["clock_s"] is None else f"{row['clock_s']:+.1f} s",
            escape(", ".join(_amount(name, amount) for name, amount in row["resources"].items())),
        )
    console.print(table)
    if told["store"]:
        console.print(f"store: {told['store']}", markup=False, soft_wrap=True)
    if told["slots"] is not None:
        console.print(f"{told['slots']} trials at once")
    problems = [f"{row['address']}: {problem}" for row in told["nodes"] for problem in row["problems"]]
    for problem in [*told["problems"], *problems]:
        console.print(f"[red]✗[/] {escape(problem)}", soft_wrap=True)
    if not (told["problems"] or problems):
        console.print("Fit for the work.")


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.0f} GiB" if name == "memory" else f"{amount:g} {name}"
