"""What ends a notebook while a cell runs: the clock, silence, and the death of the kernel."""

from __future__ import annotations

import math
import signal
import time

import zmq

from rocmlab.kernels.kernel import Kernel
from rocmlab.notebook import outcome
from rocmlab.notebook.messages import Messages
from rocmlab.notebook.options import Options
from rocmlab.notebook.outcome import Aborted

HEARTBEAT_SECONDS = 5.0  # of silence, until the kernel is asked whether it lives; and between two such questions


class Watch:
    """Looks whether the kernel lives and keeps within its limits."""

    def __init__(self, running: Kernel, messages: Messages, options: Options) -> None:
        self._kernel = running
        self._messages = messages
        self._options = options
        self._limits = options.limits
        self._began = math.inf  # the first cell; the start of the kernel has a limit of its own
        self._beat_seconds = min(HEARTBEAT_SECONDS, options.limits.silent_seconds / 4)
        self._next_beat = 0.0
        self._probed_at = 0.0  # when the kernel was first asked since it last showed that it lives
        self._stopped_since: float | None = None

    def begin(self) -> None:
        """Start the clock of the notebook."""
        self._began = time.monotonic()

    @property
    def due(self) -> float:
        """When there is something to check, of `time.monotonic`: a heartbeat, or the next limit."""
        limits, waiting = self._limits, self._messages.waiting
        due = min(self._beat, self._hangs)
        if self._stopped_since is not None:
            due = min(due, self._stopped_since + limits.silent_seconds)
        if limits.notebook_seconds is not None:
            due = min(due, self._began + limits.notebook_seconds)
        if waiting is None or waiting.reply is not None:
            return due
        cell = math.inf if limits.cell_seconds is None else waiting.began + limits.cell_seconds
        idle = math.inf if limits.idle_seconds is None else waiting.last_output + limits.idle_seconds
        return min(due, cell, idle)

    @property
    def _beat(self) -> float:
        """When to check the kernel's heartbeat: not while it sends messages."""
        return max(self._next_beat, self._messages.last_beat + self._beat_seconds)

    @property
    def _hangs(self) -> float:
        """When the kernel hangs if it has not answered; infinite without a pending heartbeat."""
        if self._messages.info is None or self._probed_at <= self._messages.last_beat:
            return math.inf
        return self._probed_at + self._limits.silent_seconds - self._beat_seconds

    def check(self) -> None:
        """Look at the clock.

        Raises:
            Aborted: a limit is reached, or the kernel is stopped or hangs.
        """
        self._check_silence()
        self._check_limits()

    def death(self) -> Aborted:
        """Return how the kernel, which has ended, did so."""
        code, output = self._kernel.exit_code(), self._messages.final_output.strip()
        if code == -signal.SIGKILL and self._kernel.is_out_of_memory():
            return Aborted(
                "killed", "the kernel's process was ended by SIGKILL because the memory was full", output=output
            )
        message = outcome.describe(code)
        if self._messages.info is None:
            message = f"the kernel did not start: {message}"
        return Aborted("kernel died", message, output=output)

    def _check_silence(self) -> None:
        """Notice a kernel that is stopped or whose process does not even answer its heartbeat."""
        moment, longest = time.monotonic(), self._limits.silent_seconds
        if self._stopped_since is not None and self._messages.last_beat > self._stopped_since:
            self._stopped_since = None  # it talks again
        if moment >= self._beat:
            self._next_beat = moment + self._beat_seconds
            if self._probed_at <= self._messages.last_beat:
                self._probed_at = moment
            self._messages.channels.heartbeat.send_multipart([b"", b"ping"], zmq.NOBLOCK)
            if not self._kernel.is_stopped():
                self._stopped_since = None
            elif self._stopped_since is None:
                self._stopped_since = moment
                self._options.warn("the kernel's process is stopped (SIGSTOP)")
        is_late = moment >= self._hangs
        if self._stopped_since is not None and (is_late or moment - self._stopped_since >= longest):
            raise Aborted("kernel died", f"the kernel's process was stopped (SIGSTOP) for {longest:g} s")
        if is_late:
            raise Aborted("kernel died", f"the kernel hangs: it did not answer its heartbeat for {longest:g} s")

    def _check_limits(self) -> None:
        moment, limits, waiting = time.monotonic(), self._limits, self._messages.waiting
        if limits.notebook_seconds is not None and moment - self._began >= limits.notebook_seconds:
            raise Aborted("timeout", f"the notebook ran longer than {limits.notebook_seconds:g} s")
        if waiting is None or waiting.reply is not None:
            return
        if limits.cell_seconds is not None and moment - waiting.began >= limits.cell_seconds:
            raise Aborted("timeout", f"a cell ran longer than {limits.cell_seconds:g} s")
        if limits.idle_seconds is not None and moment - waiting.last_output >= limits.idle_seconds:
            raise Aborted("timeout", f"a cell printed nothing for {limits.idle_seconds:g} s")
