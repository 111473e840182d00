"""One notebook in one kernel: a loop over sockets, the kernel's process, the clock and signals."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from rocmlab.kernels.kernel import Kernel
from rocmlab.notebook.messages import Messages, Waiting
from rocmlab.notebook.notebooks import may_fail, numbered, title_of
from rocmlab.notebook.options import Options
from rocmlab.notebook.outcome import Aborted
from rocmlab.notebook.outputs import CellOutputs, Display
from rocmlab.notebook.record import Recorder
from rocmlab.notebook.signals import Signals
from rocmlab.notebook.watch import Watch

TICK_SECONDS = 0.5  # where the system does not report that the kernel has ended, and while a kernel starts
ASK_AGAIN_SECONDS = 0.5  # whether the kernel is ready
LATE_OUTPUT_SECONDS = 10.0  # of silence after a cell's reply, until its end is taken as lost
DRAIN_SECONDS = 0.2  # for the last lines of a kernel that has died
INTERRUPT_SECONDS = 2.0  # for a cell to react to an interrupt
SHUTDOWN_SECONDS = 10.0  # for a kernel to end by itself: what it does at exit, such as writing a checkpoint
SHORT_SHUTDOWN_SECONDS = 1.0  # the same after a notebook was aborted short
# Asked to end, an IPython kernel's control thread flushes the streams; if their thread is stopped meanwhile, both wait
# for ten seconds (ipykernel 7.4). So the kernel lets that thread end before it closes anything.
# An IPython kernel collects what is printed for 0.2 s, four bytes a character: 100 MB for a cell that prints fast. And
# it catches its own stderr, so that Python's report of a crash would be lost with it; the process's own stderr is read.
SET_UP = """
import atexit, faulthandler, sys, threading
for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, "flush_interval"):
        stream.flush_interval = 0.04
faulthandler.enable(getattr(sys.stderr, "_original_stdstream_copy", sys.__stderr__), all_threads=False)
atexit.register(lambda: [each.join(0.5) for each in threading.enumerate() if each.name == "Control"])
"""


class Execution:
    """Runs the cells of a notebook in a kernel that has been started."""

    def __init__(self, notebook: dict[str, Any], running: Kernel, options: Options, save: Callable[[], None]) -> None:
        self.notebook = notebook
        self.kernel = running
        self.options = options
        self.limits = options.limits
        self.recorder = Recorder(notebook, self._save, self.limits.save_seconds, options.warn)
        self.messages = Messages(running, options)
        self.watch = Watch(running, self.messages, options)
        self.signals = Signals()
        self._save_notebook = save
        self._display = Display()
        self._is_winding_down = False
        self._next_look = 0.0  # at a kernel whose end the system does not tell

    def run(self) -> bool:
        """Run all cells; afterwards the kernel is gone and the notebook is saved, whatever happened.

        Returns:
            Whether all cells ran; False if one raised an error.

        Raises:
            Aborted: the notebook was aborted short.
        """
        with self.signals.heard():
            if self.signals.wake is not None:
                self.messages.poller.register(self.signals.wake, zmq.POLLIN)
            try:
                self.recorder.start()
                self._await_ready()
                is_ok = self._run_cells()
                self._end_kernel(SHUTDOWN_SECONDS)
            except Aborted as aborted:
                self._wind_down(aborted)
                raise
            except BaseException as err:
                self.recorder.abort(Aborted("failed", f"{type(err).__name__}: {err}"))
                raise
            finally:
                self.messages.read_output()
                self.kernel.destroy()
                self.messages.channels.close()
                self.messages.widgets.store(self.notebook)
                self.recorder.finish()
        return is_ok

    def _run_cells(self) -> bool:
        self.watch.begin()
        numbers = numbered(self.notebook["cells"])
        total = max(numbers.values(), default=0)
        for index, cell in enumerate(self.notebook["cells"]):
            self.recorder.cell_start(cell)
            if index in numbers:
                title = title_of(self.notebook["cells"], index)
                self.options.report("cell", index=index, number=numbers[index], total=total, title=title)
            is_failed = self._run_cell(cell, numbers.get(index, 0)) if _is_runnable(cell) else False
            self.recorder.cell_end(cell, is_failed)
            self.options.report("cell done" if index in numbers else "text done", index=index)
            if is_failed:
                return False
        return True

    def _run_cell(self, cell: dict[str, Any], number: int) -> bool:
        """Run a cell and return whether its error ends the notebook."""
        allows_errors = self.options.allow_errors or may_fail(cell)
        cell["metadata"]["execution"] = {}
        outputs = CellOutputs(cell, f"cell {number}", self._display, self.limits.output_bytes, self.options.overflow)
        content = {
            "code": cell["source"],
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": not allows_errors,
        }
        began = time.monotonic()
        channels = self.messages.channels
        request = channels.request(channels.shell, "execute_request", content)
        waiting = self.messages.waiting = Waiting(request, cell, outputs, began, began)
        while not self._is_done(waiting):
            self._pump()
        reply = waiting.reply or {}
        if reply.get("status") == "error" and not any(each["output_type"] == "error" for each in outputs.outputs):
            outputs.take("error", {"ename": "Error", "evalue": "", "traceback": [], **reply})
        outputs.render()
        self.messages.waiting = None
        return reply.get("status") == "error" and not allows_errors

    def _is_done(self, waiting: Waiting) -> bool:
        if waiting.reply is None or waiting.is_idle:
            return waiting.reply is not None
        if time.monotonic() >= _late(waiting):
            self.options.warn("the kernel did not report that a cell has ended; its output may be incomplete")
            return True
        return False

    def _await_ready(self) -> None:
        """Wait until the kernel answers and its output can be heard.

        Raises:
            Aborted: it does not.
        """
        begin = time.monotonic()
        ask = 0.0
        messages, channels = self.messages, self.messages.channels
        while messages.info is None or not messages.is_subscribed:
            if time.monotonic() >= ask:
                channels.request(channels.shell, "kernel_info_request", {})
                ask = time.monotonic() + ASK_AGAIN_SECONDS
            self._pump(min(TICK_SECONDS, max(0.0, ask - time.monotonic())))
            if time.monotonic() - begin > self.limits.start_seconds:
                message = f"the kernel did not start: no answer within {self.limits.start_seconds:g} s"
                raise Aborted("kernel died", message, output=messages.final_output.strip())
        messages.last_beat = time.monotonic()
        if messages.info.get("implementation") == "ipython":
            content = {"code": f"exec({SET_UP!r}, {{}})", "silent": True, "store_history": False, "allow_stdin": False}
            channels.request(channels.shell, "execute_request", content)
        if "language_info" in messages.info:
            self.notebook["metadata"]["language_info"] = messages.info["language_info"]

    def _pump(self, seconds: float = math.inf) -> None:
        """Wait for something, or until something has to be checked or saved; take it, and check.

        Raises:
            Aborted: something ends the notebook.
        """
        due = self._due()
        ready = self.messages.poll(min(seconds, due - time.monotonic()))
        if self.messages.take(ready):
            self.recorder.is_changed = True
        if self.signals.wake is not None and self.signals.wake in ready:
            self.signals.wake.recv(4096)
        if self.signals.number and not self._is_winding_down:
            number = self.signals.number
            raise Aborted("killed", f"the run was stopped by {signal.Signals(number).name}", number)
        is_due = time.monotonic() >= due
        if is_due or self.kernel.sentinel in ready:
            self._check_alive()
            self._next_look = time.monotonic() + TICK_SECONDS
        if is_due:
            if not self._is_winding_down:
                self.watch.check()
            self.recorder.save_changes()  # last: a disk may take its time, in which the kernel cannot be heard

    def _due(self) -> float:
        """Return when something has to be checked or saved, independent of the kernel's messages."""
        waiting = self.messages.waiting
        is_late = waiting is not None and waiting.reply is not None and not waiting.is_idle
        return min(
            self._next_look if self.kernel.sentinel is None else math.inf,
            _late(waiting) if waiting is not None and is_late else math.inf,
            self.recorder.due,
            math.inf if self._is_winding_down else self.watch.due,
        )

    def _check_alive(self) -> None:
        if not self.kernel.ended():
            return
        if self._is_winding_down and self.messages.waiting is None:
            return  # it was asked to end, and no cell's output is awaited
        self.messages.drain(DRAIN_SECONDS)
        if not self._is_winding_down:
            raise self.watch.death()

    def _wind_down(self, aborted: Aborted) -> None:
        """Interrupt the cell, so that its traceback shows where it was, repair the status, and let the kernel end."""
        self._is_winding_down = True
        waiting = self.messages.waiting
        can_react = not self.kernel.ended() and aborted.status != "kernel died"
        if waiting is not None:
            if can_react and waiting.reply is None:
                if not self.kernel.interrupt():
                    self.messages.channels.request(self.messages.channels.control, "interrupt_request", {})
                can_react = self._await_reaction(waiting)
            waiting.outputs.render()
        self.recorder.abort(aborted)
        self.recorder.save_at_last()  # before anything that may take its time
        if can_react:
            self._end_kernel(SHORT_SHUTDOWN_SECONDS)

    def _await_reaction(self, waiting: Waiting) -> bool:
        end = time.monotonic() + INTERRUPT_SECONDS
        while time.monotonic() < end and not (waiting.reply is not None and waiting.is_idle):
            if self.kernel.ended() or self.signals.is_repeated:
                return False
            self._pump(0.1)
        return waiting.reply is not None

    def _end_kernel(self, seconds: float) -> None:
        """Ask the kernel to end, and wait until it has."""
        self._is_winding_down = True
        self.messages.channels.request(self.messages.channels.control, "shutdown_request", {"restart": False})
        end = time.monotonic() + seconds
        while not self.kernel.ended() and time.monotonic() < end and not self.signals.number:
            self._pump(0.1)

    def _save(self) -> None:
        if self.messages.waiting is not None:
            self.messages.waiting.outputs.render()
        self._save_notebook()


def _late(waiting: Waiting) -> float:
    """Return when the end of a cell that has replied is taken as lost."""
    return max(waiting.replied, waiting.last_output) + LATE_OUTPUT_SECONDS


def _is_runnable(cell: Mapping[str, Any]) -> bool:
    tags = cell["metadata"].get("tags", [])
    return cell["cell_type"] == "code" and bool(cell["source"].strip()) and "skip-execution" not in tags
