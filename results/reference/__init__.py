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


def overlays(names: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return what can be drawn into figures, by name: into those in `names`, or all if that is empty.

    Raises `UserError` for a figure of which the paper gives no numbers.
    """
    known = [name for name in PUBLISHED if name.startswith("fig")]
    for name in names:
        if name not in known:
            raise UserError(f"The paper gives no numbers to draw into {name}, only into {and_list(known)}.")
    return {name: published(name) for name in names or known}
