"""Messages between a warm parent, its kernels and their clients: JSON with its length before it, and descriptors.

This module and the others that run under the kernel's interpreter need nothing but the standard library.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

LENGTH = struct.Struct("!I")
LONGEST_BYTES = 4 * 1024 * 1024  # an environment is shorter: the system allows less for a whole command
MOST_DESCRIPTORS = 64
CHUNK_BYTES = 65536

Message = dict[str, Any]


class Malformed(Exception):
    """What came is no message."""


class Buffer:
    """What has arrived on a connection and is no whole message yet."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.descriptors: list[int] = []  # in the order in which they came; they belong to the buffer until taken

    def fill(self, connection: socket.socket) -> bool:
        """Read once; False at the end of the file.

        Raises:
            Malformed: there are more descriptors than anybody needs.
        """
        size = array.array("i").itemsize * MOST_DESCRIPTORS
        got, ancillary, flags, _ = connection.recvmsg(CHUNK_BYTES, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self.descriptors.extend(numbers)
        if flags & socket.MSG_CTRUNC or len(self.descriptors) > MOST_DESCRIPTORS:
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
        if length > LONGEST_BYTES:
            raise Malformed(f"a message of {length} bytes")
        end = LENGTH.size + length
        if len(self._bytes) < end:
            return None
        raw = bytes(self._bytes[LENGTH.size : end])
        del self._bytes[:end]
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as err:
            raise Malformed("no JSON") from err
        if not isinstance(found, dict):
            raise Malformed("no JSON object")
        return found

    def take(self) -> list[int]:
        """Take the descriptors; they belong to the caller now."""
        taken, self.descriptors = self.descriptors, []
        return taken

    def close(self) -> None:
        """Close the descriptors that nobody took."""
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
