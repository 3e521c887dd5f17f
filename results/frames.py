"""What figures and tables share about the frames that queries return: what varies, and its name."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError
from schemas.sizes import SIZES, Size
from schemas.trial import AXES

if TYPE_CHECKING:
    import pandas as pd


class MissingData(UserError):
    """A figure or table has nothing to show yet; the message says what it needs and what there is."""


class NotAsked(MissingData):
    """What a figure or table shows was not asked for, such as two values of its axis: no gap in a sweep's results."""


XSA_AXES = [name for name, axis in AXES.items() if "sa" in axis.history]
"""Axes that only an XSA arm has: its SA arm holds one value of them whatever the pair's is."""
_SHAPE = {*Size._fields[:4], "n_kv_head"}


def varied(frame: "pd.DataFrame", *, besides: Sequence[str] = ()) -> list[str]:
    """Return the axes with more than one value in `frame`, without the seed and those in `besides`.

    What data are, and the numbers that a model size stands for, are left out where names tell them apart.
    """
    names = [name for name in AXES if name != "seed" and frame[name].nunique() > 1]
    if "dataset" in names and (frame.groupby("dataset")["data_id"].nunique() == 1).all():
        names = [name for name in names if name != "data_id"]
    if "model_size" in names:
        per_size = frame.groupby("model_size")
        names = [name for name in names if name not in _SHAPE or (per_size[name].nunique() > 1).any()]
    return [name for name in names if name not in besides]


def settings(frame: "pd.DataFrame", axes: Sequence[str]) -> "list[tuple[dict[str, Any], pd.DataFrame]]":
    """Return each combination of values of `axes` in `frame`, in order, with its rows."""
    if not axes:
        return [({}, frame)]
    groups = [(dict(zip(axes, values, strict=True)), rows) for values, rows in frame.groupby(list(axes))]
    return sorted(groups, key=lambda group: [rank(name, value) for name, value in group[0].items()])


def rank(name: str, value: Any) -> tuple[int, Any]:
    """Return the key that sorts the values of an axis: named sizes from small to large."""
    named = name == "model_size" and value in SIZES
    return (list(SIZES).index(value) if named else len(SIZES), value)


def axes_in(frame: "pd.DataFrame", *, besides: Sequence[str] = ()) -> list[str]:
    """Return the axes that are columns of `frame`, in its order, without those in `besides`."""
    return [name for name in frame.columns if name in AXES and name not in besides]


def of_pairs(rows: "pd.DataFrame", pairs: "pd.DataFrame") -> "pd.DataFrame":
    """Return those of `rows` (curves or layers) whose arm belongs to one of `pairs`."""
    return rows[rows["arm"].isin({*pairs["sa_arm"], *pairs["xsa_arm"]})]


def with_baselines(rows: "pd.DataFrame", pairs: "pd.DataFrame", *, arm: str = "arm") -> "pd.DataFrame":
    """Return `rows` with each baseline's once for every setting of XSA's own axes that it is compared with.

    A baseline holds one value of them, whatever its pairs do. Beside λ it takes those of its pairs here.

    Args:
        rows: of arms or pairs; baselines are those with λ = 0.
        pairs: which tell what a baseline is compared with.
        arm: the column of `rows` that holds the baseline's id.
    """
    import pandas as pd

    own = [name for name in XSA_AXES if name != "xsa_lambda"]
    partners = pairs.loc[pairs["xsa_lambda"] != 0, ["sa_arm", *own]].drop_duplicates()
    baseline = (rows["xsa_lambda"] == 0) & rows[arm].isin(partners["sa_arm"])
    partners = partners.rename(columns={"sa_arm": arm})
    repeated = rows[baseline].drop(columns=own).merge(partners, on=arm)[list(rows)]
    return pd.concat([rows[~baseline], repeated], ignore_index=True)


def arm_filters(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters that hold for both arms of a pair: one on λ would lose the SA arm, others know only pairs."""
    return {name: value for name, value in filters.items() if name in AXES and name not in XSA_AXES}


def describe(values: Mapping[str, Any]) -> str:
    """Return a label for axis values, such as `learning rate 0.001, batch 512 tokens`."""
    return ", ".join(describe_one(name, value) for name, value in values.items())


def describe_one(name: str, value: Any) -> str:
    """Return a label for one axis value: `λ = 0.5`, `sequence length 64 tokens`, `model size 10M`."""
    axis, text = AXES[name], format_value(name, value)
    text = f"{axis.label} = {text}" if len(axis.label) == 1 or axis.kind is bool else f"{axis.label} {text}"
    return f"{text} {axis.unit}" if axis.unit else text


def caption(document: str | None, *additions: str) -> str:
    """Return a caption: a file's docstring below its title, then what the data adds, as one text."""
    body = (document or "").strip().partition("\n")[2]
    return " ".join(" ".join([body, *additions]).split())


def seeds(n: "pd.Series[int]") -> str:
    """Return `n = 3 seeds`, or `n = 1 to 3 seeds` where the counts differ; `one seed` for ones."""
    low, high = int(n.min()), int(n.max())
    if high == 1:
        return "one seed"
    return f"n = {low} seeds" if low == high else f"n = {low} to {high} seeds"


_WORDINGS = {
    "n_diverged": "diverged",
    "n_refused": "that did not begin alike",
    "n_failed": "failed",
    "n_missing": "not finished",
}


def lacking(rows: "pd.DataFrame", axis: str) -> list[str]:
    """Return a sentence for each reason why pairs are in no mean, with how many at which value of an axis."""
    said = []
    for column, wording in _WORDINGS.items():
        counts = rows[rows[column] > 0].groupby(axis)[column].sum()
        named = [f"{count} at {describe_one(axis, value)}" for value, count in counts.items()]
        if named:
            said.append(f"Pairs {wording}: {and_list(named)}.")
    return said


def format_value(name: str, value: Any) -> str:
    """Return an axis value for a reader: exact, whole numbers with thousands separators."""
    axis = AXES[name]
    return f"{value:,}" if axis.kind is int else axis.format(value)


def axis_list(names: Sequence[str]) -> str:
    """Return the labels of axes, such as `sequence length and model size`."""
    return and_list([AXES[name].label for name in names])


def and_list(items: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))
