"""When GPUs are read for no viewer: each ten seconds of the host's clock, by everything on it at the same moment.

amdgpu lets an unused GPU sleep five seconds after its last reading, whoever took it. Two labs that read it each ten
seconds, but at different moments, would together keep it awake.
"""

from __future__ import annotations

EVERY_SECONDS = 10.0
LATE_SECONDS = 1.0  # by which a reading may miss its moment


def pause(now: float) -> float:
    """Return the seconds from a Unix time until the next reading; a reading that was a little early is not repeated."""
    seconds = EVERY_SECONDS - now % EVERY_SECONDS
    return seconds if seconds > LATE_SECONDS else seconds + EVERY_SECONDS


def is_punctual(now: float) -> bool:
    """Return whether a reading at this Unix time falls together with those of others."""
    return (now + LATE_SECONDS) % EVERY_SECONDS <= 2 * LATE_SECONDS
