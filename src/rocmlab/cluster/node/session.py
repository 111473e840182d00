"""Using the cluster of this machine from a program: connect, which GPUs Ray gave, which nodes there are."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import handshake, record
from rocmlab.devices import Device, discover

NAMESPACE = "rocmlab"
HEAD_RESOURCE = "node:__internal_head__"  # which Ray gives the head alone


@dataclass(frozen=True)
class Node:
    """One node of the cluster, as Ray knows it."""

    id: str
    hostname: str
    address: str
    is_alive: bool
    is_head: bool
    gpus: int
    cpus: int
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def connect(address: str | None = None, **more: Any) -> None:  # noqa: ANN401
    """Connect this process to the cluster of this machine, quietly; a process that is connected stays as it is.

    Args:
        address: host:port of the head; None: RAY_ADDRESS, else that of the node that runs here.
        more: for `ray.init`.

    Raises:
        RocmlabError: Ray is not installed, there is no cluster, its head cannot be reached or refuses the token, or the
            versions differ.
    """
    handshake.check_ray()
    found = record.here()
    head = address or os.environ.get("RAY_ADDRESS") or (found[0].head if found else "")
    if not head:
        raise RocmlabError(
            "this machine is not a node of a cluster",
            "RAY_ADDRESS is not set, and no node runs here",
            "make cluster-up, or make cluster-join HEAD=host:port CLUSTER_TOKEN=…",
        )
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "minor")
    if found and not os.environ.get("RAY_AUTH_TOKEN"):
        os.environ.setdefault("RAY_AUTH_TOKEN_PATH", str(found[1] / "token"))
    import ray

    if ray.is_initialized():
        return
    handshake.check_versions(handshake.ask(head))
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR", **more}
    if found and found[0].head == head:
        options.setdefault("_node_ip_address", found[0].address)
    try:
        ray.init(address=head, **options)
    except (ConnectionError, RuntimeError, ValueError) as err:
        raise _why(head, str(err)) from err


def _why(head: str, message: str) -> RocmlabError:
    if "InvalidAuthToken" in message or "Unauthenticated" in message:
        return handshake.refused(head)
    return RocmlabError(
        f"the cluster at {head} cannot be used from this machine",
        (message.strip().splitlines() or ["Ray does not report why"])[0][:300],
        "a program needs a node on its own machine: make cluster-join HEAD=… here; make cluster-status shows it",
    )


def only_on(node_id: str) -> Any:  # noqa: ANN401  a class of Ray
    """Return the strategy that has Ray run something on this node alone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def restore_signals() -> None:
    """Let this worker learn how its children ended: Ray has its workers ignore SIGCHLD, and they hand that on.

    With it `subprocess` takes every exit code for 0, and `os.waitpid` finds no child. `granted` also does this. It may
    be called from any thread: an asynchronous actor never has the main one, where alone `signal.signal` works. As Ray
    does, it leaves what Python believes to have set as it is.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGCHLD, None)  # SIG_DFL is a null pointer


def granted() -> tuple[Device, ...]:
    """Return the GPUs that Ray gave this task or actor, in Ray's order; none: it requested none.

    The worker's signals are also corrected; see `restore_signals`.

    Raises:
        RocmlabError: this is not a task, or a GPU that Ray gave is not among this machine's.
    """
    import ray

    restore_signals()
    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    if not ids:
        return ()
    here = {str(each.index): each for each in discover(environment={}) if each.backend in ("rocm", "cuda")}
    if missing := [number for number in ids if number not in here]:
        raise RocmlabError(
            f"Ray gave GPU {', '.join(missing)}, which this machine does not have",
            f"it has {', '.join(here) or 'none'}; Ray's numbers are to be HIP's indices",
            "start the node by `make cluster-up` or `make cluster-join`, not by `ray start`",
        )
    return tuple(here[number] for number in ids)


def nodes() -> list[Node]:
    """Return the nodes of the cluster that this process is connected to, the head first, dead ones last.

    Raises:
        RocmlabError: it is not connected.
    """
    import ray

    if not ray.is_initialized():
        connect()
    found = [_node(each) for each in ray.nodes()]
    return sorted(found, key=lambda each: (not each.is_alive, not each.is_head, each.address, each.id))


def _node(told: Mapping[str, Any]) -> Node:
    resources = {str(name): float(value) for name, value in told.get("Resources", {}).items()}
    labels = {str(name): str(value) for name, value in told.get("Labels", {}).items()}
    return Node(
        id=str(told["NodeID"]),
        hostname=str(told.get("NodeManagerHostname", "")),
        address=str(told.get("NodeManagerAddress", "")),
        is_alive=bool(told.get("Alive")),
        is_head=HEAD_RESOURCE in resources,
        gpus=int(resources.get("GPU", 0)),
        cpus=int(resources.get("CPU", 0)),
        resources=resources,
        labels=labels,
    )
