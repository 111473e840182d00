"""Everything of the lab that listens: tried from this host by a second user, who has no token."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import strangers
import websocket
from attempts import Attempt, Group
from raw_http import canary
from strangers import Did
from targets import Target

LOOPBACK = ("127.0.0.1", "::1")


def listeners(processes: list[psutil.Process]) -> dict[tuple[str, Any], str]:
    """Return the sockets that processes listen at, (`tcp`, `udp` or `unix`, address), and whose they are."""
    found: dict[tuple[str, Any], str] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN or (each.type == 2 and not each.raddr):
                    found["tcp" if each.type == 1 else "udp", tuple(each.laddr)] = process.name()
            for each in process.net_connections("unix"):
                if each.laddr:
                    found["unix", each.laddr.decode() if isinstance(each.laddr, bytes) else each.laddr] = process.name()
    return found


def _control(target: Target) -> str | None:
    target.server.execute("torch", "1", keep=True)
    found = listeners(target.processes())
    if not [address for kind, address in found if kind == "tcp"]:
        return "no listener of the lab is seen, and there must be one"
    owner = strangers.act([("tcp", target.address)], 0)[0]
    return None if "403" in (owner.text or "") else f"its own port does not answer: {owner}"


def _attempts(target: Target) -> Iterator[Attempt]:
    found = listeners(target.processes())
    for (kind, address), name in sorted(found.items(), key=str):
        if kind != "unix":
            yield Attempt(f"{kind} {address} of {name} is for this host alone", partial(_open, target, address[0]))
        if kind == "tcp":
            did = strangers.act([("tcp", f"127.0.0.1:{address[1]}")])[0]
            if (kind, address) not in listeners(target.processes()):
                continue  # it ended, and another process of this host may have its port since
            yield Attempt(f"{kind} {address} of {name} answers", partial(_answered, did))
        if kind == "tcp" and address[1] != target.lab.port:
            yield Attempt(
                f"{kind} {address} of {name} passes on what is pushed", partial(_published, target, address[1])
            )
        if kind == "unix":
            did = strangers.act([("unix", address)])[0]
            yield Attempt(f"connect to {address} of {name}", partial(_connected, did))


def _open(target: Target, host: str) -> str | None:
    if target.name == "container":  # in a network of its own; the engine publishes one port on the loopback
        return None if host in (*LOOPBACK, "0.0.0.0") else f"it listens at {host}"
    return None if host in LOOPBACK else f"it listens at {host}"


def _answered(did: Did) -> str | None:
    """Tell of an answer that is more than the first bytes of ZeroMQ, which name its version and nothing else."""
    greeting = did.text is not None and "\x7f" in did.text[:10] and len(did.text) <= 12
    return None if did.text is None or greeting or " 403 " in did.text[:40] else f"it answered {did.text[:80]!r}"


def _published(target: Target, port: int) -> str | None:
    """Push a message to a kernel's socket, and look whether a page with this kernel gets it as the kernel's own.

    ipykernel rejects it for its password, and prints what it rejected: docs/verification.md.
    """
    word = canary()
    url = f"ws://{target.address}/api/kernels/{target.kernel}/channels?token={target.token}"
    channel = websocket.create_connection(url, timeout=60)
    channel.settimeout(0.5)
    try:
        strangers.act([("zmtp", f"127.0.0.1:{port} {word}")])
        with contextlib.suppress(websocket.WebSocketTimeoutException):
            while True:
                if json.loads(channel.recv()).get("content", {}).get("text") == word:
                    return "the kernel's page has got a message of the attacker"
    finally:
        channel.close()
    return None


def _connected(did: Did) -> str | None:
    return None if did.text is None else did.text


GROUPS = (Group("a second user at the sockets", "a socket takes or answers it", _control, _attempts, ("native",)),)
