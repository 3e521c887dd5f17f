"""A sweep with downstream tasks through a real Ray: trained, evaluated, and stopped half-way."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import results
from tests.orchestrator.desk import Desk, end

pytestmark = [pytest.mark.ray, pytest.mark.slow]
TASKS = Path(__file__).parents[1] / "tasks"
SWEEP = """
base: {tokenizer: bytes, seq_len: 64, tokens_per_step: 64, eval_tokens: 64, bias_tokens: 64, steps: 2}
grid: {xsa_lambda: [0, 1]}
evals: {tasks: [boolq, piqa, winogrande], batch_size: 1}
"""


def test_a_run_trains_evaluates_and_keeps_what_is_finished_when_it_is_stopped(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk", SWEEP)
    data = desk.folder / "data"
    data.mkdir()
    shutil.copy(TASKS / "piqa.validation.jsonl", data)
    many = (TASKS / "winogrande.validation.jsonl").read_text() * 300
    (data / "winogrande.validation.jsonl").write_text(many)
    process = desk.start(XSA_TASK_DATA=str(data))
    while not any("piqa" in path.read_text() for path in desk.folder.glob("runs/arms/*/evals.jsonl")):
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to workers too
    output = end(process, 130)
    assert "small: 2 arms done, 0 to do" in output
    assert "Stopping: what is finished is kept." in output
    assert "of 6 evaluations done" in output
    assert f"boolq: {data} has no boolq.validation.jsonl" in output
    with results.open(desk.folder / "results.db") as db:
        found = db.evals("small")
    assert set(found[found.error.isna()].task) == {"piqa"}
    assert set(found[found.error.notna()].task) == {"boolq"}
