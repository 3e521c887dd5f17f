"""Which nodes a run may use, and how many jobs have room on them."""

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future

RECOUNT_S = 10.0
"""Seconds between looks at the cluster for nodes that joined or left."""
ASK_AGAIN_S = 60.0
"""Seconds until a node that was not fit is asked again: it may have been late, or its mount may have come."""


class Newcomers:
    """Nodes that joined after a run began, none of which is used before it is found fit.

    Args:
        known: the ids of those that were there.
        living: returns the ids of those that are there now.
        ask: begins to find out why which of some nodes are unfit. The run goes on meanwhile.
    """

    def __init__(
        self,
        known: Collection[str],
        living: Callable[[], Collection[str]],
        ask: Callable[[Collection[str]], "Future[dict[str, str]]"],
    ) -> None:
        self._known, self._living, self._ask = set(known), living, ask
        self.unusable: set[str] = set()
        """Those that are not known to be fit."""
        self._asked: set[str] = set()
        self._answer: Future[dict[str, str]] | None = None
        self._reasons: dict[str, str] = {}
        self._again = 0.0

    def look(self) -> list[str]:
        """Look who joined, and return what is new about those that are unfit."""
        said = self._hear(self._answer) if self._answer is not None and self._answer.done() else []
        self.unusable = set(self._living()) - self._known
        if self._answer is None:
            is_time = time.monotonic() >= self._again
            self._asked = self.unusable if is_time else self.unusable - self._reasons.keys()
            self._answer = self._ask(self._asked) if self._asked else None
        return said

    def _hear(self, answer: "Future[dict[str, str]]") -> list[str]:
        if (error := answer.exception()) is None:
            reasons = answer.result()
        else:
            reasons = dict.fromkeys(self._asked, f"it could not be asked ({type(error).__name__}: {error}).")
        self._answer = None
        self._again = time.monotonic() + ASK_AGAIN_S
        self._known |= self._asked - reasons.keys()
        new = reasons.items() - self._reasons.items()
        self._reasons |= reasons
        return [f"Node {node[:8]} joined the cluster and is not used: {why}" for node, why in sorted(new)]


class Room:
    """The nodes of a run.

    Args:
        slots_without: how many jobs can run at once on the nodes besides these.
        newcomers: the nodes that join it.
    """

    def __init__(self, slots_without: Callable[[set[str]], int], newcomers: Newcomers) -> None:
        self._slots_without, self._newcomers = slots_without, newcomers
        self._failed: set[str] = set()
        self.slots = slots_without(self.avoided)
        """How many jobs can run at once."""
        self._counted = time.monotonic()

    @property
    def avoided(self) -> set[str]:
        """Nodes on which nothing more is started: those where too much failed, and unfit or unknown ones."""
        return self._failed | self._newcomers.unusable

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() - self._counted > RECOUNT_S

    def avoid(self, node: str) -> bool:
        """Use the other nodes alone from now on, if there is one that can."""
        if node in self.avoided or not (slots := self._slots_without(self.avoided | {node})):
            return False
        self._failed.add(node)
        self.slots = slots
        return True

    def look(self) -> list[str]:
        """Use nodes that joined and were found fit, and return what there is to say of those that were not."""
        self._counted = time.monotonic()
        return self._newcomers.look()

    def recount(self) -> str | None:
        """Count the slots anew, and return what is new."""
        before, self.slots = self.slots, self._slots_without(self.avoided)
        if self.slots == before:
            return None
        now = f"{self.slots} at once" if self.slots else "no trial: the next one waits for a node"
        return f"The cluster has room for {now}, before it was {before}."
