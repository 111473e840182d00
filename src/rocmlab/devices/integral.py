"""The area below a curve of readings: joules from watts, and means over time."""

from __future__ import annotations

GAP_SECONDS = 90.0  # between two readings; over a longer one nothing is added, because nothing was read


class Integral:
    """Adds up readings that come one after another, by trapezoids.

    Attributes:
        area: the value times seconds; of power in watts, joules.
        seconds: that it stretches over, without long gaps.
        last: time and value of the last reading; None before the first.
    """

    def __init__(self) -> None:
        self.area = 0.0
        self.seconds = 0.0
        self.last: tuple[float, float] | None = None

    def add(self, now: float, value: float | None) -> float | None:
        """Take a reading, and return what it has added; None if that is not known.

        Args:
            now: seconds of any one clock.
            value: None is unknown, and the next one continues from the last that was known.
        """
        if value is None:
            return None
        last, self.last = self.last, (now, value)
        if last is None or not 0 <= now - last[0] <= GAP_SECONDS:
            return None
        added = (now - last[0]) * (value + last[1]) / 2
        self.area += added
        self.seconds += now - last[0]
        return added

    @property
    def mean(self) -> float | None:
        """The mean over time, or the only value; None if there is none."""
        if self.seconds > 0:
            return self.area / self.seconds
        return self.last[1] if self.last else None
