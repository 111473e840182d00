"""Talking to the lab's JupyterLab over HTTP on the loopback."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from rocmlab.errors import RocmlabError

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the loopback needs no proxy


def url(port: int, token: str) -> str:
    """Return the address to open in a browser, token included."""
    return f"http://127.0.0.1:{port}/lab?token={token}"


def ask(
    port: int, token: str, path: str, *, method: str = "GET", body: object = None, timeout_seconds: float = 2.0
) -> tuple[int, Any]:
    """Make a request with the lab's token, and with a body of JSON unless that is None.

    Returns:
        The HTTP status and the decoded JSON; status 0 when nothing that speaks HTTP answered.
    """
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        headers={"Authorization": f"token {token}"},
        data=None if body is None else json.dumps(body).encode(),
    )
    try:
        with OPENER.open(request, timeout=timeout_seconds) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as err:
        return err.code, None
    except (OSError, ValueError):
        return 0, None


def answers(port: int, token: str) -> bool:
    """Tell whether the server on this port is ours: it accepts our token."""
    return ask(port, token, "/api/status")[0] == 200


def wait(port: int, token: str, is_alive: Callable[[], bool], timeout_seconds: float = 120.0) -> bool:
    """Wait until the lab answers; False when it died or the time is over. Polls every 50 ms: a look costs 1 ms."""
    deadline = time.monotonic() + timeout_seconds
    checked = time.monotonic()
    while time.monotonic() < deadline:
        if answers(port, token):
            return True
        if time.monotonic() - checked > 1.0:
            if not is_alive():
                return False
            checked = time.monotonic()
        time.sleep(0.05)
    return False


def is_free(port: int) -> bool:
    """Tell whether a server could listen on this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def check_free(port: int) -> None:
    """Make sure that the port can be had.

    Raises:
        RocmlabError: another program listens there, or the port is below 1024 and the user is not root.
    """
    if is_free(port):
        return
    other = next((number for number in range(port + 1, min(port + 100, 65536)) if is_free(number)), 0)
    with socket.socket() as probe:
        probe.settimeout(1)
        in_use = probe.connect_ex(("127.0.0.1", port)) == 0
    why = "another program listens on it" if in_use else "this user may not listen on it"
    raise RocmlabError(f"port {port} on 127.0.0.1 cannot be had", why, f"make up PORT={other or 8889}")
