from orchestrator.owner import owner_name
from orchestrator.plan import Plan, changes, cost, label
from results.state import ArmState
from schemas.sweep import Runtime
from schemas.trial import Trial
from tests.conftest import SMALL, make_sweep
from trainer.cost import checkpoint_bytes
from trainer.memory import trial_bytes


def state(status: str, attempt: int = 1, step: int = 3) -> ArmState:
    held = ("elsewhere:1:1", 2**62) if status == "running" else (None, None)
    return ArmState(status, "boom" if status == "failed" else None, attempt, step, *held, 1.0)


def test_a_fresh_sweep_trains_each_arm_once() -> None:
    plan = Plan.make(make_sweep(), {})
    assert (len(plan.trials), len(plan.arms)) == (9, 9)
    trained = [arm.id for job in plan.jobs() for arm in job.arms]
    assert sorted(trained) == sorted(plan.arms)
    assert plan.counts() == {"new": 9}


def test_a_trial_trains_its_baseline_where_no_other_does() -> None:
    plan = Plan.make(make_sweep(grid={"xsa_lambda": [1, 2]}, seeds=[0]), {})
    assert [[arm.name for arm in job.arms] for job in plan.jobs()] == [["sa", "xsa"], ["xsa"]]
    assert {job.trial_id for job in plan.jobs()} == {trial.id for trial in plan.trials}


def test_what_has_a_result_is_not_planned_again() -> None:
    fresh = Plan.make(make_sweep(), {})
    ids = list(fresh.arms)
    states = dict(
        zip(ids, map(state, ("done", "diverged", "failed", "interrupted", "running")), strict=False)
    )
    states[ids[5]] = state("pending", attempt=0)
    plan = Plan.make(make_sweep(), states)
    assert {arm.id for arm in plan.unfinished()} == set(ids[2:])
    assert plan.counts() == {"done": 1, "diverged": 1, "failed": 1, "interrupted": 1, "running": 1, "new": 4}
    assert {arm.id for job in plan.jobs() for arm in job.arms} == set(ids[2:])


def test_an_edited_sweep_needs_only_what_is_new() -> None:
    before = Plan.make(make_sweep(), {})
    states = {arm_id: state("done") for arm_id in before.arms}
    wider = Plan.make(make_sweep(grid={"xsa_lambda": [0, 0.25, 0.5, 1]}, seeds=[0, 1, 2, 3]), states)
    assert {(a.xsa_lambda, a.seed) for a in wider.unfinished()} == {
        (0.25, 0), (0.25, 1), (0.25, 2), (0.25, 3), (0.0, 3), (0.5, 3), (1.0, 3),
    }  # fmt: skip


def test_cost_counts_what_is_left() -> None:
    fresh = Plan.make(make_sweep(), {})
    spent = cost(fresh)
    assert spent.tokens == 9 * 40 * 64
    assert spent.parameters[0] == spent.parameters[1] > 400_000
    done = Plan.make(make_sweep(), {arm_id: state("done") for arm_id in list(fresh.arms)[:3]})
    assert cost(done).tokens == 6 * 40 * 64
    assert cost(done).flops == spent.flops * 6 / 9


def test_cost_counts_what_is_partly_trained_from_where_it_is() -> None:
    fresh = Plan.make(make_sweep(), {})
    ids = list(fresh.arms)
    begun = {ids[0]: state("interrupted", step=30), ids[1]: state("failed", step=20)}
    assert cost(Plan.make(make_sweep(), begun)).tokens == (10 + 20 + 7 * 40) * 64
    assert cost(Plan.make(make_sweep(), begun)).flops == cost(fresh).flops * 310 / 360


def test_cost_leaves_out_what_another_run_is_training_but_for_the_disk() -> None:
    fresh = Plan.make(make_sweep(), {})
    plan = Plan.make(make_sweep(), {arm_id: state("running") for arm_id in list(fresh.arms)[:4]})
    assert len(plan.to_train()) == 5
    assert cost(plan).tokens == 5 * 40 * 64
    assert (cost(plan).weights, cost(plan, 9).checkpoints) == (
        cost(fresh).weights,
        cost(fresh, 9).checkpoints,
    )


def test_the_disk_holds_final_weights_of_all_and_checkpoints_of_those_at_once() -> None:
    plan = Plan.make(make_sweep(runtime=Runtime(keep_checkpoints=2)), {})
    one = checkpoint_bytes(plan.unfinished()[0])
    assert cost(plan).weights == 9 * one // 3
    assert [cost(plan, n).checkpoints for n in (1, 4)] == [3 * one, 12 * one]


def test_memory_of_a_gpu_trial_is_what_it_takes_at_least_and_in_one_piece() -> None:
    large = SMALL | {"model_size": "124M", "seq_len": 1024, "tokens_per_step": 2**16, "eval_tokens": 1024}
    sweep = make_sweep(base=large | {"bias_tokens": 1024}, runtime=Runtime(gpus_per_trial=1))
    least, most = cost(Plan.make(sweep, {})).memory
    arm = sweep.trials()[0].sa
    assert least < trial_bytes(arm, sweep.runtime, 16 * 2**30) < most
    assert trial_bytes(arm, sweep.runtime, 10**15) == most


def test_changes_are_the_edits_of_one_field() -> None:
    before = list(Plan.make(make_sweep(), {}).arms.values())
    longer = Plan.make(make_sweep(base=SMALL | {"steps": 80}), {})
    assert changes(longer, before).edits == {("steps", 40, 80): 9}
    wider = Plan.make(make_sweep(grid={"xsa_lambda": [0, 0.5, 2]}), {})
    told = changes(wider, before)
    assert (told.more, told.fewer, told.edits) == (3, 3, {("xsa_lambda", 1.0, 2.0): 3})
    both = Plan.make(make_sweep(base=SMALL | {"steps": 80, "lr": 0.01}), {})
    assert changes(both, before).edits == {}


def test_labels_name_what_varies() -> None:
    trial = Trial(xsa_lambda=0.5, seed=3)
    assert label(trial.xsa, ["xsa_lambda", "seed"]) == "xsa λ=0.5 seed=3"
    assert label(trial.sa, ["xsa_lambda", "seed"]) == "sa seed=3"


def test_an_arm_whose_run_is_gone_is_interrupted_and_not_in_training() -> None:
    fresh = Plan.make(make_sweep(), {})
    dead = owner_name().rpartition(":")[0] + ":0"
    for owner, until in ((dead, 2**62), ("elsewhere:1:1", 1)):
        states = {arm_id: ArmState("running", None, 1, 3, owner, until, 1.0) for arm_id in fresh.arms}
        assert Plan.make(make_sweep(), states).counts() == {"interrupted": 9}
