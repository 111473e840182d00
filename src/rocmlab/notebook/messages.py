"""What comes from a kernel while a notebook runs: replies, outputs, heartbeats, and what its process prints."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import zmq

from rocmlab.kernels.kernel import Kernel
from rocmlab.notebook.options import Options
from rocmlab.notebook.outputs import CellOutputs
from rocmlab.notebook.widgets import Widgets
from rocmlab.notebook.wire import Channels, Message, now

LAST_WORDS_BYTES = 4_000  # of what the kernel's process printed, shown where it died
MAX_AT_ONCE = 100  # outputs taken before the clock is looked at again
MAX_READS = 16  # the same of what the process prints; a full pipe holds one or two

Ready = Mapping[Any, int]  # sockets and descriptors, as the poller names them


@dataclass
class Waiting:
    """What is awaited of one request."""

    request: str
    cell: dict[str, Any]
    outputs: CellOutputs
    began: float
    last_output: float
    reply: dict[str, Any] | None = None
    is_idle: bool = False
    replied: float = 0.0


class Messages:
    """Handles the messages of a kernel."""

    def __init__(self, running: Kernel, options: Options) -> None:
        self.channels = Channels(running.connection)
        self.widgets = Widgets(self._send_comm, options.overflow)
        self.poller = zmq.Poller()
        self.waiting: Waiting | None = None  # the cell that runs; None if none does
        self.info: dict[str, Any] | None = None  # what the kernel reports about itself; None until it answers
        self.is_subscribed = False  # whether its output can be heard
        self.last_beat = time.monotonic()  # when it has last shown that it lives
        self.final_output = ""  # the end of what its process has printed
        self._has_lost = False  # whether a stream of the caller lacks something
        self._kernel = running
        self._options = options
        for each in (self.channels.iopub, self.channels.shell, self.channels.heartbeat):
            self.poller.register(each, zmq.POLLIN)
        for descriptor in (running.output, running.sentinel):
            if descriptor is not None:
                self.poller.register(descriptor, zmq.POLLIN)

    def poll(self, seconds: float) -> Ready:
        """Wait until something can be taken, or a registered descriptor is ready."""
        return dict(self.poller.poll(None if seconds == math.inf else math.ceil(max(0.0, seconds) * 1000)))

    def take(self, ready: Ready) -> bool:
        """Take what is there, and return whether it may have changed the notebook."""
        if self.channels.shell in ready:
            self._take_replies()
        if self.channels.iopub in ready:
            self._take_outputs()
        if self.channels.heartbeat in ready:
            self._take_heartbeats()
        if self._kernel.output in ready:
            self.read_output()
        return self.channels.shell in ready or self.channels.iopub in ready

    def drain(self, seconds: float) -> None:
        """Take the last lines of a kernel that has ended."""
        if self._kernel.sentinel is not None:
            with contextlib.suppress(KeyError):
                self.poller.unregister(self._kernel.sentinel)
        end = time.monotonic() + seconds
        while time.monotonic() < end and (ready := self.poll(seconds / 2)):
            self._take_outputs()
            if self._kernel.output in ready:
                self.read_output()
            if self.channels.iopub not in ready and self._kernel.output is None:
                break

    def read_output(self) -> None:
        """Read what the kernel's process prints past the notebook: libraries in C, crashes, warnings at the start."""
        if self._kernel.output is None:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(MAX_READS):
                data = os.read(self._kernel.output, 65_536)
                if not data:
                    self.poller.unregister(self._kernel.output)  # everybody has closed it
                    os.close(self._kernel.output)
                    self._kernel.output = None
                    return
                text = data.decode("utf-8", "replace")
                self.final_output = (self.final_output + text)[-LAST_WORDS_BYTES:]
                if self._options.kernel_output is not None:
                    self._options.kernel_output(text)

    def _take_replies(self) -> None:
        while (message := self.channels.receive(self.channels.shell)) is not None:
            self.last_beat = time.monotonic()
            if message.kind == "kernel_info_reply":
                self.info = message.content
            elif self.waiting is not None and message.parent == self.waiting.request:
                self.waiting.reply = message.content
                self.waiting.replied = time.monotonic()
                self.waiting.cell["metadata"]["execution"]["shell.execute_reply"] = message.header.get("date") or now()

    def _take_outputs(self) -> None:
        for _ in range(MAX_AT_ONCE):
            message = self.channels.receive(self.channels.iopub)
            if message is None:
                return
            self.last_beat = time.monotonic()  # who talks is alive
            if self.info is None or self.waiting is None:
                self.is_subscribed = self.is_subscribed or message.parent is not None
            if message.kind.startswith("comm_"):
                self.widgets.take(message)
            elif self.waiting is not None and message.parent == self.waiting.request:
                self._take_output(self.waiting, message)

    def _take_output(self, waiting: Waiting, message: Message) -> None:
        content, execution = message.content, waiting.cell["metadata"]["execution"]
        if "execution_count" in content:
            waiting.cell["execution_count"] = content["execution_count"]
        if message.kind == "status":
            state = content["execution_state"]
            if state in ("busy", "idle"):
                execution[f"iopub.status.{state}"] = message.header.get("date") or now()
            waiting.is_idle = waiting.is_idle or state == "idle"
        elif message.kind == "execute_input":
            execution["iopub.execute_input"] = message.header.get("date") or now()
        else:
            waiting.last_output = time.monotonic()
            self._show(message)
            if not self.widgets.catch(message):
                waiting.outputs.take(message.kind, content)

    def _show(self, message: Message) -> None:
        if message.kind == "stream":
            stream = self._options.stdout if message.content["name"] == "stdout" else self._options.stderr
            if stream is not None:
                self._pass_on(message.content["text"], stream)
        if self._options.show is not None:
            self._options.show({"output_type": message.kind, **message.content})

    def _pass_on(self, text: str, stream: TextIO) -> None:
        """Write what a cell prints to a stream of the caller; one that fails, as on a full disk, ends no notebook."""
        try:
            stream.write(text)
            stream.flush()
        except OSError as err:
            if not self._has_lost:
                self._options.warn(f"a part of what cells print could not be passed on: {err}")
            self._has_lost = True

    def _take_heartbeats(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                self.channels.heartbeat.recv_multipart(zmq.NOBLOCK)
                self.last_beat = time.monotonic()

    def _send_comm(self, identity: str, data: dict[str, Any]) -> None:
        self.channels.request(self.channels.shell, "comm_msg", {"comm_id": identity, "data": data})
