"""The run on a terminal: one line for each running notebook, and an overall bar."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rocmlab.base import formatting
from rocmlab.runs.jobs import Job, Result
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.screen.view import Running, View
from rocmlab.runs.workers.supervisor import Event

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment
    from rich.text import Text

EVERY_SECONDS = 1.0  # the clocks advance
PAUSE_SECONDS = 0.25  # between two drawings
NAME_CELLS = 36  # of a column; the title of the cell takes what is left
MIN_TITLE_CELLS = 12  # that are left to the title; of a name that does not leave it so much the end is cut
BAR_CELLS, MIN_BAR_CELLS = 30, 6
TITLE, USE = 3, 4  # columns
UNWRAPPING = ("linux", "rxvt", "screen")  # terminals that cut lines where others rewrap them
STYLES = ("bold", "magenta", "cyan", "dim", "magenta", "dim")  # of the columns
COUNTED = ("failed", "interrupted", "stopped", "not run")  # in this order


Line = list[tuple[str, str]]  # pieces of text, and their styles


class Drawing:
    """Lines of text, each short enough for the terminal."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, _: ConsoleOptions) -> Iterator[Segment]:
        """Give rich what it draws."""
        from rich.segment import Segment

        for number, line in enumerate(self.lines):
            if number:
                yield Segment.line()
            for text, style in line:
                yield Segment(text, console.get_style(style) if style else None)


class Live(View):
    """One line per running notebook and an overall bar, drawn again each second and soon after an event.

    The lines are cut and joined here: rich's tables would take ten times as long, and its texts twice, all night.
    """

    def __enter__(self) -> Live:
        from rich.live import Live as RichLive

        self._changed, self._over = threading.Event(), threading.Event()
        self._drawn: list[int] = []  # how long the lines are that are on the screen, in cells
        self._fit()
        self._live = RichLive(console=self.console, auto_refresh=False, transient=True, get_renderable=self._render)
        self._live.start(refresh=True)
        self._clock = threading.Thread(target=self._draw_now_and_then, name="progress", daemon=True)
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._changed.set()
        self._clock.join()
        self._live.stop()
        self._leave(self.never_line())

    def started(self, job: Job, place: Place) -> None:
        """Show a job."""
        super().started(job, place)
        self._changed.set()

    def event(self, job: Job, event: Event) -> None:
        """Show where a job is; leave one line on the screen when it is retried."""
        super().event(job, event)
        if event["event"] == "retried":
            self._leave(self.retried_line(job, event))
        self._changed.set()

    def finished(self, result: Result) -> None:
        """Leave one line on the screen."""
        super().finished(result)
        self._leave(self.ended_line(result))
        self._changed.set()

    def _leave(self, line: Text | None) -> None:
        if line is not None:
            self._fit()
            self.console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    def _draw_now_and_then(self) -> None:
        while not self._over.is_set():
            self._changed.wait(EVERY_SECONDS)
            self._changed.clear()
            self._fit()
            self._live.refresh()
            self._over.wait(PAUSE_SECONDS)

    def _fit(self) -> None:
        """Take the width that the terminal has now, regardless of `COLUMNS`: a longer line would wrap.

        A terminal that has become narrower has wrapped what is on it, and more lines are to be drawn over.
        """
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no terminal, in a test
            width = os.get_terminal_size(self.console.file.fileno()).columns
            if not width or width == self.console.width:
                return
            if width < self.console.width and self._drawn and not os.environ.get("TERM", "").startswith(UNWRAPPING):
                rows = sum(max(1, -(-cells // width)) for cells in self._drawn)
                self._live._live_render._shape = (width, rows)  # rich has no public way to report it
            self.console.width = width

    def _render(self) -> Drawing:
        from rich.cells import cell_len

        lines: list[Line] = [[], *self._jobs(), self._overall()]
        width = self.console.width
        self._drawn = [min(cell_len("".join(text for text, _ in line)), width) for line in lines]
        return Drawing(lines)

    def _jobs(self) -> list[Line]:
        jobs = list(self.running.values())
        if not jobs:
            return [] if self.done else [[("  preparing the first notebook", "dim")]]
        fitting = max(1, self.console.height - 4)  # the overall bar must not be lost
        rows = [(job.name, job.device, job.cell, job.title, self.usage(job), job.elapsed) for job in jobs[:fitting]]
        widths = self._widths(rows)
        lines = [self._line(job, row, widths) for job, row in zip(jobs, rows, strict=False)]
        return lines if len(jobs) <= fitting else [*lines, [(f"  and {len(jobs) - fitting} more", "dim")]]

    def _widths(self, rows: Sequence[tuple[str, ...]]) -> list[int]:
        """Return how wide the columns are: name, device, cell, title, use, time; 0 of one that is omitted."""
        from rich.cells import cell_len

        widths = [min(NAME_CELLS, max(map(cell_len, column))) for column in zip(*rows, strict=True)]
        rest = self.console.width - 1 - sum(width + 2 for width in widths if width) + widths[TITLE]
        if rest < MIN_TITLE_CELLS:  # the name gives first, then the use goes
            given = min(MIN_TITLE_CELLS - rest, max(0, widths[0] - MIN_TITLE_CELLS))
            widths[0], rest = widths[0] - given, rest + given
        if rest < MIN_TITLE_CELLS and widths[USE]:
            rest, widths[USE] = rest + widths[USE] + 2, 0
        widths[TITLE] = max(1, rest)
        return widths

    def _line(self, job: Running, row: tuple[str, ...], widths: list[int]) -> Line:
        if job.is_waiting:  # it uses nothing, and its clock does not run
            rest = sum(width + 2 for width in widths[USE:] if width)
            widths = [*widths[:TITLE], widths[TITLE] + rest, *(0 for _ in widths[USE:])]
        line: Line = [("▸", "cyan")]
        for number, (cell, style) in enumerate(zip(row, STYLES, strict=True)):
            if widths[number]:
                text = _fitted(cell, widths[number], number >= USE)
                line.append((f"  {text}" if number else f" {text}", style))
        if job.is_waiting:
            line = [(text, "yellow" if number == TITLE + 1 else style) for number, (text, style) in enumerate(line)]
        return line

    def _overall(self) -> Line:
        from rich.cells import cell_len

        parts: Line = [(f"  {self.overall()}", "bold")]
        for kind in COUNTED:
            if self.counts[kind]:
                parts += [(", ", ""), (f"{self.counts[kind]} {kind}", "red" if kind == "failed" else "yellow")]
        if left := self.left():
            parts += [(", ", ""), (left, "bold")]
        elapsed = formatting.clock(time.monotonic() - self.begin)
        width = self.console.width - 1
        used = cell_len("".join(text for text, _ in parts))
        cells = max(MIN_BAR_CELLS, min(BAR_CELLS, width - used - len(elapsed) - 2))
        done = round(cells * self._completed() / max(1, self.total))
        bar: Line = [("━" * done, "green"), ("━" * (cells - done), "dim")]
        return [*bar, *_cut(parts, width - cells - len(elapsed) - 2), (f"  {elapsed}", "dim")]

    def _completed(self) -> float:
        """Return how many notebooks are done, running ones by their cells."""
        parts = ((job.number - 1) / job.total for job in list(self.running.values()) if job.number and job.total)
        return self.done + sum(parts)


def _fitted(text: str, width: int, is_at_the_end: bool) -> str:
    """Return a text of exactly that many cells, without control characters; what is cut off is shown by `…`."""
    from rich.cells import cell_len, set_cell_size

    if not text.isprintable():
        text = "".join(each if each.isprintable() else " " for each in text)
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - size) + text if is_at_the_end else text + " " * (width - size)


def _cut(parts: Line, width: int) -> Line:
    """Return pieces of text of exactly that many cells together; what is cut off is shown by `…`."""
    from rich.cells import cell_len

    cut: Line = []
    for text, style in parts:
        size = cell_len(text)
        if size > width:
            return [*cut, (_fitted(text, width, is_at_the_end=False), style)] if width > 0 else cut
        cut.append((text, style))
        width -= size
    return [*cut, (" " * width, "")]
