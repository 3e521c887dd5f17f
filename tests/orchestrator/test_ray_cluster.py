"""A cluster of several machines, of which some are lost, added and cut off, and whose database goes away meanwhile."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

import results
from results.claims import claim
from results.record import record, save_sweep
from results.store import Store
from schemas.report import ArmRecord, Report, arm_folder, read_record, read_rows
from schemas.sweep import Runtime, Sweep
from schemas.trial import Arm
from tests.conftest import PROVENANCE
from tests.orchestrator.desk import end
from tests.orchestrator.nodes import DATABASE, Cluster, Lan, LanServer, missing_tools, why_forbidden
from tests.postgres import binaries
from trainer.process import prepare
from trainer.train import train

pytestmark = [pytest.mark.ray, pytest.mark.postgres, pytest.mark.slow]

SHORT = """
base: {tokenizer: bytes, seq_len: 32, tokens_per_step: 256, eval_tokens: 256, bias_tokens: 256}
list:
  - {xsa_lambda: 1, seed: 0, steps: 300}
  - {xsa_lambda: 0, seed: 1, steps: 300}
runtime: {eval_every: 50, bias_every: 200, checkpoint_every: 20, custom_resources: {trainer: 1}}
"""
"""Two jobs: a pair, and a single arm."""
LONG = SHORT.replace("list:", "list:\n  - {xsa_lambda: 0, seed: 2, steps: STEPS}")
"""And before these one of so many steps that it takes LONG_S to train, in which a machine can join."""
LONG_S = 40
OUTAGE_S = 60
WITHIN_S = 240
"""Longest that a command may take to end."""
XSA = (sys.executable, "-m", "orchestrator")


class Site:
    """The machines, and what lies on the disk that they share."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.alone = str(folder / "alone.db")
        """A store in which one process trains all arms, one after the other."""
        began = time.monotonic()
        self.sweeps = {"short": self._write("short", SHORT)}
        arms = self.train_alone("short")
        pace = sum(arm.steps for arm in arms) / (time.monotonic() - began)
        self.sweeps["long"] = self._write("long", LONG.replace("STEPS", f"{LONG_S * pace:.0f}"))
        self.server = LanServer(programs)
        self.cluster = Cluster(folder)

    def _write(self, name: str, text: str) -> Sweep:
        (self.folder / f"{name}.yaml").write_text(text)
        return Sweep.load(self.folder / f"{name}.yaml")

    def train_alone(self, name: str) -> list[Arm]:
        """Train a sweep's arms that are not yet in the store `alone`, and return them."""
        sweep = self.sweeps[name]
        prepare(sweep.runtime.threads)
        trained = []
        with Store.open(self.alone, mode="write") as store:
            save_sweep(store, sweep, sweep.trials(), self.folder / "alone")
            for arm in {arm.id: arm for trial in sweep.trials() for arm in trial.arms}.values():
                if attempt := claim(store, arm.id, "alone", PROVENANCE):
                    self._train(store, arm, sweep.runtime, attempt)
                    trained.append(arm)
        return trained

    def _train(self, store: Store, arm: Arm, runtime: Runtime, attempt: int) -> None:
        def report(told: Report) -> None:
            assert record(store, told)

        folder = arm_folder(self.folder / "alone", arm.id)
        train(arm, folder, runtime, attempt=attempt, report=report, should_stop=lambda: False)

    def off(self) -> None:
        self.cluster.off()
        self.server.stop()


class Run:
    """A sweep with a database and a storage of its own."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.name = name
        self.jobs = [list(dict.fromkeys(arm.id for arm in t.arms)) for t in site.sweeps[name].trials()]
        self.storage = site.folder / f"runs-{name}"
        database = site.server.make()
        self.url = site.server.url(database)
        self._places = ("--db", site.server.address(database), "--storage", str(self.storage))

    def on_head(self, *command: str) -> "subprocess.Popen[str]":
        """Start a command about the sweep on the head."""
        command = (*command, f"{self.name}.yaml", "--address", "auto", *self._places)
        return self.site.cluster.head.start(*XSA, *command, folder=self.site.folder)

    def submit(self) -> "subprocess.Popen[str]":
        """Send the sweep from here, which is no node of the cluster, and follow it."""
        server = f"http://{self.site.cluster.head.address}:8265"
        return subprocess.Popen(
            [*XSA, "submit", f"{self.name}.yaml", "--follow", "--address", server, *self._places],
            cwd=self.site.folder,
            env=os.environ | self.site.cluster.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def attempts(self, arm_id: str = "") -> pd.DataFrame:
        """What the store knows of the attempts at an arm, or at all of them, in their order."""
        with results.open(self.url) as db:
            rows = db.attempts(self.name)
        return rows[rows.arm.str.startswith(arm_id[:12])].sort_values(["arm", "attempt"])

    def folder(self, arm_id: str) -> Path:
        return arm_folder(self.storage, arm_id)

    def told(self, arm_id: str) -> ArmRecord:
        """What an arm's worker last wrote to the storage."""
        told = read_record(self.folder(arm_id))
        assert told
        return told

    def where(self) -> dict[str, str]:
        """The machine of each job whose first arm has been checkpointed, by that arm's id."""
        begun = [
            arm_id
            for arm_id, *_ in self.jobs
            if list(self.folder(arm_id).glob("checkpoints/*/manifest.json"))
        ]
        return {arm_id: self.told(arm_id).environment["hostname"] for arm_id in begun}

    def assert_undisturbed(self) -> None:
        ours, alone = recorded(self.url, self.name), recorded(self.site.alone, self.name)
        for got, wanted in zip(ours, alone, strict=True):
            pd.testing.assert_frame_equal(got, wanted, check_exact=True)


def recorded(address: str, sweep: str) -> list[pd.DataFrame]:
    """Everything that a store holds of a sweep's numbers, but for speeds."""
    with results.open(address) as db:
        found = [db.pairs(sweep), db.curves(sweep).drop(columns="tok_per_s"), db.layers(sweep)]
    keys = [["trial"], ["arm", "step"], ["arm", "step", "metric", "layer"]]
    return [f.sort_values(k).reset_index(drop=True) for f, k in zip(found, keys, strict=True)]


def until(condition: Callable[[], bool], process: "subprocess.Popen[str]", what: str) -> None:
    """Wait for something, for two minutes at most, and no longer than a process lives."""
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < deadline, f"within two minutes it did not come about that {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A head, one machine that trains, and a database server, all on a network with this process."""
    programs, missing = binaries(), missing_tools()
    if programs is None or missing:
        reason = f"not installed: {', '.join(missing or ['PostgreSQL'])}"
        assert "CI" not in os.environ, reason
        pytest.skip(reason)
    if reason := why_forbidden():
        pytest.skip(f"no machines can be made here: {reason}")  # which nobody could install
    with Lan():
        made = Site(tmp_path_factory.mktemp("site"), programs)
        try:
            made.cluster.grow(1)
            yield made
        finally:
            made.off()


def test_a_job_outlives_a_lost_node_uses_new_ones_and_a_database_that_is_away_for_a_minute(
    site: Site,
) -> None:
    run, cluster, server = Run(site, "long"), site.cluster, site.server
    (long,), (pair, _), (single,) = run.jobs
    job = run.submit()
    until(lambda: long in run.where(), job, "the first node trains")
    cluster.grow(2)
    check = run.on_head("cluster", "check")
    until(lambda: pair in run.where(), job, "a node that joined late trains")
    kept, lost = (run.where()[arm_id] for arm_id in (long, pair))
    assert kept != lost
    checked = end(check, 0, WITHIN_S)
    assert [node.address in checked for node in cluster.nodes.values()] == [True] * 3
    assert "2 trials at once" in checked

    gone_at, step = time.monotonic(), run.told(long).step
    cluster.head.lose(DATABASE)
    cluster.nodes[lost].off()
    cluster.grow(2)
    server.crash()
    server.start()
    site.train_alone(run.name)
    time.sleep(max(0.0, gone_at + OUTAGE_S - time.monotonic()))
    assert run.told(long).step > step
    cluster.head.find(DATABASE)

    output = end(job, 0, WITHIN_S)
    assert "Training goes on, and its journals are read later." in output
    assert "long: 4 arms done, 0 to do" in output
    assert list(run.attempts(pair).status) == ["interrupted", "done"]
    assert list(run.attempts(pair).cause[:1]) == ["node_lost"]
    assert list(run.attempts(long).hostname) == [kept]
    assert len(run.attempts(single)) == 1
    assert {*run.attempts().hostname} >= {"n1", "n2", "n3"}
    run.assert_undisturbed()


def test_a_node_that_was_cut_off_writes_nothing_and_a_killed_driver_is_taken_over(site: Site) -> None:
    run, cluster = Run(site, "short"), site.cluster
    (pair, _), (single,) = run.jobs
    cluster.grow(3)
    driver = run.on_head("run")
    until(lambda: {pair, single} <= run.where().keys(), driver, "two nodes train")
    assert run.where()[pair] != run.where()[single]
    cut_off, worker = cluster.nodes[run.where()[single]], run.told(single).environment["pid"]

    cut_off.unplug()
    until(lambda: len(run.attempts(single)) == 2, driver, "another node is given the arm")
    late = run.told(single)
    assert late.attempt == 1
    assert cut_off.is_alive(worker)
    with Store.open(run.url, mode="write") as store:
        assert not record(store, Report(late, read_rows(run.folder(single))))
    cut_off.plug()
    until(lambda: run.told(single).attempt == 2, driver, "the late worker lets go of the arm")
    assert not cut_off.is_alive(worker)

    with results.open(run.url) as db:
        cluster.head.kill(int(db.sql("SELECT pid FROM session WHERE ended_at_us IS NULL").pid[0]))
    driver.communicate(timeout=30)
    done = run.attempts()[lambda rows: rows.status == "done"]
    assert "short: 3 arms done, 0 to do" in end(run.on_head("run"), 0, WITHIN_S)
    assert list(run.attempts(single).status) == ["interrupted", "interrupted", "done"]
    assert list(run.attempts(single).cause[:2]) == ["node_lost", "interrupted"]
    for arm, attempt in done[["arm", "attempt"]].itertuples(index=False):
        assert run.attempts(arm).attempt.max() == attempt
    run.assert_undisturbed()
