"""What those that wait may hope for: of which products GPUs are free to a job, and which are kept for it.

A long run has many turns, but what its jobs ask for hardly ever differs from one to the next, and few are the numbers
of GPUs that are free. So what was found out once is kept, and a turn with thousands of GPUs takes microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.pool import Demand, Pool, Product

MOST_STATES = 10_000  # of what is free, for which outlooks are kept


@dataclass(frozen=True, eq=False)
class Ask:
    """What all jobs ask that could stand in for each other, and of what the run can give it to them."""

    count: int  # of GPUs; 0 is the place on the CPU
    demand: Demand
    products: frozenset[Product]  # those of which it could ever be given GPUs
    singles: tuple[Product, ...]  # of each of them there are enough for a job; none if it may have several together


Waiting = tuple[int, Job, Ask]  # whose turn it is, and what the job asks for


@dataclass(frozen=True)
class Outlook:
    """What so many free GPUs are to a job, whatever is kept for others; their memory may yet be in use."""

    offers: frozenset[Product]  # of which it could be given its GPUs
    awaited: frozenset[Product]  # which are kept for it while it cannot be placed


class Outlooks:
    """What the jobs of a run ask for, and their outlooks."""

    def __init__(self, free: Pool) -> None:
        self._free = free
        self._asks: dict[tuple[int, Demand], Ask] = {}
        self._rivals: dict[tuple[Ask, frozenset[Product]], list[Ask]] = {}
        self._waiting: frozenset[Ask] = frozenset()
        self._known: dict[tuple[int, ...], dict[Ask, Outlook]] = {}  # by what is free, for those that wait

    def ask(self, count: int, demand: Demand) -> Ask:
        """Return what a job asks for that wants so many GPUs: the same object for the same."""
        if (count, demand) not in self._asks:
            products = self._free.large_enough(demand) if count <= self._free.most(demand) else []
            singles = () if demand.is_mixed else tuple(each for each in products if self._free.counts[each] >= count)
            made = Ask(count, demand, frozenset(products if demand.is_mixed else singles), singles)
            self._asks[count, demand] = made
            self._rivals.clear()
        return self._asks[count, demand]

    def of(self, asks: frozenset[Ask]) -> dict[Ask, Outlook]:
        """Return what is known of those that wait for what is free now, to be added to by `look`.

        Args:
            asks: what all that wait ask for; the same object as long as it is the same.
        """
        if asks is not self._waiting or len(self._known) > MOST_STATES:
            self._waiting = asks
            self._known.clear()
        return self._known.setdefault(tuple(self._free.left), {})

    def look(self, ask: Ask) -> Outlook:
        """Return what is free to a job, and of what nobody else should have any while it waits.

        Of several sets it is the one that lacks fewest, and others may go on with the rest. What lacks never becomes
        more, because nobody takes GPUs from that set; so the job's turn comes. Where there are enough, but others use
        their memory, nobody need wait for that.
        """
        nothing: frozenset[Product] = frozenset()
        if ask.demand.is_mixed:
            is_enough = self._free.count_free(ask.products) >= ask.count
            return Outlook(ask.products, nothing) if is_enough else Outlook(nothing, ask.products)
        free = self._free.left
        spared = [product for product in ask.singles if not self.is_waste(ask, self._free.alone[product])]
        best = max(spared or ask.singles, key=free.__getitem__)
        awaited = nothing if free[best] >= ask.count else self._free.alone[best]
        return Outlook(frozenset(product for product in spared if free[product] >= ask.count), awaited)

    def is_waste(self, ask: Ask, products: frozenset[Product]) -> bool:
        """Tell whether a waiting job needs GPUs of these, too few would be left, and this job can have others."""
        for other in self._rivals_for(ask, products):
            if other in self._waiting and self._free.count_free(other.products) - ask.count < other.count:
                return True
        return False

    def _rivals_for(self, ask: Ask, products: frozenset[Product]) -> list[Ask]:
        """Return what jobs may ask that can have nothing but these products, where one that asks this can have more."""
        key = ask, products
        if key not in self._rivals:
            rivals = [
                other
                for other in self._asks.values()
                if other.count and other.products < ask.products and other.products <= products
            ]
            self._rivals[key] = [] if ask.products <= products else rivals
        return self._rivals[key]
