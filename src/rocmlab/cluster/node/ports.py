"""Every port of a node, in one table: all follow from CLUSTER_PORT, so that a firewall's rule can be written down.

The numbers are fixed: Ray would choose most of them at random. docs/cluster.md lists who needs to reach which.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmlab.base.errors import RocmlabError

FIRST = 6379  # CLUSTER_PORT where it is not set; Ray's own default
WORKERS = 1000  # processes of one node that may run at the same time


@dataclass(frozen=True)
class Port:
    """One port, or a range of them."""

    name: str
    option: str  # of `ray start`
    offset: int  # from CLUSTER_PORT
    meaning: str
    count: int = 1
    is_of_head: bool = False  # only the head listens there
    is_loopback: bool = False  # no other machine needs to reach it


TABLE = (
    Port("head", "--port", 0, "where nodes join, and programs query the cluster's state", is_of_head=True),
    Port("node manager", "--node-manager-port", 1, "starts the worker processes"),
    Port("object manager", "--object-manager-port", 2, "transfers data between nodes"),
    Port("runtime environment agent", "--runtime-env-agent-port", 3, "installs what a task requires"),
    Port("agent", "--dashboard-agent-grpc-port", 4, "collects metrics of the node's processes"),
    Port("agent over HTTP", "--dashboard-agent-listen-port", 5, "sends logs and states to the head's dashboard"),
    Port("dashboard", "--dashboard-port", 1886, "web page and jobs API", is_of_head=True, is_loopback=True),
    Port("workers", "--min-worker-port", 3623, "one for each worker process", count=WORKERS),
)
LAST_FIRST = 65535 - max(port.offset + port.count for port in TABLE)  # the highest CLUSTER_PORT possible


def parse(text: str) -> int:
    """Return CLUSTER_PORT as a number.

    Raises:
        RocmlabError: it is not a port, or too high for the other ports.
    """
    if text.isascii() and text.isdigit() and 1024 <= int(text) <= LAST_FIRST:
        return int(text)
    raise RocmlabError(
        f"CLUSTER_PORT={text} is not a port",
        f"it is a number from 1024 to {LAST_FIRST}; the node's other ports lie up to {65535 - LAST_FIRST} above it",
        f"make cluster-up CLUSTER_PORT={FIRST}",
    )


def numbers(first: int = FIRST) -> dict[str, range]:
    """Return the ports of a node by name; the first is its CLUSTER_PORT."""
    return {port.name: range(first + port.offset, first + port.offset + port.count) for port in TABLE}


def options(first: int, *, is_head: bool) -> list[str]:
    """Return the options of `ray start` for the ports of a node."""
    arguments = []
    for port in TABLE:
        if port.is_of_head and not is_head:
            continue
        arguments.append(f"{port.option}={first + port.offset}")
        if port.count > 1:
            arguments.append(f"{port.option.replace('min', 'max')}={first + port.offset + port.count - 1}")
    return arguments


def split(address: str) -> tuple[str, int]:
    """Return host and port of a head's address, such as `192.168.1.10:6379` or `[fd00::1]:6379`.

    Raises:
        RocmlabError: it is no such address.
    """
    host, _, port = address.rpartition(":")
    if host and port.isascii() and port.isdigit() and 0 < int(port) < 65536 and not set(host) & set("/ @"):
        return host.strip("[]"), int(port)
    raise RocmlabError(
        f"{address!r} is not the address of a head",
        "an address is host:port",
        f"make cluster-join HEAD=192.168.1.10:{FIRST} CLUSTER_TOKEN=…, as `make cluster-up` printed it on the head",
    )
