"""A forked kernel as the engine sees kernels."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab.kernels import kernel as cold
from rocmlab.kernels.forkserver.client import Forked, fork


def start(
    address: str,
    cwd: str,
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    mark: str | None = None,
) -> WarmKernel:
    """Have a kernel forked for the engine.

    Args:
        address: of the parent.
        cwd: where it runs.
        environment: all of it, the kernelspec's own included.
        descriptors: of its lease.
        mark: of its job.

    Raises:
        Refused: there is none; start it cold.
    """
    out_of_memory = cold._oom_kills()
    read_end, write_end = os.pipe()
    try:
        forked = fork(
            address,
            cwd=cwd,
            environment=environment,
            descriptors=descriptors,
            output=write_end,
            mark=mark,
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return WarmKernel(forked, read_end, out_of_memory)


class WarmKernel:
    """A kernel that a warm parent has forked; see `Kernel` in rocmlab.kernels.kernel."""

    def __init__(self, forked: Forked, output: int, out_of_memory: int) -> None:
        os.set_blocking(output, False)
        self.forked = forked
        self.pid = forked.pid
        self.connection: dict[str, Any] = forked.connection
        self.output: int | None = output
        self.sentinel: int | None = forked.sentinel
        self._out_of_memory = out_of_memory

    def ended(self) -> bool:
        """Whether its process is gone."""
        return self.forked.ended()

    def exit_code(self) -> int | None:
        """Return how it ended, below zero for a signal; None if it has not, or nobody knows."""
        return self.forked.exit_code()

    def is_stopped(self) -> bool:
        """Whether its process is stopped (SIGSTOP)."""
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
            return not self.ended() and state.rpartition(")")[2].split()[0] in ("T", "t")
        return False

    def is_out_of_memory(self) -> bool:
        """Whether the system has ended a process of this control group for want of memory since the start."""
        return cold._oom_kills() > self._out_of_memory

    def interrupt(self) -> bool:
        """Interrupt it."""
        self.forked.signal(signal.SIGINT)
        return True

    def destroy(self) -> None:
        """End its process group at once, and all that carries its mark."""
        self.forked.close()
        if self.output is not None:
            os.close(self.output)
        self.output = self.sentinel = None
