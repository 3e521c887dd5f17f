"""Writes docs/database.md from what the program itself knows: `python -m results.describe > docs/database.md`."""

import re
from collections.abc import Iterable, Iterator, Sequence

import sqlalchemy as sa

from results.columns import COLUMNS, shown_name
from results.recipes import RECIPES
from results.schema import metadata
from results.views import VIEWS
from schemas.trial import AXES

_HEAD = """
# The database

Everything that a sweep leaves behind is in one SQL database: `results.db`, or what `--db` or `$XSA_DB`
names, a path or a PostgreSQL URL. Read the views, from Python or from any SQL client; the tables are how
the views come about. `python -m results.describe` makes this page, and a test holds it to the program.

An *arm* is one training run; a *trial* is a pair of arms, SA and XSA, that differ in nothing else. Losses
are in nats/token. Times are in UTC: microseconds since 1970 in the database (`..._us`), timestamps in
frames. In the tables a number that may not be finite has its kind beside it; the views return an infinity
as one, and NULL for a NaN.

| from a shell | |
|---|---|
| `xsa db info` | where the store is, and how much it holds |
| `xsa db check` | whether it is sound: pages, references, finished arms, pairs, journals |
| `xsa db copy results.db postgresql://me@host/sweeps` | to a server, or back |
| `xsa db export DIR` | every view as a Parquet file |
| `xsa db vacuum` | give back the room of deleted rows |
"""
_VIEWS = {
    "v_results": "One row a pair: its axes, both arms' losses at the last step at which both were evaluated, and their "
    "difference. In Python: `db.pairs()`.",
    "v_curves": "One row an arm and step. In Python: `db.curves()`.",
    "v_layers": "One row an arm, step, bias metric and layer. In Python: `db.layers()`.",
    "v_attempts": "One row an attempt at an arm: where, with what, how fast, and how it ended. "
    "In Python: `db.attempts()`.",
    "v_evals": "One row an arm, task and metric of a downstream evaluation; where it failed one without a metric. "
    "In Python: `db.evals()`.",
    "v_eval_pairs": "One row a pair, task and metric that both arms have. In Python: `db.eval_pairs()`.",
    "v_eval_items": "One row a pair, task, metric and item, where both arms were asked the same items. "
    "In Python: `db.eval_items()`, which is quicker.",
    "v_checkpoints": "One row a finished arm: where its final weights are. In Python: `db.checkpoints()`.",
    "v_provenance": "One row an arm that was tried: the code and the machine of its newest attempt, and what differs "
    "among the attempts that its numbers come from. In Python: `db.provenance()`.",
    "v_mixed": "One row a pair whose numbers come from more than one code, environment, number of threads, "
    "micro-batch or execution. In Python: `db.mixed()`.",
    "v_bench": "One row a block, shape and machine, as `xsa bench` last measured it. In Python: `db.bench()`.",
    "v_artifacts": "One row a file that was made of a sweep's results. In Python: `db.artifacts()`.",
    "v_sweep_arms": "The arms of each sweep, each once.",
    "v_status": "How many arms of each sweep stand where.",
}
_TABLES = {
    "alembic_version": "One row: the revision of the tables.",
    "schema_meta": "One row: what the views were made from.",
    "sweep": "One row a sweep file.",
    "arm": "One row an arm: its settings, where it stands, and who trains it.",
    "trial": "One row a pair.",
    "sweep_trial": "Which pairs a sweep wants.",
    "environment": "Machines and versions, each combination once.",
    "attempt": "One row a try at training an arm.",
    "arm_step": "One row an arm and logged step.",
    "arm_eval": "One row an evaluation.",
    "metric": "The bias metrics.",
    "layer_metric": "One row an arm, bias metric, step and layer.",
    "eval_result": "One row an arm, task, number of shots and limit: a downstream evaluation.",
    "eval_score": "One row a metric of an evaluation.",
    "eval_item": "One row a score and item, by which pairs are compared item by item.",
    "checkpoint": "One row a finished arm: its final weights.",
    "bench": "One row a block, shape and machine.",
    "artifact": "One row a file that was made of a sweep's results.",
    "session": "One row a run of `xsa run`.",
    "event": "What happened that no attempt tells.",
}


def describe() -> str:
    """Return the page."""
    head = re.sub(r"(?<!\n)\n(?=[^\n|])", " ", _HEAD.strip())  # a line for each paragraph
    return "\n".join([head, "", *_recipes(), *_of_views(), *_of_tables(), *_of_axes()])


def _recipes() -> Iterator[str]:
    yield "## Thirteen questions"
    yield ""
    for i, (question, code) in enumerate(RECIPES, start=1):
        yield from [f"**{i}. {question}**", "", "```python", code.strip(), "```", ""]


def _of_views() -> Iterator[str]:
    yield from ["## Views", ""]
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        metadata.create_all(connection)
        for name, definition in VIEWS.items():
            connection.exec_driver_sql(f"CREATE VIEW {name} AS {definition}")
            columns = connection.exec_driver_sql(f"SELECT * FROM {name} LIMIT 0").keys()
            axes = set(columns) >= set(AXES)
            rows = [(column, _meaning(column)) for column in columns if not (axes and column in AXES)]
            yield from _section(name, _VIEWS[name], ("column", "meaning"), rows, axes)
    engine.dispose()


def _of_tables() -> Iterator[str]:
    yield from ["## Tables", ""]
    for name, purpose in _TABLES.items():
        table = metadata.tables[name]
        rows = [
            (
                column.name,
                f"{column.type}".lower()
                + (", key" if column.primary_key else "" if column.nullable else ", not null"),
                _of_column(column),
            )
            for column in table.columns
            if column.name not in AXES or name != "arm"
        ]
        yield from _section(name, purpose, ("column", "type", "meaning"), rows, name == "arm")


def _of_column(column: "sa.Column[object]") -> str:
    if column.comment:
        return column.comment
    for key in column.foreign_keys:
        return f"the row in `{key.column.table.name}`"
    return _meaning(column.name)


def _meaning(name: str) -> str:
    """Return what a column of this name means wherever it is."""
    if name in AXES:
        return metadata.tables["bench"].columns[name].comment or ""  # of a block, whatever it is to an arm
    if name == "id":
        return "the row's number, which other tables refer to"
    if name.endswith("_kind"):
        return f"kind of `{name.removesuffix('_kind')}`: 0 finite, 1 NaN, 2 +∞, 3 −∞"
    return COLUMNS[shown_name(name)].meaning + (" (UTC, µs)" if name.endswith("_us") else "")


def _of_axes() -> Iterator[str]:
    yield from [
        "## Axes",
        "",
        "Columns of `arm`, none of them ever missing, and of every view that says so.",
        "",
    ]
    rows = [
        (axis.name, axis.kind.__name__, axis.description + (f" ({axis.unit})" if axis.unit else ""))
        for axis in AXES.values()
    ]
    yield from _table(("axis", "type", "meaning"), rows)


def _section(
    name: str, purpose: str, heads: Sequence[str], rows: Iterable[Sequence[str]], axes: bool
) -> Iterator[str]:
    yield from [f"### {name}", "", purpose + (" It has every axis (below)." if axes else ""), ""]
    yield from _table(heads, rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for first, *others in rows:
        yield "| " + " | ".join([f"`{first}`", *(text.replace("|", "\\|") for text in others)]) + " |"
    yield ""


if __name__ == "__main__":
    print(describe(), end="")
