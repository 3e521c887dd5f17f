"""How the commands tell of downstream evaluations."""

from collections import Counter
from typing import TYPE_CHECKING

from rich.markup import escape

from orchestrator.show import console

if TYPE_CHECKING:
    from orchestrator.evaluate import Outcome

_MOST = 10
"""Errors that are listed one by one."""


def print_outcome(outcome: "Outcome", sweeps: list[str]) -> None:
    """Print how an evaluation ended, what went wrong in it, and where the scores are."""
    names = ", ".join(sweeps)
    line = f"{names}: {outcome.done} of {outcome.wanted} evaluations done"
    for status, n in outcome.skipped.items():
        why = "diverged and have no weights" if status == "diverged" else f"are {status}, not done"
        line += f"; {n} arms {why}"
    console.print(line, markup=False, soft_wrap=True)
    errors = Counter((result.task, result.error) for _, result in outcome.results if result.error)
    for (task, error), n in list(errors.items())[:_MOST]:
        console.print(f"  [red]{escape(task)}[/] on {n} arms: {escape(error or '')}", soft_wrap=True)
    if len(errors) > _MOST:
        console.print(f"  {len(errors) - _MOST} more errors are in the store.")
    if outcome.done:
        console.print(f"Scores: results.open().evals(sweep={sweeps[0]!r})", markup=False, soft_wrap=True)
