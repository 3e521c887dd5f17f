"""Processes by name: who holds a lease, whether it is still alive, and where a worker is."""

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Place:
    """Where a worker is."""

    node: str
    """Ray's id of the node."""
    hostname: str
    pid: int


def owner_name() -> str:
    """Return this process's name in leases: machine, process id, and when the process began."""
    return f"{_machine()}:{os.getpid()}:{_began(os.getpid())}"


def is_dead(owner: str) -> bool:
    """Whether an owner is known to have ended: it ran on this machine, and its process is gone."""
    return _lives_here(owner) is False


def is_alive(owner: str) -> bool:
    """Whether an owner is known to be there: it is a process of this machine."""
    return _lives_here(owner) is True


def _lives_here(owner: str) -> bool | None:
    """Whether its process is there; None where it is another machine's, of which nothing is known here."""
    machine, pid, began = [*owner.split(":"), "", ""][:3]
    return _began(int(pid)) == began if machine == _machine() else None


@cache
def _machine() -> str:
    """This host since it was started, and the namespace in which a process id means something."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if not boot.exists():
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot.read_text().strip()}/{namespace.stat().st_ino}"


def _began(pid: int) -> str | None:
    """When a process began, or None if it is gone. In ticks since the boot, which no clock change moves."""
    try:
        if Path("/proc/self/stat").exists():
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
            return after_name.split()[19]
        return f"{psutil.Process(pid).create_time():.0f}"
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return None
