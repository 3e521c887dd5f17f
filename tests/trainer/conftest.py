"""Arms small enough to train in a second, and a record of what a worker reported."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.report import ArmRecord, Report, Row, read_rows
from schemas.sweep import Runtime
from schemas.trial import Arm, Trial
from trainer.train import train

TINY: dict[str, Any] = {
    "n_layer": 2,
    "d_model": 32,
    "n_head": 4,
    "d_head": 8,
    "n_kv_head": 4,
    "tokenizer": "bytes",
    "seq_len": 16,
    "tokens_per_step": 64,
    "eval_tokens": 128,
    "bias_tokens": 64,
    "steps": 6,
    "lr": 3e-3,
}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """The trainer promises equal bits for an equal number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny() -> Callable[..., Arm]:
    """Makes the XSA arm of a tiny trial, or with xsa_lambda=0 its SA arm."""

    def make(**changes: Any) -> Arm:
        return Trial(**TINY | changes).xsa

    return make


class Run:
    """Trains arms in folders below one, and keeps what they report."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reports: list[Report] = []

    def folder(self, arm: Arm, name: str = "") -> Path:
        return self.root / (name or arm.id[:12])

    def __call__(
        self,
        arm: Arm,
        name: str = "",
        *,
        attempt: int = 1,
        stop_after: int | None = None,
        **runtime: Any,
    ) -> ArmRecord:
        """Train `arm` in the folder `name`; with `stop_after`, ask it to stop after so many steps."""
        self.reports.clear()
        asked = 0

        def should_stop() -> bool:
            nonlocal asked
            asked += 1
            return asked == stop_after

        folder = self.folder(arm, name)
        return train(
            arm,
            folder,
            Runtime(**runtime),
            attempt=attempt,
            report=self.reports.append,
            should_stop=should_stop,
        )

    def rows(self, arm: Arm, name: str = "") -> list[Row]:
        return read_rows(self.folder(arm, name))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)
