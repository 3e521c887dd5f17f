"""What a run says while it runs: a live line on a terminal, now and then a plain line elsewhere."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from orchestrator.failures import Failure
from orchestrator.plan import Plan, label
from schemas.report import EvalRow, Report
from schemas.trial import Arm

QUIET_S = 5.0
"""Seconds between plain lines where no terminal can rewrite one."""


class LiveLine(ABC):
    """A line that is rewritten on a terminal and printed now and then elsewhere, and lines above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._said = 0.0
        self._live = Live(Text("starting Ray ..."), console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        else:
            self.console.print("starting Ray ...")
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def say(self, message: str) -> None:
        """Print a line above the live one."""
        self.console.print(message, soft_wrap=True)

    def _show(self, *, force: bool = False) -> None:
        if self.console.is_terminal:
            self._live.update(Text(self.line()), refresh=True)
        elif force or time.monotonic() - self._said > QUIET_S:
            self._said = time.monotonic()
            self.console.print(self.line(), markup=False, soft_wrap=True)

    @abstractmethod
    def line(self) -> str:
        """Return the state of what runs in one line."""


class Progress(LiveLine):
    """Follows the reports of one run."""

    def __init__(self, plan: Plan, console: Console) -> None:
        super().__init__(console)
        self._arms: Mapping[str, Arm] = plan.arms
        self._varied = plan.sweep.varied()
        self._done = len(plan.arms) - len(plan.unfinished())
        self._steps = {
            arm.id: plan.states[arm.id].step if arm.id in plan.states else 0 for arm in plan.unfinished()
        }
        self._first: dict[str, int] = {}
        self._running: set[str] = set()
        self._ended: set[str] = set()
        self._latest = ""
        self._began: float | None = None

    def on_report(self, report: Report) -> None:
        """Take in a report: where its arm is, and its newest evaluation."""
        told = report.record
        if told.arm_id in self._ended:
            return
        self._began = self._began or time.monotonic()
        self._first.setdefault(told.arm_id, told.step)
        self._steps[told.arm_id] = told.step
        self._running.add(told.arm_id)
        name = label(self._arms[told.arm_id], self._varied)
        losses = [row.loss for row in report.rows if isinstance(row, EvalRow)]
        if losses:
            self._latest = (
                f"{name} step {told.step}/{self._arms[told.arm_id].steps} val loss {losses[-1]:.4f}"
            )
        if told.status != "running":
            self._end(told.arm_id, told.status, losses[-1] if losses else None)
        self._show(force=told.status != "running")

    def on_failure(self, arm: Arm, failure: Failure, then: str) -> None:
        """Say which arm failed, why, and what becomes of it."""
        self._running.discard(arm.id)
        name = escape(label(arm, self._varied))
        if not failure.is_fault:
            self.say(f"[yellow]‖[/] {name}: {escape(failure.message)}" + (f" ({then})" if then else ""))
            return
        self.say(f"[red]✗[/] {name}: {failure.cause}: {escape(failure.message)} ({then})")

    def _end(self, arm_id: str, status: str, loss: float | None) -> None:
        arm = self._arms[arm_id]
        name = escape(label(arm, self._varied))
        self._running.discard(arm_id)
        if status == "interrupted":
            self.say(f"[yellow]‖[/] {name} stopped at step {self._steps[arm_id]}/{arm.steps}, checkpointed")
            return
        self._done += 1
        self._ended.add(arm_id)
        if status == "diverged":
            at = f"step {self._steps[arm_id]}/{arm.steps}"
            self.say(f"[yellow]![/] {name} diverged at {at}: its loss is no longer a number")
            self._steps[arm_id] = arm.steps
            return
        self.say(f"[green]✓[/] {name}  val loss {loss:.4f}" if loss is not None else f"[green]✓[/] {name}")

    def line(self) -> str:
        """Return the state of the run in one line."""
        left = len(self._arms) - self._done - len(self._running)
        parts = [f"{self._done}/{len(self._arms)} arms done", f"{len(self._running)} running", f"{left} left"]
        speed = self.tokens_per_second()
        if speed:
            ahead = sum(
                (self._arms[i].steps - step) * self._arms[i].tokens_per_step
                for i, step in self._steps.items()
            )
            parts += [f"{speed:,.0f} tok/s", f"{duration(ahead / speed)} left"]
        return " · ".join([*parts, self._latest] if self._latest else parts)

    def tokens_per_second(self) -> float | None:
        """Return the tokens that all workers together trained on per second, so far."""
        if self._began is None:
            return None
        trained = sum(
            (self._steps[i] - first) * self._arms[i].tokens_per_step for i, first in self._first.items()
        )
        return trained / (time.monotonic() - self._began) or None


def duration(seconds: float) -> str:
    """Return a length of time as people say it: `45 s`, `3 min 20 s`, `5 h 12 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def quantity(value: float) -> str:
    """Return a number with an SI prefix, to be followed by its unit: `1.5 G`."""
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g} "
