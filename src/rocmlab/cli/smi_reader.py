"""A child process that reads the devices, so that a GPU whose driver hangs cannot hang the screen.

A read that hangs in the driver cannot be interrupted: neither a signal nor the end of the process reaches it, and not
even the process that waits for it ends. So nothing waits for the child: it is abandoned.
The child exits when its parent closes the pipe of requests.
"""

from __future__ import annotations

import marshal
import os
import signal
import sys
import time
from contextlib import suppress
from mmap import mmap

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import guard
from rocmlab.devices import roots

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

    from rocmlab.cli.smi_look import Choose, Row
    from rocmlab.telemetry.smi import View

LIMIT_SECONDS = 10.0  # the sampler waits 3 seconds, however many devices hang
LENGTH_BYTES = 8


class ViewReader:
    """Asks the child, one question at a time."""

    def __init__(self, root: Path, choose: Choose, *, queries_lab: bool = False) -> None:
        """Start the child; `queries_lab`: ask a running lab for its kernels even if no process uses a GPU."""
        self._note = mmap(-1, guard.NOTE_BYTES)
        requests, self._requests = os.pipe()
        self.receiving, sending = os.pipe()
        self._answer = b""
        self._asked_at: float | None = None  # None: no question is pending
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._requests)
            os.close(self.receiving)
            _run(root, choose, queries_lab, requests, sending, self._note)
        os.close(requests)
        os.close(sending)

    def ask(self) -> None:
        """Request a View, unless one is already requested."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            with suppress(BrokenPipeError):  # `take` tells why
                os.write(self._requests, b"?")

    def take(self) -> View | None:
        """Take what has come; return the View when it is complete. Call it when `receiving` is readable.

        Raises:
            RocmlabError: what went wrong in the child, or it has ended.
        """
        part = os.read(self.receiving, 1 << 16)
        if not part:
            raise RocmlabError(
                "the devices could not be read", "the process that read them ended", "see the lines above"
            )
        self._answer += part
        size = int.from_bytes(self._answer[:LENGTH_BYTES], "big")
        if len(self._answer) < LENGTH_BYTES + size:
            return None
        answer, self._answer, self._asked_at = marshal.loads(self._answer[LENGTH_BYTES:]), b"", None
        if "error" in answer:
            raise RocmlabError(**answer["error"])
        from rocmlab.telemetry.smi import View  # imported while the child looks

        return View(**answer)

    def wait(self) -> View:
        """Ask, and wait for the answer.

        Raises:
            RocmlabError: the file whose reading takes longer than `LIMIT_SECONDS`, or what went wrong in the child.
        """
        self.ask()
        while True:
            if not guard.readable([self.receiving], self.deadline() - time.monotonic()):
                raise self.overdue()
            if view := self.take():
                return view

    def deadline(self) -> float:
        """Return until when an answer may come, as `time.monotonic` counts."""
        return (time.monotonic() if self._asked_at is None else self._asked_at) + LIMIT_SECONDS

    @property
    def is_asked(self) -> bool:
        """Whether an answer is to come."""
        return self._asked_at is not None

    def is_overdue(self) -> bool:
        """Return whether the answer takes longer than `LIMIT_SECONDS`."""
        return self._asked_at is not None and time.monotonic() > self.deadline()

    def wait_on(self) -> None:
        """Give the answer as much time again."""
        self._asked_at = time.monotonic()

    def overdue(self) -> RocmlabError:
        """Return what it hangs at."""
        return guard.hung(self._note, LIMIT_SECONDS)

    def close(self) -> None:
        """End the child, without waiting for one that the driver holds."""
        os.close(self._requests)
        os.close(self.receiving)
        guard.end_child(self._pid)


def _run(root: Path, choose: Choose, queries_lab: bool, requests: int, sending: int, note: mmap) -> NoReturn:
    """Answer until the parent has gone, and leave without running what belongs to it."""
    try:
        _detach()
        from rocmlab.cli.smi_look import Look

        look = Look(root, choose, queries_lab)
        roots.on_read = lambda name: guard.write_note(note, name)
        while os.read(requests, 1):
            try:
                answer = look.view()
            except RocmlabError as err:
                answer = {"error": err.arguments()}
            _send(sending, answer)
    except BrokenPipeError:
        pass  # the parent has gone
    except BaseException:
        import traceback

        what, why = "the devices could not be read: a bug in rocmlab", traceback.format_exc().strip()
        _send(sending, {"error": {"what": what, "why": why, "fix": "report it, with these lines"}})
    finally:
        os._exit(0)


def _send(sending: int, answer: Row) -> None:
    packed = marshal.dumps(answer)
    packed = len(packed).to_bytes(LENGTH_BYTES, "big") + packed
    while packed:
        packed = packed[os.write(sending, packed) :]


def _detach() -> None:
    """Leave the terminal's signals to the parent, and keep nothing of its output open: it may outlive the parent."""
    for name in (signal.SIGINT, signal.SIGTSTP, signal.SIGWINCH):
        signal.signal(name, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
