"""What a plan says of time, disk and arms that are not done, over real stores and as a user reads it."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from orchestrator.estimate import Speed, estimate, speeds, unmeasured
from orchestrator.plan import Plan
from results.record import record, save_sweep
from results.state import arm_states
from results.store import Store
from schemas.report import Report
from schemas.sweep import Runtime, Sweep
from schemas.trial import Arm
from tests.conftest import ON_BOTH, SMALL, formula_record, make_sweep
from tests.orchestrator.conftest import Xsa
from trainer.cost import flops_per_token

FILE = "name: small\nbase: {tokenizer: bytes, seq_len: 16, tokens_per_step: 64, eval_tokens: 64, bias_tokens: 64, steps: 40}\ngrid: {xsa_lambda: [0, 0.5, 1]}\nseeds: [0, 1, 2]\n"
H100 = "NVIDIA H100 80GB HBM3"
GPU = Runtime(gpus_per_trial=1)


def told(
    store: Store, arm: Arm, seconds: float = 2.0, *, attempt: int = 1, device: str = "cpu", **changes: Any
) -> None:
    """Record that an arm was trained for some seconds; `threads`, `hostname` and `flops_per_s` are the attempt's."""
    seen = {"hostname": socket.gethostname(), "device": device, "threads": 1}
    seen |= {key: changes.pop(key) for key in ("threads", "hostname", "flops_per_s") if key in changes}
    report = formula_record(arm, attempt, wall_s=seconds, environment=seen, **changes)
    assert record(store, Report(report, []), packages={})


def arm(**changes: Any) -> Arm:
    return make_sweep(base=SMALL | changes, grid=None, seeds=[100]).trials()[0].sa


def rate(arm: Arm, seconds: float) -> float:
    return arm.tokens * flops_per_token(arm) / seconds


def planned(store: Store, sweep: Sweep) -> Plan:
    return Plan.make(sweep, arm_states(store, list(Plan.make(sweep, {}).arms)))


@ON_BOTH
def test_speeds_are_those_of_the_device_that_a_sweep_runs_on(store: Store) -> None:
    told(store, arm(), 2.0)
    told(store, arm(lr=0.1), 4.0, threads=4)
    told(store, arm(lr=0.2), 0.5, device=H100)
    told(store, arm(lr=0.3), 0.25, device="NVIDIA A100-SXM4-40GB")

    def rates(**runtime: Any) -> list[float]:
        return sorted(speed.flops_per_s for speed in speeds(store, Runtime(**runtime)))

    assert rates() == [rate(arm(), 2.0)]
    assert rates(threads=4) == [rate(arm(), 4.0)]
    assert rates(threads=2) == []
    assert rates(gpus_per_trial=1.0) == [rate(arm(), 0.5), rate(arm(), 0.25)]
    assert rates(gpus_per_trial=0.5, accelerator_type="H100") == [rate(arm(), 0.5)]
    assert rates(gpus_per_trial=1.0, accelerator_type="A100-40G") == [rate(arm(), 0.25)]
    assert rates(gpus_per_trial=1.0, accelerator_type="A100-80G") == []


def test_an_arm_that_changed_devices_tells_no_speed(store: Store) -> None:
    told(store, arm(), 60.0, status="interrupted", step=20)
    told(store, arm(), 61.0, attempt=2, device=H100)
    assert speeds(store, GPU) == speeds(store, Runtime()) == []


def test_an_unfinished_arm_tells_the_speed_of_its_steps(store: Store) -> None:
    told(store, arm(), 60.0, status="interrupted", step=1, flops_per_s=1e9)
    told(store, arm(lr=0.1), 60.0, status="interrupted", step=0)
    told(store, arm(lr=0.2), 60.0, status="interrupted", step=1)  # had no time to measure it
    (speed,) = speeds(store, Runtime())
    assert (speed.flops_per_s, speed.whole, speed.arms) == (1e9, False, 2)
    told(store, arm(lr=0.3), 2.0)
    sweep = make_sweep()
    made = estimate(planned(store, sweep), speeds(store, sweep.runtime), 1)
    assert made and [speed.whole for speed in made.speeds] == [True]


def speed(step_flops: float, flops_per_s: float, *, whole: bool = True, dtype: str = "float32") -> Speed:
    return Speed("cpu", dtype, whole, step_flops, flops_per_s, 1, frozenset())


def test_an_arm_is_as_fast_as_those_of_the_nearest_size() -> None:
    plan = Plan.make(make_sweep(), {})
    size = flops_per_token(plan.to_train()[0]) * 64
    near, far, smaller = speed(size * 1.1, 1e9), speed(size * 100, 1e12), speed(size / 8, 1e6)
    made = estimate(plan, [far, smaller, near], None)
    assert made and made.speeds == (near,)
    assert made.worker_s == pytest.approx(9 * 40 * size / 1e9)
    made = estimate(plan, [far, smaller], None)
    assert made and (made.speeds, made.ratio) == ((smaller,), 8)
    steps_alone = speed(size, 1e10, whole=False)
    made = estimate(plan, [steps_alone, near], None)
    assert made and made.speeds == (near,)


def test_where_nothing_alike_was_measured_there_is_no_estimate() -> None:
    plan = Plan.make(make_sweep(base=SMALL | {"dtype": "bfloat16"}), {})
    assert estimate(plan, [speed(1e9, 1e9)], 1) is None
    assert unmeasured(plan, [speed(1e9, 1e9)]) == ["bfloat16"]
    assert unmeasured(plan, [speed(1e9, 1e9, dtype="bfloat16")]) == []


def test_time_is_that_of_trials_side_by_side() -> None:
    plan = Plan.make(make_sweep(grid={"xsa_lambda": [1]}, seeds=[0, 1, 2]), {})  # three pairs, two arms each
    size = flops_per_token(plan.to_train()[0]) * 64
    known = [speed(size, 40 * size)]  # one second an arm
    made = [estimate(plan, known, workers) for workers in (1, 2, 3, 64, None)]
    assert [one and one.wall_s for one in made] == [6, 4, 2, 2, None]
    assert {one and (one.worker_s, one.longest_s) for one in made} == {(6, 2)}


def test_what_is_partly_trained_or_held_takes_less_time(store: Store) -> None:
    sweep = make_sweep()
    save_sweep(store, sweep, sweep.trials(), Path("runs"))
    size = flops_per_token(arm()) * 64
    for one in sweep.trials()[0].arms:
        told(store, one, status="interrupted", step=30)
    made = estimate(planned(store, sweep), [speed(size, size)], 1)
    assert made and made.worker_s == pytest.approx(8 * 40 + 10)


def test_a_plan_of_a_gpu_sweep_invents_no_time_from_a_cpu(xsa: Xsa, tmp_path: Path, store: Store) -> None:
    told(store, arm(), 2.0)
    text = FILE + "runtime: {gpus_per_trial: 1}\n"
    (tmp_path / "s.yaml").write_text(text)
    output = xsa("plan", "s.yaml")[1]
    assert "no speed measured on a GPU in float32 yet" in output
    assert "of a GPU a trial" in output
    assert "of checkpoints for each trial at once" in output
    document = json.loads(xsa("plan", "s.yaml", "--json")[1])
    assert (document["seconds"], document["measured"], document["unmeasured"]) == (None, None, ["float32"])
    told(store, arm(lr=0.1), 3600.0, device=H100, hostname="node-7")
    output = xsa("plan", "s.yaml")[1]
    assert "about 9 h 0 min of one worker's time, of which the longest trial takes 1 h 0 min" in output
    assert f"(1 arm on {H100} of node-7)" in output


def test_on_a_cluster_a_plan_counts_the_time_of_one_worker(
    xsa: Xsa, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(store, arm(tokens_per_step=256), 3600.0)
    (tmp_path / "s.yaml").write_text(FILE)
    assert "at once on this machine, at the speed measured so far" in xsa("plan", "s.yaml")[1]
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    output = xsa("plan", "s.yaml")[1]
    assert "about 2 h 15 min of one worker's time, of which the longest trial takes 15 min 0 s" in output
    assert "(1 arm on CPUs, whose steps are 4 times larger)" in output


def test_a_plan_says_why_each_arm_is_not_done(xsa: Xsa, tmp_path: Path, store: Store) -> None:
    sweep = make_sweep()
    save_sweep(store, sweep, sweep.trials(), tmp_path / "runs")
    arms = list(Plan.make(sweep, {}).arms.values())
    told(store, arms[0], status="interrupted", step=12)
    told(store, arms[1], status="interrupted", step=30)
    (tmp_path / "s.yaml").write_text(FILE)
    output = xsa("plan", "s.yaml")[1]
    assert f"interrupted {arms[0].id[:12]} sa seed=0 and 1 more: stopped at steps 12 to 30" in output
    rows = json.loads(xsa("plan", "s.yaml", "--json")[1])["not_done"]
    assert [(row["arm"], row["step"], row["why"]) for row in rows] == [
        (arms[0].id[:12], 12, "stopped"),
        (arms[1].id[:12], 30, "stopped"),
    ]


def test_a_plan_names_what_another_run_is_training_apart(xsa: Xsa, tmp_path: Path, troubled: object) -> None:
    (tmp_path / "s.yaml").write_text(FILE)
    output = xsa("plan", "s.yaml")[1]
    assert "besides 1 arm that another run is training" in output
    assert "in training at step 20" in output
    document = json.loads(xsa("plan", "s.yaml", "--json")[1])
    assert document["tokens"] == (40 - 20) * 64  # of the one that failed
