"""Two Ray nodes on this machine, started as labs start them, each with a simulated host and ports of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from rocmlab.cluster.node import ports, record
from rocmlab.cluster.node.ray_node import own_address
from rocmlab.simulation import write_host

WAIT_SECONDS = 240.0  # Ray starts eight processes, on a machine that may be busy
STORE_BYTES = 80_000_000
SOURCE = Path(__file__).parents[1] / "src"


@dataclass
class Machine:
    """One node, and what its lab has in its environment."""

    name: str
    address: str
    folder: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        """What the node said."""
        return self.folder.with_suffix(".log").read_text()

    def wait(self) -> None:
        """Wait until it has joined."""
        end = time.monotonic() + WAIT_SECONDS
        while True:
            found = record.read(self.folder / "node.json")
            if found and found.state == record.READY:
                return
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.2)

    def leave(self) -> None:
        """End it as `cluster-down` does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(WAIT_SECONDS)

    def die(self) -> None:
        """End it as a power cut does: all of it at once, so that no one reports."""
        family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        for stop in (psutil.Process.suspend, psutil.Process.kill):
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    stop(each)
        self.process.wait(WAIT_SECONDS)


@dataclass
class Pair:
    """A head and a worker."""

    head: Machine
    worker: Machine


@contextlib.contextmanager
def pair(*, is_share_common: bool = True, gpus: tuple[int, int] = (2, 2)) -> Iterator[Pair]:
    """Start both, wait until they are one cluster, and end what is left of them."""
    folder = Path(tempfile.mkdtemp(prefix="rp-", dir="/tmp"))  # sockets need a short path
    address = own_address("", "")
    token = secrets.token_hex(32)
    first, second = _free(2)
    machines: list[Machine] = []
    try:
        for number, (name, port, chosen) in enumerate(
            (("head", first, "head"), ("worker", second, f"{address}:{first}"))
        ):
            share = folder / ("share" if is_share_common else f"share-{name}")
            share.mkdir(exist_ok=True)
            root = write_host(folder / f"{name}-host", gpus=gpus[number], busy="idle", seed=number)
            own = {
                "CLUSTER": chosen,
                "CLUSTER_ADDRESS": address,
                "CLUSTER_PORT": str(port),
                "ROCMLAB_ROOT": str(root),
                "ROCMLAB_SHARE": str(share),
                "RAY_gcs_server_request_timeout_seconds": "20",
                "PYTHONPATH": os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH")))),
                "OMP_NUM_THREADS": "1",
            }
            machines.append(_start(name, folder / name, {**_clean(), **own}, token))
            machines[-1].wait()
        yield Pair(*machines)
    finally:
        for machine in reversed(machines):
            with contextlib.suppress(psutil.NoSuchProcess):
                machine.die()
        shutil.rmtree(folder, ignore_errors=True)


def _start(name: str, folder: Path, environment: dict[str, str], token: str) -> Machine:
    words = [sys.executable, "-m", "rocmlab", "cluster", "node", "--folder", str(folder), "--cpus", "2"]
    with folder.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [*words, "--store-bytes", str(STORE_BYTES)],
            env={**environment, "CLUSTER_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    is_head = environment["CLUSTER"] == "head"
    head = f"{environment['CLUSTER_ADDRESS']}:{environment['CLUSTER_PORT']}" if is_head else environment["CLUSTER"]
    lab = {"RAY_ADDRESS": head, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    lab["RAY_USAGE_STATS_ENABLED"] = "0"
    return Machine(name, environment["CLUSTER_ADDRESS"], folder, {**environment, **lab}, process)


def _clean() -> dict[str, str]:
    """Return this process's environment without what chooses another cluster or other GPUs."""
    masks = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("RAY_", "CLUSTER")) and name not in masks
    }


def _free(count: int) -> list[int]:
    """Return values for CLUSTER_PORT whose fixed ports no one has."""
    fixed = [port.offset for port in ports.TABLE if port.count == 1]
    found: list[int] = []
    first = 20000 + os.getpid() % 8000
    while len(found) < count:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for offset in fixed:
                stack.enter_context(socket.socket()).bind(("", first + offset))
            found.append(first)
        first += 10
    return found
