"""The process of a kernel that is a child of this one, in a session of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from rocmlab.kernels.forkserver import inheritance
from rocmlab.kernels.forkserver.lifeline import Lifeline

KILL_SECONDS = 5.0  # one that hangs in a driver cannot be killed; it must not block us


class ColdProcess:
    """A kernel's process, not reaped before `close`, so that its process group stays its own."""

    def __init__(
        self, command: Sequence[str], cwd: str, environment: Mapping[str, str], descriptors: Sequence[int], output: int
    ) -> None:
        """Start it.

        Args:
            command: to run.
            cwd: where it runs.
            environment: all of it.
            descriptors: of its leases.
            output: a descriptor for what it prints.
        """
        self._lifeline = Lifeline()
        try:
            self._process = subprocess.Popen(
                inheritance.keeping(command, descriptors),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env=environment,
                pass_fds=(*descriptors, self._lifeline.descriptor),
                start_new_session=True,  # so that it can be interrupted, and killed, with all its processes
            )
        except BaseException:
            self._lifeline.close()
            raise
        self.pid = self._process.pid
        self._lifeline.tie(self.pid)
        self.sentinel: int | None = None  # a pidfd, readable once the process has exited
        with contextlib.suppress(AttributeError, OSError):  # macOS, or a container that forbids it
            self.sentinel = os.pidfd_open(self.pid)

    def ended(self) -> bool:
        """Whether it has exited."""
        if self._process.returncode is not None:
            return True
        try:
            return self.exit_code() is not None
        except ChildProcessError:  # reaped by another part of this process
            return True

    def exit_code(self) -> int | None:
        """Return its exit code, below zero for a signal; None if it has not exited."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll()
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Kill its process group."""
        if self._process.returncode is None:  # once it is reaped, its number may be another's
            self.signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_SECONDS)
        if self.sentinel is not None:
            os.close(self.sentinel)
            self.sentinel = None
        self._lifeline.close()
