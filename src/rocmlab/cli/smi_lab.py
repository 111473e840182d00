"""Query the lab's kernels over the loopback within a second; a lab that does not answer is not an error.

`urllib` and `http.client` would cost more than the rest of `rocmlab smi`, and have no limit for the whole answer.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from rocmlab.stack import container_port, native_server, project_folder, sockets

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIMIT_SECONDS = 1.0
LIMIT_BYTES = 1 << 23
PATH = "rocmlab/api/kernels"


def kernels() -> list[dict[str, Any]] | None:
    """Return the running kernels as the lab reports them; None without a lab, or if it does not answer in time."""
    found = _inside() if os.environ.get("ROCMLAB_RUNTIME") else _of_project()
    if found is None:
        return None
    answer = get(found.port, f"{found.base_url.rstrip('/')}/{PATH}", found.token, found.is_ours)
    return [each for each in answer if isinstance(each, dict)] if isinstance(answer, list) else None


@dataclass(frozen=True)
class Address:
    """Where the lab is: the server around us, else that of the project that `make up` wrote."""

    port: int
    base_url: str
    token: str
    is_ours: Callable[[], bool]  # whether the lab's own server listens there: no other server is sent the token


def is_here() -> bool:
    """Return whether the lab counts processes as this command does: it is around us, or runs without a container."""
    runtime = os.environ.get("ROCMLAB_RUNTIME")
    return bool(runtime) or _settings(_project()).get("ROCMLAB_RUNTIME") == "native"


def _inside() -> Address | None:
    """Read what the server writes of itself for its owner: `jpserver-<pid>.json` in its runtime folder."""
    import json

    runtime = os.environ.get("JUPYTER_RUNTIME_DIR")
    if not runtime:
        return None
    try:
        files = sorted(Path(runtime).glob("jpserver-*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        found = json.loads(files[0].read_text(encoding="utf-8")) if files else {}
        owner, port = files[0].stat().st_uid if files else -1, int(found["port"])
        base_url, token = str(found.get("base_url") or "/"), str(found["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Address(port, base_url, token, lambda: _is_of(owner, port))


def _is_of(uid: int, port: int) -> bool:
    """Return whether this user alone listens on a port."""
    found = sockets.listeners(port)
    return bool(found) and all(each.uid == uid for each in found or ())


def _of_project() -> Address | None:
    project = _project()
    values = _settings(project)
    port, token = values.get("PORT", ""), values.get("JUPYTER_TOKEN", "")
    runtime = values.get("ROCMLAB_RUNTIME")
    if project is None or not (runtime and token and port.isascii() and port.isdigit()):
        return None
    base_url = values.get("ROCMLAB_BASE_URL") or "/"
    return Address(int(port), base_url, token, lambda: _holds(project, str(runtime), int(port)))


def _holds(project: Path, runtime: str, port: int) -> bool:
    """Return whether the project's lab listens: as the engine has confirmed before, else as the lab itself reports."""
    state, found = project / ".rocmlab", sockets.listeners(port)
    if not found:
        return False
    if runtime == "native":
        is_ours = (
            native_server.ServerProcess(state / "jupyter.json", state / "home", port).holder().kind == sockets.OURS
        )
    else:
        is_ours = container_port.is_confirmed(state, port, found)
    if is_ours:
        return True
    from rocmlab.base.errors import RocmlabError
    from rocmlab.stack import project as projects  # asks the engine, and remembers what it finds

    try:
        lab = projects.reopen(project).lab
    except RocmlabError:
        return False
    return lab.holder().kind == sockets.OURS


def _project() -> Path | None:
    """Return the project folder; None where there is none that may be trusted, for smi works without one."""
    try:
        return project_folder.nearest()
    except project_folder.Untrusted:
        return None


def _settings(project: Path | None) -> dict[str, str]:
    """Return the settings in the project's `.env`."""
    try:
        text = (project / ".env").read_text(encoding="utf-8", errors="replace") if project else ""
    except OSError:
        return {}
    from rocmlab.stack import envfile

    return envfile.parse(text)


def get(port: int, path: str, token: str, is_ours: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> Any:  # noqa: ANN401
    """Return the JSON that our server on the loopback answers with status 200 within the time, else None."""
    import json

    words = (path, token)
    if not all(word.isascii() and word.isprintable() and " " not in word for word in words):
        return None
    request = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAuthorization: token {token}\r\n\r\n"
    try:
        head, _, body = _exchange(port, request.encode(), is_ours, limit_seconds).partition(b"\r\n\r\n")
        status = head.split(b"\r\n", 1)[0].split()
        return json.loads(body) if len(status) > 1 and status[1] == b"200" else None
    except (OSError, ValueError, RecursionError, OverflowError):
        return None


def _exchange(port: int, request: bytes, is_ours: Callable[[], bool], limit_seconds: float) -> bytes:
    """Send a request to our server, looked for before and after connecting, and return all until it closes.

    Raises:
        OSError: our server is not there, it takes too long, or it sends too much.
    """
    before = sockets.listeners(port)
    if not is_ours():
        raise ConnectionRefusedError
    end = time.monotonic() + limit_seconds
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=limit_seconds) as connection:
        if sockets.listeners(port) != before:  # the same socket listened all the time, so it has the connection
            raise ConnectionRefusedError
        connection.sendall(request)
        while len(answer) <= LIMIT_BYTES:
            left = end - time.monotonic()
            if left <= 0:
                break
            connection.settimeout(left)
            part = connection.recv(1 << 16)
            if not part:
                return bytes(answer)
            answer += part
    raise TimeoutError
