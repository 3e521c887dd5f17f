"""What command-line arguments mean, and whether what they name can be used."""

from pathlib import Path
from typing import Any

from schemas.errors import UserError


def parse_where(conditions: list[str] | None) -> dict[str, Any]:
    """Return the filters that `--where` conditions mean. Raises `UserError`."""
    from schemas.loader import parse_scalar
    from schemas.trial import AXES

    filters: dict[str, Any] = {}
    for condition in conditions or []:
        name, equals, text = condition.partition("=")
        if not equals:
            raise UserError(f"--where {condition}: write AXIS=VALUE, AXIS=A,B,C or AXIS=LOW..HIGH.")
        if name == "sweep" or name in filters:
            again = (
                "the sweep is the command's argument"
                if name == "sweep"
                else "write all values in one, with commas"
            )
            raise UserError(f"--where {condition}: {again}.")
        parse = AXES[name].parse if name in AXES else parse_scalar
        if ".." in text:
            low, _, high = text.partition("..")
            filters[name] = (parse(low) if low else None, parse(high) if high else None)
        elif "," in text:
            filters[name] = [parse(part) for part in text.split(",")]
        else:
            filters[name] = parse(text)
    return filters


def why_unwritable(directory: Path) -> str | None:
    """Make a directory if need be, and return the reason why nothing can be written to it, if there is one."""
    probe = directory / ".writable"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.strerror
    return None
