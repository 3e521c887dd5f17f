"""The tables and views of the store. Axis columns come from `schemas.trial.AXES` alone.

Floats that may not be finite have a `_kind` column beside them, because SQLite turns NaN into NULL:
0 finite, 1 NaN, 2 +infinity, 3 -infinity; the value is NULL unless the kind is 0. Times are UTC
microseconds since 1970 (`_us`).
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, CheckConstraint, Double, ForeignKey, Index, Integer, String, Text

from schemas.trial import AXES

SCHEMA_VERSION = 1
"""Version of the tables' structure; axis columns are not part of it."""
ARM_STATUS = ("pending", "running", "done", "diverged", "failed", "interrupted")
FINISHED = ("done", "diverged")
"""Statuses that are results: such an arm is never trained again."""

metadata = sa.MetaData()
_TYPES: dict[type, Any] = {float: Double, int: BigInteger, str: String, bool: Boolean}


def _id() -> sa.Column[int]:
    return sa.Column("id", Integer, primary_key=True, autoincrement=True)


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(map(repr, values))})")


def axis_columns() -> list[sa.Column[Any]]:
    """Return a typed NOT NULL column for each axis, with its description as comment."""
    return [
        sa.Column(axis.name, _TYPES[axis.kind], nullable=False, comment=axis.description)
        for axis in AXES.values()
    ]


schema_meta = sa.Table(
    "schema_meta",
    metadata,
    sa.Column(
        "version", Integer, primary_key=True, comment="SCHEMA_VERSION of the program that made the tables"
    ),
    sa.Column("views", Text, nullable=False, comment="hash of the views' definitions"),
)
sweep = sa.Table(
    "sweep",
    metadata,
    _id(),
    sa.Column("name", String, nullable=False, unique=True),
    sa.Column("description", Text, nullable=False),
    sa.Column("source", Text, nullable=False, comment="the YAML file as it was last run"),
    sa.Column("storage", Text, nullable=False, comment="where the arms' folders are"),
    sa.Column("created_at_us", BigInteger, nullable=False),
    sa.Column("updated_at_us", BigInteger, nullable=False),
)
arm = sa.Table(
    "arm",
    metadata,
    _id(),
    sa.Column(
        "fingerprint", String(64), nullable=False, unique=True, comment="identity: schemas.trial.Arm.id"
    ),
    sa.Column("name", String(3), nullable=False, comment="'sa' or 'xsa'"),
    *axis_columns(),
    sa.Column("status", String, _one_of("status", ARM_STATUS), nullable=False),
    sa.Column("reason", Text, comment="why the last attempt ended, unless it finished"),
    sa.Column(
        "attempt", Integer, nullable=False, comment="number of the newest attempt; older ones are fenced"
    ),
    sa.Column("step", BigInteger, nullable=False, comment="updates done"),
    sa.Column("n_params", BigInteger),
    sa.Column("init_sha256", String(64), comment="initial weights; equal in both arms of a pair"),
    sa.Column("batch_sha256", String(64), comment="first batches; equal in both arms of a pair"),
    sa.Column("data_sha256", String(64), comment="the token stream"),
    sa.Column("wall_s", Double),
    sa.Column("lease_owner", Text, comment="the run that trains it now"),
    sa.Column("lease_until_us", BigInteger),
    sa.Column("created_at_us", BigInteger, nullable=False),
    sa.Column("finished_at_us", BigInteger),
    Index("arm_status", "status", "lease_until_us"),
)
trial = sa.Table(
    "trial",
    metadata,
    _id(),
    sa.Column(
        "fingerprint", String(64), nullable=False, unique=True, comment="identity: schemas.trial.Trial.id"
    ),
    sa.Column("sa_arm_id", ForeignKey("arm.id"), nullable=False, index=True),
    sa.Column("xsa_arm_id", ForeignKey("arm.id"), nullable=False, index=True),
    sa.Column("created_at_us", BigInteger, nullable=False),
)
sweep_trial = sa.Table(
    "sweep_trial",
    metadata,
    sa.Column("sweep_id", ForeignKey("sweep.id"), primary_key=True),
    sa.Column("trial_id", ForeignKey("trial.id"), primary_key=True, index=True),
    sa.Column("ordinal", Integer, nullable=False, comment="place in the sweep file's order"),
)
environment = sa.Table(
    "environment",
    metadata,
    _id(),
    sa.Column("fingerprint", String(64), nullable=False, unique=True),
    sa.Column("document", Text, nullable=False, comment="versions of packages and hardware, as JSON"),
)
attempt = sa.Table(
    "attempt",
    metadata,
    _id(),
    sa.Column("arm_id", ForeignKey("arm.id"), nullable=False),
    sa.Column("no", Integer, nullable=False),
    sa.Column("status", String, nullable=False),
    sa.Column("cause", String, comment="user_error, host_oom, ... where it did not finish"),
    sa.Column("error", Text),
    sa.Column("traceback", Text),
    sa.Column("owner", Text, nullable=False),
    sa.Column("hostname", String),
    sa.Column("device", String),
    sa.Column("threads", Integer),
    sa.Column("environment_id", ForeignKey("environment.id")),
    sa.Column("git_sha", String(40)),
    sa.Column("dirty", Boolean, comment="whether the code had uncommitted changes"),
    sa.Column("peak_rss_bytes", BigInteger),
    sa.Column("started_at_us", BigInteger, nullable=False),
    sa.Column("ended_at_us", BigInteger),
    sa.UniqueConstraint("arm_id", "no"),
)
arm_step = sa.Table(
    "arm_step",
    metadata,
    sa.Column("arm_id", ForeignKey("arm.id"), primary_key=True),
    sa.Column("step", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("train_loss", Double),
    sa.Column("train_loss_kind", Integer, nullable=False),
    sa.Column("lr", Double, nullable=False),
    sa.Column("grad_norm", Double),
    sa.Column("grad_norm_kind", Integer, nullable=False),
    sa.Column("tok_per_s", Double, nullable=False),
    sa.Column("time_us", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
arm_eval = sa.Table(
    "arm_eval",
    metadata,
    sa.Column("arm_id", ForeignKey("arm.id"), primary_key=True),
    sa.Column("step", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("split", String, primary_key=True),
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("loss", Double),
    sa.Column("loss_kind", Integer, nullable=False),
    sa.Column("n_tokens", BigInteger, nullable=False),
    sa.Column("time_us", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
metric = sa.Table(
    "metric",
    metadata,
    _id(),
    sa.Column("name", String, nullable=False, unique=True),
    sa.Column("label", String, nullable=False),
    sa.Column("unit", String),
    sa.Column("goal", String, nullable=False),
    sa.Column("description", Text, nullable=False),
)
layer_metric = sa.Table(
    "layer_metric",
    metadata,
    sa.Column("arm_id", ForeignKey("arm.id"), primary_key=True),
    sa.Column("metric_id", ForeignKey("metric.id"), primary_key=True),
    sa.Column("step", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("layer", Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("value", Double),
    sa.Column("value_kind", Integer, nullable=False),
    sqlite_with_rowid=False,
)
