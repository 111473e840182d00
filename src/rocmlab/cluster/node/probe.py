"""Query every living node, and describe this one: status, doctor and panel show it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import session

VERB_SECONDS = 30.0
TITLE = "ray::"
# Ray's own; its helpers, whose names begin with `_`, outlive the training that needed them.
NO_TASKS = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::_")
Facts = dict[str, Any]


def on_every_node(
    function: Callable[..., Any],
    *arguments: Any,  # noqa: ANN401
    timeout_seconds: float,
) -> dict[str, Any]:
    """Run a function as one task on each living node, and return by node id what it returned, or a `RocmlabError`.

    The tasks request no CPU and no GPU, so they run next to other tasks. A node that does not answer in time, or
    is lost meanwhile, has an error in its place; the others' answers come all the same.

    Raises:
        RocmlabError: there is no cluster; see `session.connect`.
    """
    session.connect()
    import ray

    task = ray.remote(num_cpus=0, max_retries=0, max_calls=0)(function)
    waiting = {}
    for node in session.nodes():
        if node.is_alive:
            waiting[task.options(scheduling_strategy=session.only_on(node.id)).remote(*arguments)] = node
    done, late = ray.wait(list(waiting), num_returns=len(waiting), timeout=timeout_seconds) if waiting else ([], [])
    answers: dict[str, Any] = {}
    for reference in done:
        node = waiting[reference]
        try:
            answers[node.id] = ray.get(reference)
        except (ray.exceptions.RayError, RocmlabError) as err:
            answers[node.id] = _failed(node, err)
    for reference in late:
        ray.cancel(reference, force=True)
        node = waiting[reference]
        answers[node.id] = RocmlabError(
            f"node {node.hostname} ({node.address}) did not answer within {timeout_seconds:g} s",
            "it is busy, or its network or a driver hangs",
            f"look there: make status; make doctor, on {node.address}",
        )
    return answers


def _failed(node: session.Node, error: Exception) -> RocmlabError:
    cause = getattr(error, "cause", None)
    if isinstance(error, RocmlabError):
        return error
    if isinstance(cause, RocmlabError):
        return cause
    lines = str(cause or error).strip().splitlines() or [type(error).__name__]
    return RocmlabError(
        f"node {node.hostname} ({node.address}) could not be queried",
        lines[-1][:300],
        f"look there: make doctor, on {node.address}",
    )


def facts(share: str | None = None, nonce: str | None = None) -> Facts:
    """Return a description of this machine, ready for JSON. It is meant to run on a node; unknown is None.

    Args:
        share: the folder that the asking machine has as its share; None: this machine's own is looked at.
        nonce: the name of a file that the asking machine has put there; whether it can be read here shows whether the
            share is one for both.

    Returns:
        devices (as `rocmlab devices --json` lists them), leases (as `rocmlab leases --json`: for each GPU `lease`,
        with notebook and owner, and `foreign` processes), tasks (the names of Ray's tasks and actors that run here,
        but this one), versions, share, `share_is_shared` (None without a nonce), `free_bytes` of the share, and
        `problems` that kept any of it unknown.
    """
    session.restore_signals()
    problems: list[str] = []
    own = os.environ.get("ROCMLAB_SHARE") or share
    devices = _command_facts(["devices"], problems)
    leases = _command_facts(["leases"], problems)
    return {
        "devices": devices and devices.get("devices"),
        "leases": leases and leases.get("gpus"),
        "tasks": tasks(),
        "versions": versions(),
        "share": own,
        "share_is_shared": None if nonce is None or own is None else _can_read(Path(own) / nonce),
        "free_bytes": _free_bytes(own),
        "problems": problems,
    }


def tasks() -> list[str] | None:
    """Return what Ray runs on this node except for this very task. Source: the titles that Ray gives its workers."""
    try:
        import psutil
    except ImportError:
        return None
    raylet = psutil.Process(os.getppid())
    found = []
    for child in raylet.children():
        with contextlib.suppress(psutil.Error):
            title = " ".join(child.cmdline()).strip()
            if child.pid != os.getpid() and title.startswith(TITLE) and not title.startswith(NO_TASKS):
                found.append(title.removeprefix(TITLE))
    return sorted(found)


def versions() -> dict[str, str | None]:
    """Return what must fit from node to node: rocmlab, Python, Ray, ROCm and the GPU's driver."""
    from rocmlab.devices import discover, system_root
    from rocmlab.devices.rocm import rocm_version

    drivers = {each.driver for each in discover(environment={}) if each.backend in ("rocm", "cuda") and each.driver}
    return {
        "rocmlab": __version__,
        "python": platform.python_version(),
        "ray": _version("ray"),
        "rocm": rocm_version(system_root()),
        "driver": ", ".join(sorted(drivers)) or None,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _command_facts(options: list[str], problems: list[str]) -> Facts | None:
    """Return the JSON of a command; it has its own limits for drivers that hang."""
    command = [sys.executable, "-m", "rocmlab", *options, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERB_SECONDS, check=False)
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as err:
        problems.append(f"rocmlab {options[0]}: {err}")
        return None
    except ValueError:
        problems.append(f"rocmlab {options[0]}: {(done.stderr.strip().splitlines() or ['it printed nothing'])[0]}")
        return None
    return found if isinstance(found, dict) else None


def _can_read(path: Path) -> bool:
    try:
        return path.is_file() and bool(path.read_bytes())
    except OSError:
        return False


def _free_bytes(share: str | None) -> int | None:
    try:
        return shutil.disk_usage(share).free if share else None
    except OSError:
        return None


def clocks(nodes: Sequence[session.Node], timeout_seconds: float) -> dict[str, tuple[float, float]]:
    """Return how far each node's clock is ahead of this machine's, and how exact that is, in seconds, by node id.

    The nodes are queried one by one, twice: the first query may have to start a worker there. A node that does not
    answer in time is omitted.
    """
    import ray

    task = ray.remote(num_cpus=0, max_retries=0, max_calls=0)(_clock)
    found = {}
    for node in nodes:
        there = task.options(scheduling_strategy=session.only_on(node.id))
        for _ in range(2):
            sent = time.time()
            try:
                told = ray.get(there.remote(), timeout=timeout_seconds)
            except ray.exceptions.RayError:
                break
            received = time.time()
            found[node.id] = told - (sent + received) / 2, (received - sent) / 2
    return found


def _clock() -> float:
    return time.time()
