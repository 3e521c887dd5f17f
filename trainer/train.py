"""One arm, from its settings to its journal and final weights."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from schemas.errors import UserError
from schemas.report import ArmRecord, Report, Status, read_finished, read_record, write_record
from schemas.sweep import Runtime
from schemas.trial import Arm
from trainer import checkpoint
from trainer.bias import measure_rows
from trainer.cost import count_parameters, flops_per_token
from trainer.data import Batches
from trainer.execution import compile_layers
from trainer.journal import Logbook, hold, journal_size
from trainer.memory import check_share, choose_portions
from trainer.metrics import Losses, evaluate
from trainer.model import build
from trainer.optim import make_optimizers
from trainer.peak import peak
from trainer.process import environment
from trainer.schedule import learning_rate
from trainer.step import take_step


class StaleAttempt(UserError):
    """A later attempt at this arm has begun, so this one may not write."""


class ChangedArm(UserError):
    """The arm on disk was begun from other weights or other data than it would now have."""


def train(
    arm: Arm,
    folder: Path,
    runtime: Runtime,
    *,
    attempt: int,
    report: Callable[[Report], None],
    should_stop: Callable[[], bool],
) -> ArmRecord:
    """Train one arm, go on with it where it was left, or tell again how it ended.

    Args:
        arm: what to train. On a CPU its numbers follow from this alone (and the thread count).
        folder: the arm's folder, held under a lock meanwhile.
        runtime: how to look at the arm, and on what it runs.
        attempt: the number of this attempt; a higher one in the folder fences it off.
        report: is sent the record and the new rows: before layers are compiled and once they are, at
            each evaluation with all rows up to there, and at the end.
        should_stop: is asked after each step; if true, the arm is checkpointed and left there.

    Raises:
        FolderBusy, StaleAttempt, ChangedArm: this worker may not write here, and has not.
        NotEnoughData, UserError: the data cannot serve this arm, or are not there.
        ShareTooSmall: it is not expected to fit its part of a GPU.
        DamagedJournal: the folder is not as a worker leaves one.
    """
    with hold(folder):
        previous = _previous(arm, folder, attempt)
        if previous is not None and previous.status in ("done", "diverged"):
            rows = read_finished(folder, previous)
            checkpoint.discard_steps(folder)
            write_record(folder, previous)
            report(Report(previous, rows))
            return previous

        device = torch.device("cuda" if runtime.gpus_per_trial > 0 else "cpu")
        gpu_bytes = None
        if device.type == "cuda":
            gpu_bytes = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.reset_peak_memory_stats(device)  # what was trained before is no part of the record
            if runtime.gpus_per_trial < 1:
                check_share(arm, runtime, gpu_bytes)
                torch.cuda.set_per_process_memory_fraction(runtime.gpus_per_trial)
        batches = Batches.of(arm, runtime.data)
        model, init_sha256 = build(arm, device)
        optimizers = make_optimizers(model, arm)
        held_out, bias_windows = batches.evaluation(), batches.bias()
        micro_batch, model.activation_checkpointing = choose_portions(arm, runtime, gpu_bytes)
        record = ArmRecord(
            arm=arm.model_dump(),
            arm_id=arm.id,
            attempt=attempt,
            status="running",
            step=0,
            n_params=count_parameters(arm),
            init_sha256=init_sha256,
            batch_sha256=batches.sha256(),
            data_sha256=batches.corpus.sha256,
            wall_s=0.0 if previous is None else previous.wall_s,
        )
        if previous is not None:
            _refuse_changes(previous, record, folder)

        begin = checkpoint.load_latest(folder, journal_bytes=journal_size(folder))
        if begin.step > 0:
            model.load_state_dict(begin.state["model"])
            for optimizer, state in zip(optimizers, begin.state["optimizers"], strict=True):
                optimizer.load_state_dict(state)
        how: dict[str, Any] = {
            "micro_batch": micro_batch,
            "activation_checkpointing": model.activation_checkpointing,
        }
        boundaries = (runtime.eval_every, runtime.bias_every, runtime.checkpoint_every)
        losses = Losses(tokens_per_step=arm.tokens_per_step, log_every=runtime.log_every, last_step=arm.steps)

        def where() -> dict[str, Any]:
            rate, most = losses.tokens_per_s, peak(device, arm.dtype)
            speed = {"flops_per_s": rate and rate * flops_per_token(arm)}
            bound = {"peak_flops_per_s": most.flops_per_s, "peak_source": most.source}
            return environment(device) | how | speed | bound

        with Logbook(folder, record, journal_bytes=begin.journal_bytes, where=where, send=report) as log:

            def save(step: int) -> None:
                """Put the arm's whole state after `step` updates on the disk."""
                state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
                checkpoint.save(
                    folder, state, step=step, journal_bytes=log.sync(), keep=runtime.keep_checkpoints
                )

            def look(step: int) -> float | None:
                """Evaluate and measure what is due after `step` updates; return the held-out loss, if due."""
                loss = None
                if _due(step, runtime.eval_every, arm.steps):
                    row = evaluate(model, held_out, step=step, micro_batch=micro_batch)
                    log.add([row])
                    loss = row.loss
                if _due(step, runtime.bias_every, arm.steps):
                    log.add(measure_rows(model, bias_windows, step=step))
                return loss

            def finish(status: Status, step: int) -> ArmRecord:
                """End the arm for good; of its checkpoints, at most the final weights stay."""
                journal_bytes, weights = log.sync(), None
                if status == "done":
                    state = model.state_dict()
                    weights = checkpoint.save_final(folder, state, step=step, journal_bytes=journal_bytes)
                ended = log.report(status, step, weights)
                checkpoint.discard_steps(folder)
                return ended

            log.report("running", begin.step)  # what fails while compiling is judged by the micro-batch
            how |= compile_layers(model, runtime, micro_batch)._asdict()
            if begin.step == 0:
                look(0)
            log.report("running", begin.step)
            losses.restart_clock()
            for step in range(begin.step + 1, arm.steps + 1):
                lr = learning_rate(arm, step)
                loss, grad_norm = take_step(
                    model,
                    optimizers,
                    batches.train(step - 1),
                    lr=lr,
                    grad_clip=arm.grad_clip,
                    micro_batch=micro_batch,
                )
                losses.add(step, loss, grad_norm, lr)

                stop = should_stop()
                look_or_save = stop or any(_due(step, every, arm.steps) for every in boundaries)
                if not look_or_save and not losses.waiting_long:
                    continue
                new_rows, diverged_at = losses.read()
                log.add(new_rows)
                if diverged_at is not None:
                    return finish("diverged", diverged_at)
                held_out_loss = look(step)
                if step == arm.steps:
                    works = held_out_loss is not None and math.isfinite(held_out_loss)
                    return finish("done" if works else "diverged", step)
                if stop:
                    save(step)
                    return log.report("interrupted", step)
                if held_out_loss is not None:
                    log.report("running", step)
                if _due(step, runtime.checkpoint_every, arm.steps):
                    save(step)
                losses.restart_clock()
    raise AssertionError("an arm has at least one step")


def _due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last


def _previous(arm: Arm, folder: Path, attempt: int) -> ArmRecord | None:
    """Return the folder's record as this attempt takes it over, or None where nothing was begun."""
    record = read_record(folder)
    if record is None:
        return None
    assert record.arm_id == arm.id, f"{folder} belongs to arm {record.arm_id}, not {arm.id}"
    if record.attempt > attempt:
        raise StaleAttempt(
            f"{folder} is at attempt {record.attempt}; attempt {attempt} came too late and is dropped."
        )
    return replace(record, attempt=attempt)


def _refuse_changes(previous: ArmRecord, record: ArmRecord, folder: Path) -> None:
    """Raise `ChangedArm` unless this program would begin the arm as it was begun."""
    for name in ("init_sha256", "batch_sha256", "data_sha256"):
        if getattr(previous, name) != getattr(record, name):
            raise ChangedArm(
                f"{folder} was begun with another {name} (by another version of torch, or of the data set); "
                "finish it with that version, or delete the folder to begin anew."
            )
