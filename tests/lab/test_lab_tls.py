"""The listener for other machines, around a small application: what is encrypted, and what is not answered."""

from __future__ import annotations

import asyncio
import gc
import http.client
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from clones import free_port
from tornado import iostream, web

from rocmlab.lab.server import tls as listening
from rocmlab.stack import settings as configuration
from rocmlab.stack import tls

WAIT_SECONDS = 10.0


class Page(web.RequestHandler):
    """A page with a cookie."""

    def get(self) -> None:
        """Answer; who names a user is one."""
        if "X-User" in self.request.headers:
            listening.welcome(self.request)
        self.set_cookie("plain", "1", samesite="Lax")
        self.write(f"over {self.request.protocol}")


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    """The file of a certificate for 127.0.0.1."""
    settings = configuration.load(tmp_path, {"BIND": "127.0.0.1"})
    tls.prepare(settings, tls.values(settings, "gpu1"))
    return tls.path_of(settings)


@pytest.fixture
def listener(pem: Path) -> Iterator[listening.Listener]:
    """One that runs, in a thread of its own."""
    server = SimpleNamespace(web_app=web.Application([("/", Page)]), max_body_size=1000, max_buffer_size=1000)
    made = listening.Listener(server, "127.0.0.1", free_port(), pem, handshake_seconds=0.5)
    loop, is_up = asyncio.new_event_loop(), threading.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.call_soon(made.follow)
        loop.call_soon(is_up.set)
        loop.run_forever()
        loop.run_until_complete(made.stop())
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    is_up.wait(WAIT_SECONDS)
    made.loop = loop  # type: ignore[attr-defined]
    yield made
    loop.call_soon_threadsafe(loop.stop)
    thread.join(WAIT_SECONDS)


def connect(listener: listening.Listener) -> socket.socket:
    """Connect, and say nothing yet."""
    return socket.create_connection(("127.0.0.1", listener.port), timeout=WAIT_SECONDS)


def test_pages_are_served_to_who_checks_the_certificate(listener: listening.Listener, pem: Path) -> None:
    """For the address that was connected to."""
    context = ssl.create_default_context(cafile=str(pem))
    connection = http.client.HTTPSConnection("127.0.0.1", listener.port, timeout=WAIT_SECONDS, context=context)
    connection.request("GET", "/")

    assert connection.getresponse().read() == b"over https"
    connection.close()


def test_plain_http_is_told_what_to_do(listener: listening.Listener) -> None:
    """In one sentence, which repeats nothing of the request."""
    with connect(listener) as plain:
        plain.sendall(b"GET /lab?token=secret-word HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = b""
        while part := plain.recv(4096):
            answer += part

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"https://" in answer
    assert b"secret" not in answer


@pytest.mark.slow
@pytest.mark.parametrize("spoken", [b"", b"\x16", b"\x16\x03\x01"])
def test_who_does_not_finish_the_handshake_is_closed(listener: listening.Listener, spoken: bytes) -> None:
    """Silent connections would fill the server's table of files."""
    with connect(listener) as slow:
        slow.sendall(spoken)
        assert slow.recv(1) == b""


def insecure() -> ssl.SSLContext:
    """A client that takes any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def ask(connection: socket.socket, headers: str = "") -> bytes:
    """Make one request, and return the first bytes of the answer; empty: it was closed."""
    connection.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode())
    return connection.recv(4096)


def test_the_oldest_silent_connection_of_an_address_makes_room(
    listener: listening.Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds many keeps no one out, not even from the same address."""
    monkeypatch.setattr(listening, "MAX_OF_ADDRESS", 2)
    opened = [connect(listener) for _ in range(2)]
    try:
        with insecure().wrap_socket(connect(listener)) as third:
            assert ask(third).startswith(b"HTTP/1.1 200 ")
        assert opened[0].recv(1) == b""
    finally:
        for each in opened:
            each.close()


def test_a_connection_without_login_makes_room_also_where_it_asks_again_and_again(
    listener: listening.Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests would keep 512 of them open for ever; the connection of a user who has logged in stays."""
    monkeypatch.setattr(listening, "MAX_OF_ADDRESS", 1)
    with insecure().wrap_socket(connect(listener)) as user:
        assert ask(user, "X-User: yes\r\n").startswith(b"HTTP/1.1 200 ")
        with insecure().wrap_socket(connect(listener)) as stranger:
            assert ask(stranger).startswith(b"HTTP/1.1 200 ")
            with insecure().wrap_socket(connect(listener)) as next_one:
                assert ask(next_one).startswith(b"HTTP/1.1 200 ")
                assert stranger.recv(4096) == b""
            assert ask(user).startswith(b"HTTP/1.1 200 ")


def test_only_so_many_connections_are_open(listener: listening.Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """More would fill the server's table of files, and the loopback's pages would not be answered either."""
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 1)

    with insecure().wrap_socket(connect(listener)) as user:
        assert ask(user, "X-User: yes\r\n").startswith(b"HTTP/1.1 200 ")
        with connect(listener) as second:
            second.settimeout(WAIT_SECONDS)
            assert second.recv(1) == b""
        assert ask(user).startswith(b"HTTP/1.1 200 ")


def test_nothing_is_kept_of_a_closed_connection(listener: listening.Listener) -> None:
    """Strangers would fill the server's memory."""

    def kept() -> int:
        gc.collect()
        return sum(isinstance(each, iostream.SSLIOStream) for each in gc.get_objects())

    before, deadline = kept(), time.monotonic() + WAIT_SECONDS
    for _ in range(8):
        with insecure().wrap_socket(connect(listener)) as stranger:
            assert ask(stranger).startswith(b"HTTP/1.1 200 ")

    while kept() > before + 1 and time.monotonic() < deadline:  # what has closed is noticed at the next connection
        connect(listener).close()
        time.sleep(0.1)
    assert kept() <= before + 1


@pytest.mark.slow
def test_what_is_closed_in_the_handshake_leaves_no_descriptor(listener: listening.Listener) -> None:
    """Also where more arrive at once than there is room for."""

    def sockets() -> int:
        gc.collect()
        return sum("socket" in os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd"))

    before, deadline = sockets(), time.monotonic() + WAIT_SECONDS
    opened = [connect(listener) for _ in range(listening.MAX_OF_ADDRESS + 20)]
    for each in opened:
        with suppress(OSError):  # closed already
            each.sendall(b"\x16\x03\x01")
    for each in opened:
        with suppress(OSError):
            assert each.recv(1) == b""
        each.close()

    while sockets() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sockets() == before


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_an_ipv6_network_counts_as_one_address(one: str, other: str, is_same: bool) -> None:
    """A single machine has all addresses of one."""
    assert (listening.source_of(one) == listening.source_of(other)) is is_same


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_tls_is_rejected(listener: listening.Listener, version: ssl.TLSVersion) -> None:
    """By the server: this client would take it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLS"):
        context.minimum_version = context.maximum_version = version

    with connect(listener) as plain, pytest.raises((ssl.SSLError, ConnectionResetError), match=r"(?i)alert|reset"):
        context.wrap_socket(plain)


def test_a_renewed_certificate_is_served_without_a_restart(
    listener: listening.Listener, pem: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that cannot be read is reported, and the one before stays."""
    before = ssl.get_server_certificate(("127.0.0.1", listener.port))
    settings = configuration.load(pem.parents[2], {"BIND": "127.0.0.1"})
    follow = asyncio.run_coroutine_threadsafe

    async def again() -> None:
        listener.follow()

    caplog.set_level(logging.ERROR, "rocmlab")
    draft = pem.with_name("draft")
    draft.write_text("no certificate")
    os.replace(draft, pem)
    for _ in range(2):
        follow(again(), listener.loop).result(WAIT_SECONDS)  # type: ignore[attr-defined]
    assert caplog.text.count("server.pem") == 1  # not every three seconds
    assert ssl.get_server_certificate(("127.0.0.1", listener.port)) == before
    tls.prepare(settings, tls.values(settings, "gpu2"))
    follow(again(), listener.loop).result(WAIT_SECONDS)  # type: ignore[attr-defined]

    found = ssl.get_server_certificate(("127.0.0.1", listener.port))
    assert found != before
    assert tls.fingerprint(found) == tls.fingerprint(pem.read_text())


def test_without_an_address_there_is_no_listener() -> None:
    """Of a `.env` from which someone removed BIND alone; the rest of the extension is loaded."""
    assert listening.of(SimpleNamespace(), {"ROCMLAB_BIND_HOSTS": "127.0.0.1,gpu1"}) is None
