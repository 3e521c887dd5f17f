"""Every column that a query can return: its type in pandas and what it means, once.

Axes bring both along (`schemas.trial`); the others are here. `docs/database.md` is made from the same
lines. Columns come from the driver one by one and not row by row: that is what makes a frame quick.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from schemas.errors import UserError
from schemas.names import unknown_name
from schemas.trial import AXES

if TYPE_CHECKING:
    import pyarrow as pa

Dtype = Literal["category", "str", "Int64", "int64", "float64", "bool", "boolean", "time"]
"""A pandas type; `time` is `datetime64[us, UTC]`, of a column that the database calls `..._us`."""
FORMS = ("pandas", "arrow")


class Column(NamedTuple):
    """What a column holds."""

    dtype: Dtype
    meaning: str


COLUMNS: dict[str, Column] = {
    "trial_id": Column("Int64", "the trial's row in `trial`"),
    "arm_id": Column("Int64", "the arm's row in `arm`"),
    "sweep_id": Column("Int64", "the sweep's row in `sweep`"),
    "trial": Column("str", "the trial: the first 12 digits of its identity"),
    "arm": Column("str", "the arm: the first 12 digits of its identity, which also name its folder"),
    "sa_arm": Column("str", "the pair's SA arm"),
    "xsa_arm": Column("str", "the pair's XSA arm; at λ = 0 it is the SA arm"),
    "sweep": Column("str", "the sweep's name"),
    "variant": Column("category", "`sa` or `xsa`"),
    "status": Column(
        "category",
        "where it stands: pending, running, done, diverged (a result), failed or interrupted; "
        "in `v_results` also refused, where a pair's arms did not begin alike",
    ),
    "sa_status": Column("category", "where the pair's SA arm stands"),
    "xsa_status": Column("category", "where the pair's XSA arm stands"),
    "step": Column(
        "Int64", "optimizer steps done; in `v_results` the last at which both arms were evaluated"
    ),
    "tokens": Column("Int64", "training tokens seen by then"),
    "layer": Column("Int64", "layer, from 0"),
    "metric": Column(
        "category",
        "name of a bias metric (`schemas.report.METRICS`, the table `metric`); of evaluations a score of the "
        "harness's, such as acc",
    ),
    "value": Column(
        "float64", "the metric, averaged over heads and sequences; of evaluations over the items"
    ),
    "train_loss": Column("float64", "loss of the step's batch before its update, nats/token"),
    "val_loss": Column("float64", "held-out loss, nats/token; missing where there was no evaluation"),
    "sa_train_loss": Column("float64", "the SA arm's training loss at `step`, nats/token"),
    "xsa_train_loss": Column("float64", "the XSA arm's training loss at `step`, nats/token"),
    "delta_train_loss": Column("float64", "XSA's training loss minus SA's, nats/token"),
    "sa_val_loss": Column("float64", "the SA arm's held-out loss at `step`, nats/token"),
    "xsa_val_loss": Column("float64", "the XSA arm's held-out loss at `step`, nats/token"),
    "delta_val_loss": Column("float64", "XSA's held-out loss minus SA's, nats/token: negative is better"),
    "lr_now": Column("float64", "learning rate of the step (`lr` is the peak)"),
    "grad_norm": Column("float64", "norm of the whole gradient before clipping"),
    "tok_per_s": Column(
        "float64", "training tokens a second, over the steps whose losses were read with this one's"
    ),
    "n_params": Column("Int64", "parameters"),
    "attempt": Column("Int64", "number of the attempt at the arm, from 1"),
    "cause": Column("category", "why the attempt did not finish: host_oom, node_lost, interrupted, ..."),
    "error": Column("str", "the error's message; of evaluations why there is no score"),
    "traceback": Column("str", "the error's traceback"),
    "hostname": Column("str", "the machine"),
    "device": Column("str", "the device, such as `cpu` or a GPU's name"),
    "threads": Column("Int64", "threads of a CPU attempt; they change rounding"),
    "micro_batch": Column("Int64", "sequences in one forward pass"),
    "execution": Column("category", "`eager` or `compiled`, which round differently"),
    "compile_error": Column(
        "str", "why an attempt ran eagerly although it was to be compiled, or without its CUDA graphs"
    ),
    "activation_checkpointing": Column(
        "boolean", "whether blocks were computed again in the backward pass instead of kept"
    ),
    "flops_per_s": Column("float64", "model FLOPs a second in the attempt's training steps"),
    "peak_flops_per_s": Column(
        "float64", "FLOPs a second that the device does at most in the arm's precision"
    ),
    "peak_source": Column(
        "category", "where the peak is from: the `data sheet`, or `measured` by a matrix product"
    ),
    "mfu": Column(
        "float64",
        "share of the device's peak that training used: model FLOPs (6 a weight and 12 L H D T, nanoGPT's count) "
        "over the peak",
    ),
    "git_sha": Column("str", "the code's commit"),
    "dirty": Column("boolean", "whether the code had uncommitted changes"),
    "environment": Column("str", "versions of packages and hardware, as JSON"),
    "peak_rss_bytes": Column("Int64", "most memory that the process held, bytes"),
    "peak_gpu_bytes": Column("Int64", "most GPU memory that the process held, bytes"),
    "wall_s": Column("float64", "seconds that it took"),
    "started_at": Column("time", "when it began"),
    "ended_at": Column("time", "when it ended; missing while it runs"),
    "created_at": Column("time", "when it was first asked for"),
    "updated_at": Column("time", "when it was last run"),
    "seen_at": Column("time", "its last sign of life"),
    "stop_at": Column("time", "when somebody asked it to stop"),
    "finished_at": Column("time", "when the arm had its result"),
    "description": Column("str", "what the sweep's file says about it"),
    "source": Column("str", "the sweep's YAML file as it was last run"),
    "storage": Column("str", "where the arms' folders are"),
    "trials": Column("Int64", "how many trials"),
    "arms": Column("Int64", "how many arms"),
    "task": Column("category", "the harness's name of the task, such as arc_easy"),
    "n_shot": Column("Int64", "solved examples in each prompt"),
    "item_limit": Column("Int64", "only this many first items were asked for; missing: all of them"),
    "stderr": Column("float64", "standard error of the score; missing where the harness gives none"),
    "n_items": Column("Int64", "items that were asked"),
    "task_version": Column("str", "the task's own version in the harness"),
    "harness_version": Column("str", "the harness's version"),
    "data_sha256": Column("str", "hash of the items in order: equal in both arms of a pair, or not compared"),
    "batch_size": Column("Int64", "sequences in a forward pass; of benchmarks those in the block's input"),
    "same_data": Column("boolean", "whether both arms were asked the same items of one version of the task"),
    "sa_value": Column("float64", "the SA arm's score, or its value of the item"),
    "xsa_value": Column("float64", "the XSA arm's score, or its value of the item"),
    "delta_value": Column("float64", "XSA's score minus SA's; missing without `same_data`"),
    "sa_stderr": Column("float64", "standard error of the SA arm's score"),
    "xsa_stderr": Column("float64", "standard error of the XSA arm's score"),
    "sa_n_items": Column("Int64", "items that the SA arm was asked"),
    "xsa_n_items": Column("Int64", "items that the XSA arm was asked"),
    "sa_score_id": Column("Int64", "the SA arm's row in `eval_score`"),
    "xsa_score_id": Column("Int64", "the XSA arm's row in `eval_score`"),
    "item": Column("Int64", "the item's place in the task, from 0"),
    "path": Column("str", "the file; of final weights their directory, from the arm's folder"),
    "bytes": Column("Int64", "size, bytes"),
    "manifest_sha256": Column("str", "hash of the weights' manifest, which has that of the weights"),
    "saved_at": Column("time", "when they were saved"),
    "attempts": Column("Int64", "how many attempts its numbers come from"),
    "mixed": Column(
        "str",
        "which of code, environment, threads, micro_batch and execution differ among the attempts that the numbers "
        "come from; missing where none does",
    ),
    "bench_id": Column("Int64", "the row in `bench`"),
    "direction": Column("category", "`forward` or `forward+backward`"),
    "repeats": Column("Int64", "timed runs"),
    "ms": Column("float64", "median time of a run, milliseconds"),
    "ms_low": Column("float64", "first quartile, milliseconds"),
    "ms_high": Column("float64", "third quartile, milliseconds"),
    "peak_bytes": Column("Int64", "most memory held during a run, beyond the block's weights and its input"),
    "measured_at": Column("time", "when it was measured"),
    "artifact_id": Column("Int64", "the row in `artifact`"),
    "kind": Column("category", "figure, table or report"),
    "name": Column("str", "which figure, table or report"),
    "sha256": Column("str", "hash of the file's content"),
    "filters": Column("str", "what was asked of the sweep's pairs, as JSON"),
    "produced_at": Column("time", "when it was last written"),
}
"""Every column but the axes, by the name that it has in a frame."""
_AXIS: dict[type, Dtype] = {float: "float64", int: "int64", str: "str", bool: "bool"}


def shown_name(name: str) -> str:
    """Return what a frame calls a database's column: a time goes without its unit."""
    return name.removesuffix("_us") if name.endswith("_at_us") else name


def dtype(name: str) -> Dtype | None:
    """Return the type of a frame's column, or None for one that only a query of the user's has."""
    if name in AXES:
        return _AXIS[AXES[name].kind]
    return COLUMNS[name].dtype if name in COLUMNS else None


def series(values: Sequence[Any], kind: Dtype | None) -> Any:
    """Return a column's values as pandas holds them; without a `kind`, as they are found."""
    if kind is None:
        if any(isinstance(value, Decimal) for value in values):  # PostgreSQL's sums and means of integers
            return np.array(values, dtype="float64")
        return pd.Series(values, dtype=None if len(values) else "object")
    if kind == "category":
        found = pd.Categorical(values)
        return found if len(found.categories) else found.set_categories(pd.Index([], dtype="str"))
    if kind == "time":
        return pd.Series(np.array(values, dtype="float64").astype("M8[us]")).dt.tz_localize("UTC")
    if kind == "boolean":  # SQLite has none
        return pd.array([None if value is None else bool(value) for value in values], dtype="boolean")
    if kind in ("float64", "int64", "bool"):
        return np.array(values, dtype=kind)
    return pd.array(values, dtype=kind)


def arrays(names: Sequence[str], rows: Sequence[Sequence[Any]], *, strict: bool = True) -> list[Any]:
    """Return rows as one typed array a column.

    Args:
        names: what the database calls the columns.
        rows: what its driver returned.
        strict: False where a query of the user's may call something by the name of a column of ours.
    """
    found = []
    for name, values in zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True):
        try:
            found.append(series(values, "time" if name.endswith("_at_us") else dtype(name)))
        except (TypeError, ValueError):
            if strict:
                raise
            found.append(series(values, None))
    return found


def frame(names: Sequence[str], rows: Sequence[Sequence[Any]], *, strict: bool = True) -> pd.DataFrame:
    """Return rows as a frame of typed columns. The arguments are those of `arrays`."""
    # By number, because a query of the user's may call two of its columns alike.
    found = pd.DataFrame(dict(enumerate(arrays(names, rows, strict=strict))), copy=False)
    found.columns = pd.Index([shown_name(name) for name in names], dtype="str")
    return found


def with_constants(found: pd.DataFrame, names: Sequence[str], values: Mapping[str, Any]) -> pd.DataFrame:
    """Return these columns of a frame, those that it lacks with one value in all rows."""
    columns = {
        name: found[name] if name in found else series([values[name]], dtype(name)).repeat(len(found))
        for name in names
    }
    return pd.DataFrame(columns, index=found.index, copy=False)


def chosen(known: Sequence[str], wanted: str | Iterable[str] | None) -> list[str]:
    """Return the columns asked for, or all of them. Raises `UnknownName` with the nearest one."""
    if wanted is None:
        return list(known)
    names = [wanted] if isinstance(wanted, str) else list(dict.fromkeys(wanted))
    for name in names:
        if name not in known:
            raise unknown_name("column", name, known)
    return names


def check_form(to: str) -> None:
    """Raise `UnknownName` unless rows can be delivered in this form."""
    if to not in FORMS:
        raise unknown_name("form", to, FORMS)


def delivered(found: pd.DataFrame, to: str) -> "pd.DataFrame | pa.Table":
    """Return a frame in one of `FORMS`."""
    if to == "pandas":
        return found
    import pyarrow as pa

    types = {"category": pa.dictionary(pa.int32(), pa.string()), "str": pa.string()}
    try:
        table = pa.Table.from_pandas(found, preserve_index=False)
        for i, name in enumerate(table.column_names):
            kind = dtype(name)
            # The type must not follow from the values: without rows pyarrow takes a text for nothing at all.
            if kind in types and table.schema.types[i] != types[kind]:
                table = table.set_column(i, name, table.column(i).cast(types[kind]))
    except (pa.ArrowException, ValueError) as error:
        raise UserError(f"The rows are no Arrow table: {error}. Rename or cast that column.") from None
    return table.replace_schema_metadata(None)
