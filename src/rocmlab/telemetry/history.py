"""What the devices did: each second of the last 15 minutes, and means of 10 seconds of the last 24 hours.

Memory is flat: two columns of 32-bit floats for each number that a device has ever reported, 38 kB, allocated once.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence

from rocmlab.telemetry.model import Snapshot

METRICS = (
    "busy_percent",
    "memory_busy_percent",
    "vram_used_bytes",
    "gtt_used_bytes",
    "power_watts",
    "edge_celsius",
    "junction_celsius",
    "memory_celsius",
    "core_clock_hertz",
    "memory_clock_hertz",
    "voltage_volts",
    "fan_rpm",
    "fan_percent",
    "link_width",
    "link_speed_gts",
    "pcie_replays",
)
FINE_SECONDS, FINE_POINTS = 1.0, 900
COARSE_SECONDS, COARSE_POINTS = 10.0, 8640
EARLY_SECONDS = 0.25  # by which a point may come before its time
GAP = 3.0  # points: a longer silence is shown as one
CLOCK_SECONDS = 5.0  # a clock that is set back by more begins a new history
UNKNOWN = math.nan


class History:
    """Keeps the samples of each device; the clock is that of the Snapshots."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """Begin with these devices, by `device_id`; others are added as they come."""
        self._fine = _Ring(FINE_SECONDS, FINE_POINTS)
        self._coarse = _Ring(COARSE_SECONDS, COARSE_POINTS)
        self._names: dict[str, None] = dict.fromkeys(names)
        self._places: list[int] = []  # of the fine points that are in no mean yet

    @property
    def names(self) -> list[str]:
        """The devices."""
        return list(self._names)

    def add(self, snapshot: Snapshot) -> None:
        """Take a Snapshot; of several within a second the last one counts."""
        now, last = snapshot.time_seconds, self._fine.last
        if last is not None and now < last - CLOCK_SECONDS:
            self._fine.clear()
            self._coarse.clear()
            self._places = []
        elif last is not None and last + GAP * FINE_SECONDS < now:
            self._add_mean()
            self._fine.skip()
        place = self._fine.point(now)
        if place is None:
            place = self._fine.place  # the same second: its place is taken again
        elif self._places and now - self._fine.times[self._places[0]] >= COARSE_SECONDS - EARLY_SECONDS:
            self._add_mean()
        if not self._places or self._places[-1] != place:
            self._places.append(place)
        for name, sample in snapshot.samples.items():
            self._names.setdefault(name)
            self._fine.put(name, vars(sample))

    def _add_mean(self) -> None:
        """Make a point of the last 24 hours of those that are in none yet."""
        places, self._places = self._places, []
        if not places:
            return
        began = self._fine.times[places[0]]
        if self._coarse.last is not None and self._coarse.last + GAP * COARSE_SECONDS < began:
            self._coarse.skip()
        if self._coarse.point(began) is None:
            return
        for name, columns in self._fine.columns.items():
            means = {}
            for metric, column in columns.items():
                known = [value for place in places if (value := column[place]) == value]  # NaN differs from itself
                means[metric] = sum(known) / len(known) if known else None
            self._coarse.put(name, means)

    def times(self, seconds: float) -> list[float]:
        """Return the Unix times of the points of the last `seconds`, the same for all series."""
        ring = self._ring(seconds)
        return ring.window(ring.times, seconds).tolist()

    def series(self, device: str, metric: str, seconds: float) -> tuple[list[float], list[float | None]]:
        """Return the points of one number of a device: Unix times, ascending, and values.

        Args:
            device: by `device_id`.
            metric: one of METRICS.
            seconds: until the last point. Up to 15 minutes there is a point a second, else one for each 10 seconds.

        Returns:
            Times and values; None is unknown. Where nothing was read, one point in which nothing is known.
        """
        ring = self._ring(seconds)
        column = ring.columns.get(device, {}).get(metric)
        times = ring.window(ring.times, seconds).tolist()
        if column is None:
            return times, [None] * len(times)
        return times, [value if value == value else None for value in ring.window(column, seconds)]  # NaN differs

    def _ring(self, seconds: float) -> _Ring:
        return self._fine if seconds <= FINE_SECONDS * FINE_POINTS else self._coarse


class _Ring:
    """Points in time, with each device's sample; the oldest is dropped for the next."""

    def __init__(self, step_seconds: float, points: int) -> None:
        self._step_seconds, self._points = step_seconds, points
        self.times = array("d", [0.0]) * points
        self.columns: dict[str, dict[str, array[float]]] = {}
        self.place = points - 1  # of the last point
        self.last: float | None = None  # its time
        self._count = 0

    def point(self, now: float) -> int | None:
        """Begin a point and return its place; None where it would be too near to the last one."""
        if self.last is not None and now - self.last < self._step_seconds - EARLY_SECONDS:
            return None
        self.place = (self.place + 1) % self._points
        self.times[self.place] = self.last = now
        self._count = min(self._count + 1, self._points)
        for columns in self.columns.values():
            for column in columns.values():
                column[self.place] = UNKNOWN
        return self.place

    def skip(self) -> None:
        """Add a point in which nothing is known behind the last one."""
        if self.last is not None:
            self.point(self.last + self._step_seconds)

    def put(self, name: str, values: dict[str, float | None]) -> None:
        """Add a device's sample at the last point."""
        columns, place = self.columns.setdefault(name, {}), self.place
        for metric in METRICS:
            value = values.get(metric)
            if value is not None:
                if metric not in columns:
                    columns[metric] = array("f", [UNKNOWN]) * self._points
                columns[metric][place] = value

    def window(self, column: array[float], seconds: float) -> array[float]:
        """Return what a column, or `times`, holds of the `seconds` until the last point, the oldest first."""
        if self.last is None:
            return array(column.typecode)
        end = self.place + 1
        ordered = self.times[end - self._count : end] if self._count <= end else self.times[end:] + self.times[:end]
        first = bisect_right(ordered, self.last - seconds)
        wanted = len(ordered) - first
        if wanted <= end:
            return column[end - wanted : end]
        return column[end - wanted :] + column[:end]

    def clear(self) -> None:
        self.last, self._count = None, 0
        for columns in self.columns.values():
            for metric in columns:
                columns[metric] = array("f", [UNKNOWN]) * self._points
