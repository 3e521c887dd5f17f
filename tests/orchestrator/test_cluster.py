"""Nodes that join a run: which of them it may use, and why not the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from orchestrator.cluster import check_cluster, living_nodes, unfit_nodes
from orchestrator.launch import check_address, connected_ray
from schemas.sweep import Sweep

SWEEP = Sweep.parse("base: {tokenizer: bytes}\ngrid: {xsa_lambda: [0, 1]}\n", "small")
NODE = {"num_cpus": 1, "object_store_memory": 100_000_000}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one node, to which this process is connected."""
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", cluster.address)
            with connected_ray():
                yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.ray
@pytest.mark.slow
def test_of_the_nodes_that_join_the_unfit_are_named_with_the_reason(cluster: Cluster, tmp_path: Path) -> None:
    assert check_address() == cluster.address
    first = check_cluster(tmp_path, SWEEP)
    other = tmp_path / "packages" / "torch-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
    fit = cluster.add_node(**NODE).node_id
    odd = cluster.add_node(**NODE, env_vars={"PYTHONPATH": str(other.parent)}).node_id
    assert living_nodes().keys() - first == {fit, odd}

    told = unfit_nodes([fit, odd, "0" * 56], tmp_path, SWEEP, wait_s=120)
    assert told.keys() == {odd, "0" * 56}
    assert told[odd].startswith("it has other versions: torch 0.0.1 (here ")
    assert told["0" * 56] == "it is gone."

    without = Sweep.parse("base: {tokenizer: bytes, dataset: 'hf:a/b'}\nruntime: {data: /none}\n", "small")
    without = without.on_data({("hf:a/b", "bytes"): "1" * 64})
    assert "/none" in unfit_nodes([fit], tmp_path, without, wait_s=120)[fit]

    assert "did not answer within 0 s" in unfit_nodes([fit], tmp_path, SWEEP, wait_s=0)[fit]
    assert "No such file" in unfit_nodes([fit], tmp_path / "away", SWEEP)[fit]
    assert {path.name for path in tmp_path.iterdir()} == {"packages"}
