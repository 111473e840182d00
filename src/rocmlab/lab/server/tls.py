"""The second listener (BIND): the same application for other machines, over TLS; the loopback's stays plain HTTP.

Own code decides only what a connection is: whoever speaks plain HTTP here is told so, and one that says nothing, or
does not finish the handshake, is closed. Until a request of a connection has shown the token or a login's cookie, it
is a stranger's: there is room for a few of each address, and the oldest makes room for the next one. The rest is
tornado's server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tornado import httpserver, httputil, iostream, netutil

from rocmlab.base import hosts

log = logging.getLogger("rocmlab")

INSIDE = "/run/rocmlab/tls"  # of a container
PORT_INSIDE = 8443
HANDSHAKE_SECONDS = 10.0
IDLE_SECONDS = 60.0  # between two requests, and for the headers of one
BODY_SECONDS = 3600.0  # of a large notebook by a slow line
MAX_OF_ADDRESS = 32  # a stranger's connections from one address; a browser opens six before its login
MAX_STRANGERS = 256  # of all addresses
MAX_CONNECTIONS = 512  # without descriptors the lab would not answer on the loopback either
TLS_HANDSHAKE = b"\x16"  # the first byte of every connection that speaks TLS
PLAIN = "This port speaks HTTPS only: write https:// in front of the address.\n"
ANSWER = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(PLAIN)}\r\n\r\n{PLAIN}"


def of(server: Any, environment: Mapping[str, str] = os.environ) -> Listener | None:  # noqa: ANN401  a ServerApp
    """Return the listener that BIND asks for, None without."""
    if not (environment.get(hosts.BOUND) and environment.get("BIND")):
        return None
    address, port = environment["BIND"], int(environment.get("TLS_PORT") or PORT_INSIDE)
    is_container = environment.get("ROCMLAB_RUNTIME") in ("docker", "podman")
    if is_container and environment.get("CLUSTER_NETWORK") != "host":
        address, port = "0.0.0.0", PORT_INSIDE  # the engine publishes it at BIND
    return Listener(server, address, port, Path(environment.get(hosts.TLS_FOLDER) or INSIDE) / hosts.TLS_FILE)


class Visitor:
    """A connection on which no one has logged in yet."""

    def __init__(self, source: str) -> None:
        self.source = source  # the address that it is counted for
        self.end: Callable[[], object] = lambda: None  # closes it
        self.is_gone: Callable[[], bool] = lambda: False


WELCOME = "rocmlab_welcome"  # of a stranger's stream: counts it as a user's


def welcome(request: httputil.HTTPServerRequest) -> None:
    """Count the connection of this request as that of a user: it is not closed in favour of others."""
    stream = getattr(request.connection, "stream", None)
    if is_strange(request):
        getattr(stream, WELCOME)()
        delattr(stream, WELCOME)


def is_strange(request: httputil.HTTPServerRequest) -> bool:
    """Return whether no one has logged in on the connection of this request, as far as it is one of a listener."""
    return hasattr(getattr(request.connection, "stream", None), WELCOME)


class Listener:
    """TLS at one address."""

    def __init__(
        self,
        server: Any,  # noqa: ANN401  a ServerApp
        address: str,
        port: int,
        file: Path,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.address, self.port, self.file, self._seconds = address, port, file, handshake_seconds
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.options |= ssl.OP_NO_RENEGOTIATION  # each costs the server what a handshake costs
        self._server = httpserver.HTTPServer(
            server.web_app,
            max_body_size=server.max_body_size,
            max_buffer_size=server.max_buffer_size,
            idle_connection_timeout=IDLE_SECONDS,
            body_timeout=BODY_SECONDS,
        )
        self._loaded: tuple[float, int] | None = None
        self._close: list[Callable[[], None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._strangers: dict[Visitor, None] = {}  # the oldest first
        self._streams: weakref.WeakSet[iostream.SSLIOStream] = weakref.WeakSet()  # of users
        self._reported = ""

    def follow(self) -> None:
        """Read the certificate again if its file has changed, and listen as soon as there is one."""
        try:
            status = self.file.stat()
            if self._loaded != (seen := (status.st_mtime, status.st_ino)):
                self._context.load_cert_chain(self.file, password=lambda: "")
                self._loaded = seen
                log.info("a certificate was read for https at %s:%d", self.address, self.port)
            if not self._close:
                self._listen()
            self._reported = ""
        except OSError as err:  # of ssl as well
            if str(err) != self._reported:
                log.error("https at %s:%d: %s: %s", self.address, self.port, self.file.name, err)
            self._reported = str(err)

    def _listen(self) -> None:
        for each in netutil.bind_sockets(self.port, self.address):
            self._close += [netutil.add_accept_handler(each, self._accept), each.close]

    def _accept(self, connection: socket.socket, address: Any) -> None:  # noqa: ANN401  as the family has it
        source = source_of(address[0])
        self._make_room(source)
        if len(self._strangers) + sum(not each.closed() for each in self._streams) >= MAX_CONNECTIONS:
            connection.close()
            return
        visitor = Visitor(source)
        self._strangers[visitor] = None
        task = asyncio.ensure_future(self._begin(connection, address, visitor))
        visitor.end = task.cancel
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        # One that was ended before it had begun has closed nothing.
        task.add_done_callback(lambda done: connection.close() if done.cancelled() else None)

    def _make_room(self, source: str) -> None:
        """Close the oldest of too many connections on which no one has logged in."""
        self._strangers = {each: None for each in self._strangers if not each.is_gone()}
        alike = [each for each in self._strangers if each.source == source]
        if len(alike) < MAX_OF_ADDRESS:
            users = sum(not each.closed() for each in self._streams)
            is_full = len(self._strangers) >= min(MAX_STRANGERS, MAX_CONNECTIONS - users)
            alike = list(self._strangers) if is_full else []
        if alike:
            self._strangers.pop(alike[0])
            alike[0].end()

    async def _begin(self, connection: socket.socket, address: Any, visitor: Visitor) -> None:  # noqa: ANN401
        """Find out what is spoken, and hand the connection on once it is encrypted."""
        stream = None
        try:
            stream = await asyncio.wait_for(self._encrypted(connection), self._seconds)
        except (OSError, asyncio.TimeoutError, iostream.StreamClosedError):
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise
        finally:
            if stream is None:
                self._strangers.pop(visitor, None)
        if stream is not None:
            self._admit(stream, visitor)
            self._server.handle_stream(stream, address)

    def _admit(self, stream: iostream.SSLIOStream, visitor: Visitor) -> None:
        """Keep an encrypted connection as a stranger's, until `welcome`."""

        def become_a_user() -> None:
            self._strangers.pop(visitor, None)
            self._streams.add(stream)

        visitor.end, visitor.is_gone = stream.close, stream.closed
        setattr(stream, WELCOME, become_a_user)  # there, and not in a table: it goes with the stream

    async def _encrypted(self, connection: socket.socket) -> iostream.SSLIOStream | None:
        connection.setblocking(False)
        first = await _peek(connection)
        if first == TLS_HANDSHAKE:
            return await iostream.IOStream(connection).start_tls(True, self._context)
        with suppress(OSError):
            if first:
                connection.recv(65536)  # what is not read would reset the connection before the answer arrives
                connection.send(ANSWER.encode())
            connection.shutdown(socket.SHUT_WR)
        connection.close()
        return None

    async def stop(self) -> None:
        """Listen no more, and end what is open."""
        for close in self._close:
            close()
        self._close = []
        for task in list(self._handshakes):
            task.cancel()
        await self._server.close_all_connections()


def source_of(address: str) -> str:
    """Return what a connection counts for: its address, or the IPv6 network of 64 bits that one machine may own."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)


async def _peek(connection: socket.socket) -> bytes:
    """Return the first byte that arrives, which stays to be read."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
    return connection.recv(1, socket.MSG_PEEK)


def secure_cookies(request: httputil.HTTPServerRequest) -> None:
    """Have every cookie of the answer sent over TLS alone; Jupyter does it for its login, tornado not for `_xsrf`."""
    connection: Any = request.connection
    write = connection.write_headers

    def write_secure(start: Any, headers: httputil.HTTPHeaders, chunk: bytes | None = None) -> Any:  # noqa: ANN401
        cookies = headers.get_list("Set-Cookie")
        if cookies:
            del headers["Set-Cookie"]
        for each in cookies:
            headers.add("Set-Cookie", each if "; secure" in each.lower() else f"{each}; Secure")
        return write(start, headers, chunk)

    connection.write_headers = write_secure
