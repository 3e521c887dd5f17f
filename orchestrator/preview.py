"""`xsa plan`: what a sweep would train and what that costs, before anything is spent."""

import shutil
import socket
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
from rich.markup import escape
from rich.table import Table

from orchestrator.estimate import Estimate, estimate, speeds, unmeasured, workers_here
from orchestrator.plan import Plan, changes, cost, label
from orchestrator.progress import duration, quantity
from orchestrator.show import console
from results.eval_state import evaluated
from results.state import wanted_arms
from results.store import Store
from schemas.sweep import Runtime
from schemas.trial import AXES

_ORDER = ("new", "pending", "interrupted", "running", "failed", "diverged", "done")
_MOST = 10
"""Reasons that are listed one by one."""
_TRAINED, _KILLED, _STOPPED = "in training", "its run ended without a word", "stopped"
"""Why an arm is not done, where no error says it."""


def _arms(n: int) -> str:
    return f"{n:,} arm" + ("s" if n != 1 else "")


def _gib(value: float) -> str:
    return f"{value / 2**30:,.2f} GiB"


def preview(plan: Plan, store: Store | None, storage: Path) -> dict[str, Any]:
    """Return everything that a plan says, as one document."""
    workers = workers_here(plan.sweep.runtime)
    spent = cost(plan, workers or 1)
    known = speeds(store, plan.sweep.runtime) if store else []
    time = estimate(plan, known, workers)
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
        "weights_bytes": spent.weights,
        "checkpoint_bytes": spent.checkpoints,
        "free_bytes": shutil.disk_usage(existing).free,
        "workers": workers,
        "seconds": time and time.wall_s,
        "worker_seconds": time and time.worker_s,
        "longest_trial_seconds": time and time.longest_s,
        "measured": time and _basis(time),
        "unmeasured": unmeasured(plan, known),
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
                "step": plan.states[arm.id].step,
                "why": _why(plan, arm.id),
            }
            for arm in plan.unfinished()
            if plan.status(arm.id) != "new"
        ],
    }


def _basis(time: Estimate) -> dict[str, Any]:
    """Return what an estimate of time follows from."""
    return {
        "arms": sum(speed.arms for speed in time.speeds),
        "devices": sorted({speed.device for speed in time.speeds}),
        "hosts": sorted(set().union(*(speed.hosts for speed in time.speeds))),
        "step_ratio": time.ratio,
        "finished": all(speed.whole for speed in time.speeds),
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


def _why(plan: Plan, arm_id: str) -> str:
    state = plan.states[arm_id]
    if state.status == "running":
        return _TRAINED if plan.status(arm_id) == "running" else _KILLED
    return state.reason or _STOPPED


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
    held = told["status"].get("running", 0)
    besides = f", besides {_arms(held)} that another run is training" if held else ""
    table.add_row("to train", f"{quantity(told['tokens'])}tokens, {quantity(told['flops'])}FLOP{besides}")
    if told["tokens"]:
        for name, line in _needs(told, runtime).items():
            table.add_row(name, line)
    if evals := told["evals"]:
        tasks = escape(", ".join(evals["tasks"]))
        table.add_row("to evaluate", f"{evals['missing']:,} of {evals['wanted']:,}  [dim]({tasks})[/]")
    console.print(table)
    alike = defaultdict(list)
    for row in told["not_done"]:
        alike[row["status"], row["why"]].append(row)
    for (status, why), rows in list(alike.items())[:_MOST]:
        others = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        name = f"{rows[0]['arm']} {escape(rows[0]['label'])}{others}"
        console.print(f"[red]{status}[/] {name}: {escape(why)}{_at_step(why, rows)}", soft_wrap=True)
    if len(alike) > _MOST:
        console.print(f"{len(alike) - _MOST} more reasons: xsa status {escape(told['sweep'])}")


def _at_step(why: str, rows: list[dict[str, Any]]) -> str:
    if why not in (_TRAINED, _KILLED, _STOPPED):
        return ""
    first, last = min(row["step"] for row in rows), max(row["step"] for row in rows)
    return f" at step {first:,}" if first == last else f" at steps {first:,} to {last:,}"


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
    least, most = told["memory_bytes"]
    if runtime.gpus_per_trial:
        needs["memory"] = f"at least {_gib(least)} of a GPU a trial"
        needs["memory"] += f"; a step in one piece takes {_gib(most)}" if least < most else ""
    else:
        needs["memory"] = f"up to {_gib(most)} a trial"
        if workers := told["workers"]:
            at_once, there = workers * most, told["machine_memory_bytes"]
            than = "[red]more than[/]" if at_once > there else "of"
            needs["memory"] += f", {_gib(at_once)} for {workers} at once {than} {_gib(there)}"
    weights, checkpoints, free = told["weights_bytes"], told["checkpoint_bytes"], told["free_bytes"]
    if told["workers"]:
        needs["disk"] = f"up to {_gib(weights + checkpoints)} of weights and checkpoints"
    else:
        needs["disk"] = (
            f"{_gib(weights)} of weights, and up to {_gib(checkpoints)} of checkpoints for each trial at once"
        )
    only = "[red]only[/] " if weights + checkpoints > free else ""
    needs["disk"] += f"; {only}{_gib(free)} are free"
    needs["time"] = _time(told, runtime)
    return needs


def _time(told: dict[str, Any], runtime: Runtime) -> str:
    """Return how long training takes, and how that is known."""
    if (basis := told["measured"]) is None:
        cpu = "a CPU" if runtime.threads == 1 else f"{runtime.threads} CPU threads"
        device = f"a GPU ({runtime.accelerator_type})" if runtime.accelerator_type else "a GPU"
        where = device if runtime.gpus_per_trial else cpu
        return f"no speed measured on {escape(where)} in {' or '.join(told['unmeasured'])} yet"
    if told["seconds"] is not None:
        needed = f"about {duration(told['seconds'])} with {told['workers']} at once on this machine"
    else:
        needed = (
            f"about {duration(told['worker_seconds'])} of one worker's time, "
            f"of which the longest trial takes {duration(told['longest_trial_seconds'])}"
        )
    devices = " and ".join("CPUs" if device == "cpu" else device for device in basis["devices"])
    arms = f"{_arms(basis['arms'])} on {devices}"
    if basis["hosts"] not in ([], [socket.gethostname()]):
        arms += f" of {basis['hosts'][0]}" if len(basis["hosts"]) == 1 else " of several machines"
    if not basis["finished"]:
        arms += ", without their evaluations"
    larger = max(basis["step_ratio"], 1 / basis["step_ratio"])
    if larger >= 1.5:
        direction = "smaller" if basis["step_ratio"] > 1 else "larger"
        arms += f", whose steps are {larger:,.0f} times {direction}"
    return f"{needed}, at the speed measured so far [dim]({escape(arms)})[/]"
