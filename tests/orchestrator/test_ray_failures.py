"""What breaks under a real Ray: an exception, a killed worker, a locked store, host memory, resources, a node."""

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from orchestrator.launch import connected_ray, count_slots, run_session
from orchestrator.owner import Place
from results.query import Database
from results.store import Store
from schemas.errors import UserError
from schemas.report import EvalRow, arm_folder, read_record
from schemas.sweep import Runtime
from schemas.trial import Arm
from tests.conftest import SMALL
from tests.orchestrator.conftest import Bench
from tests.orchestrator.desk import SWEEP, Desk
from trainer.process import prepare
from trainer.train import train

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def undisturbed_losses(arm: Arm, folder: Path, runtime: Runtime) -> dict[int, float]:
    """Train an arm here, without Ray, and return its held-out losses by step."""
    prepare(runtime.threads)
    losses: dict[int, float] = {}
    train(
        arm,
        folder,
        runtime,
        attempt=1,
        report=lambda told: losses.update(
            {row.step: row.loss for row in told.rows if isinstance(row, EvalRow)}
        ),
        should_stop=lambda: False,
    )
    return losses


def assert_undisturbed(desk: Desk, arms: list[Arm], tmp_path: Path) -> None:
    """These arms are done, with the numbers of a run in which nothing happened."""
    with Database(desk.folder / "results.db") as db:
        curves = db.curves("small")
    for arm in arms:
        rows = curves[(curves.arm == arm.id[:12]) & curves.val_loss.notna()]
        ours = dict(zip(rows.step, rows.val_loss, strict=True))
        assert ours == undisturbed_losses(arm, tmp_path / f"alone-{arm.id[:12]}", desk.sweep.runtime)


def worker_of(desk: Desk, arm: Arm) -> int:
    """Return the process that trains an arm, once it has reached a checkpoint."""
    folder = arm_folder(desk.folder / "runs", arm.id)
    for _ in range(1200):
        record = read_record(folder)
        if record and list(folder.glob("checkpoints/*/manifest.json")):
            return int(record.environment["pid"])
        time.sleep(0.05)
    raise AssertionError("no checkpoint within a minute")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_sweep_in_which_much_goes_wrong_tells_it_all_and_is_completed_by_the_next_run(
    tmp_path: Path,
) -> None:
    """An arm that raises, a worker that is killed, and a store that is locked while both happen."""
    desk = Desk(tmp_path / "hurt", SWEEP.replace("xsa_lambda: [0, 1]", "xsa_lambda: [0, 0.5, 1]"))
    raises, killed, _ = (trial.xsa for trial in desk.sweep.trials())
    in_the_way = arm_folder(desk.folder / "runs", raises.id)
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file where a folder must go")
    process = desk.start()
    worker = worker_of(desk, killed)
    with closing(sqlite3.connect(desk.folder / "results.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        os.kill(worker, signal.SIGKILL)
        time.sleep(11)  # the driver waits 10 s for a lock
        other.execute("ROLLBACK")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 1, output
    assert "locked by another program" in output
    assert "small: 2 arms done, 1 to do (1 failed)" in output
    attempts = desk.attempts().set_index("arm")
    failed = attempts.loc[raises.id[:12]]
    assert (failed.status, failed.cause) == ("failed", "user_error")
    assert failed.hostname
    assert "FileExistsError" in failed.traceback or "NotADirectoryError" in failed.traceback
    tries = attempts.loc[[killed.id[:12]]]
    assert list(tries.status)[-1] == "done"
    assert set(tries.cause[:-1]) == {"node_lost"}

    shown = desk.run("status", "small", "--failed")
    assert raises.id[:12] in shown
    assert "user_error" in shown
    in_the_way.unlink()
    assert "small: 3 arms done, 0 to do" in desk.run("retry", "small", "--cause", "user_error")
    assert list(desk.attempts().set_index("arm").loc[[raises.id[:12]]].status) == ["failed", "done"]
    assert_undisturbed(desk, [trial.xsa for trial in desk.sweep.trials()], tmp_path)


def test_a_host_out_of_memory_ends_neither_the_run_nor_the_innocent(tmp_path: Path) -> None:
    """Ray's memory monitor kills a worker, which ends Ray Tune 2.60 as a whole; here another program takes the memory."""
    text = SWEEP.replace("steps: 120}", "n_layer: 1}\nlist: [{steps: 150}, {steps: 2500}]")
    desk = Desk(tmp_path / "memory", text.replace("xsa_lambda: [0, 1]", "xsa_lambda: [0]"))
    short, long = (trial.sa for trial in desk.sweep.trials())
    memory = psutil.virtual_memory()
    free = min(8 * 2**30, memory.available // 2)
    process = desk.start(
        RAY_memory_usage_threshold=f"{(memory.total - memory.available + free) / memory.total:.4f}",
        RAY_memory_monitor_refresh_ms="50",
    )
    worker = worker_of(desk, long)
    taken = []
    while is_running(worker):
        assert len(taken) < 2 * free // 2**28, "Ray's memory monitor killed nothing"
        taken.append(b"x" * 2**28)
        time.sleep(0.1)
    taken.clear()
    output, _ = process.communicate(timeout=300)
    assert process.returncode in (0, 1), output  # what else runs here may take the memory a second time
    assert "Ray's memory monitor killed it" in output
    assert "it is tried again, alone on a node" in output
    assert "small: 2 arms done, 0 to do" in desk.run()
    tries = desk.attempts().set_index("arm").loc[[long.id[:12]]]
    assert set(tries.cause[:-1]) == {"host_oom"}
    assert tries.status.iloc[-1] == "done"
    assert_undisturbed(desk, [short, long], tmp_path)


@pytest.fixture
def two_nodes() -> Iterator[list[str]]:
    """A cluster of two nodes, each with one CPU; the ids of both."""
    options = {"num_cpus": 1, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=options)
    try:
        cluster.add_node(**options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", cluster.address)
            with connected_ray():
                yield [node["NodeID"] for node in ray.nodes()]
    finally:
        cluster.shutdown()


def test_what_no_node_has_is_named_and_an_avoided_node_gets_nothing(
    two_nodes: list[str], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked, message in {
        "gpus_per_trial": (1.0, "runtime.gpus_per_trial asks for 1 GPU, but no node has more than 0 GPU"),
        "cpus_per_trial": (3.0, "runtime.cpus_per_trial asks for 3 CPU, but no node has more than 1 CPU"),
        "memory_gib_per_trial": (1e6, "runtime.memory_gib_per_trial asks for 1e\\+06 GiB of memory"),
        "custom_resources": ({"licence": 1.0}, "runtime.custom_resources.licence asks for 1 licence"),
        "accelerator_type": ("H100", "asks for H100, and the nodes have no accelerators"),
    }.items():
        value, text = message
        with pytest.raises(UserError, match=text):
            count_slots(Runtime(**{asked: value}))
    assert count_slots(Runtime()) == 2
    assert count_slots(Runtime(), avoided=two_nodes[:1]) == 1

    bench = Bench(store, tmp_path / "runs", base=SMALL | {"steps": 2}, seeds=[0, 1])
    bench.nodes = dict.fromkeys(two_nodes, 1)
    assert bench.session.room.avoid(two_nodes[0])
    places: list[Place] = []
    monkeypatch.setattr(bench.session, "on_start", lambda tune_id, place: places.append(place))
    run_session(bench.session)
    assert [place.node for place in places] == [two_nodes[1]] * 6
    assert {bench.state(arm) for arm in bench.plan.arms.values()} == {"done"}
