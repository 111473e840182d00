"""A kernel ends when the process that runs its notebook does, even if that is killed while a cell never lets go.

The kernel inherits one end of a socket pair, whose other end only we have. When it closes, the operating system sends
SIGKILL to the kernel's process group: owner and signal (F_SETOWN, F_SETSIG, O_ASYNC; Linux, fcntl(2)) belong to the
open file that the kernel has inherited, so nothing has to run in the kernel. What has left the group is not reached.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket


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
                fcntl.fcntl(self._theirs, fcntl.F_SETOWN, -group)
                fcntl.fcntl(self._theirs, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(self._theirs, fcntl.F_SETFL, fcntl.fcntl(self._theirs, fcntl.F_GETFL) | os.O_ASYNC)
        self._theirs.close()

    def close(self) -> None:
        """End what is left of the group."""
        self._theirs.close()
        self._ours.close()
