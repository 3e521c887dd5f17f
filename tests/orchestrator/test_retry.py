"""Which arms are tried again; that they then are is shown on a real Ray."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import supervise
from orchestrator.cli import app
from orchestrator.retry import changed_runtime, chosen_arms, stored_sweep
from results.query import Database
from results.record import save_sweep
from results.store import Store
from schemas.errors import UserError
from schemas.sweep import Runtime, Sweep
from tests.conftest import make_sweep

SOURCE = """
base: {model_size: toy, tokenizer: bytes, seq_len: 16, tokens_per_step: 64, eval_tokens: 64, bias_tokens: 64, steps: 40}
grid: {xsa_lambda: [0, 0.5, 1]}
seeds: [0, 1, 2]
"""


def chosen(db: Database, **asked: Any) -> list[tuple[str, float, int]]:
    sweep = make_sweep()
    found = chosen_arms(db, sweep, **{"statuses": ["failed"], "causes": [], "where": {}} | asked)
    arms = {arm.id: arm for trial in sweep.trials() for arm in trial.arms}
    return sorted((arms[i].name, arms[i].xsa_lambda, arms[i].seed) for i in found)


def test_failed_arms_are_chosen_by_status_cause_and_axes(troubled: Database) -> None:
    failed = [("xsa", 1.0, 0)]
    assert chosen(troubled) == failed
    assert chosen(troubled, causes=["user_error"]) == failed
    assert chosen(troubled, causes=["cuda_oom"]) == []
    assert chosen(troubled, where={"seed": [0, 2], "xsa_lambda": (0.7, None)}) == failed
    assert chosen(troubled, where={"seed": 1}) == []
    assert chosen(troubled, statuses=["interrupted"]) == []  # the one in training may be alive


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"statuses": ["faild"]}, "failed"),
        ({"statuses": ["diverged"]}, "that is a result"),
        ({"causes": ["cuda_om"]}, "cuda_oom"),
        ({"where": {"sede": 1}}, "seed"),
    ],
)
def test_a_slip_is_answered_with_what_there_is(
    troubled: Database, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        chosen(troubled, **asked)


def test_resources_change_the_runtime() -> None:
    runtime = changed_runtime(Runtime(threads=2), ["gpus_per_trial=0.5", "micro_batch=1", "max_hours=1e-3"])
    assert (runtime.gpus_per_trial, runtime.micro_batch, runtime.max_hours, runtime.threads) == (
        0.5,
        1,
        1e-3,
        2,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("gpus_per_trail=1", "gpus_per_trial"),
        ("threads=many", "--resources threads=many"),
        ("threads", "KEY=VALUE"),
        ("threads=0", "greater than or equal to 1"),
    ],
)
def test_a_runtime_setting_that_is_none_is_refused(change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        changed_runtime(Runtime(), [change])


def test_the_stored_sweep_is_the_file_as_it_was_run(store: Store, tmp_path: Path) -> None:
    sweep = Sweep.parse(SOURCE, "small")
    save_sweep(store, sweep, sweep.trials(), tmp_path / "runs")
    with Database(store.path) as db:
        again, storage = stored_sweep(db, "small")
        assert (again.trials(), again.source) == (sweep.trials(), SOURCE)
        assert storage == str(tmp_path / "runs")
        with pytest.raises(UserError, match="smal"):
            stored_sweep(db, "smll")


def test_retry_runs_the_chosen_arms_in_the_sweep_s_storage(
    troubled: Database, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep.parse(SOURCE, "small")
    save_sweep(store, sweep, sweep.trials(), tmp_path / "kept here")
    seen: dict[str, Any] = {}

    def run(
        store: Store, sweep: Sweep, storage: Path, console: object, *, only: set[str]
    ) -> supervise.Outcome:
        seen.update(sweep=sweep, storage=storage, only=only)
        return supervise.Outcome(supervise.current_plan(store, sweep), foreign=0, signal=None)

    monkeypatch.setattr(supervise, "run", run)
    arguments = ["retry", "small", "--where", "seed=0", "--resources", "threads=2", "--db", str(store.path)]
    ended = CliRunner().invoke(app, arguments)
    assert "small: 1 arms to try again." in ended.output
    assert ended.exit_code == 1  # this run left it failed
    assert seen["storage"] == tmp_path / "kept here"
    assert seen["sweep"].runtime.threads == 2
    assert len(seen["only"]) == 1
    nothing = CliRunner().invoke(app, [*arguments, "--cause", "cuda_oom"])
    assert nothing.exit_code == 0
    assert "small has no such arms" in nothing.output
