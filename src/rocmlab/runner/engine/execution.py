"""One notebook in one kernel: a loop over sockets, the kernel's process, the clock and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

import zmq

from rocmlab.runner.engine import ends, kernel
from rocmlab.runner.engine.ends import Cut
from rocmlab.runner.engine.limits import Limits
from rocmlab.runner.engine.outputs import CellOutputs, Display, SideLog
from rocmlab.runner.engine.record import Recorder
from rocmlab.runner.engine.titles import title_of
from rocmlab.runner.engine.widgets import Widgets
from rocmlab.runner.engine.wire import Channels, Message, now

TICK_SECONDS = 0.5
HEARTBEAT_SECONDS = 5.0  # between two
ASK_AGAIN_SECONDS = 0.5  # whether the kernel is ready
LATE_OUTPUT_SECONDS = 10.0  # of silence after a cell's reply, until its end is taken as lost
DRAIN_SECONDS = 0.2  # for the last words of a kernel that has died
INTERRUPT_SECONDS = 2.0  # for a cell to react to an interrupt
SHUTDOWN_SECONDS = 10.0  # for a kernel to end by itself: what it does at exit, such as writing a checkpoint
SHORT_SHUTDOWN_SECONDS = 1.0  # the same after a notebook was cut short
# An IPython kernel collects what is printed for 0.2 s, four bytes a character: 100 MB for a cell that prints fast. And
# it catches its own stderr, so that what Python says of a crash would be lost with it; the process's own one is read.
SET_UP = """
import faulthandler, sys
for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, "flush_interval"):
        stream.flush_interval = 0.04
faulthandler.enable(getattr(sys.stderr, "_original_stdstream_copy", sys.__stderr__), all_threads=False)
"""
LAST_WORDS_BYTES = 4_000  # of what the kernel's process printed, shown where it died
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Stage:
    """What surrounds an execution."""

    limits: Limits = field(default_factory=Limits)
    allow_errors: bool = False
    stdout: TextIO | None = None  # gets what cells print, as it comes
    stderr: TextIO | None = None
    kernel_output: Callable[[str], object] | None = None  # gets what the kernel's process prints past the notebook
    see: Callable[..., None] = lambda *_, **__: None  # called with the name of an event and its facts
    show: Callable[[dict[str, Any]], None] | None = None  # called with each message that is an output
    side: SideLog = field(default_factory=lambda: SideLog(None, "the log"))


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


class Execution:
    """Runs the cells of a notebook in a kernel that has been started."""

    def __init__(
        self, notebook: dict[str, Any], running: kernel.Kernel, stage: Stage, save: Callable[[], None]
    ) -> None:
        self.notebook = notebook
        self.kernel = running
        self.stage = stage
        self.limits = stage.limits
        self.recorder = Recorder(notebook, self._save, self.limits.save_seconds, self._warn)
        self.channels = Channels(running.connection)
        self.widgets = Widgets(self._send_comm, stage.side)
        self._save_notebook = save
        self._display = Display()
        self._waiting: Waiting | None = None
        self._info: dict[str, Any] | None = None
        self._info_request: str | None = None
        self._is_subscribed = False
        self._is_winding_down = False
        self._signal = 0  # the signal that asked to stop; below zero when it has come again
        self._wake: sockets.socket | None = None  # becomes readable when a signal comes
        self._last_words = ""
        self._began = time.monotonic()
        self._next_tick = 0.0
        self._next_beat = 0.0
        self._last_beat = time.monotonic()
        self._stopped_since: float | None = None
        self._poller = zmq.Poller()
        for each in (self.channels.iopub, self.channels.shell, self.channels.heartbeat):
            self._poller.register(each, zmq.POLLIN)
        for descriptor in (running.output, running.sentinel):
            if descriptor is not None:
                self._poller.register(descriptor, zmq.POLLIN)

    def run(self) -> bool:
        """Run all cells; afterwards the kernel is gone and the notebook is saved, whatever happened.

        Returns:
            Whether all cells ran; False if one raised an error.

        Raises:
            Cut: the notebook was cut short.
        """
        with self._signals():
            try:
                self.recorder.start()
                self._await_ready()
                is_ok = self._run_cells()
                self._end_kernel(SHUTDOWN_SECONDS)
            except Cut as cut:
                self._wind_down(cut)
                raise
            except BaseException as err:
                self.recorder.cut(Cut("failed", f"{type(err).__name__}: {err}"))
                raise
            finally:
                self._read_output()
                self.kernel.destroy()
                self.channels.close()
                self.widgets.store(self.notebook)
                self.recorder.finish()
        return is_ok

    def _run_cells(self) -> bool:
        self._began = time.monotonic()
        code = [index for index, cell in enumerate(self.notebook["cells"]) if cell["cell_type"] == "code"]
        numbers = {index: number for number, index in enumerate(code, 1)}
        for index, cell in enumerate(self.notebook["cells"]):
            self.recorder.cell_start(cell)
            if index in numbers:
                title = title_of(self.notebook["cells"], index)
                self.stage.see("cell", index=index, number=numbers[index], total=len(numbers), title=title)
            is_failed = self._run_cell(cell, numbers.get(index, 0)) if _is_runnable(cell) else False
            self.recorder.cell_end(cell, is_failed)
            self.stage.see("cell done" if index in numbers else "text done", index=index)
            if is_failed:
                return False
        return True

    def _run_cell(self, cell: dict[str, Any], number: int) -> bool:
        """Run a cell and return whether its error ends the notebook."""
        allows_errors = self.stage.allow_errors or "raises-exception" in cell["metadata"].get("tags", [])
        cell["metadata"]["execution"] = {}
        outputs = CellOutputs(cell, f"cell {number}", self._display, self.limits.output_bytes, self.stage.side)
        content = {
            "code": cell["source"],
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": not allows_errors,
        }
        began = time.monotonic()
        request = self.channels.request(self.channels.shell, "execute_request", content)
        waiting = self._waiting = Waiting(request, cell, outputs, began, began)
        while not self._is_done(waiting):
            self._pump()
        outputs.render()
        self._waiting = None
        reply = waiting.reply or {}
        return reply.get("status") == "error" and not allows_errors

    def _is_done(self, waiting: Waiting) -> bool:
        if waiting.reply is None or waiting.is_idle:
            return waiting.reply is not None
        if time.monotonic() - max(waiting.replied, waiting.last_output) > LATE_OUTPUT_SECONDS:
            self._warn("the kernel did not say that a cell has ended; its output may be incomplete")
            return True
        return False

    def _await_ready(self) -> None:
        """Wait until the kernel answers and its output can be heard.

        Raises:
            Cut: it does not.
        """
        begin = time.monotonic()
        ask = 0.0
        while self._info is None or not self._is_subscribed:
            if time.monotonic() >= ask:
                self._info_request = self.channels.request(self.channels.shell, "kernel_info_request", {})
                ask = time.monotonic() + ASK_AGAIN_SECONDS
            self._pump(min(TICK_SECONDS, max(0.0, ask - time.monotonic())))
            if time.monotonic() - begin > self.limits.start_seconds:
                message = f"the kernel did not start: no answer within {self.limits.start_seconds:g} s"
                raise Cut("kernel died", message, words=self._last_words.strip())
        self._last_beat = time.monotonic()
        if self._info.get("implementation") == "ipython":
            content = {"code": f"exec({SET_UP!r}, {{}})", "silent": True, "store_history": False, "allow_stdin": False}
            self.channels.request(self.channels.shell, "execute_request", content)
        if "language_info" in self._info:
            self.notebook["metadata"]["language_info"] = self._info["language_info"]

    def _pump(self, seconds: float = TICK_SECONDS) -> None:
        """Wait for something, take it, and check what has to be checked.

        Raises:
            Cut: something ends the notebook.
        """
        ready = dict(self._poller.poll(int(seconds * 1000)))
        if self.channels.shell in ready:
            self._take_replies()
        if self.channels.iopub in ready:
            self._take_outputs()
        if self.channels.heartbeat in ready:
            self._take_heartbeats()
        if self.kernel.output in ready:
            self._read_output()
        if self._wake in ready and self._wake is not None:
            self._wake.recv(4096)
        if self._signal and not self._is_winding_down:
            number = abs(self._signal)
            raise Cut("killed", f"the run was stopped by {signal.Signals(number).name}", number)
        is_due = time.monotonic() >= self._next_tick
        if self.kernel.sentinel in ready or is_due:
            self._check_alive()
        if is_due:
            self._next_tick = time.monotonic() + TICK_SECONDS
            self._tick()

    def _take_replies(self) -> None:
        while (message := self.channels.receive(self.channels.shell)) is not None:
            if message.kind == "kernel_info_reply":
                self._info = message.content
            elif self._waiting is not None and message.parent == self._waiting.request:
                self._waiting.reply = message.content
                self._waiting.replied = time.monotonic()
                self._waiting.cell["metadata"]["execution"]["shell.execute_reply"] = message.header.get("date") or now()

    def _take_outputs(self) -> None:
        for _ in range(100):  # then it is time to look at the clock again
            message = self.channels.receive(self.channels.iopub)
            if message is None:
                return
            self._last_beat = time.monotonic()  # who talks is alive
            if self._info is None or self._waiting is None:
                self._is_subscribed = self._is_subscribed or message.parent is not None
            if message.kind.startswith("comm_"):
                self.widgets.take(message)
            elif self._waiting is not None and message.parent == self._waiting.request:
                self._take_output(self._waiting, message)

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
            stream = self.stage.stdout if message.content["name"] == "stdout" else self.stage.stderr
            if stream is not None:
                stream.write(message.content["text"])
                stream.flush()
        if self.stage.show is not None:
            self.stage.show({"output_type": message.kind, **message.content})

    def _take_heartbeats(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                self.channels.heartbeat.recv_multipart(zmq.NOBLOCK)
                self._last_beat = time.monotonic()

    def _read_output(self) -> None:
        """Read what the kernel's process prints past the notebook: libraries in C, crashes, warnings at the start."""
        if self.kernel.output is None:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.kernel.output, 65_536):
                text = data.decode("utf-8", "replace")
                self._last_words = (self._last_words + text)[-LAST_WORDS_BYTES:]
                if self.stage.kernel_output is not None:
                    self.stage.kernel_output(text)
            else:
                self._poller.unregister(self.kernel.output)  # everybody has closed it
                os.close(self.kernel.output)
                self.kernel.output = None

    def _tick(self) -> None:
        self.recorder.save_now_and_then()
        if not self._is_winding_down:
            self._check_silence()
            self._check_limits()

    def _check_alive(self) -> None:
        if not self.kernel.ended():
            return
        if self.kernel.sentinel is not None:
            with contextlib.suppress(KeyError):
                self._poller.unregister(self.kernel.sentinel)
        end = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < end and (ready := dict(self._poller.poll(int(DRAIN_SECONDS * 500)))):
            self._take_outputs()
            if self.kernel.output in ready:
                self._read_output()
            if self.channels.iopub not in ready and self.kernel.output is None:
                break
        if self._is_winding_down:
            return
        code = self.kernel.exit_code()
        message = ends.describe(code)
        if self._info is None:
            message = f"the kernel did not start: {message}"
        if code == -signal.SIGKILL and self.kernel.is_out_of_memory():
            message = "the kernel's process was ended by SIGKILL because the memory was full"
            raise Cut("killed", message, words=self._last_words.strip())
        raise Cut("kernel died", message, words=self._last_words.strip())

    def _check_silence(self) -> None:
        """Notice a kernel that is stopped or whose process does not even answer its heartbeat."""
        moment = time.monotonic()
        if moment >= self._next_beat:
            self._next_beat = moment + min(HEARTBEAT_SECONDS, self.limits.silent_seconds / 4)
            self.channels.heartbeat.send_multipart([b"", b"ping"], zmq.NOBLOCK)
            if not self.kernel.is_stopped():
                self._stopped_since = None
            elif self._stopped_since is None:
                self._stopped_since = moment
                self._warn("the kernel's process is stopped (SIGSTOP)")
        longest = self.limits.silent_seconds
        is_late = moment - self._last_beat > longest and self._info is not None
        if self._stopped_since is not None and (is_late or moment - self._stopped_since > longest):
            raise Cut("kernel died", f"the kernel's process was stopped (SIGSTOP) for {longest:g} s")
        if is_late:
            raise Cut("kernel died", f"the kernel hangs: it did not answer its heartbeat for {longest:g} s")

    def _check_limits(self) -> None:
        moment, limits = time.monotonic(), self.limits
        waiting = self._waiting
        if limits.notebook_seconds is not None and moment - self._began > limits.notebook_seconds:
            raise Cut("timeout", f"the notebook ran longer than {limits.notebook_seconds:g} s")
        if waiting is None or waiting.reply is not None:
            return
        if limits.cell_seconds is not None and moment - waiting.began > limits.cell_seconds:
            raise Cut("timeout", f"a cell ran longer than {limits.cell_seconds:g} s")
        if limits.idle_seconds is not None and moment - waiting.last_output > limits.idle_seconds:
            raise Cut("timeout", f"a cell printed nothing for {limits.idle_seconds:g} s")

    def _wind_down(self, cut: Cut) -> None:
        """Interrupt the cell, so that its traceback says where it was, tell the truth, and let the kernel end."""
        self._is_winding_down = True
        waiting = self._waiting
        can_react = not self.kernel.ended() and cut.status != "kernel died"
        if waiting is not None:
            if can_react and waiting.reply is None:
                self._interrupt()
                can_react = self._await_reaction(waiting)
            waiting.outputs.render()
        self.recorder.cut(cut)
        self.recorder.save()  # before anything that may take its time
        if can_react:
            self._end_kernel(SHORT_SHUTDOWN_SECONDS)

    def _await_reaction(self, waiting: Waiting) -> bool:
        end = time.monotonic() + INTERRUPT_SECONDS
        while time.monotonic() < end and not (waiting.reply is not None and waiting.is_idle):
            if self.kernel.ended() or self._signal < 0:
                return False
            self._pump(0.1)
        return waiting.reply is not None

    def _interrupt(self) -> None:
        if not self.kernel.interrupt():
            self.channels.request(self.channels.control, "interrupt_request", {})

    def _end_kernel(self, seconds: float) -> None:
        """Ask the kernel to end, and wait until it has."""
        self._is_winding_down = True
        self.channels.request(self.channels.control, "shutdown_request", {"restart": False})
        end = time.monotonic() + seconds
        while not self.kernel.ended() and time.monotonic() < end and not self._signal:
            self._pump(0.1)

    def _save(self) -> None:
        if self._waiting is not None:
            self._waiting.outputs.render()
        self._save_notebook()

    def _warn(self, message: str) -> None:
        self.stage.see("warning", message=message)

    def _send_comm(self, identity: str, data: dict[str, Any]) -> None:
        self.channels.request(self.channels.shell, "comm_msg", {"comm_id": identity, "data": data})

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the notebook in order; the second one at once."""
        if threading.current_thread() is not threading.main_thread():
            yield  # whoever has the main thread decides
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        read_end, write_end = sockets.socketpair()
        for end in (read_end, write_end):
            end.setblocking(False)
        self._wake = read_end
        self._poller.register(read_end, zmq.POLLIN)
        old = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._heard)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old)
            read_end.close()
            write_end.close()

    def _heard(self, number: int, _frame: object) -> None:
        if self._signal:
            self._signal = -abs(number)  # again: no more patience
        else:
            self._signal = number


def _is_runnable(cell: Mapping[str, Any]) -> bool:
    tags = cell["metadata"].get("tags", [])
    return cell["cell_type"] == "code" and bool(cell["source"].strip()) and "skip-execution" not in tags
