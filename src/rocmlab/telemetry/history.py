"""What the devices did: each second of the last 15 minutes, and each 10 seconds of the last 24 hours, as means.

While no one watches there is a reading each 10 seconds, of GPUs that are leased or awake; it is in both.

Memory is flat: columns of 32-bit floats for each number that a device has ever reported, 39 kB, allocated once.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

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
SPARSE_POINTS = 90  # of the same 15 minutes, each COARSE_SECONDS
COARSE_SECONDS, COARSE_POINTS = 10.0, 8640
EARLY = 0.25  # of that time, by which a point may come before it
GAP = 3.0  # points: a longer silence is shown as one
CLOCK_SECONDS = 5.0  # a clock that is set back by more begins a new history
UNKNOWN = math.nan


class History:
    """Keeps the samples of each device; the clock is that of the Snapshots."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """Begin with these devices, by `device_id`; others are added as they come."""
        self._fine = _Ring(FINE_SECONDS, FINE_POINTS)
        self._coarse = _Ring(COARSE_SECONDS, COARSE_POINTS)
        self._sparse = _Ring(COARSE_SECONDS, SPARSE_POINTS)  # what was read while no one watched
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
            self._clear()
        elif self._fine.skip_silence(now):
            self._add_mean()
        place = self._fine.point(now)
        if place is None:
            place = self._fine.place  # the same second: its place is taken again
        elif self._places and now - self._fine.times[self._places[0]] >= COARSE_SECONDS - EARLY * FINE_SECONDS:
            self._add_mean()
        if not self._places or self._places[-1] != place:
            self._places.append(place)
        for name, sample in snapshot.samples.items():
            self._names.setdefault(name)
            self._fine.put(name, vars(sample))

    def add_sparse(self, snapshot: Snapshot) -> None:
        """Take a Snapshot of those that are read each 10 seconds while no one watches.

        Those of several samplers within that time make one point: each device keeps what came first.
        """
        now = snapshot.time_seconds
        self._add_mean()  # of the seconds before
        if any(ring.last is not None and now < ring.last - CLOCK_SECONDS for ring in (self._sparse, self._coarse)):
            self._clear()
        for ring in (self._sparse, self._coarse):
            ring.skip_silence(now)
            ring.point(now)
            for name, sample in snapshot.samples.items():
                self._names.setdefault(name)
                if not ring.has(name):
                    ring.put(name, vars(sample))

    def _clear(self) -> None:
        for ring in (self._fine, self._sparse, self._coarse):
            ring.clear()
        self._places = []

    def _add_mean(self) -> None:
        """Make a point of the last 24 hours of those that are in none yet."""
        places, self._places = self._places, []
        if not places:
            return
        began = self._fine.times[places[0]]
        self._coarse.skip_silence(began)
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
        return [time for time, _ in self._points(seconds, None, "")]

    def series(self, device: str, metric: str, seconds: float) -> tuple[list[float], list[float | None]]:
        """Return the points of one number of a device: Unix times, ascending, and values.

        Args:
            device: by `device_id`.
            metric: one of METRICS.
            seconds: until the last point. Up to 15 minutes there is a point a second, else one for each 10 seconds;
                where no one watched there is one for each 10 seconds in any case.

        Returns:
            Times and values; None is unknown. Where nothing was read, one point in which nothing is known.
        """
        points = self._points(seconds, device, metric)
        return [time for time, _ in points], [value if value == value else None for _, value in points]  # NaN differs

    def _points(self, seconds: float, device: str | None, metric: str) -> list[tuple[float, float]]:
        """Return times and values, NaN where unknown; without a device the times count."""
        rings = (self._fine, self._sparse) if seconds <= FINE_SECONDS * FINE_POINTS else (self._coarse,)
        end = max((ring.last for ring in rings if ring.last is not None), default=0.0)
        found: list[tuple[float, float]] = []
        for ring in rings:
            times = ring.window(ring.times, end - seconds)
            column = ring.columns.get(device, {}).get(metric) if device else ring.times
            values = [UNKNOWN] * len(times) if column is None else ring.window(column, end - seconds)
            found += zip(times, values, strict=True)
        return sorted(found, key=itemgetter(0)) if len(rings) > 1 and self._sparse.last is not None else found


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
        if self.last is not None and now - self.last < self._step_seconds * (1 - EARLY):
            return None
        self.place = (self.place + 1) % self._points
        self.times[self.place] = self.last = now
        self._count = min(self._count + 1, self._points)
        for columns in self.columns.values():
            for column in columns.values():
                column[self.place] = UNKNOWN
        return self.place

    def skip_silence(self, now: float) -> bool:
        """Add a point in which nothing is known behind the last one if that is long ago; return whether it is."""
        is_long = self.last is not None and self.last + GAP * self._step_seconds < now
        if self.last is not None and is_long:
            self.point(self.last + self._step_seconds)
        return is_long

    def has(self, name: str) -> bool:
        """Return whether anything of a device is known at the last point."""
        return any(column[self.place] == column[self.place] for column in self.columns.get(name, {}).values())

    def put(self, name: str, values: dict[str, float | None]) -> None:
        """Add a device's sample at the last point."""
        columns, place = self.columns.setdefault(name, {}), self.place
        for metric in METRICS:
            value = values.get(metric)
            if value is not None:
                if metric not in columns:
                    columns[metric] = array("f", [UNKNOWN]) * self._points
                columns[metric][place] = value

    def window(self, column: array[float], after: float) -> array[float]:
        """Return what a column, or `times`, holds of the points after a Unix time, the oldest first."""
        if self.last is None:
            return array(column.typecode)
        end = self.place + 1
        ordered = self.times[end - self._count : end] if self._count <= end else self.times[end:] + self.times[:end]
        first = bisect_right(ordered, after)
        wanted = len(ordered) - first
        if wanted <= end:
            return column[end - wanted : end]
        return column[end - wanted :] + column[:end]

    def clear(self) -> None:
        self.last, self._count = None, 0
        for columns in self.columns.values():
            for metric in columns:
                columns[metric] = array("f", [UNKNOWN]) * self._points
