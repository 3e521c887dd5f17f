"""Downstream scores of pairs, task by task, with what their items and seeds allow one to say: Table 2's numbers.

Scores, differences and standard errors are in percent.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from results.frames import arm_filters, settings, varied
from results.stats import holm, paired
from results.stats_items import Values, average_se, item_difference, mcnemar, unpaired_se
from schemas.evals import metric_of
from schemas.trial import AXES

if TYPE_CHECKING:
    from results.query import Database

AVERAGE = "avg"
"""The name of the average over tasks, which stands where a task's does."""
UNSCORED = "n_no_accuracy"
"""Counts the pairs of a task that was evaluated without the metric that stands for it: it is in no average."""
REASONS = ("diverged", "refused", "failed", "missing", "other_items")
"""Why a pair is not in a task's score: its training, its evaluation, or that its arms were asked other items."""
KEY = ["task", "n_shot", "items"]
_EVALS = ["arm", "metric", "value", "n_items", "error", "data_sha256", "task_version"]
COLUMNS = [
    *(*KEY, "metric", "n", *(f"n_{reason}" for reason in REASONS), UNSCORED, "n_items", "sa", "xsa", "delta"),
    *("se", "low", "high", "p", "p_holm", "sd_seeds", "low_seeds", "high_seeds", "p_seeds"),
]
"""Columns of `scores` and `published` after those of the setting; docs/figures.md says what they rest on."""
Differences = Mapping[tuple[Any, ...], Values]
"""Of each pair and evaluation, XSA's correctness minus SA's, item by item."""


def scores(db: "Database", sweep: str | None, **filters: Any) -> pd.DataFrame:
    """Return one row for each setting and task, and one for the average over the tasks.

    A setting is a model size with every other axis that varies but the seed. `n` counts the pairs that are
    in the means, `n_...` the others by reason. `se`, `low`, `high` and `p` are over items: standard error and
    bootstrap interval of `delta`, and McNemar's exact test, corrected by Holm over all rows in `p_holm`. Those
    in `..._seeds` are over seeds. The average is over the pairs that have every task, and has no `p`. Where a task
    was evaluated in two ways, with other items or solved examples, each way has rows and an average of its own.
    """
    pairs = db.pairs(sweep, **filters)
    pairs = pairs[pairs["xsa_lambda"] != 0]
    by = ["model_size", *varied(pairs, besides=["model_size"])]
    told = _told(db, sweep, pairs, filters)
    if told.empty:
        return pd.DataFrame(columns=[*by, *COLUMNS])
    compared = _compared(pairs, told)
    differences = _differences(db, sweep, sorted(set(told["metric"].dropna())), filters)
    protocol = KEY[1:] if told[KEY].drop_duplicates()["task"].duplicated().any() else []
    rows = []
    for setting, group in settings(compared, [*by, *protocol]):
        rows += [setting | key | _task(part, differences) for key, part in settings(group, KEY)]
        scored = group[~group["task"].isin(told.loc[told["unscored"], "task"])]
        if len(scored):
            rows.append(setting | _average(scored, settings(scored, KEY), differences))
    frame = pd.DataFrame(rows, columns=[*by, *COLUMNS])
    frame["p_holm"] = holm([float(p) for p in frame["p"]])
    return frame


def _items(frame: pd.DataFrame) -> pd.Series:
    """Return how many items were asked for, in words: a limit that is missing tells no rows apart."""
    return frame["item_limit"].map(lambda limit: "all" if pd.isna(limit) else f"first {limit:,}").astype(str)


def _told(db: "Database", sweep: str | None, pairs: pd.DataFrame, filters: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row for each arm of the pairs and evaluation: its score in the task's one metric, or its error.

    `unscored` are those of tasks that have scores, but none in such a metric: these have no value.
    """
    columns = [*_EVALS, "task", "n_shot", "item_limit"]
    found = db.evals(sweep, columns=columns, **arm_filters(filters))
    found = found[found["arm"].isin({*pairs["sa_arm"], *pairs["xsa_arm"]})]
    found = found.astype({"task": str, "metric": "object"}).assign(items=_items(found))
    shown = {task: metric_of(task, set(rows["metric"].dropna())) for task, rows in found.groupby("task")}
    found["unscored"] = found["metric"].notna() & found["task"].map(shown).isna()
    found.loc[found["unscored"], ["metric", "value"]] = None
    of_task = found["metric"] == found["task"].map(shown)
    found = found[found["error"].notna() | found["unscored"] | of_task]
    return found[[*_EVALS, *KEY, "unscored"]].drop_duplicates()


def _compared(pairs: pd.DataFrame, told: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each pair and evaluation: both arms' scores in percent, and a `reason` if they count not."""
    wanted = pairs.merge(told[KEY].drop_duplicates(), how="cross")
    for side in ("sa", "xsa"):
        named = told[[*_EVALS, *KEY]].rename(columns={name: f"{side}_{name}" for name in _EVALS})
        wanted = wanted.merge(named, how="left", on=[f"{side}_arm", *KEY])
    same = wanted["sa_data_sha256"] == wanted["xsa_data_sha256"]
    same &= wanted["sa_task_version"] == wanted["xsa_task_version"]
    conditions = {
        "diverged": wanted["status"] == "diverged",
        "refused": wanted["status"] == "refused",
        "failed": wanted["sa_error"].notna() | wanted["xsa_error"].notna(),
        "no_accuracy": wanted["task"].isin(told.loc[told["unscored"], "task"]),
        "missing": wanted["sa_value"].isna() | wanted["xsa_value"].isna(),
        "other_items": ~same,
    }
    wanted["reason"] = np.select(list(conditions.values()), list(conditions), default="")
    wanted["sa"], wanted["xsa"] = 100 * wanted["sa_value"], 100 * wanted["xsa_value"]
    return wanted


def _differences(
    db: "Database", sweep: str | None, metrics: Sequence[str], filters: Mapping[str, Any]
) -> dict[tuple[Any, ...], Values]:
    columns = ["trial", "task", "metric", "n_shot", "item_limit", "sa_value", "xsa_value"]
    axes = {name: value for name, value in filters.items() if name in AXES}  # others are of pairs alone
    rows = db.eval_items(sweep, columns=columns, metric=metrics, **axes)
    found: dict[tuple[Any, ...], Values] = {}
    keys = ["trial", "task", "n_shot", "item_limit", "metric"]
    for (trial, task, n_shot, limit, metric), part in rows.groupby(keys, dropna=False, observed=True):
        items = "all" if pd.isna(limit) else f"first {limit:,}"
        found[trial, task, n_shot, items, metric] = (part["xsa_value"] - part["sa_value"]).to_numpy(
            dtype=float
        )
    return found


def _counts(group: pd.DataFrame) -> dict[str, int]:
    return {f"n_{reason}": int((group["reason"] == reason).sum()) for reason in (*REASONS, UNSCORED[2:])}


def _levels(sa: "pd.Series[float]", xsa: "pd.Series[float]") -> dict[str, Any]:
    """Return the means over pairs, and what the pairs' own differences say about other seeds."""
    over_seeds = paired(xsa - sa)
    return {
        "n": over_seeds.n,
        "sa": sa.mean(),
        "xsa": xsa.mean(),
        "delta": over_seeds.mean,
        "sd_seeds": over_seeds.sd,
        "low_seeds": over_seeds.low,
        "high_seeds": over_seeds.high,
        "p_seeds": over_seeds.p,
    }


def _task(part: pd.DataFrame, differences: Differences) -> dict[str, Any]:
    done = part[part["reason"] == ""]
    row: dict[str, Any] = _counts(part) | _levels(done["sa"], done["xsa"])
    row |= {
        "metric": _only(part["sa_metric"]) or _only(part["xsa_metric"]),
        "n_items": _only(done["sa_n_items"]),
    }
    summed = _summed(done, differences)
    if summed is not None:
        found = item_difference(summed / len(done))
        row |= {"se": 100 * found.se, "low": 100 * found.low, "high": 100 * found.high, "p": mcnemar(summed)}
    return row


def _average(
    group: pd.DataFrame, parts: list[tuple[dict[str, Any], pd.DataFrame]], differences: Differences
) -> dict[str, Any]:
    """Return the row of the average over tasks, of the pairs that have all of them."""
    complete = group.groupby("trial")["reason"].transform(lambda reasons: (reasons == "").all())
    done = group[complete]
    means = done.groupby("trial")[["sa", "xsa"]].mean()
    row: dict[str, Any] = {"task": AVERAGE} | _levels(means["sa"], means["xsa"])
    summed = [_summed(part[part["trial"].isin(done["trial"])], differences) for _, part in parts]
    errors = [100 * item_difference(values / len(means)).se for values in summed if values is not None]
    if len(errors) == len(parts):
        row["se"] = average_se(errors)
    return row


def _summed(done: pd.DataFrame, differences: Differences) -> Values | None:
    """Return the pairs' item differences summed over seeds; None where items are lacking, or others in some seed."""
    columns = ["trial", *KEY, "sa_metric"]
    asked = done[["sa_data_sha256", "sa_task_version"]].drop_duplicates()
    found = [differences.get(key) for key in done[columns].itertuples(index=False, name=None)]
    known = [values for values in found if values is not None]
    if not found or len(known) < len(found) or len(asked) > 1:
        return None
    return np.sum(known, axis=0)  # type: ignore[no-any-return]


def _only(values: "pd.Series[Any]") -> Any:
    """Return the one value that these are, or None."""
    distinct = values.dropna().unique()
    return distinct[0] if len(distinct) == 1 else None


def published(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's Table 2 as `scores` has ours: one run a cell, and standard errors of unpaired items.

    Args:
        rows: `results.reference.published("table2")`.
    """
    found = []
    for (size, task), row in rows.set_index(["model_size", "task"]).iterrows():
        shares = (row["sa"] / 100, row["xsa"] / 100)
        tasks = rows[(rows["model_size"] == size) & (rows["task"] != AVERAGE)]
        se = (
            average_se([_unpaired(task) for task in tasks.to_dict("records")])
            if task == AVERAGE
            else 100 * unpaired_se(*shares, int(row["n_items"]))
        )
        found.append(
            {"model_size": size, "task": task, "n_shot": 0, "items": "all", "metric": row["metric"], "n": 1}
            | {"n_items": row["n_items"], "sa": row["sa"], "xsa": row["xsa"], "delta": row["xsa"] - row["sa"]}
            | {"se": se, "source": row["source"].partition(";")[0]}
        )
    return pd.DataFrame(found)


def _unpaired(row: Mapping[Any, Any]) -> float:
    return 100 * unpaired_se(row["sa"] / 100, row["xsa"] / 100, int(row["n_items"]))


def z(row: Mapping[Any, Any]) -> float:
    """Return how many standard errors a difference is from 0."""
    return row["delta"] / row["se"] if row["se"] else math.nan
