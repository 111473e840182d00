"""Claims to GPUs that are not leased yet, and sharing GPUs out among them where another program leases some.

Another program may lease a GPU of the run. So a place is first a claim to a number of the GPUs that no job of the run
has, and is settled when they are leased; claims are settled in the order in which they were made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence

from rocmlab.devices import Device
from rocmlab.runs.jobs import Resources
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.pool import Pool, sets_of


class Claims:
    """The claims of a run, oldest first; the GPUs that they have are taken from the pool."""

    def __init__(
        self,
        free: Pool,
        has_room: Callable[[Resources, Device], bool],
        numbered: Callable[[Sequence[Device]], Sequence[Device]],
    ) -> None:
        self._free = free  # what no job has and no one claims
        self._has_room = has_room
        self.numbered = numbered  # GPUs as they are counted now
        self._claims: dict[Place, None] = {}
        self._have_theirs = True  # each claim has as many GPUs as it claims

    def add(self, place: Place) -> None:
        """Begin a claim to the devices of a place, which are free."""
        self._free.take(place.devices)
        self._claims[place] = None

    def remove(self, place: Place) -> None:
        """Have the devices of a place free again, settled or not."""
        self._claims.pop(place, None)
        self._free.give_back(place.gpus)

    def options(self, place: Place) -> tuple[Device, ...]:
        """Return the GPUs among which a claim may choose, any of which will do; of the product of its own come first.

        They are those that no job has, as far as the other claims can still be met. Only the oldest claim has a choice.
        """
        if place is not next(iter(self._claims), None):
            return ()
        own, count = place.devices, place.count
        if place.resources.is_mixed and count > 1:  # any choice must leave the others theirs
            return self._ranked(place, {*own, *self._with_room(place.resources, self._free)})
        others = [gpu for gpu in self._unsettled() if gpu not in own]
        by_product = place.resources._replace(is_mixed=False)  # of which any may stand for all
        sets = sets_of(by_product, self._ranked(place, {*own, *self._with_room(place.resources, others)}))
        fitting = [each for each in sets if len(each) >= count and self._leaves_enough(place, each[:count])]
        if count == 1:
            return self._ranked(place, {gpu for each in fitting for gpu in each})
        if not fitting:
            return own
        return tuple(fitting[int(time.monotonic()) % len(fitting)])  # others may hold one set and not another

    def settle(self, place: Place, gpus: Sequence[Device]) -> None:
        """Turn a claim into a right to these GPUs; the other claims are moved to those that remain."""
        if self._have_theirs and place.devices == tuple(gpus):
            del self._claims[place]
            return
        gpus = self._free.in_order(gpus)
        if self._is_free_of_others(place, gpus):
            self._free.give_back(place.devices)
        else:
            self._move_others(place, gpus)
        self._free.take(gpus)
        del self._claims[place]
        place.devices = tuple(gpus)

    def _ranked(self, place: Place, gpus: Collection[Device]) -> tuple[Device, ...]:
        products = set(map(self._free.product, place.devices))
        in_order = self._free.in_order(gpus)
        return tuple(sorted(in_order, key=lambda gpu: (gpu in place.excluded, self._free.product(gpu) not in products)))

    def _with_room(self, resources: Resources, gpus: Iterable[Device]) -> list[Device]:
        """Return the GPUs that have as much VRAM free as is requested, as far as that is known."""
        fitting = (gpu for gpu in gpus if (gpu.memory_bytes or 0) >= (resources.vram_bytes or 0))
        return [gpu for gpu in fitting if self._has_room(resources, gpu)]

    def _move_others(self, place: Place, gpus: Sequence[Device]) -> None:
        """Give the other claims theirs of what remains when a claim gets these GPUs; the rest is free."""
        rest = [gpu for gpu in self._unsettled() if gpu not in gpus]
        others = self._others(place)
        found = shared_out(others, rest, self._free)
        self._have_theirs = found is not None
        if found is None:  # what others leased cannot be helped; each keeps what is left of its own
            found = [tuple(gpu for gpu in claim.devices if gpu in rest) for claim in others]
        self._free.give_back(rest)
        for claim, devices in zip(others, found, strict=True):
            claim.devices = devices
            self._free.take(devices)

    def _leaves_enough(self, place: Place, gpus: Sequence[Device]) -> bool:
        if self._is_free_of_others(place, gpus):
            return True
        rest = [gpu for gpu in self._unsettled() if gpu not in gpus]
        return shared_out(self._others(place), rest, self._free) is not None

    def _others(self, place: Place) -> list[Place]:
        return [claim for claim in self._claims if claim is not place]

    def _is_free_of_others(self, place: Place, gpus: Sequence[Device]) -> bool:
        """Return whether a claim can be met with these GPUs while each other claim keeps what it has, if enough."""
        own = set(map(self._free.number, place.devices))
        return self._have_theirs and all(self._free.number(gpu) in own or gpu in self._free for gpu in gpus)

    def _unsettled(self) -> list[Device]:
        return self._free.in_order((*self._free, *(gpu for claim in self._claims for gpu in claim.devices)))


def shared_out(claims: Sequence[Place], gpus: Sequence[Device], pool: Pool) -> list[tuple[Device, ...]] | None:
    """Return GPUs for each claim, oldest first, its own as far as possible; None if they are too few."""
    # A claim to mixed GPUs is as many claims to one.
    parts = [
        (number, 1 if claim.resources.is_mixed else claim.count)
        for number, claim in enumerate(claims)
        for _ in range(claim.count if claim.resources.is_mixed else 1)
    ]
    hopeless: set[tuple[int, frozenset[Device]]] = set()

    def share(at: int, left: frozenset[Device]) -> list[list[Device]] | None:
        if at == len(parts):
            return []
        if (at, left) in hopeless:
            return None
        number, count = parts[at]
        for option in _preferred(claims[number], count, left, pool):
            rest = share(at + 1, left.difference(option))
            if rest is not None:
                return [option, *rest]
        hopeless.add((at, left))
        return None

    shared = share(0, frozenset(gpus))
    if shared is None:
        return None
    found: list[set[Device]] = [set() for _ in claims]
    for (number, _), option in zip(parts, shared, strict=True):
        found[number].update(option)
    return [tuple(pool.in_order(each)) for each in found]


def _preferred(claim: Place, count: int, gpus: Collection[Device], pool: Pool) -> list[list[Device]]:
    """Return a choice of each product, as they can stand for each other; what the claim has already comes first."""
    own_first = sorted(pool.in_order(gpus), key=lambda gpu: (gpu not in claim.devices, gpu not in pool))
    sets = sets_of(claim.resources._replace(is_mixed=False), own_first)
    options = [each[:count] for each in sets if len(each) >= count]
    return sorted(options, key=lambda option: -len(set(option).intersection(claim.devices)))
