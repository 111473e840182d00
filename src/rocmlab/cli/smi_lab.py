"""Which kernels the lab runs, asked over the loopback within a second; a lab that does not answer is no error.

`urllib` and `http.client` would cost more than the rest of `rocmlab smi`, and have no limit for the whole answer.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    from typing import Any

LIMIT_SECONDS = 1.0
LIMIT_BYTES = 1 << 23
PATH = "rocmlab/api/kernels"


def kernels() -> list[dict[str, Any]] | None:
    """Return the running kernels as the lab tells them; None if there is no lab, or it does not answer in time."""
    found = address()
    if found is None:
        return None
    port, base_url, token = found
    answer = get(port, f"{base_url.rstrip('/')}/{PATH}", token)
    return [each for each in answer if isinstance(each, dict)] if isinstance(answer, list) else None


def address() -> tuple[int, str, str] | None:
    """Return port, base URL and token of the lab: of the server around us, else of the project that `make up` wrote."""
    return _inside() if os.environ.get("ROCMLAB_RUNTIME") else _of_project()


def is_here() -> bool:
    """Tell whether the lab counts processes as this command does: it is around us, or runs without a container."""
    runtime = os.environ.get("ROCMLAB_RUNTIME")
    return bool(runtime) or _settings().get("ROCMLAB_RUNTIME") == "native"


def _inside() -> tuple[int, str, str] | None:
    """Read what the server writes of itself for its owner: `jpserver-<pid>.json` in its runtime folder."""
    import json

    folder = os.environ.get("JUPYTER_RUNTIME_DIR")
    if not folder:
        return None
    try:
        files = sorted(Path(folder).glob("jpserver-*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        found = json.loads(files[0].read_text(encoding="utf-8")) if files else {}
        return int(found["port"]), str(found.get("base_url") or "/"), str(found["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _of_project() -> tuple[int, str, str] | None:
    values = _settings()
    port, token = values.get("PORT", ""), values.get("JUPYTER_TOKEN", "")
    if not (values.get("ROCMLAB_RUNTIME") and token and port.isascii() and port.isdigit()):
        return None
    return int(port), "/", token


def _settings() -> dict[str, str]:
    """Return what `.env` says of the project: the nearest folder upwards with compose.yaml, else this source tree."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
        if (folder / "compose.yaml").is_file() and (folder / "docker/Dockerfile").is_file():
            try:
                text = (folder / ".env").read_text(encoding="utf-8", errors="replace")
            except OSError:
                return {}
            from rocmlab.stack import envfile

            return envfile.parse(text)
    return {}


def get(port: int, path: str, token: str, limit_seconds: float = LIMIT_SECONDS) -> Any:  # noqa: ANN401
    """Return the JSON that a server on the loopback answers with status 200 within the time, else None."""
    import json

    words = (path, token)
    if not all(word.isascii() and word.isprintable() and " " not in word for word in words):
        return None
    request = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAuthorization: token {token}\r\n\r\n"
    try:
        head, _, body = _exchange(port, request.encode(), limit_seconds).partition(b"\r\n\r\n")
        status = head.split(b"\r\n", 1)[0].split()
        return json.loads(body) if len(status) > 1 and status[1] == b"200" else None
    except (OSError, ValueError, RecursionError, OverflowError):
        return None


def _exchange(port: int, request: bytes, limit_seconds: float) -> bytes:
    """Send a request and return all that comes until the server closes.

    Raises:
        OSError: there is no server, it takes too long, or it sends too much.
    """
    end = time.monotonic() + limit_seconds
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=limit_seconds) as connection:
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
