"""What an evaluation says while it runs: a live line on a terminal, now and then a plain line elsewhere."""

import time
from collections import defaultdict

from rich.console import Console
from rich.markup import escape

from orchestrator.failures import Failure
from orchestrator.progress import LiveLine, duration
from schemas.evals import TaskResult, metric_of


class EvalProgress(LiveLine):
    """Follows the results of one evaluation."""

    def __init__(self, console: Console, *, had: int, wanted: int) -> None:
        super().__init__(console)
        self._done = had
        self._wanted = wanted
        self._ended = 0
        self._left = wanted - had
        self._running: set[str] = set()
        self._found: defaultdict[str, list[str]] = defaultdict(list)
        self._errors: set[tuple[str, str | None]] = set()
        self._busy: set[str] = set()
        self._began: float | None = None

    def on_start(self, arm_id: str) -> None:
        """Take note that an arm's weights are being asked."""
        self._began = self._began or time.monotonic()
        self._running.add(arm_id)
        self._show()

    def on_result(self, arm_id: str, name: str, result: TaskResult, *, last: bool) -> None:
        """Take in a result; an arm's results are a line when the last is there, an error is one at once."""
        self._ended += 1
        self._done += result.error is None
        if result.error is None:
            self._found[arm_id].append(_score(result))
        elif (result.task, result.error) not in self._errors:  # the other arms' are alike
            self._errors.add((result.task, result.error))
            self.say(f"[red]✗[/] {escape(f'{name}  {result.task}: {result.error}')}")
        if last:
            self._running.discard(arm_id)
            if found := self._found.pop(arm_id, []):
                self.say(f"[green]✓[/] {escape(name)}  {escape(', '.join(found))}")
        self._show()

    def on_lost(self, arm_id: str, name: str, failure: Failure, then: str) -> None:
        """Say which arm's evaluation ended without results, and why."""
        self._running.discard(arm_id)
        self.say(f"[red]✗[/] {escape(f'{name}: {failure.cause}: {failure.message} ({then})')}")

    def on_busy(self, arm_id: str, name: str) -> None:
        """Say once which arm another evaluation has."""
        self._running.discard(arm_id)
        if arm_id not in self._busy:
            self._busy.add(arm_id)
            self.say(f"{escape(name)}: another evaluation has it; what that one finds is taken over.")

    def line(self) -> str:
        """Return the state of the evaluation in one line."""
        parts = [f"{self._done}/{self._wanted} evaluations done", f"{len(self._running)} arms running"]
        if self._ended and self._began:
            seconds = (time.monotonic() - self._began) / self._ended * (self._left - self._ended)
            parts.append(f"{duration(seconds)} left")
        return " · ".join(parts)


def _score(result: TaskResult) -> str:
    metric = metric_of(result.task, result.scores)
    return result.task if metric is None else f"{result.task} {metric} {result.scores[metric].value:.3f}"
