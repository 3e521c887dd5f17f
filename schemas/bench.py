"""What `xsa bench` measures: the cost of one transformer block, with SA and with XSA (the paper's Figure 2)."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class BenchRow:
    """One block (attention and MLP) at one shape, timed; SA and XSA alternate within one process."""

    variant: Literal["sa", "xsa"]
    seq_len: int
    d_model: int
    n_head: int
    d_head: int
    batch_size: int
    """Sequences in the block's input."""
    dtype: Literal["float32", "bfloat16"]
    execution: Literal["eager", "compiled"]
    direction: Literal["forward", "forward+backward"]
    repeats: int
    """Timed runs that `ms` is the median of."""
    ms: float
    """Median time of a run, milliseconds."""
    ms_low: float
    """First quartile."""
    ms_high: float
    """Third quartile."""
    peak_bytes: int
    """Most memory held during one run, beyond the block's weights and its input."""
    device: str
    threads: int
    time_us: int
    """When it was measured: UTC, microseconds since 1970."""
