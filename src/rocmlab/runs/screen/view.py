"""What the views of a run share: where each job is, how long the rest may take, and how an ended job reads."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocmlab.base import formatting
from rocmlab.runs.jobs import STOPPED, Job, Result
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.usage import Meters
from rocmlab.runs.screen.lossy import make_lossy
from rocmlab.runs.workers.supervisor import Event

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

MARKS = {
    "ok": ("✓", "green"),
    "skipped": ("-", "yellow"),
    "not run": ("-", "yellow"),
    "interrupted": ("■", "yellow"),
    "stopped": ("■", "yellow"),
}
STYLES = {status: style for status, (_mark, style) in MARKS.items()}


def empty_table(**options: Any) -> Table:  # noqa: ANN401  rich's own
    """Return a table in the style of all reports on a terminal."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", **options)


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
    printed_at: float = 0.0  # when a plain line was printed last
    printed_number: int | None = None  # of which cell
    cell_begin: float = 0.0  # when that cell was first named in a plain line

    def take(self, event: Event) -> None:
        """Apply an event."""
        kind = event["event"]
        if kind == "cell":
            self.number, self.total, self.title = event["number"], event["total"], event["title"]
        elif kind == "waiting":
            held = [str(each) for each in event.get("held") or ()]
            self.is_waiting, self.title = True, f"waiting: {'; '.join(held) or 'others have the GPUs'}"
        elif kind == "leased":
            self.is_waiting, self.title, self.begin = False, "starting the kernel", time.monotonic()
        elif kind == "stopping":
            self.title = "stopping: it is interrupted and saved"
        elif kind == "ended":
            self.title = "ending"

    @property
    def device(self) -> str:
        """Its devices in short. Which they are may change until they are leased."""
        node = self.place.node
        shown = [{"backend": each.backend, "index": each.index, "node": node} for each in self.place.devices]
        return formatting.device_label(shown)

    @property
    def elapsed(self) -> str:
        """How long it runs; nothing while it waits."""
        return "" if self.is_waiting else formatting.clock(time.monotonic() - self.begin)

    @property
    def cell(self) -> str:
        """Where it is: `cell 3/12`."""
        return f"cell {self.number}/{self.total}" if self.number else ""


class View:
    """Which jobs run, and what has become of the others."""

    def __init__(
        self,
        console: Console,
        total: int,
        slots: int = 1,
        expected: Mapping[str, float | None] | None = None,
        meters: Meters | None = None,
    ) -> None:
        self.console = make_lossy(console)
        self.total = total
        self.slots = slots
        self.meters = meters
        self.begin = time.monotonic()
        self.done = 0
        self.counts: Counter[str] = Counter()  # of the jobs that did not end ok, by their label
        self.never = 0  # jobs that never started
        self.retries = 0
        self.running: dict[str, Running] = {}
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
        if not result.is_ok:
            self.counts[result.stopped or ("not run" if result.status == "not run" else "failed")] += 1
        self.never += _never_came(result)
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
        """Return how far the run is: `3 of 8 jobs done, 1 retried`."""
        text = f"{self.done} of {formatting.plural(self.total, 'notebook' if self.total == 1 else 'job')} done"
        return f"{text}, {self.retries} retried" if self.retries else text

    def left(self) -> str:
        """Return how long the rest may take: `about 12:30 left`; empty where that is not known."""
        seconds = self.left_seconds()
        return f"about {formatting.clock(seconds)} left" if seconds else ""

    def usage(self, job: Running) -> str:
        """Return what a job uses of its GPUs now: `87% 11.2 GiB`; empty where nothing is known."""
        found = [self.meters.latest(gpu) for gpu in job.place.gpus] if self.meters and not job.is_waiting else []
        busy = [each for each, _ in found if each is not None]
        vram = [each for _, each in found if each is not None]
        parts = (f"{sum(busy) / len(busy):.0f}%" if busy else "", formatting.size(sum(vram)) if vram else "")
        return " ".join(filter(None, parts))

    def retried_line(self, job: Job, event: Event) -> Text:
        """Return one line on a job that is retried."""
        from rich.text import Text

        line = Text.assemble(("↻ ", "yellow"), (job.name, "bold"), f"  {event['status']}, will be retried", style="")
        return line.append(f"  {event['message']}", "yellow") if event.get("message") else line

    def mute(self) -> None:
        """Write no more: the terminal is gone."""
        self.console.file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  as long as the process

    def ended_line(self, result: Result) -> Text | None:
        """Return one line on a job that has ended; None if it never started."""
        from rich.text import Text

        if _never_came(result):
            return None
        label = result.shown_status
        mark, style = MARKS.get(label, ("✗", "red"))
        line = Text.assemble((f"{mark} ", style), (result.name, "bold"), f"  {label}", style="")
        if result.seconds is not None:
            line.append(f" {'after' if result.stopped else 'in'} {formatting.duration(result.seconds)}", "dim")
        detail = (
            formatting.recorded(result.recorded)
            if result.is_ok
            else formatting.error(result.error).removeprefix(STOPPED)
        )
        if detail and label != "interrupted":
            line.append(f"  {detail}", "dim" if result.is_ok else style)
        return line

    def never_line(self) -> Text | None:
        """Return one line on all jobs that never started; None if there are none."""
        from rich.text import Text

        if not self.never:
            return None
        mark, style = MARKS["not run"]
        count = formatting.plural(self.never, "job")
        return Text.assemble(
            (f"{mark} ", style), (count, "bold"), "  not run", ("  not started before the run ended", style)
        )


def _never_came(result: Result) -> bool:
    return result.status == "not run" and result.error is None
