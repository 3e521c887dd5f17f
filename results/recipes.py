"""Thirteen questions to the store, with the code that answers them. A test runs every one."""

RECIPES: tuple[tuple[str, str], ...] = (
    (
        "Which λ helps, and by how much?",
        """
import results
from results.stats import summarise

db = results.open()  # results.db, or $XSA_DB, or a path or URL given here
summarise(db.pairs(sweep="quickstart"), by=["xsa_lambda"])  # n, both means, delta, 95 % interval, p
""",
    ),
    (
        "The same numbers as a grid, λ down and seeds across",
        """
pairs = db.pairs(sweep="quickstart", columns=["xsa_lambda", "seed", "delta_val_loss"])
pairs.pivot(index="xsa_lambda", columns="seed", values="delta_val_loss")
""",
    ),
    (
        "One learning curve",
        """
best = db.pairs(sweep="quickstart", status="done").sort_values("delta_val_loss").iloc[0]
curve = db.curves(arm=best.xsa_arm, columns=["step", "train_loss", "val_loss"])
curve.dropna(subset="val_loss")  # the steps that were evaluated
""",
    ),
    (
        "Several values, a range, or an open end of any axis",
        """
db.pairs(seq_len=[16, 64], lr=(1e-4, 1e-2), xsa_lambda=(0.5, None), status="done")
""",
    ),
    (
        "The bias of each layer, before and after the exclusion",
        """
layers = db.layers(sweep="quickstart", metric=["cos_yv", "cos_zv"])
last = layers[layers.step == layers.steps]
last.pivot_table(index=["variant", "layer"], columns="metric", values="value")
""",
    ),
    (
        "How many tokens a second, on which machine?",
        """
machines = db.attempts(columns=["arm", "hostname", "device", "threads"]).drop_duplicates("arm")
speeds = db.curves(columns=["arm", "tok_per_s"]).dropna()
speeds.merge(machines, on="arm").groupby(["hostname", "device"]).tok_per_s.median()
""",
    ),
    (
        "What share of its device's peak does each arm use, by the size of the model?",
        """
speeds = db.attempts(columns=["arm", "model_size", "device", "execution", "mfu"]).dropna(subset="mfu")
newest = speeds.drop_duplicates("arm", keep="last")
newest.groupby(["model_size", "device", "execution"], observed=True).mfu.agg(["median", "count"])
""",
    ),
    (
        "What failed, where and why?",
        """
db.attempts(sweep="quickstart", status="failed", columns=["arm", "hostname", "cause", "error"])
""",
    ),
    (
        "What is left to do?",
        """
sweeps = db.sweeps().set_index("sweep")
sweeps[["arms", "done", "diverged", "failed", "running", "pending"]]
db.pairs(sweep="quickstart", status=["pending", "failed"], columns=["xsa_lambda", "seed", "status"])
""",
    ),
    (
        "A SELECT of your own; values go in as parameters",
        '''
db.sql(
    """SELECT xsa_lambda, avg(delta_val_loss) AS mean, count(*) AS n
    FROM v_results WHERE status = 'done' AND seed <= :most GROUP BY xsa_lambda ORDER BY xsa_lambda""",
    most=1,
)
''',
    ),
    (
        "A million rows for Arrow, Polars, DuckDB or a file",
        """
import pyarrow.parquet

table = db.curves(sweep="quickstart", to="arrow")
pyarrow.parquet.write_table(table, "curves.parquet")  # `xsa db export DIR` writes every view so
""",
    ),
    (
        "Which downstream tasks gain, and on how many items is just one of the two arms right?",
        """
scores = db.eval_pairs(sweep="quickstart", metric=["acc", "acc_norm"], same_data=True)
scores.groupby(["task", "metric", "xsa_lambda"]).delta_value.agg(["mean", "count"])
columns = ["task", "xsa_lambda", "sa_value", "xsa_value"]  # whole rows of a million items take long
items = db.eval_items(sweep="quickstart", metric="acc", columns=columns)
items.groupby(columns).size().unstack(["sa_value", "xsa_value"], fill_value=0)
db.evals(sweep="quickstart", columns=["arm", "task", "error"]).dropna(subset="error")  # what failed
""",
    ),
    (
        "Which pairs mix code, machines, threads, micro-batches or eager and compiled steps?",
        """
db.mixed(sweep="quickstart", columns=["trial", "sa_arm", "xsa_arm", "mixed"])
columns = ["arm", "git_sha", "dirty", "device", "threads", "micro_batch", "execution"]
db.provenance(sweep="quickstart", columns=columns)
""",
    ),
)
"""A question, and code that goes on from that of the questions before it."""
