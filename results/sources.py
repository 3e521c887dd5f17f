"""Which code and environment numbers come from, and in what those of several differ."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from results.frames import and_list


def code(row: Mapping[Any, Any]) -> str:
    """Return the code of a row with `git_sha` and `dirty` for a reader: `0123456789ab with uncommitted changes`."""
    dirty = {True: " with uncommitted changes"}.get(row["dirty"], "")
    return "unknown" if pd.isna(row["git_sha"]) else f"{row['git_sha'][:12]}{dirty}"


def environment(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the versions and hardware in a row's `environment`, packages among them; empty where none is known."""
    document = {} if pd.isna(row["environment"]) else json.loads(row["environment"])
    return document.pop("packages", {}) | document  # type: ignore[no-any-return]


def differences(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Return in what rows with `git_sha`, `dirty` and `environment` differ, such as `torch (2.1.0 and 2.13.0)`.

    Empty where they are of one code and environment.
    """
    known = [{"code": code(row)} | environment(row) for row in rows]
    names = dict.fromkeys(name for one in known for name in one)
    found = {name: sorted({str(one.get(name, "unknown")) for one in known}) for name in names}
    return and_list([f"{name} ({and_list(values)})" for name, values in found.items() if len(values) > 1])
