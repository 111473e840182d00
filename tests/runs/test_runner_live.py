"""What a user sees of a run: devices and their use, jobs that wait, retries, and the time that is left."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import notebook_files
import pytest
from rich.console import Console

from rocmlab.devices import Device
from rocmlab.runs.jobs import INTERRUPTED, STOPPED, Job, Result
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.usage import Meters
from rocmlab.runs.screen import progress

pytestmark = pytest.mark.slow


class Known(Meters):
    """Meters of GPUs whose use is known."""

    def __init__(self, of: dict[int, tuple[float | None, int | None]]) -> None:
        super().__init__()
        self.of = of

    def latest(self, device: Device) -> tuple[float | None, int | None]:
        """Return what was given."""
        return self.of[device.index]


def terminal(**options: object) -> progress.Live:
    """Return a live view."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120, _environ={"TERM": "xterm"})
    view = progress.display(console, options.pop("total", 2), **options)
    assert isinstance(view, progress.Live)
    return view


def drawn(view: progress.Live) -> list[str]:
    """Return the lines that a view shows now."""
    console = Console(file=io.StringIO(), width=120)
    console.print(view._render())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def log_of(total: int) -> progress.Plain:
    """Return a view for a log."""
    view = progress.display(Console(file=io.StringIO(), width=120), total)
    assert isinstance(view, progress.Plain)
    return view


def lines_of(view: progress.Plain) -> list[str]:
    """Return what was printed, without the times."""
    return [line.split(None, 1)[1] for line in view.console.file.getvalue().splitlines()]


def ended(name: str, seconds: float | None = None, status: str = "ok") -> Result:
    """Return a result."""
    return Result(name, name, {}, "k", status, 0, seconds=seconds)


def test_the_use_of_a_jobs_gpus_is_shown(gpus: list[Device], cpu: Device) -> None:
    """The mean of busy and the sum of VRAM; what is not known is not there."""
    meters = Known({0: (80.0, 2**30), 1: (90.0, 2 * 2**30)})
    view = terminal(meters=meters)
    with view:
        for name, devices in (("both", tuple(gpus)), ("one", (gpus[0],)), ("none", (cpu,))):
            view.started(Job(name, name), Place(devices, 1))
        shown = {line.split()[1]: line for line in drawn(view) if len(line.split()) > 3}
        meters.of = {0: (None, None), 1: (None, None)}
        unknown = drawn(view)

    assert "GPU 0,1" in shown["both"]
    assert "85% 3.0 GiB" in shown["both"]
    assert "80% 1.0 GiB" in shown["one"]
    assert "%" not in shown["none"]
    assert not any("%" in line or "GiB" in line for line in unknown)


def test_a_job_that_waits_says_for_what_and_its_clock_stands(gpus: list[Device]) -> None:
    """Who holds the GPU is named; the clock starts with the lease, and the device is the one that was leased."""
    place = Place((gpus[0],), 1)
    view = terminal()
    with view:
        view.started(Job("a", "a"), place)
        view.event(Job("a", "a"), {"event": "waiting", "held": ["GPU 0 is leased to /b.ipynb"]})
        waiting = next(line for line in drawn(view) if " a " in line)
        place.devices = (gpus[1],)
        view.event(Job("a", "a"), {"event": "leased"})
        leased = next(line for line in drawn(view) if " a " in line)

    assert "waiting: GPU 0 is leased to /b.ipynb" in waiting
    assert not waiting.endswith("0:00")
    assert "GPU 1" in leased
    assert leased.endswith("0:00")


def test_a_log_says_what_is_waited_for_once(gpus: list[Device]) -> None:
    """One line when it waits, and one when it has its lease; a lease at once is not worth one."""
    with log_of(2) as view:
        for name in ("a", "b"):
            view.started(Job(name, name), Place((gpus[0],), 1))
        view.event(Job("b", "b"), {"event": "leased"})
        for _ in range(3):
            view.event(Job("a", "a"), {"event": "waiting", "held": []})
        view.event(Job("a", "a"), {"event": "leased"})

    assert lines_of(view) == [
        "b  started on GPU 0",
        "a  waiting: others have the GPUs",
        "a  started on GPU 0",
    ]


def test_events_before_a_start_or_after_an_end_cost_nothing(cpu: Device) -> None:
    """A lease is often there before the job is shown."""
    for view in (terminal(), log_of(1)):
        with view:
            view.event(Job("a", "a"), {"event": "leased"})
            view.started(Job("a", "a"), Place((cpu,), 1))
            view.finished(ended("a"))
            view.event(Job("a", "a"), {"event": "cell", "number": 1, "total": 1, "title": "x"})

        assert view.done == 1


def test_retries_and_the_time_left_are_in_the_overall_line(cpu: Device) -> None:
    """Two hours of work on two slots are one hour, but never less than the longest job."""
    view = terminal(total=3, slots=2, expected={"a": 3600.0, "b": 1800.0, "c": 1800.0})
    with view:
        first = view.overall(), view.left()
        view.started(Job("a", "a"), Place((cpu,), 1))
        view.event(Job("a", "a"), {"event": "retried", "status": "kernel died", "message": "SIGSEGV", "left": 0})
        second = view.overall(), view.left()
        view.finished(ended("b", 1.0))
        view.finished(ended("c", 1.0, "failed"))
        lines = drawn(view)

    assert first == ("0 of 3 jobs done", "about 1:00:00 left")
    assert second == ("0 of 3 jobs done, 1 retried", "about 1:00:00 left")
    assert "2 of 3 jobs done, 1 retried, 1 failed, about 1:00:00 left" in "\n".join(lines)
    assert "↻ " in view.console.file.getvalue()


def test_nothing_is_guessed_from_nothing(cpu: Device) -> None:
    """Without times no time is given; the mean of this run stands in for what is not known."""
    view = terminal(total=3, expected={"a": None, "b": None, "c": 5.0})
    with view:
        before = view.left_seconds()
        view.finished(ended("a", 10.0))
        after = view.left_seconds()

    assert before is None
    assert after == pytest.approx(15.0)


def test_a_log_of_many_jobs_has_a_line_for_each_end(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred jobs are five hundred lines with a count, and what takes long is mentioned."""
    monkeypatch.setattr(progress, "PLAIN_EVERY_SECONDS", 0.3)
    monkeypatch.setattr(progress, "PLAIN_TICK_SECONDS", 0.1)
    with log_of(500) as view:
        for number in range(499):
            name = f"job{number}"
            view.started(Job(name, name), Place((cpu,), 1))
            view.event(Job(name, name), {"event": "cell", "index": 0, "number": 1, "total": 1, "title": "x"})
            view.finished(ended(name, 1.0))
        view.started(Job("long", "long"), Place((cpu,), 1))
        view.event(Job("long", "long"), {"event": "cell", "index": 0, "number": 1, "total": 2, "title": "train"})
        view._over.wait(0.6)

    lines = lines_of(view)
    assert len([line for line in lines if "✓" in line]) == 499
    assert lines[0] == "1/500 ✓ job0  ok in 1.0 s"
    assert lines[499].startswith("long  cell 1/2  train")
    assert not any("started" in line for line in lines)


def test_what_did_not_end_well_is_counted_by_its_kind(cpu: Device) -> None:
    """A notebook that could not run has not failed, nor has one that a user stopped; all that never began are one."""
    interrupted = Result("c", "c", {}, "k", "killed", 137, seconds=2.0, error={"name": "Killed", "value": INTERRUPTED})
    stopped = Result("d", "d", {}, "k", "killed", 137, error={"name": "Killed", "value": f"{STOPPED}a failed"})
    killed = Result("e", "e", {}, "k", "killed", 137, error={"name": "Killed", "value": "the memory was full"})
    unable = Result("b", "b", {}, None, "not run", 2, error={"name": "Problem", "value": "no kernel"})
    never = [Result(name, name, {}, "k", "not run", None) for name in "fgh"]
    views = terminal(total=9), log_of(9)

    for view in views:
        with view:
            for result in (ended("a", 1.0, "failed"), unable, interrupted, stopped, killed, *never):
                view.finished(result)
            shown = drawn(view)[-1] if isinstance(view, progress.Live) else ""
        if shown:
            assert "8 of 9 jobs done, 2 failed, 1 interrupted, 1 stopped, 4 not run" in shown

    assert lines_of(views[1]) == [
        "✗ a  failed in 1.0 s",
        "- b  not run  no kernel",
        "■ c  interrupted after 2.0 s",
        "■ d  stopped  a failed",
        "✗ e  killed  the memory was full",
        "- 3 jobs  not run  not started before the run ended",
    ]


def test_a_job_that_is_being_stopped_says_so(cpu: Device) -> None:
    """Between Ctrl-C and its end it is saved."""
    views = terminal(), log_of(2)
    for view in views:
        with view:
            view.started(Job("a", "a"), Place((cpu,), 1))
            view.event(Job("a", "a"), {"event": "stopping"})
            shown = drawn(view) if isinstance(view, progress.Live) else lines_of(view)

        assert any("stopping: it is interrupted and saved" in line for line in shown)


def test_more_jobs_than_lines_leave_the_overall_bar(cpu: Device) -> None:
    """A small terminal shows the first of them and how many more there are."""
    view = terminal(total=100)
    view.console.height = 10
    with view:
        for number in range(50):
            view.started(Job(f"job{number}", "a"), Place((cpu,), 1))
        lines = drawn(view)

    assert len(lines) < 10
    assert lines[-2] == "  and 44 more"
    assert "0 of 100 jobs done" in lines[-1]


SHOW = """
import sys
from rich.console import Console
from rocmlab.devices import Device
from rocmlab.runs.screen import progress
from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.place import Place
with progress.display(Console(file=sys.stderr), 3) as view:
    job = Job("train", "train")
    view.started(job, Place((Device(backend="cpu", index=0, name="a processor", is_usable=True),), 1))
    view.event(job, {"event": "cell", "index": 0, "number": 1, "total": 2, "title": "word " * 60})
    for _ in sys.stdin:
        pass
"""


def line_lengths(output: bytes) -> set[int]:
    """Return how long the lines with a clock are that were drawn."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode(errors="replace"))
    return {len(line) for line in re.split(r"[\r\n]+", text) if re.search(r"\d:\d\d$", line)}


def test_a_real_terminal_is_filled_whatever_its_width_becomes() -> None:
    """`COLUMNS` of a shell that has moved on is not believed, and a window that changes is followed."""
    ours, theirs = pty.openpty()

    def resize(columns: int) -> None:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def wait_for(columns: int) -> bytes:
        output, end = b"", time.monotonic() + 60
        while columns - 1 not in line_lengths(output):
            assert time.monotonic() < end, line_lengths(output)
            output += os.read(ours, 65536)
        return output

    resize(140)
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60"}
    with subprocess.Popen(
        [sys.executable, "-c", SHOW], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as process:
        wide = wait_for(140)
        resize(80)
        wait_for(80)
        resize(200)
        wait_for(200)
        assert process.stdin is not None
        process.stdin.close()

    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0
    assert line_lengths(wide) == {139}, "neither the bar nor a job's line is as wide as the shell believed"


def test_a_run_that_is_interrupted_says_what_became_of_each(tmp_path: Path) -> None:
    """Ctrl-C in a real run: what ran is interrupted and has not failed, and those behind it are one line."""
    for name in "abc":
        notebook_files.write(tmp_path / f"notebooks/{name}.ipynb", "import time\ntime.sleep(600)")
    command = [sys.executable, "-m", "rocmlab", "run", "--gpus", "none", "--warm", "off"]
    environment = {**os.environ, "ROCMLAB_RUNTIME": "native"}
    with (
        (tmp_path / "summary").open("w") as summary,
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=summary, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "cell 1/1" in line and not any("cell 1/1" in each for each in lines[:-1]):
                process.send_signal(signal.SIGINT)

    said = "".join(lines)
    assert process.returncode == 1
    assert lines[0].startswith("preparing every notebook of the lab")
    assert "a  stopping: it is interrupted and saved" in said
    assert "■ a  interrupted after" in said
    assert "- 2 jobs  not run  not started before the run ended" in said
    assert "✗" not in said
    assert "1 interrupted, 2 not run" in (tmp_path / "summary").read_text()
