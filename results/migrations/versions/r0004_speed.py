"""Attempts say how they were executed, and how fast beside what their device can."""

from alembic import op
from sqlalchemy import Boolean, Column, Double, String, Text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add them."""
    op.add_column("attempt", Column("execution", String))
    op.add_column("attempt", Column("compile_error", Text))
    op.add_column("attempt", Column("activation_checkpointing", Boolean))
    op.add_column("attempt", Column("flops_per_s", Double))
    op.add_column("attempt", Column("peak_flops_per_s", Double))
    op.add_column("attempt", Column("peak_source", String))
