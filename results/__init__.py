"""The results of sweeps, in pandas.

>>> import results
>>> db = results.open()            # results.db here, or $XSA_DB
>>> db.pairs(sweep="quickstart")   # DataFrame: one row a pair
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.query import Database

__all__ = ["open"]


def open(db: str | Path | None = None) -> "Database":
    """Open the store at a path or URL for reading; `None` is $XSA_DB, else `results.db` here.

    Raises `results.location.StoreError`, a `ValueError`, saying why a store cannot be opened.
    """
    from results.query import Database  # pandas and SQLAlchemy take a second to load

    return Database(db)
