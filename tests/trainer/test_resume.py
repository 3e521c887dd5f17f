"""An arm that is killed and resumed gives the bits of one that never was."""

import multiprocessing
import os
import random
import runpy
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.report import EvalRow, LayerRow, Row, StepRow, read_record
from schemas.trial import Arm
from trainer.checkpoint import load_final

RUNTIME = {"log_every": 1, "eval_every": 3, "bias_every": 4, "checkpoint_every": 2}
_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(["trainer.train"])


def numbers(rows: list[Row]) -> list[tuple[Any, ...]]:
    """What must not change: everything but when and how fast. Floats by their exact digits."""
    found: list[tuple[Any, ...]] = []
    for row in rows:
        match row:
            case StepRow():
                found.append((row.step, row.train_loss.hex(), row.lr.hex(), row.grad_norm.hex()))
            case EvalRow():
                found.append((row.step, row.split, row.loss.hex(), row.n_tokens))
            case LayerRow():
                found.append((row.step, row.metric, row.layer, row.value.hex()))
    return found


def assert_same(run: Any, arm: Arm, name: str, expected: str = "whole") -> None:
    assert numbers(run.rows(arm, name)) == numbers(run.rows(arm, expected))
    weights, whole = load_final(run.folder(arm, name)), load_final(run.folder(arm, expected))
    assert weights.keys() == whole.keys()
    for key, value in weights.items():
        assert torch.equal(value.view(torch.int32), whole[key].view(torch.int32)), key


def worker(arm: Arm, folder: Path, *, die_at: int | None = None, **runtime: Any) -> Any:
    process = _FORK_SERVER.Process(
        target=runpy.run_path,
        args=(str(Path(__file__).with_name("victim.py")),),
        kwargs={
            "init_globals": {
                "settings": {
                    "arm": arm.model_dump(),
                    "folder": folder,
                    "runtime": RUNTIME | runtime,
                    "die_at": die_at,
                }
            }
        },
    )
    process.start()
    return process


def kill(process: Any) -> bool:
    """Kill the process; return whether it was still alive."""
    alive = process.exitcode is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return alive


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("stop_after", [1, 2, 5])
def test_an_interrupted_arm_goes_on_bit_for_bit(
    tiny: Callable[..., Arm], run: Any, stop_after: int, optimizer: str
) -> None:
    arm = tiny(optimizer=optimizer)
    run(arm, "whole", **RUNTIME)
    record = run(arm, "cut", stop_after=stop_after, **RUNTIME)
    assert (record.status, record.step) == ("interrupted", stop_after)
    assert read_record(run.folder(arm, "cut")) == record
    assert run(arm, "cut", attempt=2, **RUNTIME).status == "done"
    assert_same(run, arm, "cut")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_arm_killed_at_random_moments_goes_on_bit_for_bit(
    tiny: Callable[..., Arm], run: Any, dtype: str
) -> None:
    arm = tiny(steps=80, dtype=dtype, n_sinks=1)
    run(arm, "whole", **RUNTIME)
    folder, chance, kills = run.folder(arm, "killed"), random.Random(0), 0
    journal = folder / "metrics.jsonl"
    for _ in range(6):
        before = journal.stat().st_mtime_ns if journal.exists() else 0
        process = worker(arm, folder)
        while process.exitcode is None and not (journal.exists() and journal.stat().st_mtime_ns > before):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.2))
        kills += kill(process)
    assert kills >= 2, "the arm was over before it could be killed"
    run(arm, "killed", **RUNTIME)
    assert_same(run, arm, "killed")


@pytest.mark.slow
def test_an_arm_killed_while_a_checkpoint_is_written_goes_on_bit_for_bit(
    tiny: Callable[..., Arm], run: Any
) -> None:
    arm = tiny(steps=12, d_model=256)
    runtime = RUNTIME | {"checkpoint_every": 1}
    run(arm, "whole", **runtime)
    folder, kills = run.folder(arm, "killed"), 0
    for _ in range(4):
        process = worker(arm, folder, **runtime)
        while process.exitcode is None:
            if any(folder.glob("checkpoints/writing-*")):
                kills += kill(process)
                break
    assert kills >= 2
    assert run(arm, "killed", **runtime).status == "done"
    assert_same(run, arm, "killed")


@pytest.mark.slow
def test_an_arm_killed_before_any_operation_on_the_disk_goes_on_bit_for_bit(
    tiny: Callable[..., Arm], run: Any
) -> None:
    """Each fsync, rename and removal of a whole run in turn is the last thing that does not happen."""
    arm = tiny(steps=2)
    runtime = {"checkpoint_every": 1, "keep_checkpoints": 1}
    run(arm, "whole", **RUNTIME | runtime)
    for die_at in range(1000):
        name = f"dead-{die_at}"
        process = worker(arm, run.folder(arm, name), die_at=die_at, **runtime)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert run(arm, name, **RUNTIME | runtime).status == "done"
        assert_same(run, arm, name)
        left = {path.name for path in (run.folder(arm, name) / "checkpoints").iterdir()}
        assert left == {"final"}
    assert die_at > 12


def test_rows_after_the_checkpoint_are_cut_and_made_again(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny()
    run(arm, "whole", **RUNTIME)
    run(arm, "cut", stop_after=4, **RUNTIME)
    journal = run.folder(arm, "cut") / "metrics.jsonl"
    with journal.open("a") as file:
        row = '{"row": "eval", "step": 5, "split": "val", "loss": 0.0, "n_tokens": 1, "time_us": 1}\n'
        file.write(1000 * row + '{"row": "st')  # more than the rows to come would write over
    run(arm, "cut", **RUNTIME)
    assert_same(run, arm, "cut")


def spoil_missing(checkpoint: Path) -> None:
    (checkpoint / "state.pt").unlink()


def spoil_truncated(checkpoint: Path) -> None:
    with (checkpoint / "state.pt").open("r+b") as file:
        file.truncate(1000)


def spoil_bit(checkpoint: Path) -> None:
    content = bytearray((checkpoint / "state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / "state.pt").write_bytes(content)


def spoil_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text('{"step": 4')


def spoil_no_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def spoil_journal(checkpoint: Path) -> None:
    journal = checkpoint.parent.parent / "metrics.jsonl"
    os.truncate(journal, journal.stat().st_size - 1)


@pytest.mark.parametrize(
    "spoil", [spoil_missing, spoil_truncated, spoil_bit, spoil_manifest, spoil_no_manifest, spoil_journal]
)
@pytest.mark.parametrize("how_many", [1, 2])
def test_a_spoilt_checkpoint_is_told_and_the_one_before_used(
    tiny: Callable[..., Arm],
    run: Any,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
    how_many: int,
) -> None:
    arm = tiny()
    run(arm, "whole", **RUNTIME)
    run(arm, "cut", stop_after=4, **RUNTIME)
    checkpoints = sorted((run.folder(arm, "cut") / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-00000002", "step-00000004"]
    for path in checkpoints[-how_many:]:
        spoil(path)
    warned = how_many if spoil is not spoil_journal else 1
    run(arm, "cut", **RUNTIME)
    assert run.reports[0].record.step == 4 - 2 * warned
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
    assert "falling back" in caplog.text and "step-00000004" in caplog.text
    assert_same(run, arm, "cut")
