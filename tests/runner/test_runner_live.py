"""What a person sees of a run: devices and their use, jobs that wait, retries, and the time that is left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rocmlab.devices import Device
from rocmlab.runner import progress
from rocmlab.runner.jobs import Job, Result
from rocmlab.runner.placement import Place
from rocmlab.runner.usage import Meters


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
        first = view.overall()
        view.started(Job("a", "a"), Place((cpu,), 1))
        view.event(Job("a", "a"), {"event": "retried", "status": "kernel died", "message": "SIGSEGV", "left": 0})
        second = view.overall()
        view.finished(ended("b", 1.0))
        view.finished(ended("c", 1.0, "failed"))
        lines = drawn(view)

    assert first == "0 of 3 notebooks done, about 1:00:00 left"
    assert second == "0 of 3 notebooks done, 1 tried again, about 1:00:00 left"
    assert "2 of 3 notebooks done, 1 tried again, about 1:00:00 left, 1 failed" in "\n".join(lines)
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
