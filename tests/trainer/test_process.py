"""What a worker process sets once."""

import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from schemas.trial import Arm
from trainer.model import build
from trainer.process import environment, prepare

FAULTS = """
import resource, torch
from trainer.process import prepare

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.empty(9_000_000).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = faults()
prepare(1)
print(plain, min(faults() for _ in range(6)))
"""


def test_threads_are_set_and_told() -> None:
    before = torch.get_num_threads()
    prepare(2)
    assert torch.get_num_threads() == environment(torch.device("cpu"))["threads"] == 2
    torch.set_num_threads(before)


def test_large_tensors_do_not_fault_in_every_step() -> None:
    """Ten tensors of 36 MB are 88,000 pages of 4 KiB, if each is mapped anew.

    The heap may grow in a round, where a small block has come to lie in a tensor's old place; in
    every round it grows only if blocks are handed back.
    """
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    plain, prepared = map(int, done.stdout.split())
    if plain < 80_000:
        pytest.skip("this system's allocator or page size does not fault so often")
    assert prepared < plain / 10


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_ARENA_MAX", "2"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")]
)
def test_an_allocator_that_the_user_tuned_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    def refuse(name: object) -> None:
        raise AssertionError("mallopt was reached for")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    threads = torch.get_num_threads()
    if platform.libc_ver()[0] == "glibc":
        monkeypatch.setenv("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=512")
        with pytest.raises(AssertionError, match="mallopt"):
            prepare(threads)
    monkeypatch.setenv(name, value)
    prepare(threads)


def test_the_allocator_changes_no_bit(tiny: Callable[..., Arm]) -> None:
    losses = []
    for _ in range(2):
        model, _ = build(tiny(), torch.device("cpu"))
        windows = torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(0))
        loss = model.loss(windows)
        loss.backward()
        assert model.wte.weight.grad is not None
        losses.append((loss.item(), model.wte.weight.grad))
        prepare(torch.get_num_threads())
    assert losses[0][0] == losses[1][0] and torch.equal(losses[0][1], losses[1][1])
