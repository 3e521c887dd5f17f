"""How often a trial fits the nodes, and what it gets where it is to be alone on one."""

import pytest

from orchestrator.resources import slots_on, whole_node_of
from schemas.sweep import Runtime

WIDE, GPUS = {"CPU": 64.0}, {"CPU": 16.0, "GPU": 4.0, "memory": 2.0**36}


@pytest.mark.parametrize(
    ("share", "slots"), [(0.3, 24), (0.6, 8), (0.5, 16), (0.1, 80), (1 / 3, 24), (1, 8), (3, 2)]
)
def test_a_share_of_a_gpu_lies_on_one(share: float, slots: int) -> None:
    node = {"CPU": 128.0, "GPU": 8.0}
    assert slots_on([node, node, {"CPU": 1.0}], Runtime(gpus_per_trial=float(share))) == 2 * slots


def test_alone_on_a_node_is_alone_on_one_that_fits() -> None:
    runtime = Runtime(gpus_per_trial=1.0, memory_gib_per_trial=1.0)
    alone = whole_node_of([WIDE, GPUS, GPUS | {"CPU": 8.0}], runtime)
    assert alone == {"CPU": 16, "GPU": 1, "memory": 2**30}
    assert all(GPUS[key] >= amount for key, amount in alone.items())
    assert whole_node_of([WIDE, GPUS], Runtime()) == {"CPU": 64}
    assert whole_node_of([WIDE], runtime) == {"CPU": 1, "GPU": 1, "memory": 2**30}
