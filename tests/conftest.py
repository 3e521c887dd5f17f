"""A small sweep, and a store filled with results by formula: nothing is trained for these."""

import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from results.claims import Provenance, claim, end_attempt, renew
from results.query import Database
from results.record import record, save_sweep
from results.store import Store
from schemas.report import METRICS, ArmRecord, EvalRow, LayerRow, Report, Row, StepRow
from schemas.sweep import Sweep
from schemas.trial import Arm

if TYPE_CHECKING:
    from tests.postgres import Server

ON_SERVER = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgres)])
ON_BOTH = pytest.mark.parametrize("kind", ["sqlite", *ON_SERVER.args[1]])
"""What every store does is tested on a file and on a server."""
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


def fill(store: Store, sweep: Sweep, storage: Path, ends: dict[tuple[float, int], str] | None = None) -> None:
    """Record every arm of the sweep as done, but for the XSA arms of a (λ, seed) that end otherwise."""
    trials = sweep.trials()
    save_sweep(store, sweep, trials, storage)
    for arm in {arm.id: arm for trial in trials for arm in trial.arms}.values():
        attempt = claim(store, arm.id, "elsewhere:1:1.00", PROVENANCE)
        assert attempt
        end = (ends or {}).get((arm.xsa_lambda, arm.seed), "done")
        rows = [row for row in formula_rows(arm) if end == "done" or row.step <= 20]
        if end == "diverged":
            rows.append(StepRow(21, math.nan, arm.lr, math.inf, 1000.0, 21))
        status = "running" if end == "failed" else end
        told = formula_record(arm, attempt, status=status, step=rows[-1].step)
        assert record(store, Report(told, rows), packages=PROVENANCE.packages)
        if end == "failed":
            end_attempt(
                store, arm.id, attempt, cause="user_error", error="boom <b>", traceback="Traceback: boom <b>"
            )


ENDS: dict[str, dict[tuple[float, int], str]] = {
    "filled": {},
    "troubled": {(0.5, 1): "diverged", (1.0, 0): "failed", (1.0, 2): "running"},
}
"""How the arms of the stores ended that the fixtures of these names give."""


@pytest.fixture(scope="session")
def server() -> "Iterator[Server]":
    """A PostgreSQL server."""
    from tests.postgres import Server, binaries

    programs = binaries()
    if programs is None:
        assert "CI" not in os.environ, "CI must have PostgreSQL"
        pytest.skip("PostgreSQL is not installed")
    running = Server(programs)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def originals() -> dict[tuple[str, str], str]:
    """Stores of which tests get copies, by kind and contents: a file's path or the name of a database."""
    return {}


@pytest.fixture
def kind() -> str:
    """What holds the test's stores: `ON_BOTH` and `ON_SERVER` replace it."""
    return "sqlite"


@pytest.fixture
def address(
    kind: str,
    request: pytest.FixtureRequest,
    originals: dict[tuple[str, str], str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Where the test's store is: a file's path or a server's URL."""
    contents = next((name for name in ENDS if name in request.fixturenames), "empty")
    server: Server | None = request.getfixturevalue("server") if kind == "postgresql" else None
    if (kind, contents) not in originals:
        original = server.make() if server else str(tmp_path_factory.mktemp("stores") / "results.db")
        with Store.open(server.url(original) if server else original, mode="write") as opened:
            if contents in ENDS:
                fill(opened, make_sweep(), Path("runs"), ENDS[contents])
        originals[kind, contents] = original
    original = originals[kind, contents]
    if server:
        copy = server.make(original)
        yield server.url(copy)
        server.drop(copy)
    else:
        yield str(shutil.copy(original, tmp_path / "results.db"))


@pytest.fixture
def new(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a store may be made: the path of no file yet, or an empty database's URL."""
    if kind == "sqlite":
        yield str(tmp_path / "new.db")
        return
    server: Server = request.getfixturevalue("server")
    name = server.make()
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    """A store: an empty one, unless the test has a fixture of `ENDS` too."""
    with Store.open(address, mode="write") as opened:
        yield opened


@pytest.fixture
def wanted(store: Store, tmp_path: Path) -> Store:
    """A store with a sweep of which nothing is trained yet."""
    sweep = make_sweep()
    save_sweep(store, sweep, sweep.trials(), tmp_path / "runs")
    return store


@pytest.fixture
def db(address: str) -> Iterator[Database]:
    """The same store, opened for reading."""
    with Database(address) as database:
        yield database


@pytest.fixture
def filled(db: Database) -> Database:
    """A store with a finished sweep of three λ and three seeds."""
    return db


@pytest.fixture
def troubled(store: Store, db: Database) -> Database:
    """The same sweep with one arm diverged, one failed and one still running, heard of a moment ago."""
    renew(store, "elsewhere:1:1.00")
    return db
