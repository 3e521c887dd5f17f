import os
from typing import Any

import pytest
import torch

from schemas.errors import UserError
from trainer import bench
from trainer.bench import CPU_SHAPES, GPU_SHAPES, CannotMeasure, Settings, Shape, measure, shapes

CPU = torch.device("cpu")
SMALL = Shape(32, 64)


def settings(**changes: Any) -> Settings:
    return Settings(**{"batch_size": 2, "dtype": "float32", "repeats": 3, "device": CPU} | changes)


def test_four_rows_with_quartiles_and_the_shape() -> None:
    rows = measure(SMALL, settings(), "eager")
    assert [(row.variant, row.direction) for row in rows] == [
        ("sa", "forward"),
        ("sa", "forward+backward"),
        ("xsa", "forward"),
        ("xsa", "forward+backward"),
    ]
    for row in rows:
        assert 0 < row.ms_low <= row.ms <= row.ms_high
        assert (row.seq_len, row.d_model, row.n_head, row.d_head) == (32, 64, 1, 64)
        assert (row.batch_size, row.dtype, row.execution, row.repeats) == (2, "float32", "eager", 3)
        assert (row.device, row.threads) == ("cpu", torch.get_num_threads())


def test_of_each_direction_alone_sa_and_xsa_take_turns_and_follow_themselves_equally(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed: list[tuple[str, str]] = []
    real = bench._runs(SMALL, settings(), "eager")
    keys = {run: key for key, run in real.items()}

    def spy(run: bench.Run, device: torch.device) -> float:
        timed.append(keys[run])
        return float(len(timed))

    monkeypatch.setattr(bench, "_time", spy)
    monkeypatch.setattr(bench, "_runs", lambda *_: real)
    rows = measure(SMALL, settings(repeats=4), "eager")
    turns = ["sa", "xsa", "xsa", "sa"] * 2
    directions = ("forward", "forward+backward")
    assert timed == [(variant, direction) for direction in directions for variant in turns]
    # the spy's times are places in the schedule: each row has those of its own runs
    assert {(row.variant, row.direction): row.ms for row in rows} == {
        key: sum(place for place, turn in enumerate(timed, start=1) if turn == key) / 4 for key in real
    }


def test_memory_is_every_allocation_of_torch_s() -> None:
    tensor = torch.zeros(1000)

    def run() -> None:
        first = -tensor  # 4,000 bytes
        second = -first  # 8,000 at once
        del first
        third = -second
        del second, third

    assert bench._peak_bytes(run, CPU) == 8000


def test_memory_is_the_same_each_time_and_grows_with_the_batch_and_the_backward_pass() -> None:
    first, again = (measure(SMALL, settings(), "eager") for _ in range(2))
    double = measure(SMALL, settings(batch_size=4), "eager")
    assert [row.peak_bytes for row in first] == [row.peak_bytes for row in again]
    forward, both = first[0].peak_bytes, first[1].peak_bytes
    side_by_side = 4 * 2 * 64 * 64  # the weights of queries and keys as one: no batch makes them larger
    assert double[0].peak_bytes == 2 * forward - side_by_side
    assert both > max(forward, 4 * 12 * 64**2)  # the weights' gradients, in float32
    # what the backward pass needs is kept: MLP before and after the GELU alone are 8 C a token
    assert forward > 4 * 8 * 64 * 2 * 32


def test_precision_is_that_of_autocast() -> None:
    many = {"batch_size": 16, "repeats": 2}  # so that activations outweigh the weights' copies
    full, half = (measure(SMALL, settings(dtype=dtype, **many), "eager") for dtype in ("float32", "bfloat16"))
    assert half[0].peak_bytes < full[0].peak_bytes
    assert half[0].dtype == "bfloat16"


def test_both_variants_have_one_set_of_weights_and_their_own_result(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    real = bench.Block.forward

    def spy(self: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(
            torch.cat(
                [parameter.detach().flatten() for parameter in self.parameters()] + [x.detach().flatten()]
            )
        )
        return real(self, x, *rest)

    monkeypatch.setattr(bench.Block, "forward", spy)
    runs = bench._runs(SMALL, settings(), "eager")
    for run in runs.values():
        run()
    assert all(torch.equal(seen[0], other) for other in seen)
    assert len({key[0] for key in runs}) == 2


def test_compiled_blocks_are_compiled_for_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(bench.Block, "compile", lambda self, **options: asked.append(options))
    assert [row.execution for row in measure(SMALL, settings(), "compiled")] == ["compiled"] * 4
    assert asked == [{"dynamic": False}] * 2


def test_a_block_that_does_not_fit_says_so_before_it_takes_the_memory() -> None:
    with pytest.raises(
        CannotMeasure, match=r"64 wide over 2 x 1,073,741,824 tokens takes about .* GiB are free"
    ):
        measure(Shape(2**30, 64), settings(), "eager")


def test_without_a_compiler_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise torch._dynamo.exc.BackendCompilerFailed(
            lambda: None, RuntimeError("No working C++ compiler\nmore"), None
        )

    monkeypatch.setattr(bench, "_runs", refuse)
    with pytest.raises(CannotMeasure, match="cannot be compiled here: ") as raised:
        measure(SMALL, settings(), "compiled")
    assert "\n" not in str(raised.value)


def test_shapes_are_the_device_s_or_every_length_at_every_width() -> None:
    reference, lengths, widths = CPU_SHAPES
    usual = shapes(CPU, [], [])
    assert {shape.seq_len for shape in usual if shape.d_model == reference.d_model} == {*lengths}
    assert {shape.d_model for shape in usual if shape.seq_len == reference.seq_len} == {*widths}
    assert len(usual) == len(lengths) + len(widths) - 1
    assert shapes(CPU, [16, 32], []) == [Shape(16, reference.d_model), Shape(32, reference.d_model)]
    assert len(shapes(CPU, [16, 32], [64, 128])) == 4
    assert Shape(16384, 2048) in shapes(torch.device("cuda"), [], [])
    assert (GPU_SHAPES[0].n_head, GPU_SHAPES[0].d_head) == (16, 128)


def test_a_width_must_hold_whole_heads() -> None:
    with pytest.raises(UserError, match="100 wide has no whole number of heads of 64"):
        shapes(CPU, [], [100])


@pytest.mark.gpu
def test_a_gpu_is_measured_by_its_own_clock_and_allocator() -> None:
    if not torch.cuda.is_available():
        assert "XSA_GPU" not in os.environ
        pytest.skip("no GPU")
    rows = measure(Shape(256, 128), settings(device=torch.device("cuda"), dtype="bfloat16"), "compiled")
    assert all(row.peak_bytes > 0 and row.ms > 0 and row.device != "cpu" for row in rows)
