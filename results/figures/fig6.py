"""Final loss against the number of attention sinks, SA and XSA."""

import pandas as pd

from results.against import Against


def of_every_kind(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return pairs without sinks, which are of no kind, as pairs of each kind that the others have."""
    none = pairs["n_sinks"] == 0
    kinds = pairs.loc[~none, "sink_kind"].unique()
    if len(kinds) < 2:
        return pairs
    return pd.concat([pairs[~none], *(pairs[none].assign(sink_kind=kind) for kind in kinds)])


_FIGURE = Against("fig6", "n_sinks", __doc__, of_every_kind)
data, draw, caption = _FIGURE.data, _FIGURE.draw, _FIGURE.caption
