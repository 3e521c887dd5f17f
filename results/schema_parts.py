"""What the declarations of tables share: the metadata, and columns of a kind that recurs."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Integer, String

metadata = sa.MetaData()
NAME = String().with_variant(String(collation="C"), "postgresql")
"""A text that rows are ordered by: byte by byte in every database, whatever a server's locale is."""


def id_column() -> sa.Column[int]:
    """Return the row's number, which other tables refer to."""
    return sa.Column("id", Integer, primary_key=True, autoincrement=True)


def one_of(column: str, values: tuple[Any, ...]) -> CheckConstraint:
    """Return the rule that a column holds one of these values."""
    return CheckConstraint(f"{column} IN ({', '.join(map(repr, values))})")
