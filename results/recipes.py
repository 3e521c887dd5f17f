"""Ten questions to the store, with the code that answers them. A test runs every one."""

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
)
"""A question, and code that goes on from that of the questions before it."""
