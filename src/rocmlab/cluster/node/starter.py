"""`ray`, as our node starts it: without Ray's client server, and patient on a busy machine.

The client server listens for programs that need not be on a node. Ray gives a node only half a minute to start, its
raylet 15 s for its agents, and waits as long for a raylet that has died. It is a program of its own, so that no other
Ray is changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

START_SECONDS = 240.0  # longer than the raylet waits for its agents (RAY_agent_register_timeout_ms)
RAYLET = "raylet"  # the kind of a node's process, as Ray names it
QUIET = (0, signal.SIGTERM, -signal.SIGTERM, 128 + signal.SIGTERM)  # what Ray takes for the end that was asked for
NOT_USED = -1  # what Ray's agent writes in place of a port that it does not open
PR_SET_PDEATHSIG = 1  # Linux, sys/prctl.h


class RayletExited(Exception):
    """The process that would have made the node known has died: waiting for it is useless."""


def patient(ask: Callable[..., Any], limit_seconds: float, has_died: Callable[[], bool]) -> Callable[..., Any]:
    """Return a function that retries until a timeout, as long as the node is not known yet and may still be."""

    def wait(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        end = time.monotonic() + limit_seconds
        while True:
            try:
                return ask(*arguments, **named)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
            if has_died():
                raise RayletExited("the raylet has exited: raylet.err, one of the logs of this node, says why")
            time.sleep(0.2)

    return wait


def raylet_has_died() -> bool:
    """Return whether a raylet that this process started has exited; no one has waited for it."""
    psutil: Any = importlib.import_module("psutil")  # Ray's own, once Ray is imported
    children = psutil.Process().children()
    return any(child.name() == "raylet" and child.status() == psutil.STATUS_ZOMBIE for child in children)


def announce_ports(node: Any) -> None:  # noqa: ANN401
    """Write where the agents of a node will listen, as they do themselves once they are up.

    The raylet waits 15 s at most for each of these files, and then it aborts; a busy machine takes longer to start an
    agent. The ports are known: one is an option of `ray start`, and metrics are off.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    known = {
        raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME: node.dashboard_agent_listen_port,
        raylet.METRICS_EXPORT_PORT_NAME: NOT_USED,
    }
    for name, port in known.items():
        raylet.persist_port(node.get_session_dir_path(), node.node_id, name, port)


def announcing(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a node that writes the ports before it does what it did."""

    def announce_and_start(node: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        with contextlib.suppress(AttributeError, ImportError, TypeError):  # another Ray: its own way, with its own wait
            announce_ports(node)
        return start(node, *arguments, **named)

    return announce_and_start


def noticing(look: Callable[..., Any], leave: Callable[[int], object] = os._exit) -> Callable[..., Any]:
    """Return a method that finds a node's dead processes, and ends all of it where the raylet has ended quietly.

    Ray takes such an end for that of `ray stop`. A raylet also ends so when one of its agents was killed, as for want
    of memory; the rest would stay, and look like a node that is up. See `ray start --block`.
    """

    def look_closer(node: Any) -> Any:  # noqa: ANN401
        found = look(node)
        if any(kind == RAYLET and process.returncode in QUIET for kind, process in found):
            sys.stdout.write("the raylet has ended: an agent was killed, or a program stopped it; see raylet.out\n")
            sys.stdout.flush()
            node.kill_all_processes(check_alive=False, allow_graceful=False)
            leave(1)
        return found

    return look_closer


def main() -> None:
    """Run `ray` with this program's arguments; it ends when its parent does, however that ends.

    Raises:
        RuntimeError: this Ray would open the port, and there is no way known to keep it closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    scripts: Any = importlib.import_module("ray.scripts.scripts")
    if not hasattr(scripts, "get_ray_client_dependency_error"):
        raise RuntimeError(
            "this version of Ray opens its client server, and rocmlab does not know how to keep it closed"
        )
    nodes: Any = importlib.import_module("ray._private.node")
    if start := getattr(nodes.Node, "start_raylet", None):
        nodes.Node.start_raylet = announcing(start)
    if look := getattr(nodes.Node, "dead_processes", None):
        nodes.Node.dead_processes = noticing(look)
    services: Any = importlib.import_module("ray._private.services")
    services.get_node = patient(services.get_node, START_SECONDS, raylet_has_died)
    scripts.get_ray_client_dependency_error = lambda: ImportError("rocmlab does not use it")
    sys.argv[0] = "ray"
    scripts.main()


if __name__ == "__main__":
    main()
