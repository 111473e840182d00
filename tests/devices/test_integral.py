"""The area below readings, as every count of energy and every mean over time has it."""

from __future__ import annotations

from rocmlab.devices.integral import GAP_SECONDS, Integral


def test_over_a_gap_nothing_is_claimed() -> None:
    """A machine that slept for an hour did not burn an hour's energy; what is unknown is skipped."""
    power = Integral()

    added = [
        power.add(now, watts)
        for now, watts in ((0.0, 100.0), (2.0, 200.0), (4.0, None), (6.0, 200.0), (3600.0, 200.0), (3602.0, 100.0))
    ]

    assert added == [None, 300, None, 800, None, 300]
    assert (power.area, power.seconds, power.mean) == (1400, 8, 175)


def test_what_is_read_once_a_minute_counts() -> None:
    """A scrape or a record may be that slow; a clock that was set back adds nothing."""
    power = Integral()

    assert power.mean is None
    power.add(0.0, 100.0)
    assert power.mean == 100
    assert power.add(60.0, 100.0) == 6000
    assert power.add(30.0, 100.0) is None
    assert power.add(30.0 + GAP_SECONDS, 100.0) == 100 * GAP_SECONDS
