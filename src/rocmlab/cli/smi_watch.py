"""`rocmlab smi --watch` on a terminal: redrawn in place, and the terminal given back as it was however it ends."""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from rocmlab.cli import guard
from rocmlab.telemetry import smi_text

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    from typing import Any

    from rocmlab.cli.smi_reader import ViewReader
    from rocmlab.telemetry.smi import View
    from rocmlab.telemetry.smi_text import Line

    Draw = Callable[[View, int, int | None], list[Line]]  # of columns and rows

ENTER = b"\x1b[?1049h\x1b[?25l\x1b[2J"  # the other screen, without cursor, empty
LEAVE = b"\x1b[?25h\x1b[?1049l"
BEGIN, END = "\x1b[?2026h\x1b[H", "\x1b[?2026l"  # show all of it in one step, where the terminal can
TO_END_OF_LINE, BELOW = "\x1b[K", "\x1b[J"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
KEYS_TO_END = (b"q", b"Q", b"\x03")


def watch(reader: ViewReader, seconds: float, draw: Draw, *, coloured: bool, plain: bool) -> int:
    """Redraw every `seconds`, and when the window changes, until q, Ctrl-C or SIGTERM; return the exit code."""
    screen = _Screen(draw, coloured, plain)
    with _signals() as heard, screen:
        ended_by = _loop(reader, seconds, screen, heard)
    screen.leave_last_view()
    if ended_by not in (None, signal.SIGINT):
        signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)  # the sender sees that it was received
    return 0


class _Screen:
    """The terminal while it is watched."""

    def __init__(self, draw: Draw, coloured: bool, plain: bool) -> None:
        self._draw, self._coloured, self._plain = draw, coloured, plain
        self._out, self._in = sys.stdout.fileno(), sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._mode: list[Any] | None = None
        self.view: View | None = None

    @property
    def keys(self) -> list[int]:
        """Where keys come from: at most one descriptor."""
        return [] if self._in is None else [self._in]

    def __enter__(self) -> _Screen:
        sys.stdout.flush()
        if self._in is not None:
            self._mode = termios.tcgetattr(self._in)
            changed = [*self._mode[:3], self._mode[3] & ~(termios.ICANON | termios.ECHO), *self._mode[4:]]
            with suppress(termios.error):  # the terminal has gone
                termios.tcsetattr(self._in, termios.TCSADRAIN, changed)
        self._write(ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._write(LEAVE)
        if self._in is not None and self._mode is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._in, termios.TCSADRAIN, self._mode)

    def show(self) -> None:
        """Draw what was seen last, in the size that the window has now."""
        if self.view is None:
            return
        columns, rows = os.get_terminal_size(self._out)
        if columns <= 0 or rows <= 0:
            columns, rows = 80, 24  # a terminal that does not tell
        lines = self._draw(self.view, columns, rows)
        painted = self._paint(lines)
        ends = [TO_END_OF_LINE if smi_text.line_width(line) < columns else "" for line in lines]
        text = "\n".join(each + end for each, end in zip(painted, ends, strict=True))
        self._write((BEGIN + text + ("\n" + BELOW if len(lines) < rows else "") + END).encode("utf-8", "replace"))

    def leave_last_view(self) -> None:
        """Print what was seen last where the cursor was before."""
        if self.view is not None:
            with suppress(OSError):
                columns = os.get_terminal_size(self._out).columns or 80
                text = "".join(f"{line}\n" for line in self._paint(self._draw(self.view, columns, None)))
                self._write(text.encode("utf-8", "replace"))

    def _paint(self, lines: list[Line]) -> list[str]:
        return smi_text.paint(lines, coloured=self._coloured, plain=self._plain)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]

    def key(self) -> bytes:
        """Return what was typed; `q` where nothing can come any more."""
        try:
            return os.read(self._in, 1) or KEYS_TO_END[0] if self._in is not None else b""
        except OSError:
            return KEYS_TO_END[0]

    def pause(self) -> None:
        """Suspend for Ctrl-Z, with the terminal restored; continue after SIGCONT."""
        self.__exit__()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.__enter__()
        self.show()


@contextmanager
def _signals() -> Iterator[int]:
    """Give a descriptor from which the numbers of signals can be read, in the place of what they do."""
    heard, waking = os.pipe()
    os.set_blocking(waking, False)
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    woken_before = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    try:
        yield heard
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(heard)
        os.close(waking)


def _loop(reader: ViewReader, seconds: float, screen: _Screen, heard: int) -> signal.Signals | None:
    """Draw until a key or a signal ends it; return that signal."""
    due = time.monotonic()  # when to ask next
    while True:
        now = time.monotonic()
        if now >= due and not reader.is_asked:
            reader.ask()
            due = max(due + seconds, now)
        until = reader.deadline() if reader.is_asked else due
        ready = guard.readable([reader.receiving, heard, *screen.keys], max(0.0, until - now) + 0.001)
        if heard in ready:
            for number in os.read(heard, 64):
                if (ended_by := _act(signal.Signals(number), screen)) is not None:
                    return ended_by
        if screen.keys and screen.keys[0] in ready and screen.key() in KEYS_TO_END:
            return None
        if reader.receiving in ready:
            screen.view = reader.take() or screen.view
            screen.show()
        elif reader.is_overdue():
            _say_overdue(reader, screen)


def _act(number: signal.Signals, screen: _Screen) -> signal.Signals | None:
    """Handle a signal; return it if it ends the program."""
    if number == signal.SIGWINCH:
        screen.show()
    elif number == signal.SIGTSTP:
        screen.pause()
    elif number != signal.SIGCONT:
        return number
    return None


def _say_overdue(reader: ViewReader, screen: _Screen) -> None:
    """Show what hangs below what was seen last, and continue waiting.

    Raises:
        RocmlabError: nothing was seen yet.
    """
    problem = reader.overdue()
    if screen.view is None:
        raise problem
    screen.view = replace(screen.view, problems=[problem.problem.as_dict()])
    screen.show()
    reader.wait_on()
