"""A small sweep, and a store filled with results by formula: nothing is trained for these."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from results.claims import Provenance, claim, end_attempt
from results.query import Database
from results.record import record, save_sweep
from results.store import Store
from schemas.report import METRICS, ArmRecord, EvalRow, LayerRow, Report, Row, StepRow
from schemas.sweep import Sweep
from schemas.trial import Arm

SMALL = {
    "model_size": "toy",
    "tokenizer": "bytes",
    "seq_len": 16,
    "tokens_per_step": 64,
    "eval_tokens": 64,
    "bias_tokens": 64,
    "steps": 40,
}
PROVENANCE = Provenance("0" * 40, False, {"torch": "2.13.0"})


@pytest.fixture
def sweep_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a sweep file and returns its path."""

    def write(text: str, name: str = "sweep.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def make_sweep(**changes: Any) -> Sweep:
    values = {
        "name": "small",
        "base": SMALL,
        "grid": {"xsa_lambda": [0, 0.5, 1]},
        "seeds": [0, 1, 2],
    } | changes
    return Sweep(**values)


def formula_rows(arm: Arm) -> list[Row]:
    """Losses that fall with steps and with λ, differ by seed, and hold no randomness."""
    gain = 0.03 * arm.xsa_lambda * (1.5 - arm.xsa_lambda / 2) + 0.001 * math.sin(
        1 + arm.seed + 7 * arm.xsa_lambda
    )
    rows: list[Row] = []
    for step in range(arm.steps + 1):
        base = 2.5 + 3 * math.exp(-step / 15) + 0.02 * arm.seed
        loss = base - gain * (1 - math.exp(-step / 10))
        if step:
            rows.append(StepRow(step, loss + 0.05 * math.cos(step), arm.lr, 1.0, 1000.0, step))
        if step % 10 == 0 or step == arm.steps:
            rows.append(EvalRow(step, "val", loss, arm.eval_tokens, step))
        if step in (0, arm.steps):
            for layer in range(arm.n_layer):
                for i, metric in enumerate(METRICS):
                    value = 0.1 + 0.05 * i + 0.1 * layer + 0.002 * step + 0.001 * arm.seed
                    if metric == "cos_zv":
                        value *= 1 - arm.xsa_lambda
                    rows.append(LayerRow(step, metric, layer, value))
    return rows


def formula_record(arm: Arm, attempt: int = 1, **changes: Any) -> ArmRecord:
    values: dict[str, Any] = {
        "arm": arm.model_dump(),
        "arm_id": arm.id,
        "attempt": attempt,
        "status": "done",
        "step": arm.steps,
        "n_params": 1_234,
        "init_sha256": f"init-{arm.seed}",
        "batch_sha256": f"batch-{arm.seed}",
        "data_sha256": "data",
        "wall_s": 2.0,
        "environment": {"hostname": "laptop", "device": "cpu", "threads": 1, "torch": "2.13.0", "pid": 1},
    }
    return ArmRecord(**values | changes)


def fill(store: Store, sweep: Sweep, storage: Path) -> None:
    """Record every arm of the sweep as done."""
    trials = sweep.trials()
    save_sweep(store, sweep, trials, storage)
    for arm in {arm.id: arm for trial in trials for arm in trial.arms}.values():
        attempt = claim(store, arm.id, "elsewhere:1:1.00", PROVENANCE)
        assert attempt
        assert record(
            store, Report(formula_record(arm, attempt), formula_rows(arm)), packages=PROVENANCE.packages
        )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "results.db", mode="write") as opened:
        yield opened


@pytest.fixture
def filled(store: Store, tmp_path: Path) -> Iterator[Database]:
    """A store with a finished sweep of three λ and three seeds."""
    fill(store, make_sweep(), tmp_path / "runs")
    with Database(store.path) as database:
        yield database


@pytest.fixture
def troubled(store: Store, tmp_path: Path) -> Iterator[Database]:
    """The same sweep with one arm diverged, one failed and one still running."""
    sweep = make_sweep()
    fill(store, sweep, tmp_path / "runs")
    with store.write() as connection:
        connection.exec_driver_sql("DELETE FROM arm_step")
        for table in ("arm_eval", "layer_metric", "attempt"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
        connection.exec_driver_sql("UPDATE arm SET status = 'pending', attempt = 0, step = 0")
    arms = list({arm.id: arm for trial in sweep.trials() for arm in trial.arms}.values())
    ends = {("xsa", 0.5, 1): "diverged", ("xsa", 1.0, 0): "failed", ("xsa", 1.0, 2): "running"}
    for arm in arms:
        attempt = claim(store, arm.id, "elsewhere:1:1.00", PROVENANCE)
        assert attempt
        end = ends.get((arm.name, arm.xsa_lambda, arm.seed), "done")
        rows = formula_rows(arm)
        if end != "done":
            rows = [row for row in rows if row.step <= 20]
        if end == "diverged":
            rows.append(StepRow(21, math.nan, arm.lr, math.inf, 1000.0, 21))
        status = "running" if end == "failed" else end
        step = arm.steps if end == "done" else rows[-1].step
        record(store, Report(formula_record(arm, attempt, status=status, step=step), rows))
        if end == "failed":
            end_attempt(
                store, arm.id, attempt, cause="user_error", error="boom <b>", traceback="Traceback: boom <b>"
            )
    with Database(store.path) as database:
        yield database
