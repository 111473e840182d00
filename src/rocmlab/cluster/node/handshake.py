"""A head's description of its cluster, queried before anything joins it: its versions.

Ray itself would find a wrong version or token only half way through a start, and report it in a traceback. As a program
(`python -m rocmlab.cluster.node.handshake HOST:PORT`) it prints JSON: what asks in its own process keeps Ray's threads.
"""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import ports

REACH_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # importing Ray on a busy machine
INSTALL = 'make cluster-up, which installs it; or: pip install "rocmlab[cluster]"'


@dataclass(frozen=True)
class Handshake:
    """The head's description of its cluster."""

    ray: str
    python: str  # 3.11.7


def check_ray() -> str:
    """Return the version of the Ray that is installed.

    Raises:
        RocmlabError: none is.
    """
    try:
        if find_spec("ray") is not None:
            return version("ray")
    except ImportError:  # also where its package cannot be found
        pass
    raise RocmlabError("Ray is not installed here", "a cluster needs it, and a lab alone does not", INSTALL)


def reach(address: str) -> None:
    """Make sure that something listens at the head's address.

    Raises:
        RocmlabError: nothing does.
    """
    host, port = ports.split(address)
    try:
        socket.create_connection((host, port), REACH_SECONDS).close()
    except OSError as err:
        silent = isinstance(err, TimeoutError)
        raise RocmlabError(
            f"the head of the cluster at {address} cannot be reached",
            f"no answer within {REACH_SECONDS:g} s: the machine is off, or a firewall drops what it gets"
            if silent
            else f"{err.strerror or err}: the head is not running, or the address is another machine's",
            "on the head: make cluster-status, then make cluster-up; docs/cluster.md lists the ports that must be open",
        ) from err


def check_versions(found: Handshake) -> None:
    """Make sure that a node with this process's Ray and Python can join.

    Raises:
        RocmlabError: it cannot.
    """
    mine = check_ray()
    if found.ray != mine:
        raise RocmlabError(
            f"the cluster runs Ray {found.ray}, and this machine has Ray {mine}",
            "every node must have the same version",
            "bring both machines to the same version of rocmlab (git pull), then `make cluster-up` there and "
            "`make cluster-join` here",
        )
    python = ".".join(map(str, sys.version_info[:2]))
    if found.python.split(".")[:2] != python.split("."):
        wanted = ".".join(found.python.split(".")[:2])
        raise RocmlabError(
            f"the cluster runs Python {found.python}, and this machine's lab Python {sys.version.split()[0]}",
            "Ray sends programs from node to node, and these need the same minor version",
            f"natively: make cluster-join … PYTHON=python{wanted}; in containers use the same BASE_IMAGE everywhere",
        )


def ask(address: str) -> Handshake:
    """Ask a head, in this very process.

    Raises:
        RocmlabError: it cannot be reached, refuses the token, or is not a head.
    """
    check_ray()
    reach(address)
    from ray import exceptions

    raylet: Any = importlib.import_module("ray._raylet")  # the public API would start a driver
    try:
        client = raylet.GcsClient(address=address)
        facts = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=10) or b"{}")
        return Handshake(str(facts["ray_version"]), str(facts["python_version"]))
    except exceptions.AuthenticationError as err:
        raise refused(address) from err
    except (exceptions.RpcError, exceptions.RaySystemError, ValueError, KeyError, TypeError) as err:
        raise no_head(address, str(err)) from err


def refused(address: str) -> RocmlabError:
    """Return the error for a token that the head does not take."""
    return RocmlabError(
        f"the head at {address} rejects this machine's token",
        "CLUSTER_TOKEN is not the one of that cluster",
        "use the line that `make cluster-up` printed on the head; `make cluster-status` there repeats it",
    )


def no_head(address: str, facts: str) -> RocmlabError:
    """Return the error for something that listens and is not a head that we can talk to."""
    return RocmlabError(
        f"what listens at {address} does not answer as the head of a cluster",
        (facts.strip().splitlines() or ["it sent nothing"])[0][:300],
        "check that the port is the head's: make cluster-status there",
    )


def ask_aside(address: str, environment: Mapping[str, str]) -> Handshake:
    """Ask a head in a process of its own, so that nothing of Ray stays in this one; the environment has the token.

    Raises:
        RocmlabError: see `ask`.
    """
    reach(address)
    command = [sys.executable, "-m", "rocmlab.cluster.node.handshake", address]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
        facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired as err:
        raise no_head(address, f"no answer within {ANSWER_SECONDS:g} s") from err
    except (ValueError, IndexError) as err:
        raise no_head(address, (done.stderr.strip().splitlines() or [""])[-1]) from err
    if "what" in facts:
        raise RocmlabError(**facts)
    return Handshake(**facts)


def main() -> None:
    """Print the head's description, or the error, as one line of JSON."""
    try:
        answer = asdict(ask(sys.argv[1]))
    except RocmlabError as err:
        answer = asdict(err.problem)
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
