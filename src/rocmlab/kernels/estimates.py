"""When those who wait for GPUs are likely to get them; None where that is not known, as for most notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rocmlab.kernels.holders import Holder
from rocmlab.kernels.tickets import Waiter


def starts(waiters: Sequence[Waiter], held: Mapping[str, Holder], now_seconds: float) -> list[float | None]:
    """Return for each waiter the Unix time at which it gets its GPUs, if all whom it needs end as expected.

    Args:
        waiters: in the order of the queue.
        held: the holder of each lock; a lock that is not here is free.
        now_seconds: Unix time.
    """
    free: dict[str, float | None] = {name: _end(holder, now_seconds) for name, holder in held.items()}
    found = []
    for waiter in waiters:
        known = sorted((time, name) for name in waiter.locks if (time := free.get(name, now_seconds)) is not None)
        chosen = known[: waiter.count]
        is_known = waiter.is_in_turn and len(chosen) == waiter.count > 0
        start = max(time for time, _ in chosen) if is_known else None
        found.append(start)
        expected = waiter.holder.expected_seconds
        taken = [name for _, name in chosen] if is_known else waiter.locks if waiter.is_in_turn else ()
        for name in taken:  # of one whose start is unknown it is also unknown which GPUs it takes
            free[name] = start + expected if start is not None and expected is not None else None
    return found


def _end(holder: Holder, now_seconds: float) -> float | None:
    """Return when a lease is likely to end; None if that is unknown, or it should have ended already."""
    if holder.expected_seconds is None or holder.started is None:
        return None
    try:
        end = datetime.fromisoformat(holder.started.replace("Z", "+00:00")).timestamp() + holder.expected_seconds
    except (ValueError, OverflowError):
        return None
    return end if end > now_seconds else None
