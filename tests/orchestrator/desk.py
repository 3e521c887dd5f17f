"""A directory in which commands are run as a user runs them, each in a process of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

import results
from schemas.sweep import Sweep

SWEEP = """
base: {tokenizer: bytes, seq_len: 32, tokens_per_step: 256, eval_tokens: 256, bias_tokens: 256, steps: 120}
grid: {xsa_lambda: [0, 1]}
seeds: [0]
runtime: {eval_every: 30, bias_every: 60, checkpoint_every: 10}
"""


class Desk:
    """A directory with a sweep, its own store and storage, and the commands run there."""

    def __init__(self, folder: Path, text: str = SWEEP) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.write(text)

    def write(self, text: str) -> None:
        """Put another text into the sweep's file."""
        (self.folder / "small.yaml").write_text(text)
        self.sweep = Sweep.load(self.folder / "small.yaml")

    def start(self, *command: str, **env: str) -> "subprocess.Popen[str]":
        """Start a command, `xsa run` unless another is given."""
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *(command or ("run", "small.yaml"))],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str, code: int = 0, **env: str) -> str:
        """Run a command to its end and return what it printed."""
        return end(self.start(*command, **env), code)

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

    def counts(self, query: str) -> dict[str, int]:
        """The rows of a query with two columns, a name and a number."""
        with results.open(self.folder / "results.db") as db:
            return dict(db.sql(query).itertuples(index=False, name=None))


def end(process: "subprocess.Popen[str]", code: int, timeout: float = 300) -> str:
    """Wait for a command to end with this exit code, and return what it printed."""
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == code, output
    return output
