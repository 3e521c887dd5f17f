"""The arms of a pair that one worker was given, one after the other."""

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from schemas.report import ArmRecord, Report, arm_folder
from schemas.sweep import Runtime
from schemas.trial import Arm
from trainer.train import train


class PairMismatch(Exception):
    """The arms of a pair began from other weights or batches, so they cannot be compared."""


def train_pair(
    arms: Sequence[Arm],
    storage: Path,
    runtime: Runtime,
    *,
    attempts: Mapping[str, int],
    report: Callable[[Report], None],
    should_stop: Callable[[], bool],
) -> list[ArmRecord]:
    """Train those arms of a pair that were assigned to this worker, and return how each of them stands.

    Args:
        arms: one arm or two.
        storage: the folder of all arms' folders.
        runtime: how they are run.
        attempts: the number of this attempt at each arm, by the arm's id.
        report: is sent each arm's reports.
        should_stop: is asked after each step; once true, the arm at work is checkpointed and left
            `interrupted`, and the one after it is not begun.

    Raises:
        PairMismatch: before the second arm takes a step, where it does not match the first.
        UserError: as `train` does.
    """
    records: list[ArmRecord] = []

    def report_matching(message: Report) -> None:
        for other in records:
            for name in ("init_sha256", "batch_sha256", "data_sha256"):
                if getattr(other, name) != getattr(message.record, name):
                    raise PairMismatch(
                        f"arms {other.arm_id[:12]} and {message.record.arm_id[:12]} differ in {name}"
                    )
        report(message)

    for arm in arms:
        record = train(
            arm,
            arm_folder(storage, arm.id),
            runtime,
            attempt=attempts[arm.id],
            report=report_matching,
            should_stop=should_stop,
        )
        records.append(record)
        if record.status == "interrupted":
            break
        _free_memory()
    return records


def _free_memory() -> None:
    """Release one arm's tensors before the next arm makes its own."""
    gc.collect()
    torch.compiler.reset()  # one arm's compiled layers count towards the next one's limit of recompilations
    gc.freeze()  # what is left stays for good: walking torch's own objects takes 0.4 s each time
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
