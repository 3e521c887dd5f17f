"""Model sizes and learning rates.

Non-embedding parameters are the weights of the attention and MLP matrices; parameters are all that the
trained models hold, the tied embedding counted once.
"""

from typing import TYPE_CHECKING, Any

import pandas as pd

from results import frames
from results.frames import MissingData, format_value, settings
from results.reference import published
from results.render import Column, Table
from schemas.sizes import Size
from schemas.trial import AXES

if TYPE_CHECKING:
    from results.query import Database

_SHAPE = ["model_size", *Size._fields, "n_kv_head"]


def data(db: "Database", sweep: str | None = None, **filters: Any) -> pd.DataFrame:
    """Return one row for each model size: its shape, learning rates, parameters, and the paper's row.

    `fewest` and `most` are the parameters that arms of this size reported, missing where none has begun;
    sinks and the vocabulary count. `label` and `published_lr` are missing where the paper has no such size.
    """
    rows = []
    for shape, group in settings(db.pairs(sweep, **filters), _SHAPE):
        size = Size(*(shape[name] for name in Size._fields))
        rates = [format_value("lr", lr) for lr in sorted(group["lr"].unique())]
        counts = group["n_params"].dropna()
        rows.append(
            shape
            | {"lr": ", ".join(rates), "non_embedding": size.weights(n_kv_head=shape["n_kv_head"])}
            | {"fewest": counts.min(), "most": counts.max()}
        )
    frame = pd.DataFrame(rows, columns=[*_SHAPE, "lr", "non_embedding", "fewest", "most"])
    paper = published("table1").rename(columns={"lr": "published_lr"})
    return frame.merge(paper[["model_size", "label", "published_lr", "source"]], how="left")


def draw(frame: pd.DataFrame) -> Table:
    """Return the table, with the paper's columns where it has one of these sizes."""
    if frame.empty:
        raise MissingData("table1 needs at least one pair; there is none.")
    shape = [name for name in _SHAPE if name != "n_kv_head" or (frame[name] != frame["n_head"]).any()]
    in_paper = frame["source"].dropna().unique()
    heads = [*(AXES[name].title for name in [*shape, "lr"]), "non-embedding", "parameters"]
    heads += ["paper's learning rate", "paper's size"] if len(in_paper) else []
    rows = []
    for row in frame.to_dict("records"):
        cells = [*(format_value(name, row[name]) for name in shape), row["lr"], f"{row['non_embedding']:,}"]
        cells.append(_count(row["fewest"], row["most"]))
        if len(in_paper):
            known = isinstance(row["label"], str)
            cells += [format_value("lr", row["published_lr"]), row["label"]] if known else ["—", "—"]
        rows.append(cells)
    columns = [Column(head, "left" if i == 0 else "right") for i, head in enumerate(heads)]
    sources = f"The paper's values are those of {', '.join(in_paper)}." if len(in_paper) else ""
    title = (__doc__ or "").partition("\n")[0]
    return Table("table1", title, frames.caption(__doc__, sources), columns, rows)


def _count(fewest: Any, most: Any) -> str:
    if pd.isna(fewest):
        return "—"
    return f"{fewest:,.0f}" if fewest == most else f"{fewest:,.0f} to {most:,.0f}"
