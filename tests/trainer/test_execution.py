"""Compiled layers, their fallback, and what is told of the speed that a device is used at."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.utils import fresh_cache

from schemas.report import EvalRow
from schemas.trial import Arm
from trainer.peak import data_sheet, peak

CPU = torch.device("cpu")


def losses(run: Any, arm: Arm, name: str) -> list[float]:
    return [row.loss for row in run.rows(arm, name) if isinstance(row, EvalRow)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("again", [False, True])
def test_compiled_layers_give_the_same_losses_to_rounding(
    tiny: Callable[..., Arm], run: Any, again: bool, dtype: str
) -> None:
    """In each case as one graph: they are compiled so or not at all."""
    arm = tiny(dtype=dtype)
    assert run(arm, "eager").environment["execution"] == "eager"
    told = run(arm, "compiled", compile="on", activation_checkpointing=again).environment
    assert (told["execution"], told["compile_error"]) == ("compiled", None)
    assert losses(run, arm, "compiled") == pytest.approx(
        losses(run, arm, "eager"), abs=1e-5 if dtype == "float32" else 1e-2
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("micro_batch", "why"), [(None, "Inductor skipped"), (2, "a step of 4 sequences is cut into parts of 2")]
)
def test_an_arm_without_the_cuda_graphs_it_was_to_have_says_why(
    tiny: Callable[..., Arm], run: Any, micro_batch: int | None, why: str
) -> None:
    torch.compiler.reset()
    told = run(tiny(), compile="graphs", micro_batch=micro_batch).environment
    assert told["execution"] == "compiled"
    assert told["compile_error"].startswith(f"no CUDA graphs: {why}")


@pytest.mark.slow
def test_what_was_traced_once_is_not_traced_again(tiny: Callable[..., Arm], run: Any) -> None:
    arm = tiny()
    with fresh_cache():
        for name in ("first", "second"):
            torch.compiler.reset()
            counters.clear()
            assert run(arm, name, compile="on").environment["execution"] == "compiled"
        assert counters["aot_autograd"]["autograd_cache_hit"] == counters["aot_autograd"]["total"] == 2
    assert losses(run, arm, "second") == losses(run, arm, "first")


def test_without_a_compiler_a_trial_runs_eagerly_and_says_why(
    tiny: Callable[..., Arm], run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(inductor, "force_disable_caches", True)
    torch.compiler.reset()
    arm = tiny()
    run(arm, "eager")
    told = run(arm, "fallen", compile="on").environment
    assert told["execution"] == "eager"
    assert "compiler" in told["compile_error"]
    assert losses(run, arm, "fallen") == losses(run, arm, "eager")


def test_a_record_tells_what_its_device_was_used_at(tiny: Callable[..., Arm], run: Any) -> None:
    told = run(tiny(), "told").environment
    assert told["peak_source"] == "measured"
    assert 0 < told["flops_per_s"] < told["peak_flops_per_s"]


def test_a_gpu_is_known_by_its_name() -> None:
    names = {
        "NVIDIA H200": 989,
        "NVIDIA H100 PCIe": 756,
        "NVIDIA H100 80GB HBM3": 989,
        "NVIDIA A100-SXM4-80GB": 312,
        "NVIDIA L40S": 362,
        "NVIDIA L4": 121,
        "NVIDIA H100 NVL": 835,
        "NVIDIA H200 NVL": 835,
        "NVIDIA GH200 480GB": 989,
        "NVIDIA B200": 2250,
        "NVIDIA A100 80GB PCIe": 312,
        "NVIDIA L40": 181,
        "NVIDIA RTX A1000": None,
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,
        "NVIDIA GeForce RTX 4090": None,
    }
    assert {name: data_sheet(name) for name in names} == names


def test_the_peak_of_a_cpu_is_that_of_a_product_made_here() -> None:
    found = peak(CPU, "float32")
    assert found.source == "measured"
    assert found.flops_per_s > 1e9
    assert peak(CPU, "float32") is found
