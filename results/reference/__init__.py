"""The numbers of the paper, arXiv:2603.09078v1: a CSV for each table or figure that gives some.

It prints no loss: `fig4.csv` and `fig6.csv` hold the margins that a written summary of these two
figures states, and Figures 3 and 5 have no file. Each row names its source.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from results.frames import and_list
from schemas.errors import UserError
from schemas.names import lookup

PUBLISHED = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.csv"))}
"""The file of each of the paper's tables and figures with numbers, by our name of it."""


def published(name: str) -> pd.DataFrame:
    """Return what the paper says in a table or figure, such as `table1`. Raises `UnknownName`."""
    return pd.read_csv(lookup("published table or figure", name, PUBLISHED))


FIGURES = [name for name in PUBLISHED if name.startswith("fig")]
"""Those that can be drawn into figures."""
TABLES = ["table2"]
"""Those that can stand in tables beside ours; in Table 1 the paper's always do."""


def overlays(names: Sequence[str], known: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return what the paper says in figures or tables, by name: in those in `names`, or all if that is empty.

    Args:
        names: what is asked for.
        known: `FIGURES` or `TABLES`.

    Raises `UserError` for one of which the paper gives no numbers to show beside ours.
    """
    for name in names:
        if name not in known:
            raise UserError(f"The paper gives no numbers to show in {name}, only in {and_list(known)}.")
    return {name: published(name) for name in names or known}
