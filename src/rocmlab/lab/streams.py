"""Streams of messages of a kernel, on the server's event loop."""

from __future__ import annotations

from typing import Any

import zmq
from zmq.eventloop.zmqstream import ZMQStream

MAX_MESSAGES = 10_000  # that wait for this server; the kernel drops what is beyond
# ZeroMQ tries every 100 ms to connect to a kernel that is being started. So a page could be there before what follows
# the kernel for the server, which would not hear the page's first cell.
RECONNECT_MILLISECONDS = 10


def connect_soon(kernels: Any) -> None:  # noqa: ANN401  jupyter_server's manager of kernels
    """Let a server's connections to its kernels be there as soon as the kernel is."""
    if context := getattr(kernels, "context", None):  # a gateway's manager has none
        context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MILLISECONDS)  # of sockets that it makes from now on


def url_of(manager: Any) -> str:  # noqa: ANN401  jupyter_server's ServerKernelManager
    """Return where a kernel publishes what it does and prints."""
    information = manager.get_connection_info()
    separator = "-" if information["transport"] == "ipc" else ":"
    return f"{information['transport']}://{information['ip']}{separator}{information['iopub_port']}"


def subscribe(manager: Any) -> ZMQStream:  # noqa: ANN401  jupyter_server's ServerKernelManager
    """Hear all that a kernel publishes; it may be there later."""
    socket = zmq.Socket(manager.context, zmq.SUB)  # not of asyncio, as the context makes them
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, MAX_MESSAGES)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MILLISECONDS)
    if key := getattr(manager, "curve_publickey", None):  # where `transport_encryption` is on
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = key, key, manager.curve_secretkey
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(url_of(manager))
    return ZMQStream(socket)


def close(stream: Any) -> None:  # noqa: ANN401  zmq's ZMQStream
    """Close a stream once what it has put off has run: pyzmq warns of a closed one that has a message."""
    stream.stop_on_recv()
    stream.io_loop.add_callback(stream.close)
