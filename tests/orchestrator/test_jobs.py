"""What is sent to a cluster, and what is refused before anything is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobStatus

from orchestrator import jobs
from schemas.errors import UserError
from schemas.sweep import Sweep
from tests.orchestrator.conftest import Xsa

HEAD, DB, RUNS = "http://head:8265", "postgresql://me@dbhost/sweeps", "/shared/runs"
SWEEP = "base: {tokenizer: bytes}\ngrid: {xsa_lambda: [0, 1]}\n"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"address": "ray://head:10001"}, "Ray Client"),
        ({"address": "head:8265"}, "such as http://HEAD:8265"),
        ({"db": None}, "needs a store that outlives it"),
        ({"db": "results.db"}, "means nothing on the cluster"),
        ({"db": "postgresql://me:secret@dbhost/sweeps"}, "PGPASSWORD"),
        ({"db": "postgresql://me@dbhost/sweeps?password=secret"}, "PGPASSWORD"),
        ({"db": "postgresql://me@dbhost/sweeps?sslpassword=secret"}, "PGPASSWORD"),
        ({"storage": None}, "needs --storage"),
        ({"storage": "s3://bucket/runs"}, "--storage: s3://bucket/runs means nothing"),
        ({"storage": "runs"}, "--storage: runs means nothing"),
        ({"data": "data"}, "--data: data means nothing"),
        ({"sweep": f"{SWEEP}runtime: {{data: rel/data}}\n"}, "runtime.data: rel/data means nothing"),
        ({"task_data": "tasks"}, "--task-data: tasks means nothing"),
        ({"sweep": SWEEP.replace("bytes", "bytes, dataset: 'text:my.txt'")}, "text:my.txt: my.txt means"),
    ],
)
def test_places_that_mean_nothing_on_a_cluster_are_refused(changes: dict[str, str | None], why: str) -> None:
    asked = {"address": HEAD, "db": DB, "storage": RUNS, "data": None, "task_data": None, "sweep": SWEEP}

    def check(values: dict[str, str | None]) -> dict[str, str]:
        sweep = Sweep.parse(values.pop("sweep") or "", "small")
        return jobs.check_places(sweep=sweep, **values)  # type: ignore[arg-type]

    with pytest.raises(UserError, match=why) as refused:
        check(asked | changes)
    assert "secret" not in str(refused.value)
    told = {"XSA_DB": DB, "XSA_STORAGE": RUNS}
    assert check(dict(asked)) == told
    for place in ("s3://bucket/data", "/shared/data"):
        assert check(asked | {"sweep": f"{SWEEP}runtime: {{data: '{place}'}}\n"}) == told
    assert check(asked | {"data": "s3://d", "task_data": "/t"}) == told | {
        "XSA_DATA": "s3://d",
        "XSA_TASK_DATA": "/t",
    }


def test_submit_asks_for_what_is_missing_and_names_a_server_that_is_not_there(
    xsa: Xsa, tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    places = ("--address", HEAD, "--db", DB, "--storage", RUNS)
    code, _, error = xsa("submit", "s.yaml", *places, "--data", "s3://key:secret@bucket/data")
    assert (code, "--data holds a key or password" in error, "secret" in error) == (2, True, False)
    code, _, error = xsa("submit", "s.yaml", "--address", HEAD, "--storage", RUNS)
    assert (code, "needs a store that outlives it" in error) == (2, True)
    code, _, error = xsa("submit", "s.yaml", "--address", "http://127.0.0.1:9", "--db", DB, "--storage", RUNS)
    assert (code, "There is no job server at http://127.0.0.1:9" in error) == (2, True)
    code, _, error = xsa("submit", "other.yaml", "--address", HEAD, "--db", DB, "--storage", RUNS)
    assert (code, "other.yaml" in error) == (2, True)


def test_the_package_runs_by_itself_and_knows_its_commit(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    folder = tmp_path / "job"
    folder.mkdir()
    files, size = jobs.package(tmp_path / "s.yaml", folder)
    assert files > 50
    assert 1e6 < size < 20e6
    assert not list(folder.rglob(".git")) + list(folder.rglob("__pycache__")) + list(folder.rglob("*.db"))
    told = json.loads((folder / "provenance.json").read_text())
    assert set(told) == {"git_sha", "dirty"}
    code = (
        "import orchestrator.provenance as p; m = p.provenance(); "
        "print(p.ROOT, m.git_sha, m.packages['xsa-sweeps'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(folder), str(told["git_sha"]), "0.1.0"]


def test_too_much_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    (tmp_path / "job").mkdir()
    monkeypatch.setattr(jobs, "LIMIT_BYTES", 1000)
    with pytest.raises(UserError, match="more than"):
        jobs.package(tmp_path / "s.yaml", tmp_path / "job")


class Server:
    """A job server's memory: the jobs that it was given, and how each stands."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobStatus] = {}
        self.quicker: str | None = None
        """A job that somebody else submits between the next look and the next submission."""

    def list_jobs(self) -> list[Any]:
        return [type("Job", (), {"submission_id": name, "status": s}) for name, s in self.jobs.items()]

    def submit_job(self, *, submission_id: str, entrypoint: str, runtime_env: Any, metadata: Any) -> None:
        assert DB not in entrypoint
        if self.quicker:
            self.jobs[self.quicker], self.quicker = JobStatus.PENDING, None
        if submission_id in self.jobs:
            raise RuntimeError(f"Job with submission_id {submission_id} already exists")
        self.jobs[submission_id] = JobStatus.PENDING


def test_the_same_sweep_is_one_job_until_it_has_ended(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    sweep, server = Sweep.load(tmp_path / "s.yaml"), Server()

    def submit(env: dict[str, str]) -> tuple[str, bool]:
        return jobs.submit(server, sweep, tmp_path / "s.yaml", tmp_path, env)  # type: ignore[arg-type]

    first, new = submit({"XSA_DB": DB})
    assert new
    assert submit({"XSA_DB": DB}) == (first, False)
    assert submit({"XSA_DB": "/other.db"})[1]
    server.jobs[first] = JobStatus.FAILED
    second, new = submit({"XSA_DB": DB})
    assert new
    assert second != first
    server.jobs[second] = JobStatus.STOPPED
    del server.jobs[first]  # `ray job delete`
    server.quicker = second[:-1] + "3"
    assert submit({"XSA_DB": DB}) == (second[:-1] + "3", False)


def test_a_lost_connection_is_told_and_the_job_goes_on() -> None:
    class Lost:
        def tail_job_logs(self, job_id: str) -> Any:
            raise RuntimeError("WebSocket connection closed\nby the other side")

    with pytest.raises(UserError, match=r"was lost \(WebSocket connection closed\). job-1 goes on"):
        jobs.follow(Lost(), "job-1", print)  # type: ignore[arg-type]
