"""The tables of downstream evaluations: a result for each arm and task, its scores, and their items."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Double, ForeignKey, Index, Integer, String, Text

from results.schema_parts import NAME, id_column, metadata

eval_result = sa.Table(
    "eval_result",
    metadata,
    id_column(),
    sa.Column("arm_id", ForeignKey("arm.id"), nullable=False),
    sa.Column("task", NAME, nullable=False),
    sa.Column("n_shot", Integer, nullable=False),
    sa.Column("item_limit", BigInteger),
    sa.Column("step", BigInteger, nullable=False, comment="updates that the weights had"),
    sa.Column("n_items", BigInteger, nullable=False),
    sa.Column("task_version", String, nullable=False),
    sa.Column("harness_version", String, nullable=False),
    sa.Column("data_sha256", String(64), nullable=False),
    sa.Column("batch_size", Integer, nullable=False),
    sa.Column("device", String, nullable=False),
    sa.Column("error", Text, comment="why there are no scores, in a line"),
    sa.Column("wall_s", Double, nullable=False),
    sa.Column("ended_at_us", BigInteger, nullable=False),
    sa.UniqueConstraint("arm_id", "task", "n_shot", "item_limit"),
    # To a unique constraint no NULL equals another.
    Index(
        "eval_result_whole",
        "arm_id",
        "task",
        "n_shot",
        unique=True,
        sqlite_where=sa.text("item_limit IS NULL"),
        postgresql_where=sa.text("item_limit IS NULL"),
    ),
)
eval_score = sa.Table(
    "eval_score",
    metadata,
    id_column(),
    sa.Column("eval_result_id", ForeignKey("eval_result.id"), nullable=False),
    sa.Column("metric", NAME, nullable=False, comment="the harness's name of it, such as `acc`"),
    sa.Column("value", Double, nullable=False, comment="mean over the items"),
    sa.Column("stderr", Double),
    sa.UniqueConstraint("eval_result_id", "metric"),
)
eval_item = sa.Table(
    "eval_item",
    metadata,
    sa.Column("eval_score_id", ForeignKey("eval_score.id"), primary_key=True),
    sa.Column("item", Integer, primary_key=True, autoincrement=False),
    sa.Column("value", Double, nullable=False, comment="the metric of this item: 1 correct, 0 wrong"),
    sqlite_with_rowid=False,
)
