"""A sweep as a job of a Ray cluster: this program and the sweep file are sent there and run beside the head."""

import asyncio
import hashlib
import json
import logging
import shlex
import shutil
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from orchestrator.provenance import CODE, ROOT, TOLD, provenance
from results.location import url_of
from schemas.dataset import parse_source
from schemas.errors import UserError
from schemas.sweep import Sweep

for _module in ("dashboard_sdk", "job.sdk"):  # they tell of packages and sockets
    logging.getLogger(f"ray.dashboard.modules.{_module}").setLevel(logging.WARNING)

LIMIT_BYTES = 50_000_000
"""More than this is not sent: Ray's HTTP upload fails somewhere below 100 MB."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.db", "*.db-*", "*.backup")
_EXIT_CODES = {JobStatus.SUCCEEDED: 0, JobStatus.FAILED: 1, JobStatus.STOPPED: 130}
"""What `xsa submit --follow` ends with, unless the job's own exit code is known."""
_POLL_S = 0.5
LOOK_S = 10.0
"""Seconds between looks whether a followed job has ended without its log saying so."""
_TRIES = 3


def check_places(
    address: str, sweep: Sweep, db: str | None, storage: str | None, data: str | None, task_data: str | None
) -> dict[str, str]:
    """Return the environment that tells a job where its store, storage and data are.

    Raises `UserError` for places that would mean something else, or nothing, on the cluster.
    """
    if not address.startswith(("http://", "https://")):
        client = (
            " is Ray Client, which loses a run with its connection" if address.startswith("ray://") else ""
        )
        raise UserError(
            f"--address {address}{client}: give the cluster's job server, such as http://HEAD:8265."
        )
    if db is None:
        raise UserError(
            "A job needs a store that outlives it: --db postgresql://USER@HOST/NAME, "
            "or an absolute path on the head's own disk."
        )
    if _has_secret(db):
        raise UserError(
            "The password in --db would be shown with the job by Ray's dashboard. Leave it out, and give it to the "
            "head node as PGPASSWORD (a Kubernetes Secret) or in ~/.pgpass; here too."
        )
    if storage is None:
        raise UserError("A job needs --storage: a folder that all nodes share, such as /shared/runs.")
    places = {"--db": db, "--storage": storage, "--task-data": task_data}
    kept = "--data" if data else "runtime.data"
    places[kept] = data or sweep.runtime.data
    for trial in sweep.trials():
        if (source := parse_source(trial.dataset)).is_local:
            places[f"dataset {trial.dataset}"] = source.where
    for name, place in places.items():
        may_be_url = name in ("--db", kept)
        if place is None or (may_be_url and "://" in place) or Path(place).is_absolute():
            continue
        raise UserError(
            f"{name}: {place} means nothing on the cluster; give an absolute path there"
            + (", or a URL." if may_be_url else ".")
        )
    env = {"XSA_DB": db, "XSA_STORAGE": storage, "XSA_DATA": data, "XSA_TASK_DATA": task_data}
    return {name: place for name, place in env.items() if place is not None}


def _has_secret(db: str) -> bool:
    """Whether a database's address holds what nobody else may see: libpq takes a password in the query too."""
    if "://" not in db:
        return False
    url = url_of(db)
    return url.password is not None or any("pass" in key.lower() for key in url.query)


def package(sweep_file: Path, folder: Path) -> tuple[int, int]:
    """Copy this program and the sweep file into a folder, and return how many files and bytes that is.

    No .git, results or data go along. Raises `UserError` where it is more than can be sent.
    """
    for name in CODE:
        shutil.copytree(ROOT / name, folder / name, ignore=_LEFT_OUT)
    shutil.copy(sweep_file, folder / sweep_file.name)
    made = provenance()
    (folder / TOLD).write_text(json.dumps({"git_sha": made.git_sha, "dirty": made.dirty}), encoding="utf-8")
    version = metadata.version("xsa-sweeps")
    info = folder / f"xsa_sweeps-{version}.dist-info"  # so that it is found without being installed
    info.mkdir()
    told = f"Metadata-Version: 2.1\nName: xsa-sweeps\nVersion: {version}\n"
    (info / "METADATA").write_text(told, encoding="utf-8")
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    if sum(sizes) > LIMIT_BYTES:
        raise UserError(
            f"This program's folder {ROOT} holds {sum(sizes) / 1e6:,.0f} MB, more than the {LIMIT_BYTES / 1e6:,.0f} MB "
            "that can be sent to a cluster; move what is not code out of its packages."
        )
    return len(sizes), sum(sizes)


def connect(address: str) -> JobSubmissionClient:
    """Return a client of the cluster's job server. Raises `UserError` where there is none, or it refuses."""
    try:
        client = JobSubmissionClient(address)
        client.list_jobs()
        return client
    except AuthenticationError as error:
        raise UserError(
            f"The cluster at {address} refuses this token, or asks for one ({_first_line(error)}). "
            "Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token that its head was "
            "started with (there: ~/.ray/auth_token)."
        ) from None
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        said = _first_line(error)
        if "ray[default]" in said:
            raise UserError(
                "Submitting needs Ray's job client: pip install 'xsa-sweeps[cluster]', here and on the cluster."
            ) from None
        raise UserError(f"There is no job server at {address}: {said}") from None


def submit(
    client: JobSubmissionClient, sweep: Sweep, sweep_file: Path, folder: Path, env: dict[str, str]
) -> tuple[str, bool]:
    """Start the sweep as a job, unless the very same one is under way.

    Returns:
        the job's id, and whether it is new.
    """
    asked = json.dumps([sweep.source, env], sort_keys=True)
    prefix = f"xsa-{sweep.name}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"
    for _ in range(_TRIES):
        earlier = {job.submission_id: job.status for job in client.list_jobs() if job.submission_id}
        own = {int(name[len(prefix) + 1 :]): name for name in earlier if name.startswith(f"{prefix}-")}
        for name in own.values():
            if earlier[name] not in _EXIT_CODES:
                return name, False
        job_id = f"{prefix}-{max(own, default=0) + 1}"
        try:
            client.submit_job(
                entrypoint=f"python -m orchestrator run {shlex.quote(sweep_file.name)}",
                submission_id=job_id,
                runtime_env={"working_dir": str(folder), "env_vars": env},
                metadata={"sweep": sweep.name},
            )
            return job_id, True
        except RuntimeError as error:
            if "already exists" not in str(error):  # else another terminal was quicker; its job is this one
                raise UserError(f"The cluster did not take the job: {_first_line(error)}") from error
    raise UserError(f"The cluster has had {_TRIES} other jobs in the way of {prefix}; try again.")


def follow(client: JobSubmissionClient, job_id: str, say: Callable[[str], None]) -> int:
    """Pass on what a job prints until it ends, and return its exit code.

    Raises `UserError` where the connection is lost: the job goes on.
    """

    said = 0

    async def tail() -> None:
        nonlocal said
        async for text in client.tail_job_logs(job_id):
            said += len(text)
            say(text)

    async def listen() -> None:
        tailing = asyncio.create_task(tail())
        while not (await asyncio.wait([tailing], timeout=LOOK_S))[0]:
            try:
                status = await asyncio.to_thread(client.get_job_status, job_id)
            except (RuntimeError, OSError):
                continue  # whether the connection is lost is for its log to say
            if status in _EXIT_CODES:
                tailing.cancel()  # after the network was away, a connection may stay silent for good
                say(client.get_job_logs(job_id)[said:])
                return
        await tailing

    try:
        asyncio.run(listen())
        while (status := client.get_job_status(job_id)) not in _EXIT_CODES:
            time.sleep(_POLL_S)  # the log ends a moment before the job
        code = client.get_job_info(job_id).driver_exit_code
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"The connection to the cluster was lost ({_first_line(error)}). {job_id} goes on; "
            "the same command follows it again."
        ) from error
    return _EXIT_CODES[status] if code is None else code


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
