"""What the driver and the store carry while a thousand trials report at once: no Ray, no training.

    python -m benchmarks.cluster [--trials 1000] [--rates 10 30 100] [--seconds 30] [--db postgresql://me@host/empty]

A real `Session` over a real store is told what Tune would tell it: where each worker is, and reports of 100 steps,
one evaluation and now and then the bias metrics of 12 layers, each due at its time whether or not the driver is ready.
Tune's own work and the network are not in it. The database must be empty; without --db it is a SQLite file.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from orchestrator.owner import Place, owner_name
from orchestrator.plan import Plan
from orchestrator.progress import Progress
from orchestrator.provenance import provenance
from orchestrator.session import Session
from orchestrator.supervise import announced, prepare_storage
from results.record import save_sweep
from results.store import Store
from schemas.report import METRICS, ArmRecord, EvalRow, LayerRow, Report, Row, StepRow
from schemas.sweep import Sweep
from schemas.trial import Arm

STEPS = 100
"""Steps between two reports of a trial, each of which is a row: `eval_every` and `log_every` by default."""
BIAS_EVERY = 5
"""Reports between two with bias metrics: `bias_every` by default."""
TICK_S = 0.1
"""How long Tune waits at most for something to happen."""


@dataclass(frozen=True)
class Load:
    """What a while at one rate of reports took of the driver."""

    reports: int
    rows: int
    wall_s: float
    cpu_s: float
    """Of this process: with SQLite the store's part too, with a server what talks to it."""
    lags_s: list[float]
    """From when a report was due until it was in the store."""
    beats_s: list[float]


def main() -> None:
    """Print Markdown tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000, help="trials under way at once")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[10, 30, 100], help="reports a second, of all"
    )
    parser.add_argument("--seconds", type=float, default=30, help="how long each rate is kept up")
    parser.add_argument("--db", help="an empty database, instead of a SQLite file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, Path(os.devnull).open("w") as nowhere:
        storage = Path(place, "runs")
        prepare_storage(storage)
        with Store.open(options.db or Path(place, "results.db"), mode="write") as store:
            sweep = sweep_of(options.trials)
            plan = Plan.make(sweep, {})
            save_sweep(store, sweep, plan.trials, storage)
            owner = owner_name()
            with announced(store, sweep.name, owner):
                session = Session(
                    store,
                    sweep,
                    storage,
                    plan.jobs(),
                    provenance(),
                    Progress(plan, Console(file=nowhere)),
                    owner=owner,
                    slots_without=lambda avoided: options.trials,
                )
                measure(session, options.rates, options.seconds)


def sweep_of(trials: int) -> Sweep:
    """Return a sweep of so many trials with two arms each."""
    base = {"model_size": "124M", "steps": 1_000_000, "xsa_lambda": 1}
    return Sweep(name="cluster", base=base, seeds=list(range(trials)))


def measure(session: Session, rates: list[float], seconds: float) -> None:
    """Claim every job, report at each rate, then as fast as it goes, and end every job."""
    trials = len(session.queue)
    begun = time.perf_counter()
    for i in range(trials):
        assert session.next_job(str(i))
        session.on_start(str(i), Place(f"node-{i // 8}", f"host-{i // 8}", i))
    claimed = time.perf_counter() - begun
    told = reports_of(session)
    print(
        f"\n| {trials} trials | rows/s | driver's core | ms a report | lag, median | lag, longest | beat, longest |"
    )
    print("|---|---|---|---|---|---|---|")
    for rate in rates:
        texts = list(itertools.islice(told, round(rate * seconds)))
        show(f"{rate:g} reports/s", play(session, texts, rate))
    full = play(session, list(itertools.islice(told, trials)), float("inf"))
    show(f"as fast as it goes: {full.reports / full.wall_s:.0f} reports/s", full)
    begun = time.perf_counter()
    for i in range(trials):
        session.on_end(str(i), None)
    ended = time.perf_counter() - begun
    each = [f"{seconds / trials * 1e3:.1f} ms" for seconds in (claimed, ended)]
    print(f"\nClaiming a trial's two arms took {each[0]}, settling a trial {each[1]}.")


def reports_of(session: Session) -> Iterator[tuple[str, str]]:
    """Yield what the trials send, in turns, with Tune's id of the trial."""
    arms = {tune_id: running.job.arms[0] for tune_id, running in session.running.items()}
    for number in itertools.count():
        for i, (tune_id, arm) in enumerate(arms.items()):
            attempt = session.running[tune_id].attempts[arm.id]
            metrics = METRICS if (i + number) % BIAS_EVERY == 0 else ()
            yield tune_id, report_of(arm, attempt, number, metrics).dumps()


def report_of(arm: Arm, attempt: int, number: int, metrics: Iterable[str]) -> Report:
    """Return what a worker sends at its evaluation of this number, with these bias metrics."""
    first, last = number * STEPS + 1, (number + 1) * STEPS
    rows: list[Row] = [
        StepRow(s, 3 + 1 / s, arm.lr, 1.5, 500_000.0, 10**15 + s) for s in range(first, last + 1)
    ]
    rows.append(EvalRow(last, "val", 3 + 1 / last, arm.eval_tokens, 10**15 + last))
    rows += [LayerRow(last, name, layer, 0.1) for name in metrics for layer in range(arm.n_layer)]
    hashes = ("init", "batch", "data")
    seen = {"hostname": "host", "device": "cuda", "micro_batch": 8}
    return Report(
        ArmRecord(arm.model_dump(), arm.id, attempt, "running", last, 124_000_000, *hashes, 60.0, seen), rows
    )


def play(session: Session, texts: list[tuple[str, str]], rate: float) -> Load:
    """Let the reports come due at even times, and give the session each as soon as it is free."""
    rows, lags, beats = 0, [], []
    cpu, begun = time.process_time(), time.perf_counter()
    for i, (tune_id, text) in enumerate(texts):
        due = begun + i / rate
        while True:
            before = time.perf_counter()
            session.beat()
            now = time.perf_counter()
            beats.append(now - before)
            if now >= due:
                break
            time.sleep(min(TICK_S, due - now))
        report = Report.loads(text)
        session.on_report(tune_id, report)
        rows += len(report.rows)
        lags.append(time.perf_counter() - due)
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return Load(len(texts), rows, wall, cpu, lags, beats)


def show(title: str, load: Load) -> None:
    """Print a line of the table."""
    lag = statistics.median(load.lags_s), max(load.lags_s)
    print(
        f"| {title} | {load.rows / load.wall_s:,.0f} | {load.cpu_s / load.wall_s:.0%} "
        f"| {load.cpu_s / load.reports * 1e3:.1f} | {lag[0] * 1e3:.0f} ms | {lag[1] * 1e3:.0f} ms "
        f"| {max(load.beats_s) * 1e3:.0f} ms |",
        flush=True,
    )


if __name__ == "__main__":
    main()
