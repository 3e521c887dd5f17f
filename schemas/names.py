"""One wording for every unknown name: the nearest known one, then the list."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from schemas.errors import UserError

T = TypeVar("T")


class UnknownName(UserError):
    """A name that nothing has. `str()` gives the nearest name and all known ones."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownName:
    """Return the error for `name`, which is no `kind` ("axis", "figure", ...) among `known`."""
    known = sorted(known)
    near = get_close_matches(str(name), known, n=1, cutoff=0.6)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UnknownName(f"Unknown {kind} '{name}'.{hint} Known: {', '.join(known) or 'none'}.")


def lookup(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return `table[name]`, or raise `UnknownName` with the nearest name."""
    if name not in table:
        raise unknown_name(kind, name, table)
    return table[name]
