"""The run as a person sees it: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocmlab.runner import words
from rocmlab.runner.jobs import Job, Result
from rocmlab.runner.placement import Place
from rocmlab.runner.supervisor import Event
from rocmlab.runner.usage import Meters

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

MARKS = {"ok": ("✓", "green"), "not run": ("-", "yellow")}
STYLES = {"ok": "green", "not run": "yellow"}
LIVE_PAUSE_SECONDS = 0.25  # between two drawings
LIVE_NAME_CELLS = 36  # of a column; the title of the cell takes what is left
LIVE_BAR_CELLS = 30
PLAIN_EVERY_SECONDS = 10.0  # a job that says nothing is still there
PLAIN_TICK_SECONDS = 1.0  # how often is looked whether a line is due
PLAIN_MANY = 30  # jobs, of which a log tells the ends alone
PLAIN_PAUSE_SECONDS = 1.0  # between two lines of one job, so that a hundred small cells do not flood a log


@dataclass
class Running:
    """Where a running job is."""

    name: str
    place: Place
    begin: float = field(default_factory=time.monotonic)  # when its GPUs were leased
    is_waiting: bool = False  # for its lease
    number: int | None = None  # of the cell, from 1; None before the first
    total: int | None = None
    title: str = "starting the kernel"
    said: float = 0.0  # when a plain line was printed last
    said_number: int | None = None  # of which cell
    cell_begin: float = 0.0  # when that cell was first named in a plain line

    def take(self, event: Event) -> None:
        """Keep what an event says."""
        kind = event["event"]
        if kind == "cell":
            self.number, self.total, self.title = event["number"], event["total"], event["title"]
        elif kind == "waiting":
            held = [str(each) for each in event.get("held") or ()]
            self.is_waiting, self.title = True, f"waiting: {'; '.join(held) or 'others have the GPUs'}"
        elif kind == "leased":
            self.is_waiting, self.title, self.begin = False, "starting the kernel", time.monotonic()
        elif kind == "ended":
            self.title = "ending"

    @property
    def device(self) -> str:
        """Its devices in a word or two. Which they are may change until they are leased."""
        return words.device_label([{"backend": each.backend, "index": each.index} for each in self.place.devices])

    @property
    def elapsed(self) -> str:
        """How long it runs; nothing while it waits."""
        return "" if self.is_waiting else words.clock(time.monotonic() - self.begin)

    @property
    def cell(self) -> str:
        """Where it is: `cell 3/12`."""
        return f"cell {self.number}/{self.total}" if self.number else ""


class Base:
    """What both views share: which jobs run, how long the rest may take, and how an ended job reads."""

    def __init__(
        self,
        console: Console,
        total: int,
        slots: int = 1,
        expected: Mapping[str, float | None] | None = None,
        meters: Meters | None = None,
    ) -> None:
        self.console = console
        self.total = total
        self.slots = slots
        self.meters = meters
        self.begin = time.monotonic()
        self.done = 0
        self.failed = 0
        self.retries = 0
        self.running: dict[str, Running] = {}
        self.width = 0  # of the longest name so far
        self._open = dict(expected or {})  # the jobs that have not ended, and how long they may take
        self._seconds: list[float] = [0, 0.0]  # how many jobs have ended here, and how long they took in all

    def started(self, job: Job, place: Place) -> None:
        """Add a job."""
        self.running[job.name] = Running(job.name, place)

    def event(self, job: Job, event: Event) -> None:
        """Note where a job is."""
        if event["event"] == "retried":
            self.retries += 1
            self.running.pop(job.name, None)
        elif job.name in self.running:
            self.running[job.name].take(event)

    def finished(self, result: Result) -> None:
        """Remove a job."""
        self.running.pop(result.name, None)
        self._open.pop(result.name, None)
        self.done += 1
        self.failed += not result.is_ok
        if result.seconds is not None:
            self._seconds[0] += 1
            self._seconds[1] += result.seconds

    def left_seconds(self) -> float | None:
        """Return how long the rest may take; None where nothing is known.

        A job of unknown length counts as much as those of this run took on average.
        """
        mean = self._seconds[1] / self._seconds[0] if self._seconds[0] else None
        lengths = {name: mean if known is None else known for name, known in self._open.items()}
        known = {name: length for name, length in lengths.items() if length is not None}
        if not known or len(known) < len(lengths):
            return None
        for name, job in self.running.items():
            if name in known and not job.is_waiting:
                known[name] = max(0.0, known[name] - (time.monotonic() - job.begin))
        return max(sum(known.values()) / self.slots, *known.values())

    def overall(self) -> str:
        """Return how far the run is: `3 of 8 notebooks done, 1 tried again, about 12:30 left`."""
        text = f"{self.done} of {words.plural(self.total, 'notebook')} done"
        if self.retries:
            text += f", {self.retries} tried again"
        left = self.left_seconds()
        return f"{text}, about {words.clock(left)} left" if left else text

    def usage(self, job: Running) -> str:
        """Return what a job uses of its GPUs now: `87% 11.2 GiB`; empty where nothing is known."""
        found = [self.meters.latest(gpu) for gpu in job.place.gpus] if self.meters and not job.is_waiting else []
        busy = [each for each, _ in found if each is not None]
        vram = [each for _, each in found if each is not None]
        parts = (f"{sum(busy) / len(busy):.0f}%" if busy else "", words.size(sum(vram)) if vram else "")
        return " ".join(filter(None, parts))

    def retried_line(self, job: Job, event: Event) -> Text:
        """Return one line on a job that is tried again."""
        from rich.text import Text

        line = Text.assemble(
            ("↻ ", "yellow"), (job.name, "bold"), f"  {event['status']}, will be tried again", style=""
        )
        return line.append(f"  {event['message']}", "yellow") if event.get("message") else line

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
    """One line per running notebook and an overall bar, drawn anew each second and soon after something happens.

    The lines are cut and joined here: rich's tables would take six times as long, all night.
    """

    def __init__(
        self,
        console: Console,
        total: int,
        slots: int = 1,
        expected: Mapping[str, float | None] | None = None,
        meters: Meters | None = None,
    ) -> None:
        from rich.live import Live as RichLive

        super().__init__(console, total, slots, expected, meters)
        self._drawn = 0.0
        self._live = RichLive(console=console, refresh_per_second=1, transient=True, get_renderable=self._render)

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def started(self, job: Job, place: Place) -> None:
        """Show a job."""
        super().started(job, place)
        self._draw()

    def event(self, job: Job, event: Event) -> None:
        """Show where a job is; leave one line on the screen when it is tried again."""
        super().event(job, event)
        if event["event"] == "retried":
            line = self.retried_line(job, event)
            self.console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        self._draw()

    def finished(self, result: Result) -> None:
        """Leave one line on the screen."""
        super().finished(result)
        self.console.print(self.ended_line(result), no_wrap=True, overflow="ellipsis", crop=True)

    def _draw(self) -> None:
        """Draw now, unless that was done a moment ago; the clock draws then."""
        if time.monotonic() - self._drawn >= LIVE_PAUSE_SECONDS:
            self._live.refresh()

    def _render(self) -> RenderableType:
        from rich.text import Text

        self._drawn = time.monotonic()
        text = Text("\n", no_wrap=True, overflow="ellipsis")
        for line in (*self._jobs(), self._overall()):
            text.append_text(line).append("\n")
        text.right_crop(1)
        return text

    def _jobs(self) -> list[Text]:
        from rich.cells import cell_len, set_cell_size
        from rich.text import Text

        jobs = list(self.running.values())
        rows = [(job.name, job.device, job.cell, job.title, self.usage(job), job.elapsed) for job in jobs]
        widths = [min(LIVE_NAME_CELLS, max(map(cell_len, column))) for column in zip(*rows, strict=True)]
        lines = []
        for job, row in zip(jobs, rows, strict=True):
            widths[3] = max(8, self.console.width - sum(width + 2 for width in (*widths[:3], *widths[4:])) - 3)
            name, device, cell, title, usage, elapsed = map(set_cell_size, row, widths)
            line = Text.assemble(("▸ ", "cyan"), (name, "bold"), (f"  {device}", "magenta"), (f"  {cell}", "cyan"))
            line.append(f"  {title}", "yellow" if job.is_waiting else "dim")
            line.append(f"  {usage.strip():>{widths[4]}}", "magenta")
            lines.append(line.append(f"  {elapsed.strip():>{widths[5]}}", "dim"))
        return lines

    def _overall(self) -> Text:
        from rich.text import Text

        done = round(LIVE_BAR_CELLS * self._completed() / max(1, self.total))
        text = Text.assemble(("━" * done, "green"), ("━" * (LIVE_BAR_CELLS - done), "dim"))
        text.append(f"  {self.overall()}", "bold")
        if self.failed:
            text.append(f", {self.failed} failed", "red")
        return text.append(f"  {words.clock(time.monotonic() - self.begin)}", "dim")

    def _completed(self) -> float:
        """Return how many notebooks are done, running ones by their cells."""
        parts = ((job.number - 1) / job.total for job in self.running.values() if job.number and job.total)
        return self.done + sum(parts)


class Plain(Base):
    """One line for each start, cell and end; also one every ten seconds, so that a log shows that something goes on.

    Of many jobs only the ends are told, and what takes long.
    """

    def __enter__(self) -> Plain:
        import threading

        self._leased: set[str] = set()  # jobs that have their GPUs

        self._over = threading.Event()
        self._clock = threading.Thread(target=self._remind, name="progress", daemon=True)
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._clock.join()

    @property
    def is_brief(self) -> bool:
        """Whether there are so many jobs that only their ends are told."""
        return self.total > PLAIN_MANY

    def started(self, job: Job, place: Place) -> None:
        """Say that a job starts, if it has its lease or needs none; else that is said when it has it."""
        super().started(job, place)
        if not place.gpus or job.name in self._leased:
            self._say_started(self.running[job.name])

    def event(self, job: Job, event: Event) -> None:
        """Say that a job has its GPUs, which cell starts, what it waits for, and that it is tried again."""
        running = self.running.get(job.name)
        was_waiting = running is not None and running.is_waiting
        super().event(job, event)
        kind = event["event"]
        if kind == "leased":
            self._leased.add(job.name)
        if kind == "retried":
            self._leased.discard(job.name)
            self._say(self.retried_line(job, event).plain)
        elif running is None:
            return
        elif kind == "waiting" and not was_waiting:
            self._say(f"{job.name}  {running.title}")
        elif kind == "leased":
            self._say_started(running, is_worth_it=was_waiting)
        elif kind == "cell" and not self.is_brief and time.monotonic() - running.said >= PLAIN_PAUSE_SECONDS:
            self._say_cell(running)

    def finished(self, result: Result) -> None:
        """Say how a job ended."""
        super().finished(result)
        self._leased.discard(result.name)
        line = self.ended_line(result).plain
        self._say(f"{self.done}/{self.total} {line}" if self.is_brief else line)

    def _remind(self) -> None:
        while not self._over.wait(PLAIN_TICK_SECONDS):
            for running in list(self.running.values()):
                silent_seconds = time.monotonic() - max(running.said, running.begin)
                is_new = running.number != running.said_number and not self.is_brief
                if not running.is_waiting and (is_new or silent_seconds >= PLAIN_EVERY_SECONDS):
                    self._say_cell(running)

    def _say_started(self, running: Running, *, is_worth_it: bool = False) -> None:
        if is_worth_it or not self.is_brief:
            self._say(f"{running.name}  started on {running.device}")

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


def display(
    console: Console,
    total: int,
    *,
    slots: int = 1,
    expected: Mapping[str, float | None] | None = None,
    meters: Meters | None = None,
) -> Live | Plain:
    """Return the view that fits where the messages go; a context manager that is also a `Display`.

    Args:
        console: where they go.
        total: how many jobs are to be run.
        slots: how many run side by side.
        expected: those jobs by name, with the seconds that each may take, None where that is not known.
        meters: what knows the use of the devices.
    """
    kind = Live if console.is_terminal and not console.is_dumb_terminal else Plain
    return kind(console, total, slots, expected, meters)
