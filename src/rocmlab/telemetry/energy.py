"""How much energy a device has used since counting began."""

from __future__ import annotations

from rocmlab.devices import Sample
from rocmlab.devices.integral import Integral

PROOF_SECONDS = 10.0  # before which a card's own count may run ahead of its power
FACTOR = 2.0  # within which they agree
MIN_JOULES = 20.0  # below which rounding decides


class EnergyMeter:
    """Adds up what one device uses: by its own count where it has one that agrees with its power, else from its power.

    A count that stands still, runs backwards, or grows less than half or (after ten seconds) more than twice as fast as
    the area below the power is not believed. What is reported never falls.
    """

    def __init__(self) -> None:
        self.joules: float | None = None  # since the first reading; None as long as it is unknown
        self.is_whole = True  # False: over a gap between two readings nothing was counted, so it used more
        self._power = Integral()
        self._had_power = False  # it was known at least once
        self._count: float | None = None  # of the device, last seen
        self._counted = 0.0
        self._area = 0.0
        self._is_counting = False

    def add(self, now: float, watts: float | None, count: float | None) -> None:
        """Take watts and the card's own count in joules, None where unknown; `now` is of a clock that is never set."""
        had_power, self._had_power = self._had_power, self._had_power or watts is not None
        area = self._power.add(now, watts)
        growth = None
        if count is not None:
            if self._count is not None and count >= self._count:
                growth = count - self._count
            self._count = count
            self._is_counting = self._is_counting or growth is not None
        if area is None and growth is None:
            self.is_whole = self.is_whole and not (had_power and watts is not None)
            return
        self._area += area if area is not None else growth or 0.0
        self._counted += growth if growth is not None else (area or 0.0) if count is not None else 0.0
        self.joules = max(self.joules or 0.0, self._counted if self._is_counting and self._agrees() else self._area)

    def add_sample(self, now: float, sample: Sample, count: float | None) -> None:
        """Take a reading; `now` and `count` as in `add`."""
        if sample.is_asleep:
            self.pause()
        else:
            self.add(now, sample.power_watts, count)

    def pause(self) -> None:
        """Note that the device sleeps: what it uses until its power is known again, its own count alone can tell."""
        self._power.last = None
        self.is_whole = self.is_whole and (self._is_counting or not self._had_power)

    def end(self, now: float, fresh_seconds: float) -> None:
        """Stop: a last power that is older than that says nothing of the rest, so that what was counted is a part."""
        last = self._power.last
        if self._had_power and (last is None or now - last[0] > fresh_seconds):
            self.is_whole = False

    @property
    def seconds(self) -> float:
        """The time over which power was read."""
        return self._power.seconds

    def _agrees(self) -> bool:
        if self._counted < self._area / FACTOR:
            return False
        return self._power.seconds < PROOF_SECONDS or self._counted <= max(self._area, MIN_JOULES) * FACTOR
