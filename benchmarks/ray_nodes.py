"""What a run over a Ray cluster costs compared with a local one, and what a second node brings.

The nodes are real ones of Ray, all on this machine, each with two simulated GPUs, and the jobs' work is sleep: waiting
for a device. It is three seconds where Ray's costs are measured, and ten with a second node, whose kernels start on
the same cores. Each run is a process of its own, in which `runs.run` alone is timed; see `ray_run`. The
cluster is up and the run is connected to it before the clock starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks import ray_run
from benchmarks.environment import environment, run_module, write_kernel, write_notebook
from rocmlab import simulation
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import ports, ray_node, record

GPUS = 2  # of a node
JOBS, LONG_JOBS = 8, 16  # on two slots and, again, on two and on four
WORK_SECONDS, LONG_WORK_SECONDS = 3, 10
CELLS = ("import time", "time.sleep({seconds})", "print('done')")
START_SECONDS = 300.0  # for a node to be up
END_SECONDS = 60.0  # for it to end by itself
RUN_SECONDS = 600.0
STORE_BYTES = 80_000_000
NOT_OURS = ("ROCMLAB_", "RAY_", "CLUSTER")  # settings of this lab, which the nodes of the benchmark do not have
# Ours and theirs by row.
ROWS = {"ray_vs_local": ("one_node", "local"), "two_nodes_vs_one": ("two_nodes", "one_node_long")}
COSTS = ("ray_vs_local",)  # whose ratio is how many times as long ours took


def missing() -> str | None:
    """Say why nothing can be measured here; None if it can."""
    if importlib.util.find_spec("ray") is None:
        return 'there is no Ray: pip install "rocmlab[cluster]"'
    if importlib.util.find_spec("ipykernel") is None:
        return "there is no ipykernel in this environment: pip install ipykernel"
    return None


def measure(runs: int, names: Sequence[str] = tuple(ROWS)) -> dict[str, list[float]]:
    """Return wall seconds by `local`, `one_node`, `one_node_long` and `two_nodes`, measured alternately.

    Args:
        runs: how often each is measured, after a short round that does not count.
        names: of the rows: only what they need is measured.

    Raises:
        RocmlabError: a node did not start, or a notebook did not run.
    """
    wanted = {kind for name in names for kind in ROWS[name]}
    times: dict[str, list[float]] = {}
    with _nodes() as nodes:
        first, second = nodes.start(nodes.head()), nodes.start(nodes.head()) if "two_nodes" in wanted else None
        nodes.wait()
        if second:
            nodes.start(nodes.joining(second))
            nodes.wait()
        short = [write(nodes.folder / f"n{number}.ipynb", WORK_SECONDS) for number in range(JOBS)]
        long = [write(nodes.folder / f"l{number}.ipynb", LONG_WORK_SECONDS) for number in range(LONG_JOBS)]
        works = {
            "local": (nodes.local(first), short, GPUS),
            "one_node": (nodes.client(first), short, GPUS),
            "one_node_long": (nodes.client(first), long, GPUS),
        }
        if second:
            works["two_nodes"] = (nodes.client(second), long, 2 * GPUS)
        for number in range(runs + 1):
            for name in (name for name in works if name in wanted):
                variables, notebooks, slots = works[name]
                head = variables.get("RAY_ADDRESS", ray_run.LOCAL)
                found = _seconds(head, notebooks if number else short[:slots], variables, slots)
                if number:
                    times.setdefault(name, []).append(found)
    return times


@dataclass(frozen=True)
class _Plan:
    """What a node is started with."""

    head: str
    port: int
    is_head: bool


@dataclass
class _Node:
    """One node: `rocmlab cluster node` and all it has started."""

    plan: _Plan
    process: subprocess.Popen[bytes]
    folder: Path
    root: Path
    log: Path

    def wait(self) -> None:
        """Wait until it is up.

        Raises:
            RocmlabError: it is not.
        """
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            found = record.read(self.folder / "node.json")
            if found and found.state == record.READY:
                return
            time.sleep(0.1)
        output = self.log.read_text(encoding="utf-8", errors="replace")[-600:]
        raise RocmlabError(
            "a node of the benchmark did not start",
            output.strip() or "no output",
            "make cluster-up, which says more",
        )

    def family(self) -> list[psutil.Process]:
        """Return its processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        return []

    def end(self) -> None:
        """End it, and whatever is left of it."""
        family = self.family()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        for process in psutil.wait_procs(family, timeout=10)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


@dataclass
class _Nodes:
    """Nodes at one address of this machine, of one cluster or several."""

    folder: Path  # short: sockets lie in it
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    address: str = field(default_factory=lambda: ray_node.own_address("", ""))
    all: list[_Node] = field(default_factory=list)

    def head(self) -> _Plan:
        """Return what the head of a new cluster is started with."""
        port = self._port()
        return _Plan(f"{self.address}:{port}", port, is_head=True)

    def joining(self, head: _Node) -> _Plan:
        """Return what a further node of a cluster is started with."""
        return _Plan(head.plan.head, self._port(), is_head=False)

    def _port(self) -> int:
        used = {each.plan.port for each in self.all}
        for first in range(31000, 45000, 50):
            if first not in used and all(_is_free(first + port.offset) for port in ports.TABLE):
                return first
        raise RocmlabError("no ports are free for the nodes of the benchmark", "", "stop what listens above 31000")

    def start(self, plan: _Plan) -> _Node:
        """Start a node; it need not be up when this returns."""
        number = len(self.all)
        root, share, folder, log = (self.folder / f"{kind}{number}" for kind in ("host", "share", "n", "log"))
        simulation.write_host(root, gpus=GPUS, busy="idle", seed=number)
        settings = {
            "CLUSTER": "head" if plan.is_head else plan.head,
            "CLUSTER_PORT": str(plan.port),
            "CLUSTER_TOKEN": self.token,
            "ROCMLAB_ROOT": str(root),
            "ROCMLAB_SHARE": str(share),
        }
        share.mkdir()
        words = [sys.executable, "-m", "rocmlab", "cluster", "node", "--folder", str(folder)]
        words += ["--cpus", str(GPUS), "--store-bytes", str(STORE_BYTES)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                words,
                env={**self._environment(), **settings},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        made = _Node(plan, process, folder, root, log)
        self.all.append(made)
        return made

    def wait(self) -> None:
        """Wait until all of them are up.

        Raises:
            RocmlabError: one is not.
        """
        for each in self.all:
            each.wait()

    def local(self, of: _Node) -> dict[str, str]:
        """Return the environment of a run on a node's GPUs without Ray."""
        return {**self._environment(), "ROCMLAB_ROOT": str(of.root), "ROCMLAB_BACKEND": "rocm"}

    def client(self, head: _Node) -> dict[str, str]:
        """Return the environment of a run on the whole cluster."""
        return {**self.local(head), **ray_node.client_environment(head.plan.head, head.folder)}

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in environment().items() if not name.startswith(NOT_OURS)}
        return {
            **kept,
            "JUPYTER_PATH": str(self.folder),
            "IPYTHONDIR": str(self.folder / "ipython"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "ROCMLAB_RUNTIME": "native",
            "ROCMLAB_SHARE": str(self.folder / "share"),
        }


@contextlib.contextmanager
def _nodes() -> Iterator[_Nodes]:
    """Give no nodes yet; all that are started end with the block."""
    folder = Path(tempfile.mkdtemp(prefix="rlb", dir="/tmp"))
    try:
        nodes = _Nodes(folder)
        write_kernel(folder, is_warm=True)
        (folder / "share").mkdir()
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # else they would be left
        try:
            yield nodes
        finally:
            for each in reversed(nodes.all):
                each.end()
            signal.signal(signal.SIGTERM, before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_free(number: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", number))
        except OSError:
            return False
    return True


def write(path: Path, seconds: int) -> str:
    """Write a notebook whose work takes some seconds, and return its path."""
    return str(write_notebook(path, [each.format(seconds=seconds) for each in CELLS]))


def _seconds(head: str, notebooks: Sequence[str], environment: Mapping[str, str], slots: int) -> float:
    arguments = (head, environment["ROCMLAB_SHARE"], *notebooks)
    found = json.loads(run_module("ray_run", *arguments, limit_seconds=RUN_SECONDS, **environment).splitlines()[-1])
    if found["slots"] != slots:
        raise RocmlabError(f"{head} has {found['slots']} slots", f"the benchmark needs {slots}", "run it again")
    return float(found["seconds"])
