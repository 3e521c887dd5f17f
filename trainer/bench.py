"""The cost of one transformer block, SA against XSA: the paper's Figure 2 (section 4.2).

A block is attention and MLP, with weights in float32 and, where bfloat16 is asked for, under autocast as
in training. Of both variants it has the same weights and input [B, T, C], and they take turns within one
process, so that a machine that slows down slows both. The forward pass keeps what a backward pass needs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Literal, NamedTuple, TypeAlias, get_args

import psutil
import torch
from torch import Tensor
from torch.autograd import (  # type: ignore[attr-defined]
    ProfilerConfig,
    ProfilerState,
    _disable_profiler_legacy,
    _enable_profiler_legacy,
)

from schemas.bench import BenchRow
from schemas.errors import UserError
from schemas.trial import Trial
from trainer.attention import rope_table
from trainer.cost import sequence_bytes
from trainer.model import INIT_STD, Block
from trainer.process import environment

Execution: TypeAlias = Literal["eager", "compiled"]
Direction: TypeAlias = Literal["forward", "forward+backward"]
Dtype: TypeAlias = Literal["float32", "bfloat16"]
EXECUTIONS: tuple[Execution, ...] = get_args(Execution)
_LAMBDAS: dict[Literal["sa", "xsa"], float] = {"sa": 0.0, "xsa": 1.0}
WARM_UP = 3
"""Runs that are not timed, in the first of which a block is compiled."""
_WIDE = 1024
"""Width from which on heads are 128 wide, as the paper's are; below it they are 64 wide."""


class CannotMeasure(UserError):
    """A block of one shape does not fit, or cannot be compiled here; the message says which and why."""


class Shape(NamedTuple):
    """The shape of a block: attention is as wide as the model."""

    seq_len: int
    d_model: int

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return 128 if self.d_model >= _WIDE else 64

    @property
    def n_head(self) -> int:
        """Number of heads."""
        return self.d_model // self.d_head


@dataclass(frozen=True)
class Settings:
    """How blocks are measured; `repeats` is how often each is timed."""

    batch_size: int
    dtype: Dtype
    repeats: int
    device: torch.device


CPU_SHAPES = (Shape(256, 128), [128, 256, 512, 1024], [128, 256, 384])
"""What is measured on a CPU: reference, lengths and widths. Minutes, most of them for compiling."""
GPU_SHAPES = (Shape(2048, 2048), [512, 1024, 2048, 4096, 8192, 16384], [1024, 1536, 2048, 2560])
"""What is measured on a GPU: the paper's lengths, and widths about its models'."""


def shapes(device: torch.device, lengths: Sequence[int], widths: Sequence[int]) -> list[Shape]:
    """Return the shapes to measure, from small to large.

    Each length is measured at each width. Where only one of both is given, the other is that of the
    device's reference shape; where none is, the device's lengths and widths are, each at the reference.
    """
    reference, its_lengths, its_widths = GPU_SHAPES if device.type == "cuda" else CPU_SHAPES
    if lengths or widths:
        chosen = {Shape(t, d) for t in lengths or [reference.seq_len] for d in widths or [reference.d_model]}
    else:
        chosen = {Shape(t, reference.d_model) for t in its_lengths}
        chosen |= {Shape(reference.seq_len, d) for d in its_widths}
    for shape in chosen:
        if shape.d_model % shape.d_head:
            raise UserError(
                f"A block {shape.d_model:,} wide has no whole number of heads of {shape.d_head}: "
                f"give --d-model in multiples of it."
            )
    return sorted(chosen, key=lambda shape: (shape.seq_len * shape.d_model**2, shape))


def measure(shape: Shape, settings: Settings, execution: Execution) -> list[BenchRow]:
    """Return the cost of SA and XSA, forward alone and with the backward pass: four rows.

    Raises `CannotMeasure`.
    """
    device = settings.device
    if device.type == "cpu":
        _check_room(shape, settings)
    try:
        runs = _runs(shape, settings, execution)
        times = _times(runs, settings)
        peaks = {key: _peak_bytes(run, device) for key, run in runs.items()}
    except torch.OutOfMemoryError:
        raise CannotMeasure(f"{_name(shape, settings)} does not fit the memory of {device}.") from None
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = str(error).strip().partition("\n")[0]
        raise CannotMeasure(f"{_name(shape, settings)} cannot be compiled here: {reason}") from None
    where = environment(device)
    rows = []
    for (variant, direction), ms in sorted(times.items()):
        low, median, high = quantiles(ms, method="inclusive")
        rows.append(
            BenchRow(
                variant,
                shape.seq_len,
                shape.d_model,
                shape.n_head,
                shape.d_head,
                settings.batch_size,
                settings.dtype,
                execution,
                direction,
                settings.repeats,
                ms=median,
                ms_low=low,
                ms_high=high,
                peak_bytes=peaks[variant, direction],
                device=where["device"],
                threads=where["threads"],
                time_us=time.time_ns() // 1000,
            )
        )
    return rows


def _name(shape: Shape, settings: Settings) -> str:
    return f"A block {shape.d_model:,} wide over {settings.batch_size} x {shape.seq_len:,} tokens"


def _check_room(shape: Shape, settings: Settings) -> None:
    """Raise `CannotMeasure` where a block would not fit: a host out of memory ends the process, not the block."""
    needed = settings.batch_size * sequence_bytes(_trial(shape, settings, 1.0))
    free = psutil.virtual_memory().available
    if needed > free:
        raise CannotMeasure(
            f"{_name(shape, settings)} takes about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free. "
            "A smaller --batch-size takes less."
        )


def _trial(shape: Shape, settings: Settings, xsa_lambda: float) -> Trial:
    return Trial(
        n_layer=1,
        d_model=shape.d_model,
        n_head=shape.n_head,
        n_kv_head=shape.n_head,
        d_head=shape.d_head,
        seq_len=shape.seq_len,
        tokens_per_step=shape.seq_len,
        eval_tokens=shape.seq_len,
        bias_tokens=shape.seq_len,
        dtype=settings.dtype,
        xsa_lambda=xsa_lambda,
    )


Run: TypeAlias = Callable[[], None]
Key: TypeAlias = tuple[Literal["sa", "xsa"], Direction]


def _runs(shape: Shape, settings: Settings, execution: Execution) -> dict[Key, Run]:
    """Return what is to be timed; every variant has the same weights and input."""
    device = settings.device
    generator = torch.Generator().manual_seed(0)
    size = (settings.batch_size, shape.seq_len, shape.d_model)
    x, upstream = (torch.randn(size, generator=generator).to(device) for _ in range(2))
    x.requires_grad_()
    cos, sin = (table.to(device) for table in rope_table(shape.seq_len, shape.d_head, 10_000.0))
    if execution == "compiled":
        torch.compiler.reset()  # or blocks of many shapes reach the limit of recompilations
    weights: dict[str, Tensor] | None = None
    runs: dict[Key, Run] = {}
    for variant, xsa_lambda in _LAMBDAS.items():
        block = Block(_trial(shape, settings, xsa_lambda), 0).to(device)
        if weights is None:
            for parameter in block.parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, 0, INIT_STD)
            weights = block.state_dict()
        block.load_state_dict(weights)
        if execution == "compiled":
            block.compile(dynamic=False)

        def forward(block: Block = block) -> Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.dtype == "bfloat16"):
                out: Tensor = block(x, cos, sin, None)
            return out

        def forward_alone(forward: Callable[[], Tensor] = forward) -> None:
            forward()

        def both(forward: Callable[[], Tensor] = forward, block: Block = block) -> None:
            forward().backward(upstream)  # type: ignore[no-untyped-call]
            block.zero_grad()
            x.grad = None

        runs[variant, "forward"] = forward_alone
        runs[variant, "forward+backward"] = both
    return runs


def _times(runs: Mapping[Key, Run], settings: Settings) -> dict[Key, list[float]]:
    """Return `repeats` times of each run in milliseconds.

    Of each direction by itself SA and XSA take turns, every other round in reverse. A run's time depends on
    what ran before it: so each follows itself as often as the other does, and nothing but these two.
    """
    times: dict[Key, list[float]] = {key: [] for key in runs}
    for direction in get_args(Direction):
        order = [key for key in runs if key[1] == direction]
        for key in order:
            for _ in range(WARM_UP):
                runs[key]()
        for _ in range(settings.repeats):
            for key in order:
                times[key].append(_time(runs[key], settings.device))
            order.reverse()
    return times


def _time(run: Run, device: torch.device) -> float:
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1e3


def _peak_bytes(run: Run, device: torch.device) -> int:
    """Return the most memory that tensors of one run held at a time, beyond what was there before it.

    On a GPU what its allocator counts. On a CPU every allocation and release of torch's allocator, which
    its profiler records one by one: exact and the same in each run, other than a process's size, but
    without the buffers that a library of matrix products keeps to itself.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    # torch.profiler.profile would do as well, and writes two lines to the terminal each time.
    kinds = torch._C._profiler._ExperimentalConfig()
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, kinds))
    try:
        run()
    finally:
        threads = _disable_profiler_legacy()
    held = peak = 0
    for event in (event for events in threads for event in events):
        if str(event.kind()) == "memory_alloc":
            held += event.cpu_memory_usage()
            peak = max(peak, held)
    return peak
