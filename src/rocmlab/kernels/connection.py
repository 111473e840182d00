"""Where a kernel listens, and the file that describes it: in a folder that only this user can open."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_SOCKET_BYTES = 103  # sun_path without its terminator: 107 on Linux, 103 on macOS
PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


def make_folder(environment: Mapping[str, str]) -> str:
    """Make a folder for one kernel, with a path short enough for sockets if possible, and return it."""
    for parent in (environment.get("JUPYTER_RUNTIME_DIR"), None, "/tmp"):
        if parent is None or os.path.isdir(parent):
            folder = tempfile.mkdtemp(prefix="kernel-", dir=parent)
            if len(os.fsencode(f"{folder}/s-5")) <= MAX_SOCKET_BYTES:
                return folder
            os.rmdir(folder)
    return tempfile.mkdtemp(prefix="kernel-")


def create(specification: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return where a kernel listens.

    For Python these are sockets in its folder. TCP ports are chosen before the kernel binds them, which fails now and
    then when several start at the same time; kernels of other languages may support nothing else.
    """
    common = {"key": secrets.token_hex(32), "signature_scheme": "hmac-sha256", "kernel_name": ""}
    path = os.path.join(folder, "s")
    if specification.get("language", "python") == "python" and len(os.fsencode(path)) + 2 <= MAX_SOCKET_BYTES:
        return {"transport": "ipc", "ip": path, **{port: number for number, port in enumerate(PORTS, 1)}, **common}
    return {"transport": "tcp", "ip": "127.0.0.1", **dict(zip(PORTS, _free_ports(len(PORTS)), strict=True)), **common}


def write(connection: Mapping[str, Any], folder: str) -> str:
    """Write a connection file, and return its path."""
    path = Path(folder, "kernel.json")
    path.touch(mode=0o600)
    path.write_text(json.dumps(connection), encoding="utf-8")
    return str(path)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
