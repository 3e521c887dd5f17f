"""A job under way, as a run's driver knows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.owner import Place
from orchestrator.plan import Job


@dataclass
class Running:
    """A job under way."""

    job: Job
    attempts: dict[str, int]
    """Number of the attempt at each arm, by the arm's id."""
    place: Place | None = None
    """Where its worker is, once it has said so."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What its worker last said of where and how it trains."""
    behind: set[str] = field(default_factory=set)
    """The arms of which the store has missed a report: their rows are in the journals alone."""

    @property
    def node(self) -> str | None:
        """Ray's id of the worker's node."""
        return self.place.node if self.place else None
