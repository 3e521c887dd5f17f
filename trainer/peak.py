"""What a device could do at most, to which model FLOP utilisation (MFU) refers."""

import functools
import re
import time
from typing import Literal, NamedTuple

import torch

BFLOAT16_TFLOPS = {
    "GB200": 2500,
    "B200": 2250,
    "GH200": 989,
    "H200": 989,
    "H200 NVL": 835,
    "H100": 989,
    "H100 NVL": 835,
    "H100 PCIe": 756,
    "A100": 312,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
}
"""Dense bfloat16 TFLOP/s of NVIDIA's data sheets, by words of a device's name, of which the longest count."""
_WIDTH = {"cpu": 512, "cuda": 4096}
_TRIES = 5


class Peak(NamedTuple):
    """A device's FLOP/s in one precision, and where they are from."""

    flops_per_s: float
    source: Literal["data sheet", "measured"]


@functools.cache
def peak(device: torch.device, dtype: str) -> Peak:
    """Return the FLOP/s of a device's matrix products: NVIDIA's for bfloat16 on known GPUs, else measured here.

    Measured is the fastest of a few square products, on as many threads as are set: a bound that real
    layers stay below, but on a machine that is busy meanwhile one that is too low.
    """
    if device.type == "cuda" and dtype == "bfloat16":
        tflops = data_sheet(torch.cuda.get_device_name(device))
        if tflops is not None:
            return Peak(tflops * 1e12, "data sheet")
    width = _WIDTH[device.type]
    a, b = (torch.ones(width, width, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    seconds = []
    for _ in range(_TRIES):
        wait(device)
        begin = time.perf_counter()
        torch.mm(a, b)
        wait(device)
        seconds.append(time.perf_counter() - begin)
    return Peak(2 * width**3 / min(seconds), "measured")


def data_sheet(name: str) -> float | None:
    """Return the dense bfloat16 TFLOP/s of a GPU by its name, or None where it is not known."""
    if "MIG" in name:
        return None  # a slice of what the data sheet is about
    known = [words for words in BFLOAT16_TFLOPS if re.search(rf"\b{words}\b", name)]
    return BFLOAT16_TFLOPS[max(known, key=len)] if known else None


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
