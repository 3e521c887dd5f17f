"""The tables and views of the store. Axis columns come from `schemas.trial.AXES` alone.

Floats that may not be finite have a `_kind` column beside them, because SQLite turns NaN into NULL:
0 finite, 1 NaN, 2 +infinity, 3 -infinity; the value is NULL unless the kind is 0. Times are UTC
microseconds since 1970 (`_us`).
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Double, ForeignKey, Index, Integer, String, Text

from results.schema_evals import eval_item as eval_item
from results.schema_evals import eval_result as eval_result
from results.schema_evals import eval_score as eval_score
from results.schema_parts import NAME, id_column, one_of
from results.schema_parts import metadata as metadata
from schemas.trial import AXES

REVISION = "0004"
"""The newest of results/migrations, which ends in these tables; axis columns are not part of it."""
ARM_STATUS = ("pending", "running", "done", "diverged", "failed", "interrupted")
FINISHED = ("done", "diverged")
"""Statuses that are results: such an arm is never trained again."""

EVENT_LEVEL = ("info", "warning", "error")
ARTIFACT = ("figure", "table", "report")
BENCH_KEY = (
    *("hostname", "device", "threads", "variant", "seq_len", "d_model", "n_head", "d_head"),
    *("batch_size", "dtype", "execution", "direction"),
)
"""What makes two measurements of a block those of the same thing."""

_TYPES: dict[type, Any] = {float: Double, int: BigInteger, str: NAME, bool: Boolean}


def axis_columns() -> list[sa.Column[Any]]:
    """Return a typed NOT NULL column for each axis, with its description as comment."""
    return [
        sa.Column(axis.name, _TYPES[axis.kind], nullable=False, comment=axis.description)
        for axis in AXES.values()
    ]


alembic_version = sa.Table(
    "alembic_version",
    metadata,
    sa.Column("version_num", String(32), nullable=False, comment="a file in results/migrations"),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""One row: the revision of the tables. Alembic's own, declared here so that reading needs no Alembic."""
schema_meta = sa.Table(
    "schema_meta",
    metadata,
    sa.Column("views", String(64), primary_key=True, comment="hash of the views' definitions"),
)
"""One row."""
sweep = sa.Table(
    "sweep",
    metadata,
    id_column(),
    sa.Column("name", NAME, nullable=False, unique=True, comment="what commands call it"),
    sa.Column("description", Text, nullable=False),
    sa.Column("source", Text, nullable=False, comment="the YAML file as it was last run"),
    sa.Column("storage", Text, nullable=False, comment="where the arms' folders are"),
    sa.Column("created_at_us", BigInteger, nullable=False),
    sa.Column("updated_at_us", BigInteger, nullable=False),
)
arm = sa.Table(
    "arm",
    metadata,
    id_column(),
    sa.Column(
        "fingerprint", String(64), nullable=False, unique=True, comment="identity: schemas.trial.Arm.id"
    ),
    sa.Column("name", String(3), nullable=False, comment="'sa' or 'xsa'"),
    *axis_columns(),
    sa.Column("status", String, one_of("status", ARM_STATUS), nullable=False),
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
    sa.Column("lease_until_us", BigInteger, comment="until then no other run takes it over"),
    sa.Column("created_at_us", BigInteger, nullable=False),
    sa.Column("finished_at_us", BigInteger),
    Index("arm_status", "status", "lease_until_us"),
)
trial = sa.Table(
    "trial",
    metadata,
    id_column(),
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
    id_column(),
    sa.Column("fingerprint", String(64), nullable=False, unique=True, comment="sha256 of the document"),
    sa.Column("document", Text, nullable=False, comment="versions of packages and hardware, as JSON"),
)
attempt = sa.Table(
    "attempt",
    metadata,
    id_column(),
    sa.Column("arm_id", ForeignKey("arm.id"), nullable=False),
    sa.Column("no", Integer, nullable=False, comment="number of the attempt at this arm, from 1"),
    sa.Column("status", String, nullable=False),
    sa.Column("cause", String, comment="user_error, host_oom, ... where it did not finish"),
    sa.Column("error", Text),
    sa.Column("traceback", Text),
    sa.Column("owner", Text, nullable=False, comment="the run that tried, as `session.owner`"),
    sa.Column("hostname", String),
    sa.Column("device", String),
    sa.Column("threads", Integer),
    sa.Column("micro_batch", Integer, comment="sequences in one forward pass"),
    sa.Column("execution", String, comment="`eager` or `compiled`"),
    sa.Column(
        "compile_error",
        Text,
        comment="why it ran eagerly although it was to be compiled, or without its CUDA graphs",
    ),
    sa.Column(
        "activation_checkpointing", Boolean, comment="whether blocks were computed again going backward"
    ),
    sa.Column("flops_per_s", Double, comment="model FLOPs a second in training steps"),
    sa.Column("peak_flops_per_s", Double, comment="the device's, in the arm's precision"),
    sa.Column("peak_source", String, comment="`data sheet`, or `measured` by a matrix product"),
    sa.Column("environment_id", ForeignKey("environment.id")),
    sa.Column("git_sha", String(40)),
    sa.Column("dirty", Boolean, comment="whether the code had uncommitted changes"),
    sa.Column("peak_rss_bytes", BigInteger),
    sa.Column("peak_gpu_bytes", BigInteger),
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
    sa.Column("lr", Double, nullable=False, comment="learning rate of this step"),
    sa.Column("grad_norm", Double),
    sa.Column("grad_norm_kind", Integer, nullable=False),
    sa.Column("tok_per_s", Double, nullable=False),
    sa.Column("time_us", BigInteger, nullable=False, comment="when it was done"),
    sqlite_with_rowid=False,
)
arm_eval = sa.Table(
    "arm_eval",
    metadata,
    sa.Column("arm_id", ForeignKey("arm.id"), primary_key=True),
    sa.Column("step", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("split", String, primary_key=True, comment="what was evaluated: `val`, the held-out text"),
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("loss", Double, comment="mean cross entropy, nats/token"),
    sa.Column("loss_kind", Integer, nullable=False),
    sa.Column("n_tokens", BigInteger, nullable=False, comment="tokens that the loss is the mean of"),
    sa.Column("time_us", BigInteger, nullable=False, comment="when it was done"),
    sqlite_with_rowid=False,
)
metric = sa.Table(
    "metric",
    metadata,
    id_column(),
    sa.Column("name", NAME, nullable=False, unique=True, comment="what queries call it"),
    sa.Column("label", String, nullable=False, comment="what figures call it"),
    sa.Column("unit", String, comment="missing where it is a ratio"),
    sa.Column("goal", String, nullable=False, comment="`min`, `max`, or `none` where neither is better"),
    sa.Column("description", Text, nullable=False, comment="how it is measured"),
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
session = sa.Table(
    "session",
    metadata,
    id_column(),
    sa.Column("owner", Text, nullable=False, unique=True, comment="the run's name in leases"),
    sa.Column("sweep_id", ForeignKey("sweep.id"), nullable=False),
    sa.Column("hostname", String),
    sa.Column("pid", Integer, comment="its process on that machine"),
    sa.Column("started_at_us", BigInteger, nullable=False),
    sa.Column("seen_at_us", BigInteger, nullable=False, comment="its last sign of life"),
    sa.Column("stop_at_us", BigInteger, comment="when somebody asked it to stop"),
    sa.Column("ended_at_us", BigInteger),
    sa.Column("outcome", Text, comment="why it ended"),
)
"""One `xsa run`."""
event = sa.Table(
    "event",
    metadata,
    id_column(),
    sa.Column("time_us", BigInteger, nullable=False, comment="when it happened"),
    sa.Column(
        "level", String, one_of("level", EVENT_LEVEL), nullable=False, comment="info, warning or error"
    ),
    sa.Column("kind", String, nullable=False, comment="one word for what happened, to search by"),
    sa.Column("sweep_id", ForeignKey("sweep.id")),
    sa.Column("arm_id", ForeignKey("arm.id")),
    sa.Column("message", Text, nullable=False, comment="what happened, for a reader"),
    Index("event_time", "sweep_id", "time_us"),
)
"""What happened that no attempt tells."""
checkpoint = sa.Table(
    "checkpoint",
    metadata,
    sa.Column("arm_id", ForeignKey("arm.id"), primary_key=True),
    sa.Column("step", BigInteger, nullable=False, comment="updates that the weights had"),
    sa.Column("path", Text, nullable=False, comment="the directory, from the arm's folder"),
    sa.Column("bytes", BigInteger, nullable=False),
    sa.Column("manifest_sha256", String(64), nullable=False),
    sa.Column("saved_at_us", BigInteger, nullable=False),
)
"""Where a finished arm's weights are."""
artifact = sa.Table(
    "artifact",
    metadata,
    id_column(),
    sa.Column("sweep_id", ForeignKey("sweep.id"), nullable=False),
    sa.Column("kind", String, one_of("kind", ARTIFACT), nullable=False),
    sa.Column("name", NAME, nullable=False, comment="which figure, table or report"),
    sa.Column("path", Text, nullable=False, unique=True, comment="the file, absolute"),
    sa.Column("bytes", BigInteger, nullable=False),
    sa.Column("sha256", String(64), nullable=False),
    sa.Column("filters", Text, nullable=False),
    sa.Column("produced_at_us", BigInteger, nullable=False),
)
"""What was made of the results, as it was last written."""
bench = sa.Table(
    "bench",
    metadata,
    id_column(),
    sa.Column("hostname", NAME, nullable=False),
    sa.Column("device", NAME, nullable=False),
    sa.Column("threads", Integer, nullable=False),
    sa.Column("variant", String(3), nullable=False),
    sa.Column("seq_len", BigInteger, nullable=False, comment="tokens in a sequence"),
    sa.Column("d_model", BigInteger, nullable=False, comment="width of the block"),
    sa.Column("n_head", BigInteger, nullable=False, comment="query heads"),
    sa.Column("d_head", BigInteger, nullable=False, comment="width of a head"),
    sa.Column("batch_size", Integer, nullable=False, comment="sequences in the block's input"),
    sa.Column("dtype", NAME, nullable=False, comment="float32 or bfloat16"),
    sa.Column("execution", NAME, nullable=False),
    sa.Column("direction", NAME, nullable=False),
    sa.Column("repeats", Integer, nullable=False),
    sa.Column("ms", Double, nullable=False),
    sa.Column("ms_low", Double, nullable=False),
    sa.Column("ms_high", Double, nullable=False),
    sa.Column("peak_bytes", BigInteger, nullable=False),
    sa.Column("environment_id", ForeignKey("environment.id"), nullable=False),
    sa.Column("git_sha", String(40)),
    sa.Column("dirty", Boolean, comment="whether the code had uncommitted changes"),
    sa.Column("measured_at_us", BigInteger, nullable=False),
    sa.UniqueConstraint(*BENCH_KEY),
)
"""One block at one shape on one machine, as it was last measured."""
