"""The run as a person sees it: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocmlab.runner import words
from rocmlab.runner.jobs import Job, Result
from rocmlab.runner.placement import Place
from rocmlab.runner.supervisor import Event

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

MARKS = {"ok": ("✓", "green"), "not run": ("-", "yellow")}
STYLES = {"ok": "green", "not run": "yellow"}
PLAIN_EVERY_SECONDS = 10.0  # a job that says nothing is still there
PLAIN_TICK_SECONDS = 1.0  # how often is looked whether a line is due
PLAIN_PAUSE_SECONDS = 1.0  # between two lines of one job, so that a hundred small cells do not flood a log


@dataclass
class Running:
    """Where a running job is."""

    name: str
    device: str
    begin: float = field(default_factory=time.monotonic)
    number: int | None = None  # of the cell, from 1; None before the first
    total: int | None = None
    title: str = "starting the kernel"
    said: float = 0.0  # when a plain line was printed last
    said_number: int | None = None  # of which cell
    cell_begin: float = 0.0  # when that cell was first named in a plain line

    def take(self, event: Event) -> None:
        """Keep what an event says."""
        if event["event"] == "cell":
            self.number, self.total, self.title = event["number"], event["total"], event["title"]
        elif event["event"] == "ended":
            self.title = "ending"

    @property
    def elapsed(self) -> str:
        """How long it runs."""
        return words.clock(time.monotonic() - self.begin)

    @property
    def cell(self) -> str:
        """Where it is: `cell 3/12`."""
        return f"cell {self.number}/{self.total}" if self.number else ""


class Base:
    """What both views share: which jobs run, and how an ended one reads."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.begin = time.monotonic()
        self.done: list[Result] = []
        self.running: dict[str, Running] = {}
        self.width = 0  # of the longest name so far

    def started(self, job: Job, place: Place) -> None:
        """Add a job."""
        devices = [{"backend": device.backend, "index": device.index} for device in place.devices]
        self.running[job.name] = Running(job.name, words.device_label(devices))

    def event(self, job: Job, event: Event) -> None:
        """Note where a job is."""
        self.running[job.name].take(event)

    def finished(self, result: Result) -> None:
        """Remove a job."""
        self.running.pop(result.name, None)
        self.done.append(result)

    def mute(self) -> None:
        """Write no more: the terminal is gone."""
        self.console.file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  as long as the process

    def ended_line(self, result: Result) -> Text:
        """Return one line on a job that has ended."""
        from rich.text import Text

        mark, style = MARKS.get(result.status, ("✗", "red"))
        line = Text.assemble((f"{mark} ", style), (result.name, "bold"), f"  {result.status}", style="")
        if result.seconds is not None:
            line.append(f" in {words.duration(result.seconds)}", "dim")
        detail = words.recorded(result.recorded) if result.is_ok else words.error(result.error)
        if detail:
            line.append(f"  {detail}", "dim" if result.is_ok else style)
        return line


class Live(Base):
    """One line per running notebook and an overall bar, drawn anew four times a second."""

    def __init__(self, console: Console, total: int) -> None:
        from rich.live import Live as RichLive
        from rich.spinner import Spinner

        super().__init__(console, total)
        self._spinner = Spinner("dots", style="cyan")
        self._live = RichLive(console=console, refresh_per_second=8, transient=True, get_renderable=self._render)

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def finished(self, result: Result) -> None:
        """Leave one line on the screen."""
        super().finished(result)
        self.console.print(self.ended_line(result), no_wrap=True, overflow="ellipsis", crop=True)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding

        return Padding(Group(self._jobs(), self._overall()), (1, 0, 0, 0))

    def _jobs(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(width=1)
        grid.add_column(no_wrap=True, max_width=36, style="bold")
        grid.add_column(no_wrap=True, style="magenta")
        grid.add_column(no_wrap=True, style="cyan")
        grid.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
        grid.add_column(no_wrap=True, justify="right", style="dim")
        for job in list(self.running.values()):
            grid.add_row(self._spinner, job.name, job.device, job.cell, Text(job.title, style="dim"), job.elapsed)
        return grid

    def _overall(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        failed = sum(not result.is_ok for result in self.done)
        text = Text(f"{len(self.done)} of {words.plural(self.total, 'notebook')} done", style="bold")
        if failed:
            text.append(f", {failed} failed", "red")
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(width=30)
        grid.add_column(ratio=1, no_wrap=True)
        grid.add_column(justify="right", style="dim", no_wrap=True)
        bar = ProgressBar(total=max(1, self.total), completed=self._completed(), width=30)
        grid.add_row(bar, text, words.clock(time.monotonic() - self.begin))
        return grid

    def _completed(self) -> float:
        """Return how many notebooks are done, running ones by their cells."""
        parts = ((job.number - 1) / job.total for job in self.running.values() if job.number and job.total)
        return len(self.done) + sum(parts)


class Plain(Base):
    """One line for each start, cell and end; also one every ten seconds, so that a log shows that something goes on."""

    def __enter__(self) -> Plain:
        import threading

        self._over = threading.Event()
        self._clock = threading.Thread(target=self._remind, name="progress", daemon=True)
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._clock.join()

    def started(self, job: Job, place: Place) -> None:
        """Say that a job starts."""
        super().started(job, place)
        self._say(f"{job.name}  started on {self.running[job.name].device}")

    def event(self, job: Job, event: Event) -> None:
        """Say which cell starts."""
        super().event(job, event)
        running = self.running[job.name]
        if event["event"] == "cell" and time.monotonic() - running.said >= PLAIN_PAUSE_SECONDS:
            self._say_cell(running)

    def finished(self, result: Result) -> None:
        """Say how a job ended."""
        super().finished(result)
        self._say(self.ended_line(result).plain)

    def _remind(self) -> None:
        while not self._over.wait(PLAIN_TICK_SECONDS):
            for running in list(self.running.values()):
                silent_seconds = time.monotonic() - max(running.said, running.begin)
                if running.number != running.said_number or silent_seconds >= PLAIN_EVERY_SECONDS:
                    self._say_cell(running)

    def _say_cell(self, running: Running) -> None:
        is_known = running.said > 0 and running.said_number == running.number
        running.said, running.said_number = time.monotonic(), running.number
        if not is_known:
            running.cell_begin = running.said
        where = "  ".join(filter(None, (running.name, running.cell, running.title)))
        self._say(f"{where}  (running for {words.clock(running.said - running.cell_begin)})" if is_known else where)

    def _say(self, line: str) -> None:
        elapsed = words.clock(time.monotonic() - self.begin)
        self.console.print(f"{elapsed:>7}  {line}", markup=False, highlight=False, soft_wrap=True)


def display(console: Console, total: int) -> Live | Plain:
    """Return the view that fits where the messages go; a context manager that is also a `Display`."""
    return Live(console, total) if console.is_terminal and not console.is_dumb_terminal else Plain(console, total)
