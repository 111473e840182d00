"""What was, second by second and over a day, in memory that does not grow."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields

import pytest

from rocmlab.devices import Sample
from rocmlab.telemetry.history import METRICS, History
from rocmlab.telemetry.model import Snapshot

BEGIN = 1_800_000_000.0


def snapshot(seconds: float, name: str = "a", **values: float | None) -> Snapshot:
    """Return what one device says this many seconds after the beginning."""
    now = BEGIN + seconds
    return Snapshot(now, {name: Sample(now, **values)})  # type: ignore[arg-type]


def day(devices: int = 8) -> Iterator[Snapshot]:
    """Yield a day of Snapshots of a few devices, one a second."""
    names = [f"0000:{bus:02x}:00.0" for bus in range(devices)]
    for second in range(86_400):
        now = BEGIN + second
        values = {metric: float(second % 100) for metric in METRICS}
        yield Snapshot(now, {name: Sample(now, **values) for name in names})  # type: ignore[arg-type]


class TestSeries:
    """What is requested is what was fed."""

    def test_each_second_of_the_last_minutes(self) -> None:
        """A point a second, the oldest first; numbers that are not reported are unknown."""
        history = History(["a"])
        for second in range(100):
            history.add(snapshot(second, busy_percent=float(second), vram_used_bytes=1 << 34))

        times, values = history.series("a", "busy_percent", 10)

        assert times == [BEGIN + second for second in range(90, 100)]
        assert values == list(range(90, 100))
        assert history.series("a", "vram_used_bytes", 2)[1] == [1 << 34, 1 << 34]
        assert history.series("a", "power_watts", 2)[1] == [None, None]
        assert history.series("b", "busy_percent", 2)[1] == [None, None]
        assert history.times(10) == times

    def test_unknown_values_are_gaps(self) -> None:
        """None in a Sample is None in its series, also when it was known a whole round before."""
        history = History(["a"])
        for second in range(1800):
            history.add(snapshot(second, busy_percent=None if second % 2 else 50.0))

        times, values = history.series("a", "busy_percent", 900)

        assert len(times) == 900
        assert values == [50, None] * 450

    def test_a_day_in_means(self) -> None:
        """Beyond 15 minutes a point is the mean of 10 seconds, of what is known of them."""
        history = History(["a"])
        for second in range(7200):
            history.add(snapshot(second, busy_percent=float(second % 10), power_watts=None if second % 10 else 300.0))

        times, values = history.series("a", "busy_percent", 86_400)

        assert len(times) >= 718
        assert {later - earlier for earlier, later in itertools.pairwise(times)} == {10.0}
        assert values == [4.5] * len(times)
        assert set(history.series("a", "power_watts", 86_400)[1]) == {300}
        assert len(history.series("a", "busy_percent", 3600)[0]) == 360

    def test_a_pause_is_one_unknown_point(self) -> None:
        """No one looked for an hour: no line is drawn across it."""
        history = History(["a"])
        for second in (*range(60), *range(3660, 3720)):
            history.add(snapshot(second, busy_percent=20.0))

        times, values = history.series("a", "busy_percent", 86_400)
        fine = history.series("a", "busy_percent", 60)[1]

        assert values.count(None) == 1
        assert times == sorted(times)
        assert fine == [20] * 60
        assert len(values) >= 12

    def test_several_within_a_second_are_one_point(self) -> None:
        """The last one counts, so that 15 minutes stay 15 minutes."""
        history = History(["a"])
        for half in range(2 * 1000):
            history.add(snapshot(half / 2, busy_percent=float(half % 2)))

        times, values = history.series("a", "busy_percent", 900)

        assert len(times) == 900
        assert set(values) == {1}

    def test_a_clock_that_is_set(self) -> None:
        """Back by an hour, and nothing old comes after what is new; forward, and there is a gap."""
        history = History(["a"])
        for second in (*range(10_000, 10_060), *range(100)):
            history.add(snapshot(second, busy_percent=10.0))

        times, values = history.series("a", "busy_percent", 900)

        assert times == [BEGIN + second for second in range(100)]
        assert values == [10] * 100

    def test_devices_come_and_go(self) -> None:
        """One that comes later is unknown before; one that is gone is unknown after."""
        history = History(["a"])
        history.add(snapshot(0, busy_percent=1.0))
        both = {"a": Sample(BEGIN + 1, busy_percent=2.0), "b": Sample(BEGIN + 1, busy_percent=3.0)}
        history.add(Snapshot(BEGIN + 1, both))
        history.add(Snapshot(BEGIN + 2, {"b": Sample(BEGIN + 2, busy_percent=4.0)}))

        assert history.names == ["a", "b"]
        assert history.series("a", "busy_percent", 60)[1] == [1, 2, None]
        assert history.series("b", "busy_percent", 60)[1] == [None, 3, 4]

    def test_jitter_loses_no_second(self) -> None:
        """Readings that come a little early or late are points of their own."""
        history = History(["a"])
        for second in range(900):
            history.add(snapshot(second + 0.1 * math.sin(second), busy_percent=float(second)))

        assert history.series("a", "busy_percent", 900)[1] == list(range(900))


class TestMemory:
    """It does not grow."""

    @pytest.mark.long
    @pytest.mark.slow
    @pytest.mark.parametrize("hours", [3, pytest.param(24, marks=pytest.mark.long)])
    def test_a_simulated_day_adds_nothing(self, hours: int) -> None:
        """From the first hour on."""
        history = History()
        tracemalloc.start()
        try:
            sizes = []
            for second, each in enumerate(itertools.islice(day(2), 3600 * hours)):
                history.add(each)
                if second in (3600, 3600 * hours - 1):
                    sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()

        assert sizes[1] - sizes[0] < 100_000
        assert sizes[1] < 2_000_000
        assert len(history.series("0000:00:00.0", "power_watts", 86_400)[0]) == 360 * hours - 1


def test_metrics_are_fields_of_a_sample() -> None:
    """Each is a number of a Sample."""
    assert set(METRICS) <= {field.name for field in fields(Sample)}


@pytest.mark.parametrize("seconds", [0, -5])
def test_no_time_is_no_point(seconds: float) -> None:
    """Whatever is requested, there is an answer."""
    history = History(["a"])
    assert history.series("a", "busy_percent", 900) == ([], [])
    history.add(snapshot(0, busy_percent=1.0))

    assert history.series("a", "busy_percent", seconds) == ([], [])


class TestSparse:
    """While no one watches, a leased GPU has a point each 10 seconds."""

    def test_who_comes_sees_the_last_minutes(self) -> None:
        """A training without a page, then a page: one line of points each 10 seconds, then each second."""
        history = History(["a"])
        for second in range(0, 3600, 10):
            history.add_sparse(snapshot(second, busy_percent=90.0))
        for second in range(3600, 3610):
            history.add(snapshot(second, busy_percent=80.0))

        times, values = history.series("a", "busy_percent", 900)

        assert times == [BEGIN + second for second in (*range(2710, 3600, 10), *range(3600, 3610))]
        assert values == [90.0] * 89 + [80.0] * 10
        assert history.times(900) == times
        assert history.series("a", "busy_percent", 86_400)[1] == [90.0] * 360

    def test_what_was_watched_before_stays(self) -> None:
        """A page is closed during a training: its seconds are followed by points each 10 seconds, also over a day."""
        history = History(["a"])
        for second in range(25):
            history.add(snapshot(second, busy_percent=80.0))
        for second in range(35, 95, 10):
            history.add_sparse(snapshot(second, busy_percent=90.0))

        assert [time - BEGIN for time in history.times(900)] == [*range(25), *range(35, 95, 10)]
        assert [time - BEGIN for time in history.times(3600)] == [0, 10, 20, *range(35, 95, 10)]

    def test_a_pause_between_leases_is_unknown(self) -> None:
        """The GPU was not leased for an hour: no line is drawn across it."""
        history = History(["a"])
        for second in (0, 10, 3610, 3620):
            history.add_sparse(snapshot(second, busy_percent=90.0))

        assert history.series("a", "busy_percent", 86_400)[1] == [90.0, 90.0, None, 90.0, 90.0]

    def test_a_clock_that_is_set_back_begins_anew(self) -> None:
        """What was read at a later time than now is not shown."""
        history = History(["a"])
        history.add_sparse(snapshot(1000, busy_percent=90.0))
        history.add_sparse(snapshot(10, busy_percent=50.0))

        assert history.series("a", "busy_percent", 86_400) == ([BEGIN + 10], [50.0])

    def test_readings_of_several_samplers_are_one_point(self) -> None:
        """Leased GPUs and others are read at the same moment, each by its own sampler; neither replaces the other."""
        history = History()
        for second in range(0, 30, 10):
            history.add_sparse(snapshot(second, "leased", busy_percent=90.0))
            history.add_sparse(snapshot(second + 0.4, "other", busy_percent=50.0))
            history.add_sparse(snapshot(second + 0.6, "leased", busy_percent=0.0))

        for seconds in (900, 86_400):
            assert history.series("leased", "busy_percent", seconds)[1] == [90.0] * 3
            assert history.series("other", "busy_percent", seconds)[1] == [50.0] * 3

    def test_a_late_reading_does_not_drop_the_next(self) -> None:
        """Where the machine is busy one comes a second after its time, and the next in time."""
        history = History(["a"])
        for second in (0, 11, 20, 30):
            history.add_sparse(snapshot(second, busy_percent=90.0))

        assert history.series("a", "busy_percent", 86_400) == ([BEGIN + each for each in (0, 11, 20, 30)], [90.0] * 4)
