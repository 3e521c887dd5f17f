"""What a trial reserves of a node, how often that fits, and what to say where it never does."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from schemas.errors import UserError
from schemas.sweep import Runtime

Resources = Mapping[str, float]
"""Amounts of a node by Ray's names."""


def bundle_of(runtime: Runtime) -> dict[str, float]:
    """Return what Ray reserves for a trial."""
    asked = {
        "CPU": runtime.cpus_per_trial,
        "GPU": runtime.gpus_per_trial,
        "memory": (runtime.memory_gib_per_trial or 0) * 2**30,
        **runtime.custom_resources,
    }
    if runtime.accelerator_type:
        asked[f"accelerator_type:{runtime.accelerator_type}"] = 0.001  # nodes have 1 of their own kind
    return {resource: float(amount) for resource, amount in asked.items() if amount}


def whole_node_of(nodes: Sequence[Resources], runtime: Runtime) -> dict[str, float]:
    """Return what Ray reserves for a trial that is to be alone on a node: every CPU of the largest that it fits."""
    fitting = [node["CPU"] for node in nodes if slots_on([node], runtime)]
    return bundle_of(runtime) | ({"CPU": max(fitting)} if fitting else {})


def slots_on(nodes: Sequence[Resources], runtime: Runtime) -> int:
    """Return how many trials these nodes can run at once."""
    bundle = bundle_of(runtime)
    return sum(min(_fits(node.get(key, 0.0), key, asked) for key, asked in bundle.items()) for node in nodes)


def _fits(there: float, resource: str, asked: float) -> int:
    """Return how often an amount is in what a node has. A share of a GPU is one of a single GPU."""
    if resource == "GPU" and asked < 1:
        return int(there) * int(1 / asked + 1e-9)
    return int(there / asked + 1e-9)


def refuse(nodes: Sequence[Resources], runtime: Runtime) -> NoReturn:
    """Raise `UserError` that names what none of these nodes has, for they cannot run a single trial."""
    bundle = bundle_of(runtime)
    for resource, wanted in bundle.items():
        most = max((node.get(resource, 0.0) for node in nodes), default=0.0)
        if wanted > most:
            raise UserError(_infeasible(resource, wanted, most, nodes))
    wanted_at_once = ", ".join(_amount(resource, amount) for resource, amount in bundle.items())
    raise UserError(
        f"No node has all that a trial asks for at once: {wanted_at_once}. Lower it, or add a node."
    )


def _infeasible(resource: str, wanted: float, most: float, nodes: Sequence[Resources]) -> str:
    if resource.startswith("accelerator_type:"):
        kinds = sorted(
            {key.partition(":")[2] for node in nodes for key in node if key.startswith("accelerator_type:")}
        )
        return (
            f"runtime.accelerator_type asks for {resource.partition(':')[2]}, and the nodes have "
            f"{', '.join(kinds) or 'no accelerators'}. Name one of theirs, or add a node."
        )
    key = {"CPU": "cpus_per_trial", "GPU": "gpus_per_trial", "memory": "memory_gib_per_trial"}.get(resource)
    key = key or f"custom_resources.{resource}"
    return (
        f"runtime.{key} asks for {_amount(resource, wanted)}, but no node has more than "
        f"{_amount(resource, most)}. Lower it, or add a node."
    )


def _amount(resource: str, amount: float) -> str:
    return f"{amount / 2**30:.3g} GiB of memory" if resource == "memory" else f"{amount:g} {resource}"
