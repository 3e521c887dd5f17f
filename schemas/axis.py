"""What one field of `Trial` declares about itself, and how the rest of the program reads it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from schemas.errors import UserError
from schemas.loader import parse_scalar


def _whole(value: object) -> object:
    """`1e3` is a float in YAML 1.2 and means 1000 where a count is asked for."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _storable(value: int) -> int:
    if value.bit_length() > 63:
        raise ValueError("is more than a database can hold (63 bits)")
    return value


def _positive_zero(value: float) -> float:
    return value + 0.0  # -0.0 and 0.0 are one setting and must be one identity


Int = Annotated[int, BeforeValidator(_whole), AfterValidator(_storable)]
Float = Annotated[float, AfterValidator(_positive_zero)]


def axis(
    default: Any,
    label: str,
    *,
    unit: str | None = None,
    log: bool = False,
    identity: bool = True,
    commas: bool = False,
    **options: Any,
) -> Any:
    """Declare a field of `Trial` as an axis.

    Args:
        default: its value where a sweep does not name it.
        label: what figures and messages call it.
        unit: its unit, for labels.
        log: whether figures draw it on a logarithmic axis.
        identity: False for a label that follows from other axes and is not hashed.
        commas: whether a value may hold commas, which then separate no values on a command line.
        options: limits as Pydantic spells them (`ge`, `gt`, `le`, `lt`), and
            `before=VALUE`: what arms trained before this axis existed had in effect. An arm at
            that value keeps the identity it had then; an older database fills its column with it.
            `sa=VALUE`: the value to which a baseline arm is normalised, for XSA-only axes.
    """
    extra: dict[str, Any] = {"unit": unit, "log": log, "identity": identity, "commas": commas}
    extra |= {key: options.pop(key) for key in ("before", "sa") if key in options}
    return Field(default, title=label, json_schema_extra=extra, **options)


_LIMITS = {
    "ge": "{value!r} is below {bound}, the least {label}.",
    "gt": "{value!r} cannot be the {label}: it must be above {bound}.",
    "le": "{value!r} is above {bound}, the greatest {label}.",
    "lt": "{value!r} cannot be the {label}: it must be below {bound}.",
}


@dataclass(frozen=True)
class Axis:
    """One axis as its field declares it."""

    name: str
    kind: type
    """`float`, `int`, `str` or `bool`."""
    default: Any
    label: str
    unit: str | None
    log: bool
    identity: bool
    commas: bool
    choices: tuple[str, ...]
    """The admitted values of a closed axis, else empty."""
    limits: Mapping[str, float]
    description: str
    history: Mapping[str, Any]
    """`before` and `sa`, where declared."""
    adapter: TypeAdapter[Any]

    @classmethod
    def from_field(cls, name: str, field: FieldInfo) -> "Axis":
        """Read the axis that `axis()` declared on this field."""
        extra = field.json_schema_extra
        assert isinstance(extra, dict) and field.title, f"field {name} is not declared with axis()"
        kind: Any = field.annotation
        closed = get_origin(field.annotation) is Literal
        if closed:
            kind = str
        assert kind in (float, int, str, bool), f"axis {name} has no column type: {kind}"
        limits = {
            key: getattr(rule, key)
            for rule in field.metadata
            for key in ("ge", "gt", "le", "lt")
            if hasattr(rule, key)
        }
        ruled: Any = Annotated[field.annotation, None, *field.metadata]
        return cls(
            name=name,
            kind=kind,
            default=field.default,
            label=field.title,
            unit=extra["unit"],  # type: ignore[arg-type]
            log=bool(extra["log"]),
            identity=bool(extra["identity"]),
            commas=bool(extra["commas"]),
            choices=get_args(field.annotation) if closed else (),
            limits=limits,
            description=" ".join((field.description or "").split()),
            history={key: extra[key] for key in ("before", "sa") if key in extra},
            adapter=TypeAdapter(ruled, config=ConfigDict(strict=True, allow_inf_nan=False)),
        )

    @property
    def title(self) -> str:
        """Label and unit, for a figure's axis."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def check(self, value: object) -> Any:
        """Return `value` as this axis stores it, or raise `UserError` saying why it cannot be."""
        try:
            return self.adapter.validate_python(value)
        except ValidationError as error:
            raise UserError(self._explain(value, error)) from None

    def _explain(self, value: object, error: ValidationError) -> str:
        first = error.errors()[0]
        for key, wording in _LIMITS.items():
            if key in first.get("ctx", {}):
                return wording.format(value=value, bound=self.limits[key], label=self.label)
        if self.choices:
            return f"{value!r} is no {self.label}. Known: {', '.join(self.choices)}."
        if first["type"] == "value_error":
            reason = first["ctx"]["error"]
            return str(reason) if isinstance(reason, UserError) else f"{value!r} {reason}."
        if first["type"] == "finite_number":
            return f"{value!r} is not a finite number, which {self.label} must be."
        wanted = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
        given = {str: "text", bool: "true/false", type(None): "nothing", list: "a list", dict: "a mapping"}
        got = given.get(type(value), type(value).__name__)
        return f"{value!r} is {got}; {self.label} must be {wanted[self.kind]}."

    def parse(self, text: str) -> Any:
        """Return the value that `text` means on a command line, or raise `UserError`."""
        value = text if self.kind is str else parse_scalar(text)
        return self.check(value)

    def format(self, value: Any) -> str:
        """Return the shortest exact text for `value`; a whole float goes without its `.0`."""
        if self.kind is not float:
            return str(value)
        return re.sub(r"\.0$", "", repr(float(value)))
