"""A kernel exits with the process that runs its notebook, even if that is killed while a cell blocks.

The kernel inherits one end of a socket pair, whose other end only we have. When it closes, the operating system sends
SIGKILL to the kernel's process group: owner and signal (F_SETOWN, F_SETSIG, O_ASYNC; Linux, fcntl(2)) belong to the
open file that the kernel has inherited, so neither a thread nor the GIL is needed. Processes that have left the group
are not reached.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket


def tie(descriptor: int, group: int) -> None:
    """Have the system kill a process group when the other end of a descriptor is closed."""
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, -group)
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def is_closed(descriptor: int) -> bool:
    """Return whether the other end is closed; nothing is ever written to it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class Lifeline:
    """A socket pair; on other systems than Linux it does nothing, and an idle kernel looks for its parent itself."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()

    @property
    def descriptor(self) -> int:
        """What the kernel's process has to inherit."""
        return self._theirs.fileno()

    def tie(self, group: int) -> None:
        """Let a process group, which has inherited the descriptor, end with this process."""
        if hasattr(fcntl, "F_SETSIG"):
            with contextlib.suppress(OSError):  # a system that only resembles Linux
                tie(self.descriptor, group)
        self.pass_on()

    def pass_on(self) -> None:
        """Close our copy of what the kernel has."""
        self._theirs.close()

    def close(self) -> None:
        """End what is left of the group."""
        self._theirs.close()
        self._ours.close()
