"""Ray nodes on this machine, each with a simulated host of its own, for tests."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from clones import free_port

from rocmlab.simulation import write_host

START_SECONDS = 180.0
STORE_BYTES = 80_000_000
AGENTS = ("dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent")


@dataclass
class RayNode:
    """One node: `ray start --block`, as rocmlab starts it, and what it has started."""

    name: str
    process: subprocess.Popen[bytes]
    root: Path
    share: Path

    def family(self) -> list[psutil.Process]:
        """Return its processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            head = psutil.Process(self.process.pid)
            return [head, *head.children(recursive=True)]
        return []

    def kill(self) -> None:
        """End it as a power cut does, from the top, so that no one reports."""
        family = self.family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


@dataclass
class RayNodes:
    """A cluster; its first node is the head."""

    folder: Path  # short: sockets lie in it
    environment: dict[str, str]
    port: int = 0
    nodes: list[RayNode] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Return where the head listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def client(self) -> dict[str, str]:
        """Return what a process needs in its environment to use the cluster."""
        return {**self.environment, "RAY_ADDRESS": self.address}

    @property
    def temporary(self) -> str:
        """Return where its processes keep temporary files."""
        return self.environment["TMPDIR"]

    def add(self, name: str, gpus: int = 2, **more: str) -> RayNode:
        """Start a node with simulated GPUs of its own; it need not be up when this returns."""
        root, share = self.folder / f"{name}-root", self.folder / f"{name}-share"
        if gpus:
            write_host(root, gpus=gpus, profile="radeon", busy="idle", seed=len(self.nodes))
        else:
            for each in ("sys", "proc", "dev"):
                (root / each).mkdir(parents=True, exist_ok=True)
        share.mkdir(exist_ok=True)
        mask = ",".join(map(str, range(gpus))) or "-1"
        environment = {
            **self.environment,
            "ROCMLAB_ROOT": str(root),
            "ROCMLAB_SHARE": str(share),
            "HIP_VISIBLE_DEVICES": mask,
            "CUDA_VISIBLE_DEVICES": mask,
            "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_prestart_worker_first_driver": "false",
            "ROCMLAB_NODE": name,
            **more,
        }
        resources = '{"cpu_place": 1' + (f', "gfx1100": {gpus}' if gpus else "") + "}"
        # By rocmlab's own starter: a raylet of Ray's alone aborts where a busy machine takes 15 s to start its agents.
        words = [sys.executable, "-m", "rocmlab.cluster.node.starter", "start", "--block", "--disable-usage-stats"]
        words += ["--node-ip-address", "127.0.0.1", f"--num-gpus={gpus}", "--num-cpus=2", f"--resources={resources}"]
        words += [f"--object-store-memory={STORE_BYTES}", "--labels", f"hostname={name}"]
        words += [f"--{each}-port={free_port()}" for each in AGENTS]
        if not self.nodes:
            self.port = free_port()
            words += ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.folder}/r"]
        else:
            words += [f"--address={self.address}"]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                words, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        node = RayNode(name, process, root, share)
        self.nodes.append(node)
        if len(self.nodes) == 1:
            _wait_for_port(self.port, process, self.folder / f"{name}.log")
        return node

    def wait(self) -> None:
        """Wait until all of them are up."""
        end = time.monotonic() + START_SECONDS
        for node in self.nodes:
            log = self.folder / f"{node.name}.log"
            while "Ray runtime started" not in log.read_text(encoding="utf-8", errors="replace"):
                if time.monotonic() > end or node.process.poll() is not None:
                    raise RuntimeError(log.read_text(encoding="utf-8", errors="replace"))
                time.sleep(0.1)

    def close(self) -> None:
        """End all of it."""
        for node in reversed(self.nodes):
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def started(environment: Mapping[str, str]) -> Iterator[RayNodes]:
    """Give a cluster without nodes, with a token; it ends with the block."""
    secret = secrets.token_hex(32)
    folder = Path(tempfile.mkdtemp(prefix="rl-", dir=tempfile.gettempdir()))
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secret, "RAY_USAGE_STATS_ENABLED": "0"}
    own |= {"RAY_raylet_start_wait_time_s": "120", "RAY_enable_metrics_collection": "false"}  # on a busy machine
    own |= {"RAY_gcs_rpc_server_reconnect_timeout_s": "8"}  # a lost head is given up sooner than after a minute
    own |= {"TMPDIR": str(folder / "t")}
    (folder / "t").mkdir()
    cleaned = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
    cluster = RayNodes(folder, {**cleaned, **own})
    try:
        yield cluster
    finally:
        cluster.close()


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(log.read_text(encoding="utf-8", errors="replace"))
