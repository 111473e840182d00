"""The way to Ray: the cluster that this lab is part of, or a Ray of this process's own.

A node of a lab's cluster runs in JupyterLab's environment, which has no framework. So the job specifies the interpreter
of its processes: this kernel's own, at the same path on every node, as in the lab's image.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import session
from rocmlab.cluster.node.session import Node
from rocmlab.devices import visibility

NAMES = ("PYTHONPATH", "ROCMLAB_SHARE", "ROCMLAB_DATA_DIR")  # of this process, for those on the nodes
MEMORY_BYTES = 200_000_000  # of an own Ray's object store, which carries a function and a few numbers
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",  # seconds until a dead worker is noticed
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",  # then it checks again how many fit
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed",  # Ray Train deals with it
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",  # of the node's interpreter and this one
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what a task may see is set here, not by Ray
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
    "RAY_worker_niceness": "0",  # by default Ray runs with a lower priority
}
INSTALL = 'make cluster-up installs it; in an environment of your own: pip install "ray[train]==2.60.0"'
# Unless this is 0, Ray on Linux takes the network's address in place of the loopback's, and opens its ports on all
# interfaces; on macOS 0 is its default.
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_folders: list[Path] = []  # of an own Ray


@dataclass(frozen=True)
class Connection:
    """A Ray that this process can use."""

    is_own: bool  # started here, for this process; it ends with it
    nodes: tuple[Node, ...]  # the head first

    def lines(self) -> list[str]:
        """Return a line for each node: its name, address, cores and GPUs."""
        lines = []
        for node in (one for one in self.nodes if one.is_alive):
            named = ", ".join(sorted(name for name in node.resources if name.startswith("gfx")))
            what = f"{node.gpus} GPU(s)" + (f" {named}" if named else "")
            lines.append(f"{node.hostname} ({node.address}): {node.cpus} cores, {what}")
        return lines


def is_installed() -> bool:
    """Return whether Ray Train can be imported here: Ray, and what its part for training needs more."""
    return all(importlib.util.find_spec(name) is not None for name in ("ray", "pyarrow", "pandas"))


def connect(workers: int = 2) -> Connection:
    """Connect this process to the cluster in RAY_ADDRESS, or start its own, for this number of workers on the CPU.

    Raises:
        RocmlabError: Ray Train is not installed, or the cluster does not answer, rejects the token or has other
            versions.
    """
    if not is_installed():
        raise RocmlabError("Ray Train is not installed", f"{sys.executable} cannot import it", INSTALL)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    close()
    address = os.environ.get("RAY_ADDRESS")
    if address:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when Ray is imported
        os.environ.pop(LOOPBACK_ONLY, None)
    else:
        _lock()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # its advice on packages for notebooks
        import ray.train.torch  # noqa: F401  here, so that it prints nothing later
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address:
        session.connect(address, runtime_env=runtime_environment())
    else:
        _start(workers)
    return Connection(not address, tuple(session.nodes()))


def runtime_environment() -> dict[str, Any]:
    """Return what Ray's processes for this job run in: this interpreter, and its paths."""
    variables = {name: os.environ[name] for name in NAMES if name in os.environ}
    return {"py_executable": shlex.quote(sys.executable), "env_vars": {**variables, **SETTINGS}}


def close() -> None:
    """Leave the cluster; an own Ray ends. Does nothing without one."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


atexit.register(close)


def _start(workers: int) -> None:
    """Start a Ray for this process: on loopback, with a secret token, with the GPUs of one kind."""
    import ray

    from rocmlab.training import placement

    gpus = [one["index"] for one in placement.alike(placement.visible("torch"))]
    folder = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))  # a socket's path may have 107 bytes
    _folders.append(folder)
    try:
        with _masks(visibility.narrow(os.environ, gpus)):
            ray.init(
                num_cpus=max(workers, 1),
                num_gpus=len(gpus),
                object_store_memory=MEMORY_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                namespace="rocmlab",
                runtime_env=runtime_environment(),
                _temp_dir=str(folder),
                _node_ip_address="127.0.0.1",
            )
    except Exception as err:  # Ray raises that itself, where one of its processes takes more than 30 seconds
        close()
        output = str(err).strip().splitlines() or [repr(err)]
        raise RocmlabError(
            "Ray could not start on this machine",
            output[0],
            "see that the machine is not overloaded and /dev/shm has 200 MB free, then retry",
            exit_code=1,
        ) from err
    if wrong := [node.address for node in session.nodes() if not node.address.startswith("127.")]:
        close()
        raise RocmlabError(
            f"Ray listens at {wrong[0]} instead of on the loopback",
            "it was imported before cluster.connect(), or this version does not read " + LOOPBACK_ONLY,
            "restart the kernel, and call cluster.connect() first",
        )


def _lock() -> None:
    """Make an own Ray require a token, or anyone here could run programs in it; an error if it was imported without."""
    if "ray" in sys.modules and os.environ.get("RAY_AUTH_MODE") != "token":
        raise RocmlabError(
            "Ray was imported before cluster.connect()",
            "it reads RAY_AUTH_MODE when it is imported, and would let anyone on this machine use it",
            "restart the kernel, and call cluster.connect() first",
        )
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ[LOOPBACK_ONLY] = "0"
    if not os.environ.get("RAY_AUTH_TOKEN_PATH"):
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextlib.contextmanager
def _masks(environment: Mapping[str, str]) -> Iterator[None]:
    """Have the visibility masks of `environment` in this process for a while: Ray numbers GPUs by those it sees."""
    before = {name: os.environ.get(name) for name in visibility.VARIABLES}
    try:
        _set({name: environment.get(name) for name in visibility.VARIABLES})
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
