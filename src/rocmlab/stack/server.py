"""Talking to the lab's JupyterLab over HTTP on the loopback, and to nothing else that listens on its port."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from rocmlab.base import addresses
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import sockets
from rocmlab.stack.sockets import OTHER, OURS, UNKNOWN, Holder, trusted

__all__ = ["OTHER", "OURS", "UNKNOWN", "Holder"]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the loopback needs no proxy
POLL_SECONDS = 0.05
RETRY_SECONDS = 0.5  # where something answers and is not our server: verifying costs more than a poll
CHECK_SECONDS = 2.0  # until it is asked again whether the lab runs: an engine takes 0.2 s, just as a start is ending


def ask(
    port: int,
    token: str,
    path: str,
    verify: Callable[[], Holder],
    *,
    method: str = "GET",
    body: object = None,
    timeout_seconds: float = 2.0,
) -> tuple[int, Any]:
    """Make a request, with a body of JSON unless that is None, with the lab's token and of our own server alone.

    The connection is made between two looks at who listens. If both find the same socket and it is our server's, that
    socket listened all the time in between, and no other one can have taken the connection; only then is the token
    sent. What is not excluded: root, and other processes of this user. The timeout is for each step.

    Returns:
        The HTTP status, of redirections as well, and the decoded JSON; 0 where our server does not answer.
    """
    before = verify()
    if before.kind != OURS:
        return 0, None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
    try:
        connection.connect()
        if verify() != before:
            return 0, None
        if not before.listeners:  # an engine forwards the port without one: who has taken the connection?
            uid = sockets.accepted_by(port, connection.sock.getsockname()[1])
            if uid is not None and not trusted(uid):
                return 0, None
        headers = {"Authorization": f"token {token}"}
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text and answer.status < 300 else None
    except (OSError, ValueError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()


def speaks(url: str) -> bool:
    """Return whether a Jupyter server answers at this address, whichever it is; nothing secret is sent."""
    try:
        with OPENER.open(f"{url}api", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, http.client.HTTPException):
        return False


def wait(
    speaks: Callable[[], bool],
    answers: Callable[[], bool],
    is_alive: Callable[[], bool],
    timeout_seconds: float = 120.0,
) -> bool:
    """Wait until the lab answers, polling without the token, 1 ms each; return False if it died or the time is over."""
    deadline = time.monotonic() + timeout_seconds
    checked = time.monotonic()
    while time.monotonic() < deadline:
        pause = POLL_SECONDS
        if speaks():
            if answers():
                return True
            pause = RETRY_SECONDS
        if time.monotonic() - checked > CHECK_SECONDS:
            if not is_alive():
                return False
            checked = time.monotonic()
        time.sleep(pause)
    return False


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port."""
    return addresses.refusal("127.0.0.1", port) is None


def check_free(port: int, command: str = "make up PORT=") -> None:
    """Raise RocmlabError unless this user can listen on the port; `command` lacks another port at its end."""
    if is_free(port):
        return
    found = sockets.listeners(port)
    in_use = bool(found)
    if not in_use:
        with socket.socket() as probe:
            probe.settimeout(1)
            in_use = probe.connect_ex(("127.0.0.1", port)) == 0
    fix = f"{command}{next_free(port)}"
    if in_use:
        why = "another program listens on it" + (f": {sockets.describe(found)}" if found else "")
        raise RocmlabError(f"port {port} is already in use", why, fix)
    raise RocmlabError(f"this user may not listen on port {port}", "ports below 1024 are usually for root alone", fix)


def next_free(port: int) -> int:
    """Return a free port after this one, or simply the next one where none of a hundred is free."""
    otherwise = port + 1 if port < 65535 else 8889
    return next((each for each in range(port + 1, min(port + 100, 65536)) if is_free(each)), otherwise)
