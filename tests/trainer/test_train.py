"""One arm: what it reports, how it ends, and what does not change its numbers."""

import hashlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from schemas.errors import UserError
from schemas.report import EvalRow, LayerRow, Row, StepRow, read_record, row_to_json, write_record
from schemas.trial import Arm
from trainer.checkpoint import load_final
from trainer.data import Batches
from trainer.journal import FolderBusy, hold
from trainer.metrics import Losses, evaluate
from trainer.model import build
from trainer.train import ChangedArm, StaleAttempt


def losses(rows: list[Row]) -> list[float]:
    return [row.train_loss for row in rows if isinstance(row, StepRow)]


def held_out(rows: list[Row]) -> dict[int, float]:
    return {row.step: row.loss for row in rows if isinstance(row, EvalRow)}


def test_reports_hold_every_row_once_and_in_order(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny(steps=7)
    record = run(arm, log_every=2, eval_every=3, bias_every=5)
    told = [(report.record.status, report.record.step) for report in run.reports]
    assert told == [("running", 0), ("running", 0), ("running", 3), ("running", 6), ("done", 7)]
    assert [row for report in run.reports for row in report.rows] == run.rows(arm)
    rows = run.rows(arm)
    assert [row.step for row in rows if isinstance(row, StepRow)] == [2, 4, 6, 7]
    assert list(held_out(rows)) == [0, 3, 6, 7]
    assert sorted({row.step for row in rows if isinstance(row, LayerRow)}) == [0, 5, 7]
    assert record == read_record(run.folder(arm)) == run.reports[-1].record
    assert record.environment["threads"] == 1 and record.environment["peak_rss_bytes"] > 1e6
    assert record.wall_s > 0 and record.n_params == sum(
        w.numel() for w in load_final(run.folder(arm)).values()
    )


def test_a_worker_out_of_memory_while_compiling_has_told_its_micro_batch(
    tiny: Callable[..., Arm], run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_out(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("trainer.execution._sample_loss", give_out)
    with pytest.raises(torch.OutOfMemoryError):
        run(tiny(), compile="on", micro_batch=2, activation_checkpointing=True)
    (report,) = run.reports
    told = report.record.environment
    assert (told["micro_batch"], told["activation_checkpointing"]) == (2, True)
    assert "execution" not in told


@pytest.mark.parametrize("every_s", [0.0, math.inf])
def test_losses_are_read_where_something_is_due_or_now_and_then(
    tiny: Callable[..., Arm], run: Any, monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    """Each read makes the host wait for the device, however often a loss is logged."""
    reads: list[int] = []
    read = Losses.read

    def counted(losses: Losses) -> tuple[list[StepRow], int | None]:
        rows, diverged_at = read(losses)
        reads.append(len(rows))
        return rows, diverged_at

    arm = tiny(steps=7)
    run(arm, "usual")
    monkeypatch.setattr("trainer.metrics.READ_EVERY_S", every_s)
    monkeypatch.setattr(Losses, "read", counted)
    run(arm, "counted", eval_every=4)
    assert reads == ([1] * 7 if every_s == 0 else [4, 3])
    found = [row for row in run.rows(arm, "counted") if isinstance(row, StepRow)]
    assert [row.step for row in found] == [1, 2, 3, 4, 5, 6, 7]
    assert losses(run.rows(arm, "counted")) == losses(run.rows(arm, "usual"))
    times = [row.time_us for row in found]
    assert times == sorted(set(times)), "each is that of its own step"


def test_a_finished_arm_tells_where_its_weights_are(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny()
    record = run(arm)
    assert [report.record.weights for report in run.reports[:-1]] == [None] * (len(run.reports) - 1)
    weights, files = record.weights, sorted((run.folder(arm) / record.weights.path).iterdir())
    assert (weights.step, weights.bytes) == (arm.steps, sum(file.stat().st_size for file in files))
    assert weights.manifest_sha256 == hashlib.sha256(files[0].read_bytes()).hexdigest()
    assert run(arm, attempt=2).weights == weights
    assert run(tiny(lr=1e30)).weights is None  # it diverged


def test_an_arm_resumed_tells_all_rows_first(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny()
    run(arm, stop_after=4)
    before = run.rows(arm)
    run(arm, attempt=2)
    assert (run.reports[0].record.status, run.reports[0].record.step) == ("running", 4)
    assert run.reports[0].rows == before
    assert [row for report in run.reports for row in report.rows] == run.rows(arm)


@pytest.mark.parametrize("lr", [1e-3, 1e30])
def test_a_finished_arm_is_told_again_and_not_trained(
    tiny: Callable[..., Arm], run: Any, monkeypatch: pytest.MonkeyPatch, lr: float
) -> None:
    arm = tiny(lr=lr)
    first = run(arm)
    assert first.status == ("done" if lr < 1 else "diverged")
    monkeypatch.setattr("trainer.train.build", None)
    record = run(arm, attempt=3)
    assert record == replace(first, attempt=3) == read_record(run.folder(arm))
    (report,) = run.reports
    assert list(map(row_to_json, report.rows)) == list(map(row_to_json, run.rows(arm)))


@pytest.mark.parametrize("log_every", [1, 2, 5, 100])
@pytest.mark.parametrize("eval_every", [1, 100])
def test_an_arm_that_diverges_ends_at_its_first_step_that_is_not_finite(
    tiny: Callable[..., Arm], run: Any, log_every: int, eval_every: int
) -> None:
    arm = tiny(lr=1e30, steps=9, warmup_steps=2)
    record = run(arm, log_every=log_every, eval_every=eval_every, bias_every=100, checkpoint_every=4)
    steps = [row for row in run.rows(arm) if isinstance(row, StepRow)]
    assert (record.status, record.step) == ("diverged", 2)
    assert steps[-1].step == 2 and not math.isfinite(steps[-1].train_loss)
    assert all(math.isfinite(row.train_loss) for row in steps[:-1])
    assert not list((run.folder(arm) / "checkpoints").glob("*"))
    assert run.reports[-1].record == record


def test_an_arm_whose_last_update_breaks_it_has_diverged(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny(lr=1e30, steps=1)
    record = run(arm)
    assert (record.status, record.step) == ("diverged", 1)
    assert math.isfinite(losses(run.rows(arm))[0]) and not math.isfinite(held_out(run.rows(arm))[1])


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_accumulation_changes_nothing_but_rounding(
    tiny: Callable[..., Arm], run: Any, micro_batch: int
) -> None:
    arm = tiny()
    run(arm, "whole")
    run(arm, "parts", micro_batch=micro_batch)
    assert losses(run.rows(arm, "parts")) == pytest.approx(losses(run.rows(arm, "whole")), abs=2e-6)
    assert held_out(run.rows(arm, "parts")) == pytest.approx(held_out(run.rows(arm, "whole")), abs=2e-6)


def test_looking_changes_no_number(tiny: Callable[..., Arm], run: Any) -> None:
    """However often an arm is evaluated, measured, logged and saved, it trains to the same bits."""
    arm = tiny()
    run(arm, "seldom", eval_every=100, bias_every=100, checkpoint_every=100)
    run(arm, "often", eval_every=1, bias_every=1, checkpoint_every=1)
    assert losses(run.rows(arm, "often")) == losses(run.rows(arm, "seldom"))
    assert held_out(run.rows(arm, "often"))[6] == held_out(run.rows(arm, "seldom"))[6]
    often, seldom = (load_final(run.folder(arm, name)) for name in ("often", "seldom"))
    assert all(torch.equal(often[name], seldom[name]) for name in seldom)


def test_evaluation_draws_no_random_numbers_and_is_the_mean_over_tokens(tiny: Callable[..., Arm]) -> None:
    arm = tiny()
    model, _ = build(arm, torch.device("cpu"))
    windows = Batches.of(arm).evaluation()
    states = torch.get_rng_state(), np.random.get_state()[1]
    row = evaluate(model, windows, step=3, micro_batch=3)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    with torch.no_grad():
        each = [model.loss(torch.from_numpy(windows[i : i + 1])).item() for i in range(len(windows))]
    assert row.loss == pytest.approx(sum(each) / len(each), abs=1e-6)
    assert (row.step, row.n_tokens) == (3, 128)


def test_the_loss_of_a_step_is_that_before_its_update(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny()
    run(arm)
    model, _ = build(arm, torch.device("cpu"))
    with torch.no_grad():
        first = model.loss(torch.from_numpy(Batches.of(arm).train(0))).item()
    assert losses(run.rows(arm))[0] == pytest.approx(first, abs=1e-6)


def test_a_later_attempt_fences_an_earlier_one_off(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny()
    run(arm, attempt=2, stop_after=2)
    before = (run.folder(arm) / "metrics.jsonl").read_bytes(), read_record(run.folder(arm))
    with pytest.raises(StaleAttempt, match=r"attempt 2.*attempt 1"):
        run(arm, attempt=1)
    assert (run.folder(arm) / "metrics.jsonl").read_bytes() == before[0]
    assert read_record(run.folder(arm)) == before[1]
    assert run.reports == []


def test_an_arm_begun_otherwise_is_refused(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny()
    record = run(arm, stop_after=2)
    write_record(run.folder(arm), replace(record, data_sha256="0" * 64))
    with pytest.raises(ChangedArm, match="data_sha256"):
        run(arm)


def test_a_second_worker_waits_for_the_folder_and_then_says_who_is_in_the_way(tmp_path: Any) -> None:
    code = (
        "import sys, pathlib, trainer.journal as j\n"
        "with j.hold(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout and process.stdout.readline() == "held\n"
    begin = time.monotonic()
    with pytest.raises(FolderBusy, match="another worker"), hold(tmp_path, wait_s=0.3):
        pass
    assert issubclass(FolderBusy, UserError) and time.monotonic() - begin >= 0.3
    process.kill()
    with hold(tmp_path, wait_s=30):
        process.wait()
    process.stdin.close()
    process.stdout.close()


def test_an_unfinished_arm_keeps_its_newest_checkpoints_and_a_finished_one_its_weights(
    tiny: Callable[..., Arm], run: Any
) -> None:
    arm = tiny(steps=9)
    run(arm, stop_after=8, checkpoint_every=1, keep_checkpoints=3)
    checkpoints = run.folder(arm) / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == [f"step-{n:08d}" for n in (6, 7, 8)]
    run(arm)
    assert [path.name for path in checkpoints.iterdir()] == ["final"]
    manifest = json.loads((checkpoints / "final" / "manifest.json").read_text())
    assert manifest["step"] == 9
    model, _ = build(arm, torch.device("cpu"))
    model.load_state_dict(load_final(run.folder(arm)))
    row = evaluate(model, Batches.of(arm).evaluation(), step=9, micro_batch=4)
    assert row.loss == held_out(run.rows(arm))[9]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sink_kind", ["token", "kv", "logit", "zero"])
def test_a_gpu_follows_the_cpu(tiny: Callable[..., Arm], run: Any, dtype: str, sink_kind: str) -> None:
    arm = tiny(dtype=dtype, n_sinks=2, sink_kind=sink_kind, n_kv_head=2)
    run(arm, "cpu")
    run(arm, "gpu", gpus_per_trial=1)
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    assert losses(run.rows(arm, "gpu")) == pytest.approx(losses(run.rows(arm, "cpu")), abs=tolerance)
