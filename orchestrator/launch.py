"""The edge to Ray Tune: trials out, reports in. Tune is a disposable executor of one session.

Tune gets nothing but trial ids; what a worker needs travels beside them through the object store,
and what it finds comes back in `tune.report`. The store alone says what is done.
"""

import logging
import os
import socket
import tempfile
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

# Read by Ray and Tune when they are imported or started, so they are set before that.
os.environ.update(
    {  # unless the user has set another
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's own 15 starves trials on a busy machine
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # a failure is one line here, and its traceback is in the store
    }
    | dict(os.environ)
    | {
        "RAY_CHDIR_TO_TRIAL_DIR": "0",  # else a relative path means another file in each trial
        "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints its own banner at any verbosity
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # they cost more than the report itself
        "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the session has its own, for SIGTERM too
    }
)

import ray
from ray import tune
from ray._private import services
from ray.tune.search import Searcher

from orchestrator.eval_jobs import Job as EvalJob
from orchestrator.owner import Place
from orchestrator.resources import bundle_of, refuse, slots_on, whole_node_of
from orchestrator.session import Session
from orchestrator.worker import PLACE, REPORT, evaluate_arm, train_trial
from schemas.errors import UserError
from schemas.evals import TaskResult
from schemas.report import Report
from schemas.sweep import Runtime

logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what it would say, the session says

REACH_S = 5.0
"""How long a cluster may take to answer at all."""
HEARD_S = 1.0
"""Seconds of silence after which the driver of an evaluation looks about itself."""
OBJECT_STORE_BYTES = 200_000_000
"""Enough for the jobs' settings; Ray would take 30 % of the machine's memory."""


@contextmanager
def connected_ray() -> Iterator[None]:
    """Use the cluster that $RAY_ADDRESS names, else start a Ray of our own on this machine, and end it.

    Raises `UserError` where there is no such cluster.
    """
    address = check_address()
    own = (
        {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES} if address == "local" else {}
    )
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except Exception as error:  # of any kind: where a node does not start, Ray raises a bare one
        raise UserError(_why_unconnected(address, error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _why_unconnected(address: str, error: Exception) -> str:
    said = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if "uthenticat" in type(error).__name__ + said or "InvalidAuthToken" in said:
        return (
            f"The Ray cluster at RAY_ADDRESS={address} refuses this token, or asks for one ({said}). Set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token that its head was given."
        )
    if address == "local":
        return f"Ray did not start on this machine ({said}). Nothing is lost: try again when it is less busy."
    return f"There is no Ray cluster at RAY_ADDRESS={address}: {said}"


def check_address() -> str:
    """Return $RAY_ADDRESS, or `local` where it is not set.

    Raises `UserError` where it is no address, or nobody listens there: Ray itself would try for minutes.
    """
    if (address := os.environ.get("RAY_ADDRESS") or "local") == "local":
        return address
    try:  # what runs here, or was the last to be started here
        found = services.canonicalize_bootstrap_address(address) if address == "auto" else address
        host, _, port = found.rpartition(":")
        if not host or not port.isdigit() or "://" in host:
            raise UserError(
                f"RAY_ADDRESS={address}: write `auto` on a node of the cluster, or HOST:PORT. "
                "Ray Client (ray://) would lose a run with its connection."
            )
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"There is no Ray cluster at RAY_ADDRESS={address}: {error}. Start it, or unset RAY_ADDRESS."
        ) from None
    return address


def _nodes(avoided: Collection[str] = ()) -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in avoided]


def count_slots(runtime: Runtime, avoided: Collection[str] = ()) -> int:
    """Return how many trials the nodes besides the avoided ones can run at once.

    Raises `UserError` where no node can ever hold one trial, for which Tune would wait without an end.
    """
    slots = slots_now(runtime, avoided)
    if not slots and not avoided:
        refuse(_nodes(), runtime)
    return slots


def slots_now(runtime: Runtime, avoided: Collection[str] = ()) -> int:
    """Return how many trials the nodes that are there now, besides the avoided ones, can run at once."""
    return slots_on(_nodes(avoided), runtime)


def run_session(session: Session) -> None:
    """Give Tune the session's jobs, one for each slot, until none is left. Raises whatever ends Tune itself."""
    runtime = session.sweep.runtime
    # Tune asks for one trial at a time until it runs; workers should all start at once.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(session.room.slots)
    trainable = tune.with_parameters(
        train_trial,
        arms={arm_id: arm.model_dump() for arm_id, arm in session.arms.items()},
        storage=str(session.storage),
        runtime=runtime.model_dump_json(),
        stop_file=str(session.stop_file),
    )

    def resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        bundle = whole_node_of(_nodes(config["avoided"]), runtime) if config["alone"] else bundle_of(runtime)
        if not config["avoided"]:
            return tune.PlacementGroupFactory([bundle])
        others = {"ray.io/node-id": f"!in({','.join(config['avoided'])})"}
        return tune.PlacementGroupFactory([bundle], bundle_label_selector=[others])

    with tempfile.TemporaryDirectory(prefix="xsa-tune-") as scratch:
        tuner = tune.Tuner(
            tune.with_resources(trainable, resources),
            tune_config=tune.TuneConfig(
                search_alg=_Jobs(session),
                num_samples=-1,  # as many as the queue has
                reuse_actors=not runtime.gpus_per_trial
                if runtime.reuse_workers is None
                else runtime.reuse_workers,
                trial_dirname_creator=lambda trial: str(trial.trial_id),
            ),
            run_config=tune.RunConfig(
                storage_path=scratch, name="session", callbacks=[_Recorder(session)], verbose=0
            ),
        )
        tuner.fit()


def run_evaluations(
    jobs: Sequence[EvalJob], stop_file: Path, data: Path | None
) -> Iterator[tuple[EvalJob, TaskResult | Exception | None] | tuple[None, None]]:
    """Evaluate each job's arm in a Ray task, and yield what is heard, with the job that it is about.

    None is heard when a task begins, each result when it is there, and an exception where the task
    ended of one. (None, None) comes about once a second while nothing is heard.
    """
    runtimes = {job.runtime.model_dump_json(): job.runtime for job in jobs}
    most = 2 * max(map(count_slots, runtimes.values()))  # one waits for each that runs
    waiting, streams = deque(jobs), dict[Any, EvalJob]()
    while waiting or streams:
        if stop_file.exists():
            waiting.clear()
        while waiting and len(streams) < most:
            job = waiting.popleft()
            streams[_evaluation(job, stop_file, data)] = job
        if not streams:
            return
        ready, _ = ray.wait(list(streams), timeout=HEARD_S)
        if not ready:
            yield None, None
            continue
        job = streams[ready[0]]
        try:
            text = ray.get(next(ready[0]))
        except StopIteration:
            del streams[ready[0]]
        except Exception as error:  # whatever the worker died of is the driver's to judge
            del streams[ready[0]]
            yield job, error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        else:
            yield job, text and TaskResult.loads(text)


def _evaluation(job: EvalJob, stop_file: Path, data: Path | None) -> Any:
    """Start a job's Ray task with what Ray reserves for a trial, and return the stream of what it tells."""
    bundle = bundle_of(job.runtime)
    task = ray.remote(evaluate_arm).options(
        num_cpus=bundle.pop("CPU", 0.0),
        num_gpus=bundle.pop("GPU", 0.0),
        memory=bundle.pop("memory", None),
        resources=bundle,
        num_returns="streaming",
        max_retries=0,
    )
    return task.remote(
        folder=str(job.folder),
        evals=job.evals.model_dump_json(),
        runtime=job.runtime.model_dump_json(),
        data=str(data) if data else None,
        stop_file=str(stop_file),
        since_us=job.since_us,
    )


class _Jobs(Searcher):  # type: ignore[misc] # Ray is not typed
    """Hands Tune one job at a time, so that a job is claimed when a slot is free and not before."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        self._session.beat()  # where nothing runs, Tune calls this and nothing else for up to ten minutes
        if len(self._session.running) >= self._session.room.slots:
            return None
        running = self._session.next_job(trial_id)
        if running is None:
            # What runs may yet fail and be queued again, and a store that is away may come back.
            return Searcher.FINISHED if self._session.finished else None
        job = running.job
        return {
            "trial_id": job.trial_id,
            "attempts": running.attempts,
            "lighter": job.lighter,
            "alone": job.alone,
            "avoided": sorted(self._session.room.avoided),
        }

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing is learned from results: the jobs are all to be done."""

    def save(self, checkpoint_path: str) -> None:
        """Tune saves searchers for `Tuner.restore`, which is never used: the store knows what is left."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles the searcher too, for the same purpose


class _Recorder(tune.Callback):  # type: ignore[misc]
    """Passes what Tune hears on to the session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if PLACE in result:
            self._session.on_start(trial.trial_id, Place(**result[PLACE]))
        if REPORT in result:
            self._session.on_report(trial.trial_id, Report.loads(result[REPORT]))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._session.on_end(trial.trial_id, None)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._session.on_end(trial.trial_id, _error_of(trial))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._session.beat()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles callbacks for `Tuner.restore`, which is never used


def _error_of(trial: Any) -> BaseException:
    """Return what a Tune trial died of, from the driver's own copy: the one in Tune's storage comes later."""
    text = Path(trial.error_file).read_text(encoding="utf-8")
    if not trial.pickled_error_file:
        return RuntimeError(text)
    try:
        with Path(trial.pickled_error_file).open("rb") as file:
            return cast(BaseException, ray.cloudpickle.load(file))
    except Exception:  # an exception's own unpickling may fail in any way; its text is what matters
        return RuntimeError(text)
