"""Machines for a Ray cluster: namespaces of this host, each with its own network, processes and name, on one disk."""

import ctypes
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from tests.postgres import PASSWORD, USER, Server

NET = "10.77.0"
HERE, DATABASE = f"{NET}.1", f"{NET}.254"
"""The addresses of the tests' own process and of the database server."""
_NEWNET = 0x40000000
_MACHINE = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_SECONDS = 1000
HEALTH = {
    "RAY_health_check_initial_delay_ms": str(_SECONDS),
    "RAY_health_check_period_ms": str(_SECONDS),
    "RAY_health_check_timeout_ms": str(2 * _SECONDS),
    "RAY_health_check_failure_threshold": "3",
}
"""What makes a silent node a dead one after seconds; Ray's own settings take a minute."""


def missing_tools() -> list[str]:
    """Return the programs that such machines need and that are not installed (util-linux, iproute2)."""
    return [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]


def why_forbidden() -> str | None:
    """Return why the kernel does not let this process make such machines, or None where it does."""
    wired = "ip link add lan type bridge; ip link add end type veth peer name other"
    done = subprocess.run(["unshare", *_MACHINE, "sh", "-ec", wired], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None


class Lan:
    """A network that only these machines and the calling thread are on, as long as the context lasts."""

    def __enter__(self) -> Self:
        self._outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _check(_libc().unshare(_NEWNET))
        run("ip", "link", "set", "lo", "up")
        # With an address of its own, for else the bridge takes another one whenever a machine joins.
        run("ip", "link", "add", "lan", "address", "02:00:00:00:00:01", "type", "bridge")
        for address in (HERE, DATABASE):
            run("ip", "addr", "add", f"{address}/24", "dev", "lan")
        run("ip", "link", "set", "lan", "up")
        return self

    def __exit__(self, *_: object) -> None:
        _check(_libc().setns(self._outside, _NEWNET))
        os.close(self._outside)


class Node:
    """A machine that is on. It shares the disk with the others, but for /tmp/ray.

    It goes off when the process ends that made it, for its first process reads from that one. That first process
    is a shell because a shell collects dead children: Ray takes one that nobody collected for a living one.
    """

    def __init__(self, name: str, number: int, folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.address = f"{NET}.{number}"
        self._env = dict(env)
        (folder / name).mkdir()
        script = f'hostname {name}; mkdir -p /tmp/ray; mount --bind "$0" /tmp/ray; echo on; cat; exit'
        self.is_on = True
        self._machine = subprocess.Popen(
            ["unshare", *_MACHINE, "sh", "-ec", script, str(folder / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._machine.stdout
        assert self._machine.stdout.readline() == b"on\n"
        (init,) = psutil.Process(self._machine.pid).children()
        self._enter = ["nsenter", f"--target={init.pid}", "--net", "--mount", "--uts", "--pid"]
        peer = ("type", "veth", "peer", "name", "eth0", "netns", str(init.pid))
        run("ip", "link", "add", f"to-{name}", *peer)
        run("ip", "link", "set", f"to-{name}", "master", "lan", "up")
        run(*self._enter, "ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run(*self._enter, "ip", "link", "set", device, "up")

    def start(self, *command: str, folder: Path) -> "subprocess.Popen[str]":
        """Start a command on it, in a folder."""
        return subprocess.Popen(
            [*self._enter, "env", f"--chdir={folder}", *command],
            env=os.environ | self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self, pid: int) -> None:
        """Kill one of its processes, by the number that it has there."""
        run(*self._enter, "kill", "-KILL", str(pid))

    def is_alive(self, pid: int) -> bool:
        """Whether one of its processes runs."""
        return subprocess.run([*self._enter, "test", "-d", f"/proc/{pid}"]).returncode == 0

    def unplug(self) -> None:
        """Take it off the network: nothing is heard of it, and it hears nothing."""
        run("ip", "link", "set", f"to-{self.name}", "down")

    def plug(self) -> None:
        """Put it back on the network."""
        run("ip", "link", "set", f"to-{self.name}", "up")

    def lose(self, address: str) -> None:
        """Let all that it sends to an address go astray, without a word, until `find`."""
        nobody = ("lladdr", "02:00:00:00:00:00", "nud", "permanent")
        run(*self._enter, "ip", "neigh", "replace", address, *nobody, "dev", "eth0")

    def find(self, address: str) -> None:
        """Undo `lose`."""
        run(*self._enter, "ip", "neigh", "del", address, "dev", "eth0")

    def off(self) -> None:
        """Kill everything on it at once."""
        self.is_on = False
        self._machine.kill()
        self._machine.communicate()


class Cluster:
    """A Ray cluster: a head that trains nothing, and machines that train one trial each."""

    def __init__(self, folder: Path) -> None:
        root = Path(__file__).parents[2]
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.folder = folder
        self.env = HEALTH | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(root),
            "COLUMNS": "200",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }
        self.nodes: dict[str, Node] = {}
        """The machines by name, those that are off too."""
        self.head = self._node("head", {"PGPASSWORD": PASSWORD})
        self._ray(
            self.head,
            *("--head", "--port=6379", "--num-cpus=0"),
            *("--include-dashboard=true", "--dashboard-host=0.0.0.0"),
        )

    def add(self) -> Node:
        """Add a machine that can train."""
        node = self._node(f"n{len(self.nodes)}", {})
        self._ray(node, f"--address={self.head.address}:6379", "--num-cpus=1", '--resources={"trainer": 1}')
        return node

    def grow(self, number: int) -> None:
        """See to it that so many machines train, however many were lost."""
        while sum(node.is_on for node in self.nodes.values()) < number + 1:
            self.add()

    def _node(self, name: str, env: Mapping[str, str]) -> Node:
        self.nodes[name] = Node(name, len(self.nodes) + 2, self.folder, self.env | env)
        return self.nodes[name]

    def _ray(self, node: Node, *arguments: str) -> None:
        common = (f"--node-ip-address={node.address}", "--object-store-memory=100000000")
        process = node.start("ray", "start", *common, *arguments, folder=self.folder)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output

    def off(self) -> None:
        """Kill everything on every machine."""
        for node in self.nodes.values():
            node.off()


class LanServer(Server):
    """A PostgreSQL server that the machines reach."""

    def start(self) -> None:
        with (self.folder / "data" / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {NET}.0/24 scram-sha-256\n")
        self._command.append(f"--listen_addresses=127.0.0.1,{DATABASE}")
        super().start()

    def address(self, database: str) -> str:
        """Return the URL of a database for machines that have the password."""
        return f"postgresql://{USER}@{DATABASE}:{self.port}/{database}"


def run(*command: str) -> None:
    """Run a command to its end, which must be a good one."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
