"""The tables of the first version, which kept its number in `schema_meta`."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Integer, String, Text

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make them."""
    meta = op.create_table(
        "schema_meta",
        Column("version", Integer, primary_key=True),
        Column("views", Text, nullable=False),
    )
    op.bulk_insert(meta, [{"version": 1, "views": ""}])
    op.create_table(
        "sweep",
        Column("id", Integer, primary_key=True),
        Column("name", String, nullable=False, unique=True),
        Column("description", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("storage", Text, nullable=False),
        Column("created_at_us", BigInteger, nullable=False),
        Column("updated_at_us", BigInteger, nullable=False),
    )
    _create_arm()
    op.create_table(
        "trial",
        Column("id", Integer, primary_key=True),
        Column("fingerprint", String(64), nullable=False, unique=True),
        Column("sa_arm_id", Integer, ForeignKey("arm.id"), nullable=False, index=True),
        Column("xsa_arm_id", Integer, ForeignKey("arm.id"), nullable=False, index=True),
        Column("created_at_us", BigInteger, nullable=False),
    )
    op.create_table(
        "sweep_trial",
        Column("sweep_id", Integer, ForeignKey("sweep.id"), primary_key=True),
        Column("trial_id", Integer, ForeignKey("trial.id"), primary_key=True, index=True),
        Column("ordinal", Integer, nullable=False),
    )
    op.create_table(
        "environment",
        Column("id", Integer, primary_key=True),
        Column("fingerprint", String(64), nullable=False, unique=True),
        Column("document", Text, nullable=False),
    )
    op.create_table(
        "attempt",
        Column("id", Integer, primary_key=True),
        Column("arm_id", Integer, ForeignKey("arm.id"), nullable=False),
        Column("no", Integer, nullable=False),
        Column("status", String, nullable=False),
        Column("cause", String),
        Column("error", Text),
        Column("traceback", Text),
        Column("owner", Text, nullable=False),
        Column("hostname", String),
        Column("device", String),
        Column("threads", Integer),
        Column("environment_id", Integer, ForeignKey("environment.id")),
        Column("git_sha", String(40)),
        Column("dirty", Boolean),
        Column("peak_rss_bytes", BigInteger),
        Column("started_at_us", BigInteger, nullable=False),
        Column("ended_at_us", BigInteger),
        sa.UniqueConstraint("arm_id", "no"),
    )
    _create_numbers()


def _create_arm() -> None:
    op.create_table(
        "arm",
        Column("id", Integer, primary_key=True),
        Column("fingerprint", String(64), nullable=False, unique=True),
        Column("name", String(3), nullable=False),
        Column("xsa_lambda", Double, nullable=False),
        Column("xsa_layers", String, nullable=False),
        Column("n_sinks", BigInteger, nullable=False),
        Column("sink_kind", String, nullable=False),
        Column("model_size", String, nullable=False),
        Column("n_layer", BigInteger, nullable=False),
        Column("d_model", BigInteger, nullable=False),
        Column("n_head", BigInteger, nullable=False),
        Column("d_head", BigInteger, nullable=False),
        Column("n_kv_head", BigInteger, nullable=False),
        Column("qk_norm", Boolean, nullable=False),
        Column("rope_base", Double, nullable=False),
        Column("dataset", String, nullable=False),
        Column("tokenizer", String, nullable=False),
        Column("seq_len", BigInteger, nullable=False),
        Column("tokens_per_step", BigInteger, nullable=False),
        Column("eval_tokens", BigInteger, nullable=False),
        Column("bias_tokens", BigInteger, nullable=False),
        Column("steps", BigInteger, nullable=False),
        Column("lr", Double, nullable=False),
        Column("warmup_steps", BigInteger, nullable=False),
        Column("min_lr_ratio", Double, nullable=False),
        Column("optimizer", String, nullable=False),
        Column("weight_decay", Double, nullable=False),
        Column("beta1", Double, nullable=False),
        Column("beta2", Double, nullable=False),
        Column("grad_clip", Double, nullable=False),
        Column("dtype", String, nullable=False),
        Column("seed", BigInteger, nullable=False),
        Column(
            "status",
            String,
            sa.CheckConstraint(
                "status IN ('pending', 'running', 'done', 'diverged', 'failed', 'interrupted')"
            ),
            nullable=False,
        ),
        Column("reason", Text),
        Column("attempt", Integer, nullable=False),
        Column("step", BigInteger, nullable=False),
        Column("n_params", BigInteger),
        Column("init_sha256", String(64)),
        Column("batch_sha256", String(64)),
        Column("data_sha256", String(64)),
        Column("wall_s", Double),
        Column("lease_owner", Text),
        Column("lease_until_us", BigInteger),
        Column("created_at_us", BigInteger, nullable=False),
        Column("finished_at_us", BigInteger),
    )
    op.create_index("arm_status", "arm", ["status", "lease_until_us"])


def _create_numbers() -> None:
    op.create_table(
        "arm_step",
        Column("arm_id", Integer, ForeignKey("arm.id"), primary_key=True),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("attempt", Integer, nullable=False),
        Column("train_loss", Double),
        Column("train_loss_kind", Integer, nullable=False),
        Column("lr", Double, nullable=False),
        Column("grad_norm", Double),
        Column("grad_norm_kind", Integer, nullable=False),
        Column("tok_per_s", Double, nullable=False),
        Column("time_us", BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "arm_eval",
        Column("arm_id", Integer, ForeignKey("arm.id"), primary_key=True),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("split", String, primary_key=True),
        Column("attempt", Integer, nullable=False),
        Column("loss", Double),
        Column("loss_kind", Integer, nullable=False),
        Column("n_tokens", BigInteger, nullable=False),
        Column("time_us", BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metric",
        Column("id", Integer, primary_key=True),
        Column("name", String, nullable=False, unique=True),
        Column("label", String, nullable=False),
        Column("unit", String),
        Column("goal", String, nullable=False),
        Column("description", Text, nullable=False),
    )
    op.create_table(
        "layer_metric",
        Column("arm_id", Integer, ForeignKey("arm.id"), primary_key=True),
        Column("metric_id", Integer, ForeignKey("metric.id"), primary_key=True),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("layer", Integer, primary_key=True, autoincrement=False),
        Column("attempt", Integer, nullable=False),
        Column("value", Double),
        Column("value_kind", Integer, nullable=False),
        sqlite_with_rowid=False,
    )
