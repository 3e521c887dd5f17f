"""What the machinery costs a trial beyond its training, beside the same trials given straight to Ray Tune.

    python -m benchmarks.orchestration [--trials 200] [--rounds 3]

Trials are of one step of a model of a few hundred weights, so that nearly all of their time is machinery:
claims, the store, journals, checkpoints, reports. Both run on one Ray, in turns.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.launch import connected_ray, count_slots, run_session
from orchestrator.owner import owner_name
from orchestrator.plan import Plan
from orchestrator.progress import Progress
from orchestrator.provenance import provenance
from orchestrator.session import Session
from orchestrator.supervise import current_plan, prepare_storage
from results.record import save_sweep
from results.store import Store
from schemas.sweep import Sweep

from ray import tune  # isort: skip # after the settings that orchestrator.launch makes

BASE = {
    "n_layer": 1,
    "d_model": 8,
    "n_head": 1,
    "d_head": 8,
    "tokenizer": "bytes",
    "seq_len": 8,
    "tokens_per_step": 8,
    "eval_tokens": 8,
    "bias_tokens": 8,
    "steps": 1,
    "xsa_lambda": 0.0,  # one arm a trial
}


def sweep_of(n_trials: int, *, reuse: bool) -> Sweep:
    """Return a sweep of so many trials of one arm each."""
    return Sweep(name="trivial", base=BASE, seeds=list(range(n_trials)), runtime={"reuse_workers": reuse})


def ours(sweep: Sweep, folder: Path) -> float:
    """Return the seconds of a whole run: plan, store, claims, training, reports and settling."""
    begin = time.perf_counter()
    prepare_storage(folder)
    with Store.open(folder / "results.db", mode="write") as store, Path(os.devnull).open("w") as nowhere:
        plan = Plan.make(sweep, {})
        save_sweep(store, sweep, plan.trials, folder)
        with Progress(plan, Console(file=nowhere)) as progress:
            session = Session(
                store,
                sweep,
                folder,
                plan.jobs(),
                provenance(),
                progress,
                owner=owner_name(),
                slots_without=lambda avoided: count_slots(sweep.runtime, avoided),
            )
            run_session(session)
        spent = time.perf_counter() - begin
        assert current_plan(store, sweep).counts() == {"done": len(plan.arms)}
    return spent


def one_trial(config: dict[str, Any], folder: str, sweep: Sweep) -> None:
    """Train one arm, as a user of Tune would: the trainer's own function, and a report of the loss."""
    from schemas.report import EvalRow
    from trainer.pair import train_pair

    arm = sweep.trials()[config["index"]].sa
    losses: list[float] = []
    train_pair(
        [arm],
        Path(folder),
        sweep.runtime,
        attempts={arm.id: 1},
        report=lambda told: losses.extend(row.loss for row in told.rows if isinstance(row, EvalRow)),
        should_stop=lambda: False,
    )
    tune.report({"loss": losses[-1]})


def plain_tune(sweep: Sweep, folder: Path, *, reuse: bool) -> float:
    """Return the seconds that `tune.Tuner` takes for the same trials, with its default settings."""
    begin = time.perf_counter()
    tuner = tune.Tuner(
        tune.with_parameters(one_trial, folder=str(folder), sweep=sweep),
        param_space={"index": tune.grid_search(list(range(len(sweep.trials()))))},
        tune_config=tune.TuneConfig(reuse_actors=reuse),
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0),
    )
    results = tuner.fit()
    assert not results.errors
    return time.perf_counter() - begin


def training(sweep: Sweep, folder: Path) -> float:
    """Return the seconds that training alone takes, in this process."""
    from trainer.pair import train_pair

    begin = time.perf_counter()
    for trial in sweep.trials():
        train_pair(
            [trial.sa],
            folder,
            sweep.runtime,
            attempts={trial.sa.id: 1},
            report=lambda told: None,
            should_stop=lambda: False,
        )
    return time.perf_counter() - begin


def main() -> None:
    """Measure in turns, and print a Markdown table of medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=200, help="of runs that reuse workers")
    parser.add_argument("--fresh", type=int, default=16, help="of runs with a process for each")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ.pop("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", None)  # Tune's own side has its defaults

    many, few = sweep_of(options.trials, reuse=True), sweep_of(options.fresh, reuse=False)
    cases: dict[str, tuple[int, Callable[[Path], float]]] = {
        "training alone": (options.trials, lambda folder: training(many, folder)),
        "Tune, its defaults (a process each)": (options.fresh, lambda f: plain_tune(few, f, reuse=False)),
        "xsa, a process each": (options.fresh, lambda folder: ours(few, folder)),
        "Tune, reuse_actors": (options.trials, lambda folder: plain_tune(many, folder, reuse=True)),
        "xsa, workers reused": (options.trials, lambda folder: ours(many, folder)),
    }
    with connected_ray(), tempfile.TemporaryDirectory() as place:
        slots = count_slots(many.runtime)
        spent: dict[str, list[float]] = {name: [] for name in cases}
        for i in range(options.rounds):
            for name, (n, run) in cases.items():
                folder = Path(place) / f"{i}-{name.replace(' ', '-')}"
                folder.mkdir()
                spent[name].append(run(folder) / n)
                print(f"round {i + 1}: {name}: {spent[name][-1]:.3f} s a trial", flush=True)
    print(f"\n{slots} trials at once. Seconds of wall time a trial, and of one slot beyond training:\n")
    print("| | wall s a trial | slot s beyond training | to Tune's defaults |\n|---|---|---|---|")
    alone = statistics.median(spent["training alone"])
    base = statistics.median(spent["Tune, its defaults (a process each)"]) * slots - alone
    for name, values in spent.items():
        wall = statistics.median(values)
        beyond = 0.0 if name == "training alone" else wall * slots - alone
        print(f"| {name} | {wall:.3f} | {beyond:.3f} | {beyond / base:.2f} |")


if __name__ == "__main__":
    main()
