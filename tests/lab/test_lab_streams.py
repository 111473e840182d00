"""What the server hears of a kernel that is being started."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from kernel_hosts import WAIT_SECONDS

from rocmlab.lab import streams

KERNELS = 8


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    """Of a server's sockets."""
    with zmq.Context() as found:
        yield found


def manager(context: zmq.Context[Any], folder: Path, **keys: bytes) -> Any:
    """What a server knows of a kernel."""
    information = {"transport": "ipc", "ip": str(folder / "k"), "iopub_port": 1}
    return SimpleNamespace(context=context, get_connection_info=lambda: information, **keys)


def first_heard(socket: zmq.Socket[bytes]) -> int:
    """Return the number of the first message that came."""
    assert socket.poll(WAIT_SECONDS * 1000)
    return int(socket.recv())


@pytest.mark.slow
def test_the_server_hears_a_new_kernel_before_its_pages_do(context: zmq.Context[Any], tmp_path: Path) -> None:
    """Its connection is there sooner than one that is made in ZeroMQ's usual way at the same time."""

    async def scenario() -> tuple[int, int]:
        ours = theirs = 0
        for number in range(KERNELS):
            folder = tmp_path / str(number)
            folder.mkdir()
            kernel = manager(context, folder)
            page = context.socket(zmq.SUB)
            page.setsockopt(zmq.SUBSCRIBE, b"")
            page.connect(streams.url_of(kernel))
            stream = streams.subscribe(kernel)
            time.sleep(0.13)  # both have tried in vain
            with context.socket(zmq.PUB) as published:
                published.setsockopt(zmq.LINGER, 0)
                published.bind(streams.url_of(kernel))
                for message in range(60):
                    published.send(b"%d" % message)
                    time.sleep(0.005)
                ours += first_heard(stream.socket)
                theirs += first_heard(page)
            page.close(0)
            stream.close(0)
        return ours, theirs

    ours, theirs = asyncio.run(scenario())

    assert ours < theirs


def test_a_servers_sockets_connect_as_soon(context: zmq.Context[Any]) -> None:
    """Those that Jupyter itself makes from then on; a gateway's manager has none."""
    streams.connect_soon(SimpleNamespace(context=context))
    streams.connect_soon(SimpleNamespace())

    with context.socket(zmq.SUB) as found:
        assert found.getsockopt(zmq.RECONNECT_IVL) == streams.RECONNECT_MILLISECONDS


@pytest.mark.skipif(not zmq.has("curve"), reason="this pyzmq has no encryption")
def test_a_kernel_with_encrypted_connections_is_heard(context: zmq.Context[Any], tmp_path: Path) -> None:
    """Jupyter's `transport_encryption` gives its kernels keys."""
    public, secret = zmq.curve_keypair()
    kernel = manager(context, tmp_path, curve_publickey=public, curve_secretkey=secret)

    async def scenario() -> bytes:
        with context.socket(zmq.XPUB) as published:
            published.setsockopt(zmq.LINGER, 0)
            published.curve_server, published.curve_secretkey = True, secret
            published.curve_publickey = public
            published.bind(streams.url_of(kernel))
            stream = streams.subscribe(kernel)
            assert published.poll(WAIT_SECONDS * 1000)  # it has subscribed
            published.send(b"output")
            assert stream.socket.poll(WAIT_SECONDS * 1000)
            heard = stream.socket.recv()
            stream.close(0)
        return heard

    assert asyncio.run(scenario()) == b"output"
