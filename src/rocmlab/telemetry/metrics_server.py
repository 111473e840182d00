"""A small HTTP server of metrics, for a host without Jupyter; the lab's own `/metrics` does not need it."""

from __future__ import annotations

import errno
import hmac
import io
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rocmlab.base.errors import RocmlabError
from rocmlab.telemetry.metrics import NAMES

log = logging.getLogger("rocmlab")

MAX_AT_A_TIME = 16  # connections, each of which has a thread; more are rejected with a retry time
SECONDS_FOR_A_REQUEST = 10.0  # in which a client has sent it, and again for taking the answer
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\n\r\ntoo many requests at a time\n"
PAGE = b'<!doctype html><title>rocmlab</title><p>GPU metrics for Prometheus: <a href="metrics">metrics</a></p>\n'

# From the header Accept, and the names that the address requests, to text and content type.
Exposition = Callable[[str, str | None], tuple[bytes, str]]


class MetricsServer(ThreadingHTTPServer):
    """Answers `/metrics` until `shutdown` is called."""

    daemon_threads = True

    def __init__(self, address: str, port: int, exposition: Exposition, token: str = "") -> None:
        """Listen.

        Args:
            address: to listen on; a loopback address cannot be reached from other machines.
            port: 0 for any that is free.
            exposition: makes the answer.
            token: what a client must send as `Authorization: Bearer …`; empty: anybody may ask.

        Raises:
            RocmlabError: address or port is not available.
        """
        self.exposition = exposition
        self.token = token
        self.places = threading.BoundedSemaphore(MAX_AT_A_TIME)
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family = found[0][0]
            super().__init__(found[0][4][:2], _Handler)  # type: ignore[arg-type]
        except OSError as err:
            raise _refusal(address, port, err) from err
        self.is_local = ipaddress.ip_address(self.server_address[0]).is_loopback  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/metrics" if ":" in str(host) else f"http://{host!s}:{port}/metrics"

    def server_bind(self) -> None:
        """Bind, without the name lookup of HTTPServer, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Begin a thread for a connection, if there is a place; a client that sends nothing holds one as well."""
        if not self.places.acquire(blocking=False):
            request.setblocking(False)
            with suppress(OSError):  # the client may have gone
                request.send(BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread would release the place
            self.places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer, and release the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say in the log only that a client went away in the middle of an answer."""
        log.debug("a request of %s ended early", client_address, exc_info=True)


def _refusal(address: str, port: int, err: OSError) -> RocmlabError:
    what = f"port {port} on {address} is not available"
    if err.errno == errno.EADDRINUSE:
        return RocmlabError(what, "another program listens on it", f"rocmlab serve --port {min(port + 1, 65535)}")
    if err.errno == errno.EACCES:
        return RocmlabError(what, "only root may listen on ports below 1024", "rocmlab serve --port 9417")
    return RocmlabError(what, err.strerror or str(err), "rocmlab serve --address 127.0.0.1, or an address of this host")


class _Until(io.RawIOBase):
    """What a socket receives until a moment; then reading from it fails, however slowly something still comes."""

    def __init__(self, connection: socket.socket, end_seconds: float) -> None:
        self._connection, self._end_seconds = connection, end_seconds

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        """Receive something.

        Raises:
            TimeoutError: the time is over.
        """
        left = self._end_seconds - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "rocmlab"
    sys_version = ""

    def setup(self) -> None:
        """Give the whole request one deadline: a timeout of the socket would begin again with each byte."""
        super().setup()
        self.rfile = io.BufferedReader(_Until(self.connection, time.monotonic() + SECONDS_FOR_A_REQUEST))

    def do_GET(self) -> None:  # the name that http.server calls
        """Answer one request."""
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        names = query.get("names", [None])[-1]
        if not self._is_meant_for_us():
            self._say(403, b"this is not the name of a loopback address\n")
        elif not self._is_allowed():
            self._say(401, b"a token is needed\n", ("WWW-Authenticate", "Bearer"))
        elif path == "/":
            self._say(200, PAGE, ("Content-Type", "text/html; charset=utf-8"))
        elif path == "/metrics" and names not in (None, *NAMES):
            self._say(400, f"unknown names: use one of {', '.join(NAMES)}\n".encode())
        elif path == "/metrics":
            self._metrics(names)
        else:
            self._say(404, b"the metrics are at /metrics\n")

    do_HEAD = do_GET

    def _metrics(self, names: str | None) -> None:
        try:
            text, content_type = self.server.exposition(self.headers.get("Accept", ""), names)
        except Exception:  # a scrape that fails must not end the server; Prometheus shows it as down
            log.exception("the metrics could not be made")
            self._say(500, b"the metrics could not be made; the server's log shows why\n")
            return
        self._say(200, text, ("Content-Type", content_type))

    def _is_meant_for_us(self) -> bool:
        """Refuse a web page whose name was made to lead to this machine (DNS rebinding)."""
        if not self.server.is_local:
            return True
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        try:
            return name == "localhost" or ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _is_allowed(self) -> bool:
        if not self.server.token:
            return True
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        return kind.lower() in ("bearer", "token") and hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self.server.token.encode("utf-8", "replace")
        )

    def _say(self, status: int, text: bytes, header: tuple[str, str] | None = None) -> None:
        self.connection.settimeout(SECONDS_FOR_A_REQUEST)  # of `sendall` as a whole
        self.send_response(status)
        name, value = header or ("Content-Type", "text/plain; charset=utf-8")
        if name != "Content-Type":
            self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "default-src 'none'")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep requests out of the terminal; `rocmlab -v serve` shows them."""
        log.debug(format, *arguments)
