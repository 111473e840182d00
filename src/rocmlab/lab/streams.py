"""Streams of messages of a kernel, on the server's event loop."""

from __future__ import annotations

from typing import Any


def close(stream: Any) -> None:  # noqa: ANN401  zmq's ZMQStream
    """Close a stream once what it has put off has run: pyzmq warns of a closed one that has a message."""
    stream.stop_on_recv()
    stream.io_loop.add_callback(stream.close)
