"""HTTP as an attacker speaks it: any bytes in path and headers, nothing made right or followed."""

from __future__ import annotations

import contextlib
import http.client
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TIMEOUT_SECONDS = 10.0
READ_BYTES = 300_000
Headers = Mapping[str, str] | Sequence[tuple[str, str]]
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@dataclass(frozen=True)
class Answer:
    """What came back; status 0: nothing that is HTTP."""

    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""

    def header(self, name: str) -> str:
        """Return a header's values in one text."""
        return "; ".join(value for each, value in self.headers if each.lower() == name.lower())

    @property
    def is_granted(self) -> bool:
        """Whether the server did or told what was requested."""
        return self.status in (101, *range(200, 300))

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that it sets."""
        values = (value for name, value in self.headers if name.lower() == "set-cookie")
        pairs = (value.partition(";")[0].partition("=") for value in values)
        return {name: value for name, _, value in pairs if value}

    def __str__(self) -> str:
        return f"status {self.status}, {self.body[:120]!r}"


@dataclass
class Site:
    """One address that speaks HTTP."""

    address: str  # host:port
    cookies: dict[str, str] = field(default_factory=dict)

    def send(
        self,
        path: str,
        headers: Headers = (),
        *,
        method: str = "GET",
        body: bytes = b"",
        host: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        is_stream: bool = False,
    ) -> Answer:
        """Send one request as it is written here, and return the answer; a stream's first bytes are its body."""
        given = list(headers.items() if isinstance(headers, Mapping) else headers)
        names = {name.lower() for name, _ in given}
        lines = [f"{method} {path} HTTP/1.1"]
        if "host" not in names:
            lines.append(f"Host: {self.address if host is None else host}")
        if "connection" not in names:
            given.append(("Connection", "close"))
        if body and "content-length" not in names:
            given.append(("Content-Length", str(len(body))))
        lines += [f"{name}: {value}" for name, value in given]
        text = "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body
        where, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((where, int(port)), timeout=timeout_seconds) as connection:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(text)
                return _read(connection, method, is_stream)
        except (OSError, http.client.HTTPException):
            return Answer()

    def cookie_header(self) -> dict[str, str]:
        """Return the header of a browser that is logged in."""
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}


def _read(connection: socket.socket, method: str, is_stream: bool) -> Answer:
    found = http.client.HTTPResponse(connection, method=method)
    found.begin()
    body = b""
    if found.status != 101:
        with contextlib.suppress(TimeoutError, http.client.IncompleteRead):
            body = found.read1(4096) if is_stream else found.read(READ_BYTES)
    return Answer(found.status, tuple(found.getheaders()), body.decode("utf-8", "replace"))


def canary() -> str:
    """Return a word that is nowhere else."""
    return f"canary-{uuid.uuid4().hex}"
