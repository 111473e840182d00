"""The facts for the checks of a cluster: this machine's part in it, its ports, and the nodes' descriptions.

Reading needs a bare python only; the nodes are queried in a child process inside the lab (`cluster_probe`), because
Ray's client hangs, and ends its process, when the head is gone.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocmlab.base import reach
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.base.reach import Reach
from rocmlab.cluster.node import ports as table
from rocmlab.cluster.node import ray_node, record
from rocmlab.doctor import child
from rocmlab.doctor.situation import CONTAINER, Situation, slow

HEAD, WORKER = "head", "worker"
OFF = ("", "off")
LOOPBACK = "127.0.0.1"
SECRET = "/run/secrets/cluster_token"
REACH_SECONDS = 3.0
LOOK_SECONDS = 15.0  # each port is tried with a limit of its own
PROBE_SECONDS = 60.0  # Ray's client connects in seconds, each node starts a process for the question


@dataclass(frozen=True)
class Port:
    """A port of this machine's node, and who is there."""

    number: int
    what: str  # what it is for
    listens: bool  # a program does
    is_free: bool  # a server could


@dataclass(frozen=True)
class Token:
    """Where the cluster's token is located, as this side sees it."""

    place: str
    length: int  # characters; 0: there is none
    mode: int | None = None  # permission bits of the file; None where others do not come to it


@dataclass(frozen=True)
class Membership:
    """What this machine is in its cluster."""

    role: str  # head or worker
    head: str  # HOST:PORT
    address: str  # this machine's own; empty: found out at the start
    network: str = "host"  # or bridge, or a network of the engine
    token: Token = Token("", 0)
    has_address: bool | None = None  # an interface of this side has that address; None: not looked at
    ports: tuple[Port, ...] = ()
    is_up: bool = False  # the lab runs, so its node should
    failure: Problem | None = None  # what this lab's node reported when it failed
    head_reach: Reach | None = None  # None: not looked at

    @property
    def head_host(self) -> str:
        """The head's name or address."""
        return table.split(self.head)[0]

    @property
    def head_port(self) -> int:
        """The head's port."""
        return table.split(self.head)[1]


def settings(s: Situation) -> Callable[[str], str]:
    """Return what gives a setting by its name: on the host what is chosen or in `.env`, inside the environment."""
    if s.side == CONTAINER:
        return lambda name: s.environment.get(name, "")
    found = s.project.settings if s.project else s.requested  # nothing may be plannable, because of the cluster or not
    chosen = found.chosen if found else {}
    return lambda name: chosen.get(name) or s.env_values.get(name, "")


def is_asked(s: Situation) -> bool:
    """Return whether this machine is to be a node of a cluster; costs nothing."""
    return settings(s)("CLUSTER") not in OFF


def membership(s: Situation) -> Membership | None:
    """Return what this machine is in its cluster; None, and nothing is read, where CLUSTER is off."""
    return s.once(cluster) if "cluster" in s.given or is_asked(s) else None


@slow(LOOK_SECONDS)
def cluster(s: Situation) -> Membership:
    """What this machine is in its cluster."""
    return look(s)


@slow(PROBE_SECONDS + 5)
def cluster_seen(s: Situation) -> Mapping[str, Any]:
    """What the nodes of the cluster report, as `cluster_probe` prints it."""
    return ask(s.environment)


def look(s: Situation) -> Membership:
    """Return what this machine is in its cluster; its ports and the head's are tried."""
    get = settings(s)
    wanted = get("CLUSTER")
    port = table.parse(get("CLUSTER_PORT") or str(table.FIRST))
    role = HEAD if wanted == HEAD else WORKER
    has_address, address = _own(get("CLUSTER_ADDRESS"), "" if role == HEAD else table.split(wanted)[0])
    head = wanted if role == WORKER else f"{address}:{port}"
    network = get("CLUSTER_NETWORK") or "host"
    left = record.read(ray_node.usual_folder(port) / "node.json")  # natively the node does not need a lab
    is_up = s.side == CONTAINER or bool(s.running or (left and left.is_alive))
    is_up = is_up or bool(s.project and s.project.lab.is_running())
    member = Membership(role, head, address, network, _token(s, get("CLUSTER_TOKEN")), is_up=is_up)
    if s.side == CONTAINER:
        member = replace(member, failure=left.failure if left else None)
    is_outside = (
        s.for_container and network != "host"
    )  # its addresses and ports are the container's, and looked at there
    if not (is_outside and role == HEAD):
        member = replace(member, head_reach=reach.tcp(member.head_host, member.head_port, REACH_SECONDS))
    if is_outside:
        return member
    ports = tuple(_port(address, number, what) for number, what in _numbers(role, port))
    return replace(member, has_address=has_address, ports=ports)


def _numbers(role: str, first: int) -> list[tuple[int, str]]:
    """Return the ports that a node of this role listens on, by docs/cluster.md's table."""
    fixed = [port for port in table.TABLE if port.count == 1 and (role == HEAD or not port.is_of_head)]
    return [(first + port.offset, port.name) for port in fixed]


def table_spans(first: int) -> list[tuple[int, int]]:
    """Return the first and last of each unbroken range of ports that other machines need to reach."""
    spans: list[tuple[int, int]] = []
    needed = sorted((port.offset, port.count) for port in table.TABLE if not port.is_loopback)
    for offset, count in needed:
        low, high = first + offset, first + offset + count - 1
        if spans and spans[-1][1] == low - 1:
            low = spans.pop()[0]
        spans.append((low, high))
    return spans


def first_port(name: str, number: int) -> int:
    """Return the CLUSTER_PORT of a machine on which the port of this name has this number."""
    return number - next(port.offset for port in table.TABLE if port.name == name)


def _token(s: Situation, text: str) -> Token:
    if s.side == CONTAINER:
        here = record.here(s.environment)
        path = s.environment.get("RAY_AUTH_TOKEN_PATH") or (str(here[1] / "token") if here else SECRET)
        found = _token_of_file(path)
        return replace(found, mode=None) if path == SECRET else found  # that one the engine made, in there
    requested = s.project.settings if s.project else s.requested
    env_path = requested.env_path if requested else Path(".env")
    if not text or s.env_values.get("CLUSTER_TOKEN") != text:
        return Token("CLUSTER_TOKEN" if text else str(env_path), len(text))
    return Token(str(env_path), len(text), stat.S_IMODE(env_path.stat().st_mode))


def _own(requested: str, head_host: str) -> tuple[bool, str]:
    """Return whether this machine has the address that it would announce, and that address."""
    try:
        return True, ray_node.own_address(requested, head_host)
    except RocmlabError:  # it has no such address, or no route to the head, which `cluster.head` says
        return not requested, requested or LOOPBACK


def _port(address: str, number: int, what: str) -> Port:
    here = list(dict.fromkeys(filter(None, (address, LOOPBACK))))  # some listen on the loopback only
    is_free = all(reach.is_free(each, number) for each in here)
    return Port(number, what, not is_free and any(reach.tcp(each, number, 1.0).is_open for each in here), is_free)


def _token_of_file(path: str) -> Token:
    """Return what is known of a token in a file of its own."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
        return Token(path, len(text), stat.S_IMODE(os.stat(path).st_mode))
    except (OSError, UnicodeDecodeError):
        return Token(path, 0)


def ask(environment: Mapping[str, str], limit_seconds: float = PROBE_SECONDS) -> dict[str, Any]:
    """Return the nodes' answers, as `cluster_probe` prints them, or `problem` where they could not be queried."""
    command = [sys.executable, "-m", "rocmlab.doctor.cluster_probe"]
    given = child.with_package(environment)
    code, output = child.run(command, given, limit_seconds, errors=subprocess.DEVNULL, own_session=False)
    if code is None:
        return _silent(f"Ray did not answer within {limit_seconds:g} s")
    try:
        found = json.loads(output)
    except ValueError:
        return _silent(f"the process that queried Ray exited with code {code} and no answer")
    return found if isinstance(found, dict) else _silent("the answer is none")


def _silent(why: str) -> dict[str, Any]:
    return {"problem": {"what": "the cluster does not answer", "why": why, "fix": "make cluster-status"}}
