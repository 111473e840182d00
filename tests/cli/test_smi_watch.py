"""`rocmlab smi --watch` on a real terminal: it redraws in place, follows the window, and gives the terminal back."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import waiting
from hosts import with_descriptors

from rocmlab.simulation import Live

DEADLINE_SECONDS = 60.0
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
FRAME = re.compile(rb"\x1b\[\?2026h\x1b\[H(.*?)\x1b\[\?2026l", re.DOTALL)
CODE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


class Terminal:
    """A pseudo-terminal with `rocmlab smi` in it."""

    def __init__(
        self, repository: Path, root: Path, *arguments: str, columns: int = 100, rows: int = 30, many: bool = False
    ) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(columns, rows)
        self.mode = termios.tcgetattr(theirs)
        self.received = b""
        command = ["-m", "rocmlab", "smi", *arguments]
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            with_descriptors(*command) if many else [sys.executable, *command],
            env={**kept, "PYTHONPATH": str(repository / "src"), "ROCMLAB_ROOT": str(root), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.theirs = theirs  # kept open, so that its mode can be asked when the command has ended

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window; its programs are notified."""
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait(self, is_true: Callable[[], object]) -> None:
        """Receive until it is true."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not is_true():
            assert time.monotonic() < end, f"not within {DEADLINE_SECONDS} s; received {self.received[-2000:]!r}"
            if waiting.readable(self.ours, 0.1):
                self.received += os.read(self.ours, 1 << 16)
            elif self.process.poll() is not None and not is_true():
                assert self.process.stderr is not None
                pytest.fail(f"it has ended: {self.process.stderr.read().decode()}")

    def frames(self) -> list[str]:
        """Return what was drawn so far, frame by frame."""
        return [found.decode() for found in FRAME.findall(self.received)]

    def wait_for_frames(self, more: int = 1) -> str:
        """Wait until so many more were drawn, and return the last."""
        count = len(self.frames()) + more
        self.wait(lambda: len(self.frames()) >= count)
        return self.frames()[-1]

    def end(self) -> int:
        """Wait until the command has ended, and return its exit code."""
        self.wait(lambda: self.process.poll() is not None)
        while waiting.readable(self.ours, 0):
            self.received += os.read(self.ours, 1 << 16)
        assert self.process.stderr is not None
        assert self.process.stderr.read() == b""
        return self.process.returncode

    def is_restored(self) -> bool:
        """Return whether keys are echoed as before, and the own screen and the cursor are back."""
        order = [self.received.rfind(code) for code in (HIDE, SHOW, ENTER, LEAVE)]
        return termios.tcgetattr(self.theirs) == self.mode and order[0] < order[1] and order[2] < order[3]

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def live(tmp_path: Path) -> Live:
    """A simulated host whose values the test moves."""
    return Live(tmp_path / "host", gpus=2, busy="waves")


@pytest.fixture
def start(tmp_path: Path, live: Live, repository: Path) -> Iterator[Callable[..., Terminal]]:
    """Start the command in a terminal."""
    started: list[Terminal] = []

    def begin(*arguments: str, **size: int) -> Terminal:
        started.append(Terminal(repository, tmp_path / "host", *arguments, **size))
        return started[-1]

    yield begin
    for terminal in started:
        terminal.close()


def _lines(frame: str) -> list[str]:
    return [CODE.sub("", line).rstrip("\r") for line in frame.split("\n")]


def test_it_redraws_in_place_with_what_changed(start: Callable[..., Terminal], live: Live) -> None:
    """The screen is cleared once; after that each frame begins at the top and erases only what is left of a line."""
    terminal = start("--watch", "0.2")
    first = terminal.wait_for_frames()
    assert " 50%" in first
    live.step(15.0)

    terminal.wait(lambda: " 95%" in terminal.frames()[-1])

    assert terminal.received.count(b"\x1b[2J") == 1
    assert first.count("\x1b[K") >= 5
    assert first.index("HIP 0") < first.index("HIP 1")


def test_it_follows_the_size_of_the_window(start: Callable[..., Terminal]) -> None:
    """At once, not at the next look; no line is longer, and no line is lost below the edge."""
    terminal = start("--watch", "3600", columns=120, rows=30)
    assert "MHz" in terminal.wait_for_frames()

    terminal.resize(50, 12)
    terminal.wait(lambda: "MHz" not in terminal.frames()[-1])

    lines = _lines(terminal.frames()[-1])
    assert max(map(len, lines)) <= 50
    assert len(lines) <= 12
    assert any(line.startswith("HIP 1") for line in lines)


def test_a_low_window_says_how_much_is_not_shown(start: Callable[..., Terminal]) -> None:
    """Processes go first, and then the rest."""
    terminal = start("--watch", rows=4)

    lines = _lines(terminal.wait_for_frames())

    assert len(lines) == 4
    assert re.match(r"… \d+ more lines: the window is too low", lines[-1])


@pytest.mark.parametrize("ending", [b"q", b"\x03", signal.SIGINT])
def test_it_ends_and_gives_the_terminal_back(start: Callable[..., Terminal], ending: bytes | signal.Signals) -> None:
    """By q and by Ctrl-C, with exit code 0; what was seen last stays on the screen."""
    terminal = start("--watch", "0.2")
    terminal.wait_for_frames(2)
    assert not terminal.is_restored()

    if isinstance(ending, bytes):
        os.write(terminal.ours, ending)
    else:
        terminal.process.send_signal(ending)

    assert terminal.end() == 0
    assert terminal.is_restored()
    left = terminal.received[terminal.received.rfind(LEAVE) :].decode()
    assert "HIP 0" in left
    assert "HIP 1" in left


def test_a_terminated_watch_gives_the_terminal_back(start: Callable[..., Terminal]) -> None:
    """And ends by that signal, so that anyone who sent it sees it was heard."""
    terminal = start("--watch", "0.2")
    terminal.wait_for_frames()

    terminal.process.terminate()

    assert terminal.end() == -signal.SIGTERM
    assert terminal.is_restored()


@pytest.mark.slow
def test_it_can_be_stopped_and_continued(start: Callable[..., Terminal]) -> None:
    """Ctrl-Z gives the terminal back as well; `fg` draws again."""
    terminal = start("--watch", "0.2")
    terminal.wait_for_frames()

    terminal.process.send_signal(signal.SIGTSTP)
    terminal.wait(lambda: _state(terminal.process.pid) == "T")
    terminal.wait(lambda: terminal.received.rstrip().endswith(LEAVE))
    assert terminal.is_restored()
    terminal.process.send_signal(signal.SIGCONT)

    terminal.wait_for_frames(2)
    os.write(terminal.ours, b"q")
    assert terminal.end() == 0
    assert terminal.is_restored()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_nothing_of_it_runs_on(start: Callable[..., Terminal]) -> None:
    """The process that reads the devices ends too, even if the command is killed."""
    terminal = start("--watch", "0.2")
    terminal.wait_for_frames()
    pid = terminal.process.pid
    children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert children

    terminal.process.kill()
    terminal.process.wait()

    end = time.monotonic() + DEADLINE_SECONDS
    while any(_is_alive(child) for child in children):
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        return _state(pid) not in "ZX"
    except OSError:
        return False


def test_it_runs_with_descriptors_beyond_those_of_select(start: Callable[..., Terminal]) -> None:
    """`select` takes none from 1024 on, and a process may inherit as many."""
    terminal = start("--watch", "0.2", many=True)
    terminal.wait_for_frames(2)

    os.write(terminal.ours, b"q")

    assert terminal.end() == 0
