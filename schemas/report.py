"""What a worker tells the driver, and the journal that says the same on disk.

An arm's folder holds `arm.json` (an `ArmRecord`), `metrics.jsonl` (one row a line) and
`checkpoints/`. The database's rows about an arm can be rebuilt from these files alone.
"""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from schemas.errors import UserError

Status = Literal["running", "done", "diverged", "interrupted"]
"""How an arm stands. `diverged` is a result: the loss was no longer a finite number."""


class Metric(NamedTuple):
    """What a number in `layer_metric` means."""

    label: str
    unit: str | None
    goal: Literal["min", "max", "none"]
    description: str


METRICS: dict[str, Metric] = {
    "cos_vv": Metric(
        "cos(v_i, v_j)", None, "none", "mean cosine of the value vectors of two distinct positions"
    ),
    "a_ii": Metric("a_ii", None, "none", "mean attention weight of a token on itself (position 0 left out)"),
    "cos_yv": Metric(
        "cos(y_i, v_i)",
        None,
        "none",
        "mean cosine of the attention output with the own value, before exclusion (position 0 left out)",
    ),
    "cos_zv": Metric(
        "cos(z_i, v_i)",
        None,
        "none",
        "mean cosine with the own value after exclusion, if any (position 0 left out)",
    ),
    "z_over_y": Metric(
        "|z_i| / |y_i|",
        None,
        "none",
        "mean share of the output's length left by exclusion (position 0 left out)",
    ),
    "coef": Metric(
        "(y_i · v_i) / |v_i|²",
        None,
        "none",
        "mean multiple of the own value in the attention output, before exclusion (position 0 left out)",
    ),
    "coef_a_ii_share": Metric(
        "share of a_ii in the coefficient",
        None,
        "none",
        "mean a_ii over the mean coefficient: the rest comes from other positions' similar values",
    ),
    "entropy": Metric(
        "attention entropy",
        "nats",
        "none",
        "mean entropy of a query's attention weights, sinks included (position 0 left out)",
    ),
}
"""The per-layer metrics, by the name that rows and queries use."""


@dataclass(frozen=True)
class StepRow:
    """One optimizer step: `train_loss` is that of the batch before the update."""

    step: int
    """Updates done, from 1."""
    train_loss: float
    lr: float
    grad_norm: float
    """Norm of the whole gradient before clipping."""
    tok_per_s: float
    time_us: int
    """UTC, microseconds since 1970."""


@dataclass(frozen=True)
class EvalRow:
    """One evaluation on a fixed part of a split."""

    step: int
    split: Literal["val"]
    loss: float
    """Mean cross entropy in nats per token."""
    n_tokens: int
    time_us: int


@dataclass(frozen=True)
class LayerRow:
    """One bias metric of one layer, averaged over heads and sequences."""

    step: int
    metric: str
    layer: int
    value: float


Row = StepRow | EvalRow | LayerRow
_ROWS: dict[str, type[StepRow] | type[EvalRow] | type[LayerRow]] = {
    "step": StepRow,
    "eval": EvalRow,
    "layer": LayerRow,
}
_KINDS = {row: kind for kind, row in _ROWS.items()}
_FLOATS = {
    row: {name for name, annotation in row.__annotations__.items() if annotation is float}
    for row in _ROWS.values()
}


@dataclass(frozen=True)
class Weights:
    """Where a finished arm's weights are, and what they must be."""

    step: int
    """Updates that they had."""
    path: str
    """Their directory, from the arm's folder."""
    bytes: int
    """Size of the files in it."""
    manifest_sha256: str
    """Hash of its manifest, which has that of the weights."""
    time_us: int
    """When they were saved: UTC, microseconds since 1970."""


@dataclass(frozen=True)
class ArmRecord:
    """`arm.json`: what an arm is and where it stands, whatever its rows say."""

    arm: dict[str, Any]
    """The arm's settings, a dump of `schemas.trial.Arm`."""
    arm_id: str
    attempt: int
    """Number of the attempt that wrote this; a lower number never overwrites a higher one."""
    status: Status
    step: int
    """Updates done by the last durable row."""
    n_params: int
    init_sha256: str
    """Hash of the initial weights; equal in both arms of a pair."""
    batch_sha256: str
    """Hash of the first batches; equal in both arms of a pair."""
    data_sha256: str
    """Hash of the token stream that the arm trains on."""
    wall_s: float
    """Seconds spent training, over all attempts."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Hardware and versions of the last attempt."""
    weights: Weights | None = None
    """The final weights; None before the end, and of an arm that diverged."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> "ArmRecord":
        """Return the record that `dataclasses.asdict` made this document of."""
        document = {"weights": None, **document}
        weights = document.pop("weights")
        return cls(**document, weights=Weights(**weights) if weights else None)


@dataclass(frozen=True)
class Report:
    """One message from a worker: the record, and the rows since the last message."""

    record: ArmRecord
    rows: list[Row]

    def dumps(self) -> str:
        """Return this report as one JSON text."""
        return json.dumps({"record": asdict(self.record), "rows": [row_to_json(row) for row in self.rows]})

    @classmethod
    def loads(cls, text: str) -> "Report":
        """Return the report that `dumps` wrote."""
        document = json.loads(text)
        return cls(ArmRecord.of(document["record"]), [row_from_json(row) for row in document["rows"]])


def _encode(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def row_to_json(row: Row) -> dict[str, Any]:
    """Return `row` as a JSON object; a NaN or infinity becomes the text `nan`, `inf` or `-inf`."""
    return {"row": _KINDS[type(row)]} | {key: _encode(value) for key, value in asdict(row).items()}


def row_from_json(document: dict[str, Any]) -> Row:
    """Return the row that `row_to_json` wrote."""
    document = dict(document)
    kind = _ROWS[document.pop("row")]
    floats = _FLOATS[kind]
    values: dict[str, Any] = {
        key: float(value) if key in floats else value for key, value in document.items()
    }
    return kind(**values)


class DamagedJournal(UserError):
    """An arm's `arm.json` or journal is not what a worker writes."""


def arm_folder(storage: Path, arm_id: str) -> Path:
    """Return the folder of an arm: twelve digits of its identity are distinct and short enough."""
    return storage / "arms" / arm_id[:12]


def write_record(folder: Path, record: ArmRecord) -> None:
    """Replace `arm.json` whole: a reader never sees half of one, even after a power cut."""
    temporary = folder / "arm.json.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(asdict(record), file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "arm.json")


def read_record(folder: Path) -> ArmRecord | None:
    """Return the record of the arm in `folder`, or None where nothing was begun. Raises `DamagedJournal`."""
    path = folder / "arm.json"
    if not path.exists():
        return None
    try:
        record = ArmRecord.of(json.loads(path.read_text(encoding="utf-8")))
        if record.status not in get_args(Status):
            raise ValueError(f"status '{record.status}' is none of {', '.join(get_args(Status))}")
        return record
    except (ValueError, TypeError, OSError) as error:
        raise _damaged(path, error) from error


def parse_rows(lines: Iterable[str]) -> list[Row]:
    """Return the rows in `lines`, up to a last line cut short by a crash."""
    return [row_from_json(json.loads(line)) for line in lines if line.endswith("\n")]


def read_finished(folder: Path, record: ArmRecord) -> list[Row]:
    """Return all rows of an arm that has ended. Raises `DamagedJournal` if its last ones are not there."""
    rows = read_rows(folder)
    wanted = EvalRow if record.status == "done" else StepRow
    if not any(isinstance(row, wanted) and row.step == record.step for row in rows):
        raise _damaged(folder / "metrics.jsonl", ValueError(f"it has no last row, of step {record.step}"))
    return rows


def read_rows(folder: Path) -> list[Row]:
    """Return all rows in the journal of the arm in `folder`. Raises `DamagedJournal`."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8") as journal:
            return parse_rows(journal)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DamagedJournal:
    return DamagedJournal(
        f"{path} cannot be read ({error}). Remove {path.parent}; the arm is then trained anew."
    )
