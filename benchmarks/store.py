"""How fast the store takes results in and gives them back, side by side with the usual ways.

    python -m benchmarks.store > tables.md

Every round runs each variant once, in turn, so that whatever else the machine does slows all of them
alike. The tables give the median over rounds, and the median of each round's ratio to the first line.
"""

import argparse
import gc
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import sqlalchemy as sa

from results.query import Database
from results.record import record, save_sweep
from results.record_evals import record_evals
from results.store import Store
from schemas.evals import Score, TaskResult
from schemas.report import ArmRecord, EvalRow, Report, Row, StepRow
from schemas.sweep import Sweep
from schemas.trial import Arm

BASE = {"tokenizer": "bytes", "seq_len": 16, "tokens_per_step": 64, "eval_tokens": 64, "bias_tokens": 64}
VALUES = 5
"""Numbers of a step: loss, learning rate, gradient norm, tokens a second, time."""


class Seconds(NamedTuple):
    """What something took, without what it had to prepare: where CPU time is much less, others were at work."""

    wall: float
    cpu: float


Variant = Callable[[], Seconds]
"""Does something once and returns what it took."""


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arms", type=int, default=200, help="arms to record")
    parser.add_argument("--read-arms", type=int, default=1000, help="arms whose curves are read")
    parser.add_argument("--steps", type=int, default=1000, help="steps of an arm")
    parser.add_argument("--trials", type=int, default=10_000, help="pairs to read")
    parser.add_argument("--items", type=int, default=10_042, help="items of each of eight tasks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recording(Path(folder), options.rounds, options.arms, options.steps)
        curves(Path(folder) / "curves.db", options.rounds, options.read_arms, options.steps)
        pairs(Path(folder) / "pairs.db", options.rounds, options.trials)
        items(Path(folder) / "items.db", options.rounds, options.items)


# -- recording


def recording(folder: Path, rounds: int, count: int, steps: int) -> None:
    sweep = sweep_of(count, steps)
    arms = arms_of(sweep)[:count]
    whole = [report_of(arm, range(1, steps + 1)) for arm in arms]
    part = max(steps // 10, 1)
    parts = [  # as they come while the arms train side by side
        report_of(arm, range(first, min(first + part, steps + 1)))
        for first in range(1, steps + 1, part)
        for arm in arms
    ]
    files = (folder / f"{number}.db" for number in range(10**6))

    def ours(reports: list[Report]) -> Variant:
        def run() -> Seconds:
            with Store.open(next(files), mode="write") as store:
                save_sweep(store, sweep, sweep.trials(), folder)
                with timed() as seconds:
                    for report in reports:
                        record(store, report)
            return seconds()

        return run

    table(
        f"{count * steps * VALUES:,} values of {count * steps:,} steps of {count} arms into SQLite",
        rounds,
        {
            "MLflow's layout, a batch for each arm": lambda: mlflow_like(next(files), whole),
            "`record`, a report for each arm": ours(whole),
            f"MLflow's layout, batches of {part} steps": lambda: mlflow_like(next(files), parts),
            f"`record`, reports of {part} steps": ours(parts),
        },
        unit=(count * steps * VALUES, "values"),
    )


_MLFLOW = """
CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY);
CREATE TABLE metrics (
    key VARCHAR(250) NOT NULL, value DOUBLE NOT NULL, timestamp BIGINT NOT NULL,
    run_uuid VARCHAR(32) NOT NULL REFERENCES runs, step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL,
    PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));
CREATE INDEX index_metrics_run_uuid ON metrics (run_uuid, key, step, value);
"""


def mlflow_like(path: Path, reports: list[Report]) -> Seconds:
    """Write the same numbers as MLflow stores them, without its Python: a row for each but the time."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {_MLFLOW}")
        with timed() as seconds:
            for report in reports:
                run = report.record.arm_id[:32]
                rows = [
                    (key, getattr(row, key), row.time_us, run, row.step, 0)
                    for row in report.rows
                    if isinstance(row, StepRow)
                    for key in ("train_loss", "lr", "grad_norm", "tok_per_s")
                ]
                connection.execute("INSERT OR IGNORE INTO runs VALUES (?)", (run,))
                connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
                connection.commit()
    return seconds()


# -- reading


def curves(path: Path, rounds: int, count: int, steps: int) -> None:
    sweep = sweep_of(count, steps)
    with Store.open(path, mode="write") as store:
        save_sweep(store, sweep, sweep.trials(), path.parent)
        for arm in arms_of(sweep)[:count]:
            evals: list[Row] = [EvalRow(step, "val", 3.0, 64, step) for step in range(0, steps + 1, 100)]
            record(store, report_of(arm, range(1, steps + 1), evals))
    with Database(path) as db, closing(sqlite3.connect(path)) as raw:
        one = raw.execute("SELECT id, substr(fingerprint, 1, 12) FROM arm WHERE step > 0").fetchone()
        table(
            f"{len(db.curves(columns='step')):,} rows of `v_curves`",
            rounds,
            {
                "`pandas.read_sql`": once(lambda: read_sql(db, "SELECT * FROM v_curves")),
                "`db.curves()`": once(lambda: db.curves()),
                '`db.curves(to="arrow")`': once(lambda: db.curves(to="arrow")),
                "`db.curves(columns=[...])`, 3 of them": once(
                    lambda: db.curves(columns=["arm", "step", "train_loss"])
                ),
            },
        )
        by_arm = f"SELECT * FROM v_curves WHERE arm = '{one[1]}'"
        table(
            f"one curve of {steps:,} steps",
            rounds,
            {
                "`pandas.read_sql` of `v_curves`": once(lambda: read_sql(db, by_arm)),
                "`db.curves(arm=...)`": once(lambda: db.curves(arm=one[1]), times=20),
                "`db.curves(arm=..., columns=[...])`, 2 of them": once(
                    lambda: db.curves(arm=one[1], columns=["step", "train_loss"]), times=20
                ),
                "its query alone, on an open connection": once(
                    lambda: raw.execute(
                        "SELECT step, train_loss FROM arm_step WHERE arm_id = ?", one[:1]
                    ).fetchall(),
                    times=20,
                ),
            },
        )


def pairs(path: Path, rounds: int, count: int) -> None:
    sweep = sweep_of(count, 100)
    with Store.open(path, mode="write") as store:
        save_sweep(store, sweep, sweep.trials(), path.parent)
        with store.write() as connection:  # what `record` would have written, at once
            for step in range(0, 101, 10):
                connection.exec_driver_sql(
                    f"INSERT INTO arm_eval SELECT id, {step}, 'val', 1, 3 - xsa_lambda / 10, 0, 64, 1 FROM arm"
                )
            connection.exec_driver_sql("UPDATE arm SET status = 'done', step = 100, n_params = 1234")
    with Database(path) as db:
        table(
            f"{count:,} rows of `v_results`",
            rounds,
            {
                "`pandas.read_sql`": once(lambda: read_sql(db, "SELECT * FROM v_results")),
                "`db.pairs()`": once(lambda: db.pairs()),
                '`db.pairs(to="arrow")`': once(lambda: db.pairs(to="arrow")),
                "`db.pairs(columns=[...])`, 3 of them": once(
                    lambda: db.pairs(columns=["xsa_lambda", "seed", "delta_val_loss"])
                ),
                "`db.pairs(seed=0, xsa_lambda=0.001)`": once(lambda: db.pairs(seed=0, xsa_lambda=0.001)),
            },
        )


def items(path: Path, rounds: int, count: int) -> None:
    sweep = sweep_of(10, 100)
    scores = {"acc": Score(0.5, None, [float(i % 2) for i in range(count)])}
    rest: Any = (0, None, 100, count, "1", "1", "same", 8, "cpu", scores, None, 1.0, 1)
    with Store.open(path, mode="write") as store:
        save_sweep(store, sweep, sweep.trials(), path.parent)
        for arm in sweep.trials()[0].arms:
            results = [TaskResult(f"task{i}", *rest) for i in range(8)]
            record_evals(store, arm.id, results)
    few = ["task", "sa_value", "xsa_value"]
    with Database(path) as db:
        table(
            f"{8 * count:,} items of 8 tasks, side by side for a pair",
            rounds,
            {
                "`pandas.read_sql` of `v_eval_items`": once(
                    lambda: read_sql(db, "SELECT * FROM v_eval_items")
                ),
                "`db.eval_items()`": once(lambda: db.eval_items()),
                "`db.eval_items(columns=[...])`, 3 of them": once(lambda: db.eval_items(columns=few)),
            },
        )


def read_sql(db: Database, query: str) -> pd.DataFrame:
    with db.store.engine.connect() as connection:
        return pd.read_sql(sa.text(query), connection)


# -- what they share


def sweep_of(count: int, steps: int) -> Sweep:
    """Return a sweep of `count` pairs, ten seeds each."""
    lambdas = [i / 1000 for i in range(1, max(count // 10, 1) + 1)]
    return Sweep(
        name="bench", base=BASE | {"steps": steps}, grid={"xsa_lambda": lambdas}, seeds=list(range(10))
    )


def arms_of(sweep: Sweep) -> list[Arm]:
    return list({arm.id: arm for trial in sweep.trials() for arm in trial.arms}.values())


def report_of(arm: Arm, steps: range, others: list[Row] | None = None) -> Report:
    rows: list[Row] = [StepRow(step, 3 + 1 / step, 1e-3, 1.5, 1000.0, 10**15 + step) for step in steps]
    hashes = ("init", "batch", "data")
    told = ArmRecord(arm.model_dump(), arm.id, 1, "done", arm.steps, 1234, *hashes, 2.0, {"device": "cpu"})
    return Report(told, rows + (others or []))


@contextmanager
def timed() -> Iterator[Callable[[], Seconds]]:
    """What the body takes, once it has ended."""
    gc.collect()
    gc.freeze()  # what the benchmark itself holds is no work of the collector's
    began = time.perf_counter(), time.process_time()
    ended: list[Seconds] = []
    yield lambda: ended[0]
    ended.append(Seconds(time.perf_counter() - began[0], time.process_time() - began[1]))
    gc.unfreeze()


def once(ask: Callable[[], Any], *, times: int = 1) -> Variant:
    """Return the variant that asks, so many times in a row where once is too short to be timed."""

    def run() -> Seconds:
        with timed() as seconds:
            for _ in range(times):
                ask()
        return Seconds(seconds().wall / times, seconds().cpu / times)

    return run


def table(
    title: str, rounds: int, variants: dict[str, Variant], *, unit: tuple[int, str] | None = None
) -> None:
    """Print a table in Markdown."""
    found: dict[str, list[Seconds]] = {name: [] for name in variants}
    for number in range(rounds):
        for name, variant in variants.items():
            found[name].append(variant())
        load = f"load {os.getloadavg()[0]:.1f}"
        print(f"{title}: round {number + 1} of {rounds}, {load}", file=sys.stderr)
    rate = f" {unit[1]}/s |" if unit else ""
    print(f"\n| {title} | median | CPU |{rate} to the first |\n|---|---|---|---|{'---|' if unit else ''}")
    first = next(iter(found.values()))
    for name, seconds in found.items():
        wall, cpu = (statistics.median(times) for times in zip(*seconds, strict=True))
        ratio = statistics.median(a.wall / b.wall for a, b in zip(first, seconds, strict=True))
        rate = f" {unit[0] / wall:,.0f} |" if unit else ""
        print(f"| {name} | {shown(wall)} | {shown(cpu)} |{rate} {ratio:.1f}x |")
    sys.stdout.flush()


def shown(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.2g} ms"


if __name__ == "__main__":
    main()
