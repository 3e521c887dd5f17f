"""How long training takes, from the speed of what was trained before on such devices."""

import heapq
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from orchestrator.plan import Plan
from results.store import Store
from schemas.sweep import Runtime
from schemas.trial import Arm
from trainer.cost import flops_per_token

_SHAPE = ("n_layer", "d_model", "n_head", "d_head", "n_kv_head", "tokenizer", "seq_len", "tokens_per_step")
"""The axes that decide the work in a step."""
_OF_ARM = ", ".join(f"a.{name}" for name in _SHAPE)
_SPEEDS = f"""
SELECT t.device, t.threads, a.dtype, a.status = 'done' AS whole, count(*) AS arms, sum(a.step) AS steps,
    sum(a.wall_s) AS wall_s, avg(t.flops_per_s) AS flops_per_s, min(t.hostname) AS first_host,
    max(t.hostname) AS last_host, {_OF_ARM}
FROM arm a JOIN attempt t ON t.arm_id = a.id AND t.no = a.attempt
WHERE a.step > 0 AND a.wall_s > 0 AND t.device IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM attempt o
    WHERE o.arm_id = a.id AND (o.device <> t.device OR o.threads <> t.threads)
)
GROUP BY t.device, t.threads, a.dtype, a.status = 'done', {_OF_ARM}"""


class Speed(NamedTuple):
    """The speed of one worker over some arms of one size."""

    device: str
    """`cpu`, or a GPU's name."""
    dtype: str
    whole: bool
    """Whether it is that of finished arms, with all they did; else that of training steps alone."""
    step_flops: float
    """Floating-point operations of one step."""
    flops_per_s: float
    arms: int
    hosts: frozenset[str]
    """Where they were trained; of many machines, two."""


@dataclass(frozen=True)
class Estimate:
    """How long what is left of a plan will take."""

    worker_s: float
    """Seconds of one worker's time, for all of it."""
    longest_s: float
    """Seconds that the longest trial takes, however many workers there are."""
    wall_s: float | None
    """Seconds until the end; None where the number of workers is not known."""
    speeds: tuple[Speed, ...]
    """What it is based on."""
    ratio: float
    """How many times the work of a step it is based on is in one of the plan, where that is farthest from 1."""


def workers_here(runtime: Runtime) -> int | None:
    """Return how many trials this machine runs at once, at most; None where a cluster or a GPU decides."""
    if (
        "RAY_ADDRESS" in os.environ
        or runtime.gpus_per_trial
        or runtime.custom_resources
        or runtime.accelerator_type
    ):
        return None
    memory = psutil.virtual_memory().total / 2**30
    by_memory = memory / runtime.memory_gib_per_trial if runtime.memory_gib_per_trial else math.inf
    return int(min((os.cpu_count() or 1) / runtime.cpus_per_trial, by_memory))


def speeds(store: Store, runtime: Runtime) -> list[Speed]:
    """Return what was measured on the kind of device that a sweep with this runtime runs on.

    One for each size, precision and device. Arms whose attempts were on several devices, or on unequal
    threads, tell nothing and are left out.
    """
    found = []
    with store.read() as connection:
        for row in connection.exec_driver_sql(_SPEEDS).mappings():
            shape = Arm.model_construct(**{name: row[name] for name in _SHAPE})
            step_flops = flops_per_token(shape) * shape.tokens_per_step
            whole = bool(row["whole"])
            rate = int(row["steps"]) * step_flops / row["wall_s"] if whole else row["flops_per_s"]
            if rate and _suits(row["device"], row["threads"], runtime):
                hosts = frozenset({row["first_host"], row["last_host"]} - {None})
                found.append(Speed(row["device"], row["dtype"], whole, step_flops, rate, row["arms"], hosts))
    return found


def unmeasured(plan: Plan, known: Sequence[Speed]) -> list[str]:
    """Return the precisions in which a plan trains and no speed is known."""
    return sorted({arm.dtype for arm in plan.to_train()} - {speed.dtype for speed in known})


def estimate(plan: Plan, known: Sequence[Speed], workers: int | None) -> Estimate | None:
    """Return how long what is left to train will take; None where nothing is left, or something `unmeasured`.

    An arm is expected to be as fast as those in its precision whose steps are nearest in FLOPs, finished
    ones before others.

    Args:
        plan: what is to be trained.
        known: speeds on the kind of device that it is trained on.
        workers: how many trials run at once; None if that is not known.
    """
    arms = plan.to_train()
    if not arms or unmeasured(plan, known):
        return None
    sizes = {arm.id: (arm.dtype, flops_per_token(arm) * arm.tokens_per_step) for arm in arms}
    nearest = {size: _nearest(known, *size) for size in set(sizes.values())}

    def seconds(arm: Arm) -> float:
        size = sizes[arm.id]
        return plan.steps_left(arm) * size[1] / nearest[size].flops_per_s

    trials = [sum(map(seconds, job.arms)) for job in plan.jobs(sizes)]
    ratios = [size[1] / speed.step_flops for size, speed in nearest.items()]
    return Estimate(
        sum(trials),
        max(trials),
        _wall(trials, workers) if workers else None,
        tuple(dict.fromkeys(nearest.values())),
        max(ratios, key=lambda ratio: abs(math.log(ratio))),
    )


def _suits(device: str, threads: int | None, runtime: Runtime) -> bool:
    if not runtime.gpus_per_trial:
        return device == "cpu" and threads == runtime.threads
    # Ray writes A100-40G where the device calls itself NVIDIA A100-SXM4-40GB.
    wanted = re.findall(r"\w+", re.sub(r"\b(\d+G)\b", r"\1B", runtime.accelerator_type or "").lower())
    return device != "cpu" and set(wanted) <= set(re.findall(r"\w+", device.lower()))


def _nearest(known: Sequence[Speed], dtype: str, step_flops: float) -> Speed:
    """Return the speed of the nearest size. Sizes within a factor of about 1.4 count as equal."""

    def rank(speed: Speed) -> tuple[int, bool, float]:
        distance = abs(math.log2(step_flops / speed.step_flops))
        return round(distance), not speed.whole, distance

    return min((speed for speed in known if speed.dtype == dtype), key=rank)


def _wall(trials: Sequence[float], workers: int) -> float:
    """Return when the last of these trials ends, where each begins as soon as a worker is free."""
    free = [0.0] * min(workers, len(trials))
    for seconds in trials:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)
