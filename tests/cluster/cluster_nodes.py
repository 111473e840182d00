"""A real cluster on this machine for tests: nodes as `rocmlab cluster node` starts them, on simulated hosts."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from rocmlab.cluster.node import ports, record
from rocmlab.cluster.node.ray_node import own_address
from rocmlab.simulation import write_host

SOURCES = Path(__file__).parents[2] / "src"
START_SECONDS = 300.0
STORE_BYTES = 80_000_000
AGENTS = ("agent", "agent over HTTP", "runtime environment agent")  # of ports.TABLE
NO_WORK = """
import time
from rocmlab.cluster.node import session

session.connect()
time.sleep(2)  # Ray starts its workers at once
print(0)
"""
KEPT = ("PATH", "HOME", "LANG", "USER", "LOGNAME", "TMPDIR", "SSL_CERT_FILE")


def free_port() -> int:
    """Return a CLUSTER_PORT whose neighbours are free as well, below those that the system gives to connections.

    Each process begins elsewhere: tests of another one may be about to start nodes too.
    """
    choices = range(20000, 32000, 50)
    begin = os.getpid() % len(choices)
    for first in (*choices[begin:], *choices[:begin]):
        if all(_is_free(first + port.offset) for port in ports.TABLE):
            return first
    raise RuntimeError("no ports are free")


def _is_free(number: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", number))
        except OSError:
            return False
    return True


@dataclass(eq=False)
class ClusterNode:
    """One node: `rocmlab cluster node` and all it has started."""

    process: subprocess.Popen[str]
    folder: Path
    port: int
    log: Path

    @property
    def record(self) -> record.Record | None:
        """What it says of itself."""
        return record.read(self.folder / "node.json")

    def wait(self) -> None:
        """Wait until it is up, and its agents listen, which need longer on a busy machine."""
        deadline = time.monotonic() + START_SECONDS
        numbers = ports.numbers(self.port)
        while time.monotonic() < deadline and self.process.poll() is None:
            is_ready = (found := self.record) and found.state == record.READY
            if is_ready and not any(_is_free(numbers[name].start) for name in AGENTS):
                return
            time.sleep(0.1)
        raise RuntimeError(self.log.read_text(encoding="utf-8", errors="replace"))

    def family(self) -> list[psutil.Process]:
        """Return its processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        return []

    def end(self) -> int:
        """End it as `make cluster-down` does, and whatever is left, and return its exit code."""
        family = self.family()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        for process in psutil.wait_procs(family, timeout=10)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return self.process.wait(10)


@dataclass
class Cluster:
    """A head and nodes that have joined it, all at one address of this machine."""

    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    port: int = field(default_factory=free_port)
    nodes: list[ClusterNode] = field(default_factory=list)
    idle_workers: list[int] = field(default_factory=list)  # processes of a node that has had no work yet

    @property
    def address(self) -> str:
        """This machine's own."""
        return own_address("", "")

    @property
    def head(self) -> str:
        """Where the head listens."""
        return f"{self.address}:{self.port}"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a program that knows nothing of the cluster."""
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**kept, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", **more}

    def start(self, profile: str = "radeon", gpus: int = 2, **more: str) -> ClusterNode:
        """Start a node with simulated GPUs; the first is the head. It need not be up when this returns."""
        number = len(self.nodes)
        root, folder = self.folder / f"host{number}", self.folder / f"n{number}"
        if not root.exists():
            write_host(root, gpus=gpus, profile=profile, busy="idle", seed=number)
        (self.folder / "share").mkdir(exist_ok=True)
        port = self.port if not self.nodes else free_port()
        settings = {
            "CLUSTER": self.head if self.nodes else "head",
            "CLUSTER_PORT": str(port),
            "CLUSTER_TOKEN": self.token,
            "ROCMLAB_ROOT": str(root),
            "ROCMLAB_RUNTIME": "native",
            "ROCMLAB_SHARE": str(self.folder / "share"),
            **more,
        }
        words = [sys.executable, "-m", "rocmlab", "cluster", "node", "--folder", str(folder)]
        log = self.folder / f"n{number}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [*words, "--cpus", "2", "--store-bytes", str(STORE_BYTES)],
                env=self.environment(**settings),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        node = ClusterNode(process, folder, port, log)
        self.nodes.append(node)
        return node

    def program(self, text: str, *, limit_seconds: float = 300, **more: str) -> tuple[int, str, str]:
        """Run a program of Python as one of the head's machine, and return its exit code and what it printed."""
        own = {"RAY_ADDRESS": self.head, "RAY_AUTH_TOKEN_PATH": str(self.nodes[0].folder / "token")}
        own |= {"RAY_AUTH_MODE": "token", "ROCMLAB_SHARE": str(self.folder / "share")}
        environment = {name: value for name, value in self.environment(**{**own, **more}).items() if value}
        done = subprocess.run(
            [sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=limit_seconds
        )
        return done.returncode, done.stdout, done.stderr

    def answer(self, text: str, **more: str) -> Any:
        """Return the JSON that a program prints last."""
        code, said, errors = self.program(text, **more)
        assert code == 0, errors
        return json.loads(said.strip().splitlines()[-1])


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Give a cluster without nodes; everything of it ends with the block."""
    folder = Path(tempfile.mkdtemp(prefix="rc", dir="/tmp"))  # sockets lie in it
    made = Cluster(folder)
    try:
        yield made
    finally:
        for node in reversed(made.nodes):
            node.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """A head with two Radeon GPUs, and a node with two Instinct ones; its first program has no work for them.

    Both outlive every test. Others may join and die: Ray still lists those.
    """
    with cluster() as made:
        made.start().wait()
        made.start("instinct").wait()
        made.answer(NO_WORK)
        made.idle_workers = [each.pid for node in made.nodes for each in node.family() if "ray::IDLE" in each.cmdline()]
        yield made
