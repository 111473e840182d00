"""Messages between a fork server, its kernels and their clients: JSON with its length before it, and descriptors."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LENGTH = struct.Struct("!I")
MAX_BYTES = 4 * 1024 * 1024  # an environment is shorter: the system allows less for a whole command
MAX_DESCRIPTORS = 250  # the kernel's limit is 253
CHUNK_BYTES = 65536

Message = dict[str, Any]


class Malformed(Exception):
    """What arrived is not a message."""


class Buffer:
    """What has arrived on a connection and is not a whole message yet."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.descriptors: list[int] = []  # in the order in which they came; they belong to the buffer until taken

    def fill(self, connection: socket.socket) -> bool:
        """Read once; False at the end of the file.

        Raises:
            Malformed: there are more descriptors than anybody needs.
        """
        size = array.array("i").itemsize * MAX_DESCRIPTORS
        got, ancillary, flags, _ = connection.recvmsg(CHUNK_BYTES, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self.descriptors.extend(numbers)
        if flags & socket.MSG_CTRUNC or len(self.descriptors) > MAX_DESCRIPTORS:
            raise Malformed("too many descriptors")
        self._bytes += got
        return bool(got)

    def message(self) -> Message | None:
        """Take the first whole message; None if there is none yet.

        Raises:
            Malformed: it is too long, or no JSON object.
        """
        if len(self._bytes) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._bytes)
        if length > MAX_BYTES:
            raise Malformed(f"a message of {length} bytes")
        end = LENGTH.size + length
        if len(self._bytes) < end:
            return None
        raw = bytes(self._bytes[LENGTH.size : end])
        del self._bytes[:end]
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as err:
            raise Malformed("not JSON") from err
        if not isinstance(found, dict):
            raise Malformed("not a JSON object")
        return found

    def take(self) -> list[int]:
        """Take the descriptors; they belong to the caller now."""
        taken, self.descriptors = self.descriptors, []
        return taken

    def close(self) -> None:
        """Close the descriptors that no one took."""
        for descriptor in self.take():
            os.close(descriptor)


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message, with copies of descriptors."""
    raw = json.dumps(message).encode("ascii")
    data = memoryview(LENGTH.pack(len(raw)) + raw)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sent = connection.sendmsg([data[:CHUNK_BYTES]], ancillary)
    if sent < len(data):
        connection.sendall(data[sent:])


def receive(connection: socket.socket, buffer: Buffer) -> Message | None:
    """Wait for the next message, as long as the connection's time-out; None at the end of the file.

    Raises:
        Malformed: something else came.
        TimeoutError: nothing came in time.
    """
    while True:
        message = buffer.message()
        if message is not None:
            return message
        if not buffer.fill(connection):
            return None


@dataclass(frozen=True)
class Request:
    """What a client requests a kernel to be."""

    cwd: str
    environment: dict[str, str]
    token: str | None  # of its job; None for one of its own
    connection_file: str
    arguments: list[str]  # more arguments for ipykernel's command line
    output: int  # a descriptor for its output
    lifeline: int  # one whose other end the client holds
    leases: list[int]


def parse(message: Mapping[str, Any], descriptors: Sequence[int], added: Mapping[str, str]) -> Request:
    """Return a request.

    Args:
        message: the client's.
        descriptors: that came with it.
        added: what the imports have added to the environment, as they would have in the kernel.

    Raises:
        ValueError: a value is invalid.
        KeyError: one is missing.
        TypeError: one has another type.
    """
    if len(descriptors) < 2:
        raise ValueError("a descriptor for the output and one for the lifeline are needed")
    arguments = _typed(message, "arguments", list)
    if not all(isinstance(word, str) for word in arguments):
        raise TypeError("arguments are text")
    return Request(
        cwd=_typed(message, "cwd", str),
        environment={**added, **_environment(message)},
        token=None if message["token"] is None else _typed(message, "token", str),
        connection_file=_typed(message, "connection_file", str),
        arguments=arguments,
        output=descriptors[0],
        lifeline=descriptors[1],
        leases=list(descriptors[2:]),
    )


def _environment(message: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = _typed(message, "environment", dict)
    for name, text in found.items():
        if not isinstance(text, str) or not name or "=" in name or "\0" in name + text:
            raise ValueError(f"invalid environment variable: {name!r}")
    return {name: text for name, text in found.items() if name != "JPY_PARENT_PID"}  # it may outlive its parent


def _typed(message: Mapping[str, Any], name: str, kind: type) -> Any:  # noqa: ANN401  as its kind
    found = message[name]
    if not isinstance(found, kind):
        raise TypeError(f"{name} is not a {kind.__name__}")
    return found
