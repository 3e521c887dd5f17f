"""The main job through a real Ray of its own: trained, interrupted, killed and run again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import results
from schemas.report import arm_folder
from schemas.sweep import Sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SWEEP = """
base: {tokenizer: bytes, seq_len: 32, tokens_per_step: 256, eval_tokens: 256, bias_tokens: 256, steps: 120}
grid: {xsa_lambda: [0, 1]}
seeds: [0]
runtime: {eval_every: 30, bias_every: 60, checkpoint_every: 10}
"""


class Place:
    """A directory with the sweep, its own store and storage."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "small.yaml").write_text(SWEEP)
        self.sweep = Sweep.load(folder / "small.yaml")

    def start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "run", "small.yaml"],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, code: int = 0) -> str:
        process = self.start()
        output, _ = process.communicate(timeout=300)
        assert process.returncode == code, output
        return output

    def wait_for_a_checkpoint(self, process: "subprocess.Popen[str]") -> None:
        for _ in range(1200):
            if list(self.folder.glob("runs/arms/*/checkpoints/*/manifest.json")):
                return
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.1)
        raise AssertionError("no checkpoint within two minutes")

    def wait_for_attempts(self, process: "subprocess.Popen[str]", number: int) -> None:
        """Wait until an arm is being trained again."""
        for _ in range(1200):
            if len(self.attempts()) >= number:
                return
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.1)
        raise AssertionError("no further attempt within two minutes")

    def frames(self) -> list[pd.DataFrame]:
        """Everything that was recorded, but for speeds."""
        with results.open(self.folder / "results.db") as db:
            found = [db.pairs("small"), db.curves("small").drop(columns="tok_per_s"), db.layers("small")]
        keys = [["trial"], ["arm", "step"], ["arm", "step", "metric", "layer"]]
        return [f.sort_values(k).reset_index(drop=True) for f, k in zip(found, keys, strict=True)]

    def attempts(self) -> pd.DataFrame:
        with results.open(self.folder / "results.db") as db:
            return db.attempts("small")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("ray") / "undisturbed")
    place.output = place.run()  # type: ignore[attr-defined]
    return place


def test_a_sweep_becomes_rows_and_running_it_again_does_nothing(undisturbed: Place) -> None:
    output: str = undisturbed.output  # type: ignore[attr-defined]
    assert "small: 2 arms done, 0 to do" in output
    assert "2/2 arms done · 0 running · 0 left" in output
    assert "Results: results.db" in output
    pairs, curves, layers = undisturbed.frames()
    assert set(pairs.status) == {"done"}
    assert len(curves) == 2 * 121
    assert set(layers.step) == {0, 60, 120}
    assert (curves[curves.step == 120].train_loss < curves[curves.step == 1].train_loss.mean()).all()
    zero = layers[(layers.metric == "cos_zv") & (layers.xsa_lambda == 1)]
    assert zero.value.abs().max() < 1e-5
    attempts = undisturbed.attempts()
    assert len(attempts) == 2
    assert attempts.peak_rss_bytes.min() > 1e8
    again = undisturbed.run()
    assert "2 arms done, 0 to do" in again
    assert "starting Ray" not in again
    assert len(undisturbed.attempts()) == 2


def test_a_run_that_is_stopped_and_killed_ends_with_the_same_numbers(
    tmp_path: Path, undisturbed: Place
) -> None:
    place = Place(tmp_path / "disturbed")
    process = place.start()
    place.wait_for_a_checkpoint(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to workers too
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Stopping: trials checkpoint and end." in output
    assert "checkpointed" in output
    assert set(place.attempts().status) <= {"interrupted", "done"}

    process = place.start()
    place.wait_for_attempts(process, len(place.attempts()) + 1)
    process.terminate()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert "Stopping: trials checkpoint and end." in output

    process = place.start()
    place.wait_for_attempts(process, len(place.attempts()) + 1)
    process.kill()
    process.communicate()

    assert "2 arms done, 0 to do" in place.run()
    for ours, theirs in zip(place.frames(), undisturbed.frames(), strict=True):
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    attempts = place.attempts()
    assert set(attempts[attempts.status != "done"].cause) == {"interrupted"}
    assert attempts.attempt.max() >= 3


def test_a_failing_arm_is_kept_apart_and_tried_again_by_the_next_run(
    tmp_path: Path, undisturbed: Place
) -> None:
    place = Place(tmp_path / "failing")
    bad = place.sweep.trials()[0].sa
    folder = arm_folder(place.folder / "runs", bad.id)
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where a folder must go")
    output = place.run(code=1)
    assert "small: 1 arms done, 1 to do (1 failed)" in output
    assert "user_error" in output
    failed = place.attempts().set_index("arm").loc[bad.id[:12]]
    assert (failed.status, failed.cause) == ("failed", "user_error")
    assert "Error" in failed.traceback
    folder.unlink()
    assert "2 arms done, 0 to do" in place.run()
