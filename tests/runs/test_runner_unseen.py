"""A run whose reader has gone: `tee` or `less` has ended, the terminal was closed, the disk of its log is full."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import notebook_files
import pytest
import watching
from rich.console import Console

from rocmlab.devices import Device
from rocmlab.runs.jobs import Job, Result
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.screen import progress

WAITS = "import pathlib, time\nprint('so far')\npathlib.Path('runs').touch()\n"
WAITS += "while not pathlib.Path('go').exists(): time.sleep(0.05)"


@dataclass
class Unseen:
    """A real run of two notebooks, whose reader goes while the first of them runs."""

    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self, opened: tuple[int, int]) -> None:
        """Start it, with all its output into a pipe or a terminal, and close the other end while a job runs."""
        reader, writer = opened
        notebook_files.write(self.folder / "notebooks/a.ipynb", WAITS)
        notebook_files.write(self.folder / "notebooks/b.ipynb", "2")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rocmlab", "run", "--gpus", "none", "--warm", "off"],
            cwd=self.folder,
            env={**os.environ, "ROCMLAB_RUNTIME": "native", "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            start_new_session=True,  # as after `disown`: no SIGHUP comes
        )
        os.close(writer)
        assert watching.eventually((self.folder / "notebooks/runs").exists, 60)
        os.close(reader)

    def results(self) -> dict[str, Any]:
        """Wait for its end, and return its `results.json`."""
        self.process.wait(120)
        (written,) = self.folder.glob("share/runs/*/results.json")
        assert (written.parent / "report.html").exists()
        found: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
        return found


@pytest.fixture
def unseen(tmp_path: Path) -> Iterator[Unseen]:
    """Provide a run that is ended at the latest with the test."""
    made = Unseen(tmp_path)
    yield made
    if hasattr(made, "process"):
        made.process.kill()
        made.process.wait()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("opened", [os.pipe, pty.openpty], ids=["pipe", "terminal"])
def test_a_run_goes_on_when_no_one_reads_it_any_more(opened: Callable[[], tuple[int, int]], unseen: Unseen) -> None:
    """The job that ran and the one behind it end well, with results and report, and so says the exit code."""
    unseen.start(opened())
    (unseen.folder / "notebooks/go").touch()

    results = unseen.results()

    assert [job["status"] for job in results["jobs"]] == ["ok", "ok"]
    assert results["run"]["status"] == "ok"
    assert unseen.process.returncode == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("opened", [os.pipe, pty.openpty], ids=["pipe", "terminal"])
def test_an_interrupted_run_is_saved_when_no_one_reads_it(
    opened: Callable[[], tuple[int, int]], unseen: Unseen
) -> None:
    """Of `rocmlab run 2>&1 | tee run.log` Ctrl-C ends `tee` first."""
    unseen.start(opened())
    unseen.process.send_signal(signal.SIGINT)

    results = unseen.results()

    assert results["run"]["status"] == "interrupted"
    assert [job["status"] for job in results["jobs"]] == ["killed", "not run"]
    assert "so far" in Path(results["run"]["folder"], "a.ipynb").read_text(encoding="utf-8")
    assert unseen.process.returncode == 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_cannot_be_written_is_dropped(is_terminal: bool, cpu: Device) -> None:
    """Neither view of a run raises anything, and nothing waits in Python's buffer to fail at exit."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        console = Console(file=stream, force_terminal=is_terminal, width=120, _environ={"TERM": "xterm"})
        with progress.display(console, 1) as view:
            view.started(Job("a", "a"), Place((cpu,), 1))
            view.event(Job("a", "a"), {"event": "cell", "number": 1, "total": 1, "title": "x"})
            view.event(Job("a", "a"), {"event": "retried", "status": "killed", "message": "", "left": 0})
            view.finished(Result("a", "a", {}, "k", "ok", 0, seconds=1.0))
            stream.write("printed by others")

    assert view.done == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_is_reported_once(cpu: Device, caplog: pytest.LogCaptureFixture) -> None:
    """A log that is not complete is no failure of the run, and the reader is told elsewhere if there is a place."""
    with (
        open("/dev/full", "w", encoding="utf-8") as stream,
        progress.display(Console(file=stream, width=120), 1) as view,
    ):
        view.started(Job("a", "a"), Place((cpu,), 1))
        view.finished(Result("a", "a", {}, "k", "ok", 0, seconds=1.0))

    assert caplog.messages == ["/dev/full takes no more output: No space left on device"]


def test_a_stream_without_a_descriptor_is_written_as_it_is(cpu: Device) -> None:
    """A console on a text in memory keeps its text."""
    text = io.StringIO()

    with progress.display(Console(file=text, width=120), 1) as view:
        view.finished(Result("a", "a", {}, "k", "ok", 0, seconds=1.0))

    assert "✓ a  ok in 1.0 s" in text.getvalue()
