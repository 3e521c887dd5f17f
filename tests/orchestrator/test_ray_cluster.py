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
from schemas.sweep import Sweep
from schemas.trial import Arm
from tests.conftest import PROVENANCE
from tests.orchestrator.nodes import Cluster, Lan, LanServer, why_impossible
from tests.postgres import binaries
from trainer.process import prepare
from trainer.train import train

pytestmark = [pytest.mark.ray, pytest.mark.postgres, pytest.mark.slow]

SWEEP = """
base: {tokenizer: bytes, seq_len: 32, tokens_per_step: 256, eval_tokens: 256, bias_tokens: 256}
list:
  - {xsa_lambda: 0, seed: 0, steps: 1500}
  - {xsa_lambda: 1, seed: 1, steps: 400}
  - {xsa_lambda: 0, seed: 2, steps: 400}
runtime: {eval_every: 50, bias_every: 200, checkpoint_every: 20, custom_resources: {trainer: 1}}
"""
"""Three jobs: a long arm, a pair, and a single one."""
OUTAGE_S = 60


class Site:
    """The machines, and what lies on the disk that they share."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        (folder / "small.yaml").write_text(SWEEP)
        self.sweep = Sweep.load(folder / "small.yaml")
        self.jobs = [[arm.id for arm in trial.arms] for trial in self.sweep.trials()]
        self.server = LanServer(programs)
        self.cluster = Cluster(folder)
        self._reference: list[pd.DataFrame] = []

    def reference(self) -> list[pd.DataFrame]:
        """What these arms are when one process trains them one after the other."""
        if not self._reference:
            prepare(self.sweep.runtime.threads)
            db, storage = self.folder / "alone.db", self.folder / "alone"
            with Store.open(db, mode="write") as store:
                trials = self.sweep.trials()
                save_sweep(store, self.sweep, trials, storage)
                for arm in {arm.id: arm for trial in trials for arm in trial.arms}.values():
                    self._train(store, arm, storage)
            self._reference = recorded(str(db))
        return self._reference

    def _train(self, store: Store, arm: Arm, storage: Path) -> None:
        attempt = claim(store, arm.id, "alone", PROVENANCE)
        assert attempt

        def report(told: Report) -> None:
            assert record(store, told)

        folder = arm_folder(storage, arm.id)
        train(arm, folder, self.sweep.runtime, attempt=attempt, report=report, should_stop=lambda: False)

    def off(self) -> None:
        self.cluster.off()
        self.server.stop()


class Run:
    """A database and a storage of their own, and how the sweep stands there."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.storage = site.folder / name
        database = site.server.make()
        self.url = site.server.url(database)
        self.places = ("--db", site.server.address(database), "--storage", str(self.storage))

    def on_head(self, *command: str) -> "subprocess.Popen[str]":
        """Start a command on the head."""
        xsa = (sys.executable, "-m", "orchestrator")
        return self.site.cluster.head.start(
            *xsa, *command, "--address", "auto", *self.places, folder=self.site.folder
        )

    def submit(self) -> "subprocess.Popen[str]":
        """Send the sweep from here, which is no node of the cluster, and follow it."""
        server = f"http://{self.site.cluster.head.address}:8265"
        command = ("submit", "small.yaml", "--follow", "--address", server, *self.places)
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *command],
            cwd=self.site.folder,
            env=os.environ | self.site.cluster.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def attempts(self) -> pd.DataFrame:
        with results.open(self.url) as db:
            return db.attempts("small").sort_values(["arm", "attempt"])

    def told(self, arm_id: str) -> ArmRecord | None:
        """What an arm's worker has written to the storage."""
        return read_record(arm_folder(self.storage, arm_id))

    def where(self) -> dict[str, str]:
        """The machine of each arm that has been checkpointed, by the arm's id."""
        found = {}
        for arm_id in (arm_id for job in self.site.jobs for arm_id in job):
            told = self.told(arm_id)
            if told and list(arm_folder(self.storage, arm_id).glob("checkpoints/*/manifest.json")):
                found[arm_id] = str(told.environment["hostname"])
        return found

    def assert_undisturbed(self) -> None:
        for ours, theirs in zip(recorded(self.url), self.site.reference(), strict=True):
            pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


def recorded(address: str) -> list[pd.DataFrame]:
    """Everything that a store holds of the sweep's numbers, but for speeds."""
    with results.open(address) as db:
        found = [db.pairs("small"), db.curves("small").drop(columns="tok_per_s"), db.layers("small")]
    keys = [["trial"], ["arm", "step"], ["arm", "step", "metric", "layer"]]
    return [f.sort_values(k).reset_index(drop=True) for f, k in zip(found, keys, strict=True)]


def until(condition: Callable[[], bool], what: str, process: "subprocess.Popen[str] | None" = None) -> None:
    """Wait for something, for two minutes at most, and no longer than a process lives."""
    deadline = time.monotonic() + 120
    while not condition():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            said = process.stdout.read() if ended and process and process.stdout else ""
            raise AssertionError(f"{what}: not so. {said}")
        time.sleep(0.2)


def end(process: "subprocess.Popen[str]", code: int) -> str:
    """Wait for a command to end with this exit code, and return what it printed."""
    output, _ = process.communicate(timeout=240)
    assert process.returncode == code, output
    return output


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A head, one machine that trains, and a database server, all on a network with this process."""
    programs, reason = binaries(), why_impossible()
    if programs is None or reason:
        assert "CI" not in os.environ, reason or "CI must have PostgreSQL"
        pytest.skip(f"no machines can be made here: {reason}" if reason else "PostgreSQL is not installed")
    with Lan():
        made = Site(tmp_path_factory.mktemp("site"), programs)
        try:
            made.cluster.add("n1")
            yield made
        finally:
            made.off()


def test_a_job_outlives_a_lost_node_uses_new_ones_and_a_database_that_is_away_for_a_minute(
    site: Site,
) -> None:
    run, cluster = Run(site, "lost"), site.cluster
    long, *_ = (job[0] for job in site.jobs)
    job = run.submit()
    until(lambda: long in run.where(), "the first node trains", job)
    cluster.add("n2")
    until(lambda: set(run.where().values()) == {"n1", "n2"}, "a node that joined late is used", job)
    checked = end(run.on_head("cluster", "check", "small.yaml"), 0)
    assert [node.address in checked for node in cluster.nodes.values()] == [True] * 3
    assert "2 trials at once" in checked

    gone_at = time.monotonic()
    site.server.crash()
    cluster.nodes["n1"].off()
    before = {arm_id: run.told(arm_id).step for arm_id, node in run.where().items() if node == "n2"}  # type: ignore[union-attr]
    cluster.add("n3")
    cluster.add("n4")
    site.reference()
    time.sleep(max(0.0, gone_at + OUTAGE_S - time.monotonic()))
    assert all(run.told(arm_id).step > step for arm_id, step in before.items())  # type: ignore[union-attr]
    site.server.start()

    output = end(job, 0)
    assert "Training goes on, and its journals are read later." in output
    assert "small: 4 arms done, 0 to do" in output
    attempts = run.attempts()
    lost = attempts[attempts.hostname == "n1"]
    assert list(lost.cause) == ["node_lost"]
    assert list(lost.arm) == [long[:12]]
    assert list(attempts[attempts.status == "done"].arm.value_counts()) == [1] * 4
    assert set(attempts[attempts.status == "done"].hostname) <= {"n2", "n3", "n4"}
    run.assert_undisturbed()


def test_a_node_that_was_cut_off_writes_nothing_and_a_killed_driver_is_taken_over(site: Site) -> None:
    run, cluster = Run(site, "cut"), site.cluster
    long, pair, single = (job[0] for job in site.jobs)
    driver = run.on_head("run", "small.yaml")
    until(lambda: {long, pair, single} <= run.where().keys(), "three nodes train", driver)
    cut_off = cluster.nodes[run.where()[long]]
    worker = run.told(long).environment["pid"]  # type: ignore[union-attr]

    cut_off.unplug()
    until(lambda: (attempts_at(run, long)) == 2, "another node is given the arm", driver)
    late = run.told(long)
    assert late
    assert late.attempt == 1
    assert cut_off.is_alive(worker)
    with Store.open(run.url, mode="write") as store:
        assert not record(store, Report(late, read_rows(arm_folder(run.storage, long))))
    cut_off.plug()
    until(lambda: run.told(long).attempt == 2, "the late worker has gone", driver)  # type: ignore[union-attr]
    assert not cut_off.is_alive(worker)

    with results.open(run.url) as db:
        cluster.head.kill(int(db.sql("SELECT pid FROM session WHERE ended_at_us IS NULL").pid[0]))
    driver.communicate(timeout=30)
    finished = run.attempts()[lambda rows: rows.status == "done"]
    assert "small: 4 arms done, 0 to do" in end(run.on_head("run", "small.yaml"), 0)
    attempts = run.attempts()
    assert list(attempts[attempts.arm == long[:12]].cause[:2]) == ["node_lost", "interrupted"]
    assert list(attempts[attempts.arm == long[:12]].status)[-1] == "done"
    again = attempts.merge(finished[["arm", "attempt"]], on="arm", suffixes=("", "_of_result"))
    assert (again.attempt <= again.attempt_of_result).all()
    run.assert_undisturbed()


def attempts_at(run: Run, arm_id: str) -> int:
    """How often an arm has been given to a node."""
    return int((run.attempts().arm == arm_id[:12]).sum())
