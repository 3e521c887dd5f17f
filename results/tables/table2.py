"""Downstream accuracy, XSA against SA.

Percent of items answered correctly by the final weights, as lm-evaluation-harness scores them: with
lengths normalised (acc_norm) for ARC-E, HellaSwag, OBQA and PIQA, and acc for the paper's other tasks.
Bold: the better mean of the two, whether or not they differ significantly. Δ is XSA − SA on the same items, SE its
standard error over items, and p that of McNemar's exact test. They are about these trained networks;
other seeds are another question.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from results import downstream, frames
from results.downstream import AVERAGE, REASONS, UNSCORED, z
from results.frames import MissingData, NotAsked, and_list, axes_in, describe, settings
from results.render import Column, Table, number, p_value, signed
from schemas.evals import PAPER8

if TYPE_CHECKING:
    from results.query import Database

_HEADS = {
    "arc_easy": "ARC-E",
    "boolq": "BoolQ",
    "hellaswag": "HSwag",
    "lambada_openai": "LAMBADA",
    "openbookqa": "OBQA",
    "piqa": "PIQA",
    "social_iqa": "SocIQA",
    "winogrande": "WinoGr",
    AVERAGE: "Avg",
}
_MARKS = {
    "diverged": "div.",
    "refused": "refused",
    "failed": "failed",
    "missing": "—",
    "other_items": "≠ items",
}
_SAYS = {
    "diverged": "Pairs diverged",
    "refused": "Pairs that did not begin alike",
    "failed": "Evaluations failed",
    "missing": "Evaluations missing",
    "other_items": "Not compared, because its arms were asked other items (xsa eval --again asks both anew)",
}


def data(
    db: "Database", sweep: str | None = None, *, overlay: pd.DataFrame | None = None, **filters: Any
) -> pd.DataFrame:
    """Return `results.downstream.scores`, and below them with an `overlay` the paper's, as `published` gives them."""
    frame = downstream.scores(db, sweep, **filters)
    if overlay is None or frame.empty:
        return frame
    return pd.concat([frame, downstream.published(overlay)], ignore_index=True)


def draw(frame: pd.DataFrame) -> Table:
    """Return the table: rows of SA, XSA, Δ, SE and p for each setting, a column for each task and their average."""
    if frame.empty:
        raise NotAsked("table2 needs evaluations of pairs on downstream tasks (`xsa eval`); there is none.")
    ours = frame[frame["source"].isna()] if "source" in frame else frame
    paper = frame.drop(ours.index)
    unscored = sorted(ours.loc[ours[UNSCORED] > 0, "task"].unique(), key=_rank)
    ours = ours[~ours["task"].isin(unscored)]
    if ours.empty:
        raise MissingData(
            f"table2 needs evaluations with the paper's metric, acc_norm or acc; there are only those of "
            f"{and_list(unscored)}, which have none. In Python: results.open().eval_pairs()."
        )
    tasks = [*sorted(set(ours["task"]) - {AVERAGE}, key=_rank), AVERAGE]
    rows: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    groups: set[int] = set()
    for title, part in [*_blocks(ours), *_blocks(paper)]:
        cells = {row["task"]: row for row in part.to_dict("records")}
        first = len(rows)
        for name, write in _lines(part).items():
            told = [write(cells[task]) if task in cells else "" for task in tasks]
            rows.append([title if len(rows) == first else "", name, *told])
        groups |= {first} - {0}
        for column, task in enumerate(tasks, start=2):
            if task in cells and cells[task]["n"] and cells[task]["delta"]:
                best.add((first + (cells[task]["delta"] > 0), column))
    columns = [
        Column("model", "left"),
        Column("", "left"),
        *(Column(_HEADS.get(task, task)) for task in tasks),
    ]
    title = (__doc__ or "").partition("\n")[0]
    return Table("table2", title, _caption(ours, paper, unscored), columns, rows, best, groups)


def _rank(task: str) -> tuple[int, str]:
    """Return the key that sorts tasks: the paper's in its order, then the others."""
    return (list(PAPER8).index(task) if task in PAPER8 else len(PAPER8), task)


def _blocks(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each setting's title and rows."""
    if frame.empty:
        return
    is_paper = "source" in frame and frame["source"].notna().any()
    axes = ["model_size"] if is_paper else axes_in(frame)
    protocol = frame.loc[frame["task"] == AVERAGE, "items"].notna().all() and not is_paper
    for values, part in settings(frame, [*axes, *(["n_shot", "items"] if protocol else [])]):
        told = [str(values.pop("model_size"))]
        if is_paper:
            told.append("paper")
        if protocol:
            told.append(f"{values.pop('n_shot')}-shot, {values.pop('items')} items")
        if values and values != {"xsa_lambda": 1.0}:
            told.append(describe(values))
        if int(part["n"].max()) > 1:
            told.append(f"n = {part['n'].max()}")
        yield ", ".join(told), part


Write = Callable[[Mapping[str, Any]], str]


def _lines(part: pd.DataFrame) -> dict[str, Write]:
    """Return the names of a setting's lines, and what each writes for a task."""
    lines: dict[str, Write] = {
        "SA": lambda row: _level(row, "sa"),
        "XSA": lambda row: _level(row, "xsa"),
        "Δ": lambda row: signed(row["delta"], digits=2),
        "SE": lambda row: number(row["se"], digits=2),
    }
    if part["p_holm"].notna().any():
        lines["p"] = lambda row: p_value(row["p_holm"])
    if (part["n"] > 1).any():
        lines["sd, seeds"] = lambda row: number(row["sd_seeds"], digits=2)
    return lines


def _level(row: Mapping[str, Any], side: str) -> str:
    """Return a mean, marked where pairs are lacking in it; where there is none, why."""
    reasons = [reason for reason in REASONS if row[f"n_{reason}"] > 0]
    if row["n"]:
        return number(row[side], digits=2) + ("†" if reasons else "")
    return _MARKS[reasons[0]] if reasons else "—"


def _caption(ours: pd.DataFrame, paper: pd.DataFrame, unscored: list[str]) -> str:
    tests = int(ours["p"].notna().sum())
    said = [f"Holm's correction is over the {tests} tests of this table."] if tests > 1 else []
    said += [_asked(ours), "Avg is over the tasks of its row, and over the pairs that have all of them."]
    if (ours["n"] > 1).any():
        said.append(
            "n counts paired seeds, over which scores are means; sd is that of the pairs' differences."
        )
    lacking = ours[[f"n_{reason}" for reason in REASONS]].gt(0).any(axis=1)
    if (lacking & (ours["n"] > 0)).any():
        said.append("†: without some pairs.")
    for reason in REASONS:
        rows = ours[ours[f"n_{reason}"] > 0]
        if len(rows):
            tasks = and_list([_HEADS.get(task, task) for task in sorted(rows["task"].unique(), key=_rank)])
            said.append(f"{_SAYS[reason]}: {int(rows[f'n_{reason}'].sum())} ({tasks}).")
    if unscored:
        said.append(f"Not shown, because without the paper's metric, acc_norm and acc: {and_list(unscored)}.")
    if len(paper):
        averages = paper[paper["task"] == AVERAGE].to_dict("records")
        (source,) = paper["source"].unique()
        said.append(
            f"Paper: {source}; one run a cell, SE of unpaired items. Its averages differ by "
            f"{and_list([signed(row['delta'], digits=2) for row in averages])} points, which are "
            f"{and_list([f'{z(row):.1f}' for row in averages])} of these standard errors."
        )
    return frames.caption(__doc__, *said)


def _asked(ours: pd.DataFrame) -> str:
    """Return how many items and solved examples the tasks had, and the metric of those that the paper has not."""
    tasks = ours[ours["task"] != AVERAGE].drop_duplicates(["task", "n_shot", "items"])
    counts = [
        f"{_HEADS.get(row['task'], row['task'])} {row['n_items']:,.0f}" + _with(row)
        for row in sorted(tasks.to_dict("records"), key=lambda row: _rank(row["task"]))
        if row["n_items"] == row["n_items"]
    ]
    return f"Items: {and_list(counts)}." if counts else ""


def _with(row: Mapping[str, Any]) -> str:
    told = [] if row["task"] in PAPER8 else [str(row["metric"])]
    told += [f"{row['n_shot']:.0f}-shot"] if row["n_shot"] else []
    told += [f"the {row['items']}"] if row["items"] != "all" else []
    return f" ({', '.join(told)})" if told else ""
