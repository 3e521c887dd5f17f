"""Runs and events are told; attempts say what a device held; text is ordered alike in every database."""

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Integer, String, Text

revision = "0002"
down_revision = "0001"

_ORDERED = {
    "sweep": ["name"],
    "metric": ["name"],
    "arm": ["xsa_layers", "sink_kind", "model_size", "dataset", "tokenizer", "optimizer", "dtype"],
}


def upgrade() -> None:
    """Add them. `alembic_version` takes over from `schema_meta.version`."""
    op.create_table(
        "session",
        Column("id", Integer, primary_key=True),
        Column("owner", Text, nullable=False, unique=True, comment="the run's name in leases"),
        Column("sweep_id", Integer, ForeignKey("sweep.id"), nullable=False),
        Column("hostname", String),
        Column("pid", Integer),
        Column("started_at_us", BigInteger, nullable=False),
        Column("seen_at_us", BigInteger, nullable=False, comment="its last sign of life"),
        Column("stop_at_us", BigInteger, comment="when somebody asked it to stop"),
        Column("ended_at_us", BigInteger),
        Column("outcome", Text, comment="why it ended"),
    )
    op.create_table(
        "event",
        Column("id", Integer, primary_key=True),
        Column("time_us", BigInteger, nullable=False),
        Column("level", String, CheckConstraint("level IN ('info', 'warning', 'error')"), nullable=False),
        Column("kind", String, nullable=False),
        Column("sweep_id", Integer, ForeignKey("sweep.id")),
        Column("arm_id", Integer, ForeignKey("arm.id")),
        Column("message", Text, nullable=False),
    )
    op.create_index("event_time", "event", ["sweep_id", "time_us"])
    op.add_column("attempt", Column("micro_batch", Integer, comment="sequences in one forward pass"))
    op.add_column("attempt", Column("peak_gpu_bytes", BigInteger))
    op.drop_table("schema_meta")
    meta = op.create_table(
        "schema_meta",
        Column("views", String(64), primary_key=True, comment="hash of the views' definitions"),
    )
    op.bulk_insert(meta, [{"views": ""}])
    if op.get_context().dialect.name == "postgresql":  # SQLite orders text by its bytes anyway
        for table, names in _ORDERED.items():
            for name in names:
                op.alter_column(table, name, type_=String(collation="C"))
