"""What waiting jobs can expect: of which products GPUs are free to a job, and which are kept for it.

A long run has many turns, but what its jobs request hardly differs from one to the next, and the numbers of GPUs that
are free are few. So results are kept, and a turn with thousands of GPUs takes microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rocmlab.runs.jobs import Resources
from rocmlab.runs.scheduling.pool import Pool
from rocmlab.runs.scheduling.scheduler import Demand, Group

MAX_STATES = 10_000  # of what is free, for which outlooks are kept
NOTHING: frozenset[Group] = frozenset()


@dataclass(frozen=True)
class Outlook:
    """What a number of free GPUs are to a job, whatever is kept for others; their memory may still be in use."""

    offers: frozenset[Group]  # of which it could be given its GPUs
    awaited: frozenset[Group]  # which are kept for it while it cannot be placed


class Outlooks:
    """The outlooks of a run's demand classes."""

    def __init__(self, free: Pool, resolve: Callable[[Resources], Demand]) -> None:
        self._free = free
        self._resolve = resolve
        self._requested: frozenset[Resources] = frozenset()
        self._waiting: list[Demand] = []
        self._rivals: dict[tuple[Demand, frozenset[Group]], list[Demand]] = {}
        self._known: dict[tuple[int, ...], dict[Demand, Outlook]] = {}  # by what is free, for those that wait
        self._now: dict[Demand, Outlook] = {}  # of this turn

    def begin_turn(self, requested: frozenset[Resources]) -> None:
        """Use what is known for what is free now; `requested` is the same object as long as it is the same."""
        if requested is not self._requested or len(self._known) > MAX_STATES:
            self._requested = requested
            self._waiting = [self._resolve(each) for each in requested]
            self._rivals.clear()
            self._known.clear()
        self._now = self._known.setdefault(tuple(self._free.left), {})

    def of(self, demand: Demand) -> Outlook:
        """Return what is free to a job, and of what no one else should have any while it waits.

        Of several sets it is the one that lacks fewest, and others may continue with the rest. What lacks never becomes
        more, because no one takes GPUs from that set; so the job's turn comes. Where there are enough, but others use
        their memory, no one need wait for that.
        """
        if demand not in self._now:
            self._now[demand] = self._look(demand)
        return self._now[demand]

    def _look(self, demand: Demand) -> Outlook:
        if demand.resources.is_mixed:
            is_enough = self._free.count_free(demand.groups) >= demand.count
            return Outlook(demand.groups, NOTHING) if is_enough else Outlook(NOTHING, demand.groups)
        free = self._free.left
        products = sorted(demand.groups)
        spared = [product for product in products if not self.is_waste(demand, frozenset((product,)))]
        best = max(spared or products, key=free.__getitem__)
        awaited = NOTHING if free[best] >= demand.count else frozenset((best,))
        return Outlook(frozenset(product for product in spared if free[product] >= demand.count), awaited)

    def is_waste(self, demand: Demand, products: frozenset[Group]) -> bool:
        """Return whether a waiting job needs GPUs of these, too few would be left, and this job can have others."""
        return any(
            self._free.count_free(other.groups) - demand.count < other.count
            for other in self._rivals_for(demand, products)
        )

    def _rivals_for(self, demand: Demand, products: frozenset[Group]) -> list[Demand]:
        """Return the demands that can have nothing but these products, where this one can have more."""
        key = demand, products
        if key not in self._rivals:
            self._rivals[key] = [
                other
                for other in self._waiting
                if other.count and not demand.groups <= products and products >= other.groups < demand.groups
            ]
        return self._rivals[key]
