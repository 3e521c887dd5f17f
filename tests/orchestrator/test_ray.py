"""The main job through a real Ray of its own: trained, interrupted, killed and run again."""

import os
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.orchestrator.desk import Desk, end

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("ray") / "undisturbed")
    desk.output = desk.run()  # type: ignore[attr-defined]
    return desk


def test_a_sweep_becomes_rows_and_running_it_again_does_nothing(undisturbed: Desk) -> None:
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
    tmp_path: Path, undisturbed: Desk
) -> None:
    desk = Desk(tmp_path / "disturbed")
    process = desk.start()
    desk.wait_for_a_checkpoint(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to workers too
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Stopping: trials checkpoint and end." in output
    assert "checkpointed" in output
    assert set(desk.attempts().status) <= {"interrupted", "done"}

    process = desk.start()
    desk.wait_for_attempts(process, len(desk.attempts()) + 1)
    process.terminate()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert "Stopping: trials checkpoint and end." in output

    process = desk.start()
    desk.wait_for_attempts(process, len(desk.attempts()) + 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert "Stopping at once." in end(process, 130)

    process = desk.start()
    desk.wait_for_attempts(process, len(desk.attempts()) + 1)
    process.kill()
    process.communicate()

    assert "2 arms done, 0 to do" in desk.run()
    for ours, theirs in zip(desk.frames(), undisturbed.frames(), strict=True):
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    attempts = desk.attempts()
    assert set(attempts[attempts.status != "done"].cause) == {"interrupted"}
    assert attempts.attempt.max() >= 3
