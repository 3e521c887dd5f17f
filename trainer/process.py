"""What a worker process sets once before it trains, and what it says about where it runs."""

import ctypes
import os
import platform
import resource
import socket
import sys
from pathlib import Path
from typing import Any

import torch

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def prepare(threads: int) -> None:
    """Set the threads of one CPU trial and keep glibc from handing large blocks back every step.

    glibc maps each block above 32 MiB anew and unmaps it on release, so logits-sized tensors
    page-fault in every step: a third of a small model's time. Results do not change by a bit.
    Skipped without glibc, and where the user has tuned the allocator, with MALLOC_* variables or
    GLIBC_TUNABLES.
    """
    torch.set_num_threads(threads)
    tuned = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    tuned = tuned or any(name.startswith("MALLOC_") for name in os.environ)
    if platform.libc_ver()[0] == "glibc" and not tuned:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)


def environment(device: torch.device) -> dict[str, Any]:
    """Return the hardware and versions that this process trains with."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    precision: dict[str, Any] = {"matmul_precision": torch.get_float32_matmul_precision()}
    if device.type == "cuda":
        reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        precision["bf16_reduced_precision_reduction"] = reduced
    return {
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        **precision,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "peak_rss_bytes": peak if sys.platform == "darwin" else peak * 1024,
        "peak_gpu_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
