"""`xsa plan`: what a sweep would train and what that costs, before anything is spent."""

import math
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from rich.markup import escape
from rich.table import Table

from orchestrator.plan import Plan, changes, cost, label
from orchestrator.progress import duration, quantity
from orchestrator.show import console
from results.eval_state import evaluated
from results.state import trained, wanted_arms
from results.store import Store
from schemas.sweep import Runtime
from schemas.trial import AXES
from trainer.cost import flops_per_token

_ORDER = ("new", "pending", "interrupted", "running", "failed", "diverged", "done")
_MOST = 10
"""Reasons that are listed one by one."""


def _gib(value: float) -> str:
    return f"{value / 2**30:,.2f} GiB"


def workers_here(runtime: Runtime) -> int | None:
    """Return how many trials this machine runs at once, at most; None where a cluster or a GPU decides."""
    if (
        "RAY_ADDRESS" in os.environ
        or runtime.gpus_per_trial
        or runtime.custom_resources
        or runtime.accelerator_type
    ):
        return None
    memory = psutil.virtual_memory().total / 2**30
    by_memory = memory / runtime.memory_gib_per_trial if runtime.memory_gib_per_trial else math.inf
    return int(min((os.cpu_count() or 1) / runtime.cpus_per_trial, by_memory))


def measured_flops(store: Store) -> float | None:
    """Return the FLOP/s of one worker over all finished arms, or None."""
    rows = trained(store)
    spent = sum(row.wall_s for row in rows)
    return sum(row.tokens * flops_per_token(row.shape) for row in rows) / spent if spent else None


def preview(plan: Plan, store: Store | None, storage: Path) -> dict[str, Any]:
    """Return everything that a plan says, as one document."""
    workers = workers_here(plan.sweep.runtime)
    spent = cost(plan, workers or 1)
    speed = measured_flops(store) if store else None
    before = wanted_arms(store, plan.sweep.name) if store else []
    changed = changes(plan, before) if before else None
    names, counts = plan.sweep.varied(), plan.counts()
    existing = next(path for path in (storage, *storage.parents) if path.exists())
    return {
        "sweep": plan.sweep.name,
        "trials": len(plan.trials),
        "arms": len(plan.arms),
        "shared": sum(len(trial.arms) for trial in plan.trials) - len(plan.arms),
        "status": {status: n for status in _ORDER if (n := counts[status])},
        "varied": {
            name: list(dict.fromkeys(getattr(trial, name) for trial in plan.trials)) for name in names
        },
        "parameters": spent.parameters,
        "tokens": spent.tokens,
        "flops": spent.flops,
        "memory_bytes": spent.memory,
        "machine_memory_bytes": psutil.virtual_memory().total,
        "disk_bytes": spent.disk,
        "free_bytes": shutil.disk_usage(existing).free,
        "workers": workers,
        "seconds": spent.flops / speed / (workers or 1) if speed else None,
        "changes": changed
        and {
            "more": changed.more,
            "fewer": changed.fewer,
            "edits": [
                {"field": field, "from": old, "to": new, "arms": n}
                for (field, old, new), n in changed.edits.items()
            ],
        },
        "evals": _evals(plan, store),
        "not_done": [
            {
                "arm": arm.id[:12],
                "label": label(arm, names),
                "status": plan.status(arm.id),
                "why": why,
            }
            for arm in plan.unfinished()
            if (why := _why(plan, arm.id))
        ],
    }


def _evals(plan: Plan, store: Store | None) -> dict[str, Any] | None:
    """Return how many downstream evaluations the sweep asks for, and how many of them have no scores."""
    if (asked := plan.sweep.evals) is None:
        return None
    arms = [arm_id for arm_id in plan.arms if plan.status(arm_id) != "diverged"]
    known = evaluated(store, arms) if store else {}
    has = sum(known.get(arm_id, {}).get(key, "none") is None for arm_id in arms for key in asked.wanted())
    wanted = len(arms) * len(asked.tasks)
    return {"tasks": asked.tasks, "limit": asked.limit, "wanted": wanted, "missing": wanted - has}


def _why(plan: Plan, arm_id: str) -> str | None:
    state = plan.states.get(arm_id)
    if state is None:
        return None
    if state.status == "running":
        held = plan.status(arm_id) == "running"
        return f"in training at step {state.step:,}" if held else "its run ended without a word"
    return state.reason


def print_preview(told: dict[str, Any], runtime: Runtime) -> None:
    """Print a plan."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("sweep", escape(told["sweep"]))
    for name, values in told["varied"].items():
        shown = escape(", ".join(AXES[name].format(value) for value in values))
        table.add_row(f"  {name}", f"{shown}  [dim]({AXES[name].kind.__name__})[/]")
    table.add_row("trials", f"{told['trials']:,} (pairs)")
    shared = (
        f" ({told['shared']:,} fewer than its pairs have, because they are shared)" if told["shared"] else ""
    )
    table.add_row("arms", f"{told['arms']:,}{shared}")
    table.add_row("", ", ".join(f"{n:,} {status}" for status, n in told["status"].items()))
    for line in _change_lines(told["changes"]):
        table.add_row("since last run" if line.startswith("+") else "", escape(line))
    small, large = told["parameters"]
    table.add_row("parameters", f"{quantity(small)}" + (f" to {quantity(large)}" if large != small else ""))
    table.add_row("to train", f"{quantity(told['tokens'])}tokens, {quantity(told['flops'])}FLOP")
    if told["tokens"]:
        for name, line in _needs(told, runtime).items():
            table.add_row(name, line)
    if evals := told["evals"]:
        tasks = escape(", ".join(evals["tasks"]))
        table.add_row("to evaluate", f"{evals['missing']:,} of {evals['wanted']:,}  [dim]({tasks})[/]")
    console.print(table)
    reasons = Counter((row["status"], row["why"]) for row in told["not_done"])
    examples = {(row["status"], row["why"]): row for row in told["not_done"]}
    for (status, why), n in list(reasons.items())[:_MOST]:
        row = examples[status, why]
        others = f" and {n - 1} more" if n > 1 else ""
        console.print(
            f"[red]{status}[/] {row['arm']} {escape(row['label'])}{others}: {escape(why)}", soft_wrap=True
        )
    if len(reasons) > _MOST:
        console.print(f"{len(reasons) - _MOST} more reasons: xsa status {escape(told['sweep'])}")


def _change_lines(told: dict[str, Any] | None) -> list[str]:
    if told is None or not (told["more"] or told["fewer"]):
        return []
    lines = [
        f"+{told['more']:,} arms" + (f", {told['fewer']:,} no longer wanted (kept)" if told["fewer"] else "")
    ]
    for edit in told["edits"]:
        axis = AXES[edit["field"]]
        line = f"{edit['field']} {axis.format(edit['from'])} → {axis.format(edit['to'])} in {edit['arms']:,} arms"
        if edit["field"] == "steps":
            line += ": trained from the beginning, because the learning-rate schedule is another"
        lines.append(line)
    return lines


def _needs(told: dict[str, Any], runtime: Runtime) -> dict[str, str]:
    """Return what training takes of a machine: memory, disk and time."""
    needs = {}
    if told["workers"] == 0:
        needs["workers"] = "[red]none[/]: runtime asks for more CPUs or memory than this machine has"
    if not runtime.gpus_per_trial:
        workers = told["workers"] or 1
        at_once, there = workers * told["memory_bytes"], told["machine_memory_bytes"]
        needs["memory"] = f"up to {_gib(told['memory_bytes'])} a trial"
        if told["workers"]:
            tight = "[red]more than[/]" if at_once > there else "of"
            needs["memory"] += f", {_gib(at_once)} for {workers} at once {tight} {_gib(there)}"
    tight = "[red]more than[/]" if told["disk_bytes"] > told["free_bytes"] else "of"
    needs["disk"] = f"up to {_gib(told['disk_bytes'])} of checkpoints {tight} {_gib(told['free_bytes'])} free"
    if told["seconds"] is not None:
        on = f"{told['workers']} at once on this machine" if told["workers"] else "one worker"
        needs["time"] = f"about {duration(told['seconds'])} with {on}, at the speed measured so far"
    return needs
