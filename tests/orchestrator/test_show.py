"""`xsa show`: one arm or pair, whatever state it is in."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.detail import pair_document
from orchestrator.find import find
from orchestrator.layout import sparkline, speed
from results import schema
from results.claims import claim
from results.query import Database
from results.record import record, save_sweep
from results.store import Store
from schemas.report import METRICS, Report
from schemas.trial import AXES, Arm
from tests.conftest import ON_BOTH, PROVENANCE, formula_record, make_sweep
from tests.orchestrator.conftest import Xsa
from trainer.cost import flops_per_token

TRIALS = {(trial.xsa_lambda, trial.seed): trial for trial in make_sweep().trials()}


def test_a_finished_arm(xsa: Xsa, filled: Database) -> None:
    arm = TRIALS[0.5, 1].xsa
    code, output, _ = xsa("show", arm.id[:12])
    assert code == 0
    assert f"arm {arm.id[:12]}: done at step 40/40" in output
    assert arm.id in output
    assert f"runs/arms/{arm.id[:12]} (not on this machine)" in output
    own, _, rest = output.partition("at their defaults: ")
    assert "xsa_lambda       0.5    default 1" in own
    assert "seq_len          16     default 2048" in own
    assert [name for name in AXES if f"{name}=" not in rest and f"  {name} " not in own] == []
    assert "1  done, " in output
    assert "laptop, cpu, 1 thread, code 000000000000" in output
    assert "validation loss  5.5200 (step 0) to " in output
    assert "█▄▂▁▁" in output
    assert "bias metrics at step 40" in output
    assert all(f"  {metric} " in output for metric in METRICS)
    assert "a_ii             0.2810  0.2310       0.3310      ▁█" in output


def test_the_files_are_named_where_they_are(xsa: Xsa, tmp_path: Path, filled: Database) -> None:
    arm = TRIALS[0.5, 1].xsa
    (tmp_path / "runs" / "arms" / arm.id[:12]).mkdir(parents=True)
    assert "not on this machine" not in xsa("show", arm.id)[1]


def test_a_failed_arm_says_why(xsa: Xsa, troubled: Database) -> None:
    output = xsa("show", TRIALS[1, 0].xsa.id)[1]
    assert "failed at step 20/40" in output
    assert "1  failed: user_error, " in output
    assert output.count("boom <b>") == 2


def test_a_diverged_arm_is_valid_json_and_its_curve_is_what_was_finite(xsa: Xsa, troubled: Database) -> None:
    arm = TRIALS[0.5, 1].xsa
    output = xsa("show", arm.id)[1]
    assert "diverged at step 21/40" in output
    assert "training loss    5.3518 (step 1) to 3.3156 (step 20)" in output
    document = json.loads(xsa("show", arm.id, "--json")[1])
    assert document["curves"][-1] == document["curves"][-1] | {
        "step": 21,
        "train_loss": None,
        "grad_norm": None,
    }
    assert document["losses"]["train_loss"]["last"]["step"] == 20


def test_an_arm_that_nobody_began(xsa: Xsa, store: Store) -> None:
    sweep = make_sweep(seeds=[0])
    save_sweep(store, sweep, sweep.trials(), Path("runs"))
    arm = sweep.trials()[-1].xsa
    output = xsa("show", arm.id)[1]
    assert "pending at step 0/40" in output
    assert "attempts: none yet" in output
    assert "losses" not in output
    document = json.loads(xsa("show", arm.id, "--json")[1])
    assert (document["attempts"], document["curves"], document["layers"]) == ([], [], [])
    assert document["losses"] == {"train_loss": None, "val_loss": None}
    pair = xsa("show", sweep.trials()[-1].id)[1]
    assert "none yet" in pair
    assert "XSA - SA" not in pair


def test_an_arm_that_no_sweep_wants_any_more(xsa: Xsa, store: Store, filled: Database) -> None:
    save_sweep(store, make_sweep(seeds=[0]), make_sweep(seeds=[0]).trials(), Path("runs"))
    output = xsa("show", TRIALS[1, 2].xsa.id)[1]
    assert "no sweep wants it any more" in output
    assert "files" not in output


def test_the_json_of_an_arm_has_it_all(xsa: Xsa, filled: Database) -> None:
    arm = TRIALS[0.5, 1].sa
    document = json.loads(xsa("show", arm.id[:4], "--json")[1])
    assert document["id"] == arm.id
    assert document["axes"] == {name: getattr(arm, name) for name in AXES}
    assert document["sweeps"] == ["small"]
    assert sorted(document["trials"]) == sorted(trial.id for trial in TRIALS.values() if trial.seed == 1)
    assert document["attempts"][0]["git_sha"] == "0" * 40
    assert len(document["curves"]) == 41
    assert document["losses"]["val_loss"]["best"] == {"step": 40, "loss": document["curves"][-1]["val_loss"]}
    assert {row["step"] for row in document["layers"]} == {40}


def test_a_shared_arm_names_a_few_of_its_trials(xsa: Xsa, store: Store) -> None:
    sweep = make_sweep(grid={"xsa_lambda": [0.1, 0.2, 0.3, 0.4, 0.5, 1]}, seeds=[0])
    save_sweep(store, sweep, sweep.trials(), Path("runs"))
    assert " and 2 more" in xsa("show", sweep.trials()[0].sa.id)[1]


def test_a_trial_shows_its_arms_side_by_side(xsa: Xsa, troubled: Database) -> None:
    trial = TRIALS[1, 0]
    output = xsa("show", trial.id)[1]
    lines = [line.split() for line in output.splitlines()]
    assert f"trial {trial.id[:12]}: failed" in output
    assert ["arm", trial.sa.id[:12], trial.xsa.id[:12]] in lines
    assert ["status", "done", "failed"] in lines
    assert ["step", "40/40", "20/40"] in lines
    (pair,) = troubled.pairs(trial=trial.id[:12]).to_dict("records")
    assert f"XSA - SA at step 20, nats/token: training loss {pair['delta_train_loss']:+.4f}" in output
    assert f"to {pair['delta_val_loss']:+.4f} (step 20)" in output
    document = json.loads(xsa("show", trial.id, "--json")[1])
    assert document["delta_val_loss"] == pair["delta_val_loss"]
    assert (document["sa"]["id"], document["xsa"]["id"]) == (trial.sa.id, trial.xsa.id)


def test_at_lambda_zero_a_trial_is_one_arm(xsa: Xsa, filled: Database) -> None:
    trial = TRIALS[0, 1]
    output = xsa("show", trial.id)[1]
    assert "At λ = 0 the pair's two arms are one" in output
    assert f"arm {trial.sa.id[:12]}: done" in output


@ON_BOTH
def test_every_database_answers_alike(kind: str, troubled: Database) -> None:
    trial = TRIALS[0.5, 1]
    document = pair_document(troubled, find(trial.id[:6], database=troubled).id)
    assert (document["status"], document["sweeps"], document["axes"]["seed"]) == ("diverged", ["small"], 1)
    assert (document["sa"]["step"], document["xsa"]["curves"][-1]["train_loss"]) == (40, None)
    assert len(document["sa"]["trials"]) == 3


def test_every_attempt_is_told(xsa: Xsa, store: Store, troubled: Database) -> None:
    arm = TRIALS[1, 0].xsa
    first = {"no": 0, "status": "failed", "cause": "cuda_oom", "error": "CUDA out of memory", "owner": "x"}
    where = {
        "hostname": "node7",
        "device": "NVIDIA H200",
        "micro_batch": 8,
        "dirty": True,
        "git_sha": "c" * 40,
    }
    took = {"peak_gpu_bytes": 2**31, "started_at_us": 0, "ended_at_us": 86_400_000_000}
    with store.write() as connection:
        (row,) = connection.execute(schema.arm.select().where(schema.arm.c.fingerprint == arm.id))
        connection.execute(schema.attempt.insert().values(arm_id=row.id, **first, **where, **took))
    output = xsa("show", arm.id)[1]
    assert "0  failed: cuda_oom, 1970-01-01 00:00:00 to 1970-01-02 00:00:00 UTC (24 h 0 min)" in output
    assert "node7, NVIDIA H200, micro-batch 8, at most 2.00 GiB of the GPU's" in output
    assert "code cccccccccccc with uncommitted changes" in output
    assert output.index("CUDA out of memory") < output.index("1  failed: user_error")


def told_of(store: Store, arm: Arm, **seen: Any) -> None:
    """Record one more attempt that has done one step, with what its worker tells of its environment."""
    attempt = claim(store, arm.id, "one", PROVENANCE)
    assert attempt
    told = formula_record(arm, attempt, status="running", step=1)
    assert record(store, Report(replace(told, environment=told.environment | seen), []))


def test_how_an_arm_was_executed_and_how_fast(xsa: Xsa, wanted: Store) -> None:
    arm = TRIALS[0.5, 1].xsa
    assert json.loads(xsa("show", arm.id, "--json")[1])["speed"] is None
    peak = {"peak_flops_per_s": 4e9, "peak_source": "measured"}
    told_of(wanted, arm, micro_batch=4, execution="eager", flops_per_s=1e9, **peak)
    told_of(wanted, arm, micro_batch=4, execution="compiled", flops_per_s=3e9, **peak)
    why = {
        "execution": "eager",
        "compile_error": "InvalidCxxCompiler: none found\nSet CXX",
        "flops_per_s": None,
    }
    told_of(wanted, arm, micro_batch=2, **why)
    told_of(wanted, arm, micro_batch=1, execution="compiled", compile_error="no CUDA graphs: skipped")
    output = xsa("show", arm.id)[1]
    rate = f"{3e9 / flops_per_token(arm):,.0f} tokens/s"
    assert f"speed       {rate}, 75 % of the CPU's peak (measured)" in output
    assert "laptop, cpu, 1 thread, micro-batch 4, eager, code" in output
    assert "laptop, cpu, 1 thread, micro-batch 4, compiled, code" in output
    assert "micro-batch 2, eager, not compiled: InvalidCxxCompiler: none found, code" in output
    assert "micro-batch 1, compiled, no CUDA graphs: skipped, code" in output
    document = json.loads(xsa("show", arm.id, "--json")[1])
    timed = {"attempt": 2, "device": "cpu", "mfu": 0.75, "peak_source": "measured"}
    assert document["speed"] == timed | {"tok_per_s": 3e9 / flops_per_token(arm)}
    assert [row["mfu"] for row in document["attempts"]] == [0.25, 0.75, None, None]
    assert document["attempts"][2] == document["attempts"][2] | why | {"activation_checkpointing": None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["small"], "'small' is no id: write 4 or more of its hexadecimal digits."),
        (["602"], "'602' is no id"),
        (["%%%%"], "'%%%%' is no id"),
        (["ffffffff"], "No arm or trial has an id that begins with 'ffffffff'. `xsa status SWEEP` and"),
        (["a" * 65], "is no id"),
        (["abcd", "--db", "none.db"], "There is no store at none.db."),
    ],
)
def test_a_mistake_is_one_message(arguments: list[str], message: str, xsa: Xsa, filled: Database) -> None:
    code, output, error = xsa("show", *arguments)
    assert (code, output) == (2, "")
    assert message in error
    assert error.count("\n") == 1


def test_a_speed_in_a_line() -> None:
    told = {"tok_per_s": 1893.4, "device": "cpu", "mfu": 0.749, "peak_source": "measured"}
    assert speed(told) == "1,893 tokens/s, 75 % of the CPU's peak (measured)"
    on_gpu = {"device": "NVIDIA H200", "mfu": 0.4, "peak_source": "data sheet"}
    assert speed(told | on_gpu) == "1,893 tokens/s, 40 % of the GPU's peak (data sheet)"
    assert speed(told | {"mfu": None, "peak_source": None}) == "1,893 tokens/s"
    assert speed(None) == ""


def test_a_curve_in_a_line() -> None:
    assert sparkline([]) == ""
    assert sparkline([3.0]) == "▁"
    assert sparkline([1.0, None, math.nan, math.inf, 2.0, 3.0]) == "▁▅█"
    assert sparkline([2.0, 3.0], scale=(1.0, 3.0)) == "▅█"
    assert sparkline(range(1000)) == sparkline(range(60))
    assert len(sparkline(range(1000))) == 60
    assert len(sparkline(range(1000), width=7)) == 7
