"""Final validation loss, XSA against SA.

Losses in nats/token, means over n paired seeds: both arms of a pair have the same initial weights
and batches. Bold: the lower mean, whether or not they differ significantly. Δ is XSA − SA, negative where
XSA is better, with its 95 % t interval and the p of a two-sided paired t-test.
"""

from typing import TYPE_CHECKING, Any

import pandas as pd

from results import frames
from results.findings import seeds_for
from results.frames import MissingData, axes_in, format_value, varied
from results.render import Column, Table, interval, number, p_value, signed
from results.stats import LACKING, summarise, verdict
from schemas.trial import AXES

if TYPE_CHECKING:
    from results.query import Database

_SAYS = {
    "lower": "",
    "higher": "XSA is worse",
    "uncorrected": "not significant after correction",
    "inconclusive": "interval contains 0",
    "no pairs": "no finished pair",
}


def data(db: "Database", sweep: str | None = None, **filters: Any) -> pd.DataFrame:
    """Return `results.stats.summarise` by λ and every other axis that varies, and a `note`."""
    pairs = db.pairs(sweep, **filters)
    frame = summarise(pairs, [*varied(pairs, besides=["xsa_lambda"]), "xsa_lambda"])
    frame["note"] = [note(row) for row in frame.to_dict("records")]
    return frame


def note(row: dict[str, Any]) -> str:
    """Return what a reader must know about one row: what it cannot show, and which pairs it lacks."""
    found = verdict(**{key: row[key] for key in ("n", "delta", "low", "high", "p_holm")})
    if row["xsa_lambda"] == 0:
        said = "SA itself"
    elif found == "no interval":
        said = "n = 1, no interval" if row["n"] == 1 else f"n = {row['n']} equal differences, no interval"
    else:
        said = _SAYS[found]
    lacking = [f"{row[name]} {name.removeprefix('n_')}" for name in LACKING if row[name]]
    return "; ".join(filter(None, [said, *lacking]))


def draw(frame: pd.DataFrame) -> Table:
    """Return the table, a row for each λ and each value of the other axes."""
    if frame.empty:
        raise MissingData("table losses needs at least one pair; there is none.")
    axes = axes_in(frame)
    tests = int(frame["p"].notna().sum())
    columns = [
        *(Column(AXES[name].title, "left" if AXES[name].kind is str else "right") for name in axes),
        Column("n"),
        Column("SA"),
        Column("XSA"),
        Column("Δ"),
        Column("95 % interval"),
        Column("p (Holm)" if tests > 1 else "p"),
        Column("note", "left"),
    ]
    rows = [
        [
            *(format_value(name, row[name]) for name in axes),
            str(row["n"]),
            number(row["sa"]),
            number(row["xsa"]),
            "0" if row["xsa_lambda"] == 0 and row["n"] else signed(row["delta"]),
            interval(row["low"], row["high"]),
            p_value(row["p_holm"]),
            row["note"],
        ]
        for row in frame.to_dict("records")
    ]
    level = len(axes) + 1
    best = {
        (i, level + (row["delta"] < 0))
        for i, row in enumerate(frame.to_dict("records"))
        if row["n"] and row["delta"]
    }
    correction = f"Holm's correction is over the {tests} tests of this table." if tests > 1 else ""
    title = (__doc__ or "").partition("\n")[0]
    return Table("losses", title, frames.caption(__doc__, correction, seeds_for(frame)), columns, rows, best)
