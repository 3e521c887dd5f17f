"""Evaluations item by item, final weights, written figures and tables, and measured blocks are told."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Integer, String, Text

revision = "0003"
down_revision = "0002"

_NAME = String().with_variant(String(collation="C"), "postgresql")


def upgrade() -> None:
    """Add them."""
    _create_evals()
    op.create_table(
        "checkpoint",
        Column("arm_id", Integer, ForeignKey("arm.id"), primary_key=True),
        Column("step", BigInteger, nullable=False),
        Column("path", Text, nullable=False),
        Column("bytes", BigInteger, nullable=False),
        Column("manifest_sha256", String(64), nullable=False),
        Column("saved_at_us", BigInteger, nullable=False),
    )
    op.create_table(
        "artifact",
        Column("id", Integer, primary_key=True),
        Column("sweep_id", Integer, ForeignKey("sweep.id"), nullable=False),
        Column("kind", String, sa.CheckConstraint("kind IN ('figure', 'table', 'report')"), nullable=False),
        Column("name", _NAME, nullable=False),
        Column("path", Text, nullable=False, unique=True),
        Column("bytes", BigInteger, nullable=False),
        Column("sha256", String(64), nullable=False),
        Column("filters", Text, nullable=False),
        Column("produced_at_us", BigInteger, nullable=False),
    )
    op.create_table(
        "bench",
        Column("id", Integer, primary_key=True),
        Column("hostname", _NAME, nullable=False),
        Column("device", _NAME, nullable=False),
        Column("threads", Integer, nullable=False),
        Column("variant", String(3), nullable=False),
        Column("seq_len", BigInteger, nullable=False),
        Column("d_model", BigInteger, nullable=False),
        Column("n_head", BigInteger, nullable=False),
        Column("d_head", BigInteger, nullable=False),
        Column("batch_size", Integer, nullable=False),
        Column("dtype", _NAME, nullable=False),
        Column("execution", _NAME, nullable=False),
        Column("direction", _NAME, nullable=False),
        Column("repeats", Integer, nullable=False),
        Column("ms", Double, nullable=False),
        Column("ms_low", Double, nullable=False),
        Column("ms_high", Double, nullable=False),
        Column("peak_bytes", BigInteger, nullable=False),
        Column("environment_id", Integer, ForeignKey("environment.id"), nullable=False),
        Column("git_sha", String(40)),
        Column("dirty", Boolean),
        Column("measured_at_us", BigInteger, nullable=False),
        sa.UniqueConstraint(
            *("hostname", "device", "threads", "variant", "seq_len", "d_model", "n_head", "d_head"),
            *("batch_size", "dtype", "execution", "direction"),
        ),
    )


def _create_evals() -> None:
    op.create_table(
        "eval_result",
        Column("id", Integer, primary_key=True),
        Column("arm_id", Integer, ForeignKey("arm.id"), nullable=False),
        Column("task", _NAME, nullable=False),
        Column("n_shot", Integer, nullable=False),
        Column("item_limit", BigInteger),
        Column("step", BigInteger, nullable=False),
        Column("n_items", BigInteger, nullable=False),
        Column("task_version", String, nullable=False),
        Column("harness_version", String, nullable=False),
        Column("data_sha256", String(64), nullable=False),
        Column("batch_size", Integer, nullable=False),
        Column("device", String, nullable=False),
        Column("error", Text),
        Column("wall_s", Double, nullable=False),
        Column("ended_at_us", BigInteger, nullable=False),
        sa.UniqueConstraint("arm_id", "task", "n_shot", "item_limit"),
    )
    whole = sa.text("item_limit IS NULL")
    op.create_index(
        "eval_result_whole",
        "eval_result",
        ["arm_id", "task", "n_shot"],
        unique=True,
        sqlite_where=whole,
        postgresql_where=whole,
    )
    op.create_table(
        "eval_score",
        Column("id", Integer, primary_key=True),
        Column("eval_result_id", Integer, ForeignKey("eval_result.id"), nullable=False),
        Column("metric", _NAME, nullable=False),
        Column("value", Double, nullable=False),
        Column("stderr", Double),
        sa.UniqueConstraint("eval_result_id", "metric"),
    )
    op.create_table(
        "eval_item",
        Column("eval_score_id", Integer, ForeignKey("eval_score.id"), primary_key=True),
        Column("item", Integer, primary_key=True, autoincrement=False),
        Column("value", Double, nullable=False),
        sqlite_with_rowid=False,
    )
