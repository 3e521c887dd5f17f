"""What `xsa show` shows on a terminal: an arm, or the two arms of a trial side by side."""

from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from orchestrator.layout import (
    STATUS_COLORS,
    WIDTH,
    Row,
    columns,
    facts,
    machine,
    memory,
    span,
    sparkline,
    speed,
    utc,
)
from orchestrator.progress import duration
from schemas.report import METRICS
from schemas.trial import AXES

_LOSSES = {"train_loss": "training loss", "val_loss": "validation loss"}
_LISTED = 4
"""How many trials of a shared arm are named; `--json` has all."""


def arm_view(arm: Row) -> list[RenderableType]:
    """Return everything about an arm."""
    trials = [trial[:12] for trial in arm["trials"]]
    more = f" and {len(trials) - _LISTED:,} more" if len(trials) > _LISTED else ""
    known = {
        "id": arm["id"],
        "variant": arm["variant"],
        "why": arm["error"],
        "sweeps": _sweeps(arm),
        "trials": ", ".join(trials[:_LISTED]) + more,
        "files": "\n".join(map(_folder, arm["folders"])),
        "parameters": f"{arm['n_params']:,}" if arm["n_params"] else None,
        "trained": duration(arm["wall_s"]) if arm["wall_s"] else None,
        "speed": speed(arm["speed"]),
    }
    head = Text(f"arm {arm['id'][:12]}: ").append(_status(arm)).append(f" at step {_step(arm)}")
    return [
        head,
        facts(known),
        *_settings(arm["axes"]),
        *_attempts(arm),
        *_curves(arm),
        *_layers(arm),
        *_evals(arm),
    ]


def pair_view(pair: Row) -> list[RenderableType]:
    """Return a trial: its arms side by side, and their curves on one scale."""
    sa, xsa = pair["sa"], pair["xsa"]
    head = Text(f"trial {pair['id'][:12]}: ").append(_status(pair))
    parts: list[RenderableType] = [head, facts({"id": pair["id"], "sweeps": _sweeps(pair)})]
    if sa["id"] == xsa["id"]:
        return [*parts, Text("\nAt λ = 0 the pair's two arms are one:\n"), *arm_view(sa)]
    sides = zip(_side(sa).items(), _side(xsa).values(), strict=True)
    parts += [
        Text(),
        columns([("", "SA", "XSA"), *((name, of_sa, of_xsa) for (name, of_sa), of_xsa in sides)]),
    ]
    deltas = [(label, pair[f"delta_{name}"]) for name, label in _LOSSES.items()]
    if told := [f"{label} {delta:+.4f}" for label, delta in deltas if delta is not None]:
        parts += [Text(), Text(f"XSA - SA at step {pair['step']:,}, nats/token: {', '.join(told)}")]
    for name, label in _LOSSES.items():
        parts += _compared(label, _points(sa, name), _points(xsa, name))
    return parts + _settings(pair["axes"])


def _status(row: Row) -> Text:
    return Text(row["status"], STATUS_COLORS.get(row["status"], ""))


def _step(arm: Row) -> str:
    return f"{arm['step']:,}/{arm['axes']['steps']:,}"


def _sweeps(row: Row) -> str:
    return ", ".join(row["sweeps"]) or "no sweep wants it any more"


def _folder(folder: str) -> str:
    return folder if Path(folder).exists() else f"{folder} (not on this machine)"


def _settings(axes: Row) -> list[RenderableType]:
    """Return the axes that are not at their defaults, each in a line, and the others in one."""
    texts = {name: axis.format(axes[name]) for name, axis in AXES.items()}
    defaults = {name: axis.format(axis.default) for name, axis in AXES.items()}
    own = [
        (name, text, Text(f"default {defaults[name]}", "dim"))
        for name, text in texts.items()
        if text != defaults[name]
    ]
    rest = " ".join(f"{name}={text}" for name, text in texts.items() if text == defaults[name])
    title = Text("\nsettings").append("" if own else ": all at their defaults")
    return [title, columns(own), Padding(Text(f"at their defaults: {rest}", "dim"), (0, 0, 0, 2))]


def _attempts(arm: Row) -> list[RenderableType]:
    if not arm["attempts"]:
        return [Text("\nattempts: none yet")]
    return [Text("\nattempts"), columns([(str(row["attempt"]), _attempt(row)) for row in arm["attempts"]])]


def _attempt(row: Row) -> Text:
    ended = row["ended_at"]
    when = span(row["started_at"], ended) if ended else f"{utc(row['started_at'])} to now"
    text = _status(row).append(f": {row['cause']}" if row["cause"] else "", "default")
    code = f"code {row['git_sha'][:12]}" if row["git_sha"] else ""
    changed = " with uncommitted changes" if code and row["dirty"] else ""
    lines = [
        f", {when}",
        ", ".join(filter(None, [machine(row), memory(row), f"{code}{changed}"])),
        row["error"],
    ]
    return text.append("\n".join(filter(None, lines)), "default")


def _curves(arm: Row) -> list[RenderableType]:
    lines = []
    for name, label in _LOSSES.items():
        if known := arm["losses"][name]:
            first, last, best = (f"{p['loss']:.4f} (step {p['step']:,})" for p in known.values())
            bars = sparkline(_points(arm, name).values())
            lines.append((label, f"{first} to {last}, best {best}\n{bars}"))
    return [Text("\nlosses, nats/token"), columns(lines)] if lines else []


def _points(arm: Row, name: str) -> dict[int, float]:
    """Return the finite values of a loss by step."""
    return {row["step"]: row[name] for row in arm["curves"] if row[name] is not None}


def _compared(label: str, sa: dict[int, float], xsa: dict[int, float]) -> list[RenderableType]:
    """Return the curves of a pair, and that of their difference at the steps that both have."""
    if not sa or not xsa:
        return []
    values, longest = [*sa.values(), *xsa.values()], max(len(sa), len(xsa))
    scale = min(values), max(values)
    lines = []
    for name, points in (("SA", sa), ("XSA", xsa)):
        width = max(1, WIDTH * len(points) // longest)  # so that what is below each other is of one step
        bars = sparkline(points.values(), width=width, scale=scale)
        lines.append((name, f"{_ends(points, '.4f')}\n{bars}"))
    if delta := {step: xsa[step] - sa[step] for step in sa if step in xsa}:
        bars = sparkline(delta.values(), width=max(1, WIDTH * len(delta) // longest))
        lines.append(("XSA - SA", f"{_ends(delta, '+.4f')}\n{bars}"))
    return [Text(f"\n{label}, nats/token"), columns(lines)]


def _ends(points: dict[int, float], form: str) -> str:
    (first, *_), (*_, last) = points.items(), points.items()
    return f"{first[1]:{form}} (step {first[0]:,}) to {last[1]:{form}} (step {last[0]:,})"


def _side(arm: Row) -> dict[str, str | Text]:
    """Return one arm's column of a trial."""
    side: dict[str, str | Text] = {
        "arm": arm["id"][:12],
        "status": _status(arm),
        "why": arm["error"] or "",
        "step": _step(arm),
    }
    for name, label in _LOSSES.items():
        for which in ("last", "best"):
            known = arm["losses"][name]
            text = f"{known[which]['loss']:.4f} (step {known[which]['step']:,})" if known else "none yet"
            side[f"{which} {label}"] = text
    return side


def _layers(arm: Row) -> list[RenderableType]:
    """Return the bias metrics: their mean over layers, their ends, and a bar for each layer."""
    if not arm["layers"]:
        return []
    dim = [Text(name, "dim") for name in ("metric", "mean", "first layer", "last layer", "by layer")]
    lines: list[list[str | Text]] = [[*dim]]
    for metric in METRICS:
        values = [row["value"] for row in arm["layers"] if row["metric"] == metric]
        finite = [value for value in values if value is not None]
        if finite:
            numbers = [fmean(finite), values[0], values[-1]]
            lines.append([metric, *map(_number, numbers), sparkline(values)])
    return [Text(f"\nbias metrics at step {arm['layers'][0]['step']:,}"), columns(lines)]


def _evals(arm: Row) -> list[RenderableType]:
    """Return the downstream scores, or why a task has none."""
    lines = []
    for row in arm["evals"]:
        if row["error"]:
            lines.append([row["task"], row["error"]])
            continue
        spread = "" if row["stderr"] is None else f" ± {row['stderr']:.4f}"
        shots = f", {row['n_shot']} solved examples" if row["n_shot"] else ""
        items = f"{row['n_items']:,} items{shots}"
        lines.append([row["task"], f"{row['metric']} {row['value']:.4f}{spread} on {items}"])
    return [Text("\ndownstream scores"), columns(lines)] if lines else []


def _number(value: Any) -> str:
    return "·" if value is None else f"{value:.4f}"
