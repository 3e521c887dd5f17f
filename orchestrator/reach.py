"""A store that may be out of reach for a while, which training must outlive."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.markup import escape

from results.location import StoreError
from results.store import Store

SLOW_S = 1.0
"""A failure that took longer than this is not risked again at once."""
PAUSE_S = 10.0
"""The store is then left alone for as long as the failure took, but no longer than this."""


class _TooEarly(StoreError):
    """The store failed a moment ago and has not been asked again."""


class Reach:
    """A store, and whether it answered when it was last asked."""

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self._not_before = 0.0
        self.lost = False
        """Whether the last `attempt` failed, or was too early to be made."""

    @property
    def store(self) -> Store:
        """The store. Raises `StoreError` while it is left alone.

        A server that is silent holds each call up for seconds, and with it every trial that reports.
        """
        if time.monotonic() < self._not_before:
            raise _TooEarly(f"{self._store.name} did not answer a moment ago.")
        return self._store

    def at_once(self) -> None:
        """Let the store be asked again without waiting."""
        self._not_before = 0.0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Let a `StoreError` pass, said once an outage."""
        began = time.monotonic()
        try:
            yield
        except _TooEarly:
            self.lost = True
        except StoreError as error:
            if not self.lost:
                self._say(
                    f"[yellow]{escape(str(error))}[/] Training goes on, and its journals are read later."
                )
            self.lost = True
            now = time.monotonic()
            self._not_before = now + min(now - began, PAUSE_S) if now - began > SLOW_S else 0.0
        else:
            self.lost = False
