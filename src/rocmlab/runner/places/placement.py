"""Which job runs next and where: a slot is one GPU, and there is one place on the CPU."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rocmlab.devices import Device, visibility
from rocmlab.errors import Problem
from rocmlab.runner.ground import words
from rocmlab.runner.ground.aside import DRIVERS
from rocmlab.runner.ground.jobs import Job
from rocmlab.runner.places.chosen import choose_gpus as choose_gpus

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")

Product = tuple[str, str | None, str, int | None]  # GPUs that can stand for each other have the same


@dataclass(frozen=True)
class Demand:
    """What a job wants of its GPUs, beside their number."""

    vram_bytes: int | None = None  # of each
    is_mixed: bool = False  # whether they may be of different products


@dataclass(eq=False)
class Place:
    """What one job gets.

    Which GPUs these are is open until they are leased: while it waits, a place may be given others of the run.
    """

    devices: tuple[Device, ...]  # its GPUs, or the CPU
    threads: int
    slots: Slots | None = field(default=None, repr=False)  # where it is from; None if nobody lends it
    demand: Demand = Demand()
    count: int = 0  # of GPUs that it claims; it has fewer for a while only if others needed what it had
    avoid: tuple[Device, ...] = ()  # GPUs that it should not have if another will do

    @property
    def gpus(self) -> tuple[Device, ...]:
        """Its GPUs; empty on the CPU."""
        return tuple(device for device in self.devices if device.backend != "cpu")

    def options(self) -> tuple[Device, ...]:
        """Return the GPUs among which it may choose now; none while an older place waits for its lease."""
        return self.slots.options(self) if self.slots else self.gpus

    def settle(self, gpus: Sequence[Device]) -> None:
        """Keep these GPUs, which are leased, for good."""
        if self.slots:
            self.slots.settle(self, gpus)
        else:
            self.devices = tuple(gpus)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return a worker's environment: pinned to the devices, with its share of the cores unless the user set one."""
        limits = {name: str(self.threads) for name in THREADS}
        return {**limits, **visibility.apply(base, self.gpus)}


class Slots:
    """The GPUs of a run and its place on the CPU, lent to jobs and given back.

    A job gets the least that fits: of the free GPUs those with the least VRAM, and no GPU that a waiting job needs
    while another would do. Several GPUs are of one product unless the job says that they may be mixed. The job that
    waits longest goes first, and one that waits for several GPUs is not overtaken by others that want these, or it
    would wait for ever. Jobs for the CPU and jobs for GPUs do not wait for each other.

    Another program may lease a GPU of the run. So a place is first a claim to so many of the GPUs that no job of the
    run has, and is settled when they are leased; claims are settled in the order in which they were made.
    """

    def __init__(
        self,
        gpus: Sequence[Device],
        cpu: Device,
        cores: int | None = None,
        is_mixed: bool = False,
        free_vram: Callable[[Device], int | None] = lambda device: None,
    ) -> None:
        """Begin with all GPUs free.

        Args:
            gpus: of the run.
            cpu: the place for jobs without a GPU.
            cores: to be shared by the jobs; None: all that this process may use.
            is_mixed: whether every job may get GPUs of different products.
            free_vram: how many bytes are free on a GPU now; None where that is not known.
        """
        self.gpus = tuple(gpus)
        self.count = max(1, len(self.gpus))
        self._cpu = cpu
        self._free = list(self.gpus)
        self._claims: list[Place] = []  # not settled, oldest first
        self._cpu_is_free = True
        self._cores = cores or count_cores()
        self._is_mixed = is_mixed
        self._free_vram = free_vram

    def wanted(self, job: Job) -> int:
        """Return how many GPUs a job gets; 0 is the place on the CPU."""
        if job.gpus == "all":
            return max(map(len, self._sets(self._demand(job), self.gpus)), default=0)
        if job.gpus is None:
            return min(1, len(self.gpus))
        return job.gpus

    def problem(self, job: Job) -> Problem | None:
        """Return why a job could never be placed: it asks for more GPUs, or for more VRAM, than there is."""
        wanted = self.wanted(job)
        demand = self._demand(job)
        largest = max(map(len, self._sets(demand, self.gpus)), default=0)
        if job.vram_bytes and (wanted or job.gpus != 0) and not largest:
            sizes = sorted({gigabytes(memory_bytes(gpu)) or "an unknown amount" for gpu in self.gpus})
            return Problem(
                f"it asks for GPUs with {gigabytes(job.vram_bytes)} of VRAM",
                f"those of this run have {', '.join(sizes)}" if sizes else "this run has no GPU",
                "ask for less, or run it where there is more",
            )
        if wanted <= largest:
            return None
        asked = words.plural(wanted, "GPU")
        if wanted <= len(self.gpus):
            with_vram = f" with {gigabytes(job.vram_bytes)} of VRAM" if job.vram_bytes else " of one product"
            why = f"this run has {largest}{with_vram}: {words.device_names(self.gpus)}"
            return Problem(f"it asks for {asked}", why, "ask for fewer, or let it mix products: --mixed")
        return Problem(
            f"it asks for {asked}",
            f"this run has {len(self.gpus) or 'none'}",
            'ask for fewer ("all" takes what there is), or run it where there are more',
        )

    def usual_environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a job that asks for no number of GPUs, but for which of them it gets."""
        return Place((), self._threads(1)).environment(base)

    def signature(self, job: Job) -> Hashable:
        """Return what all jobs share that could stand in for each other when a place is given out."""
        return (self.wanted(job), self._demand(job))

    def take(
        self, waiting: Iterable[Job], avoid: Mapping[str, Collection[Device]] | None = None
    ) -> tuple[Job, Place] | None:
        """Return the next job and its place, taken from what is free; None if nothing can start now.

        Args:
            waiting: in the order of their turn; of jobs with the same `signature` the first is enough.
            avoid: by the name of a job, GPUs that it should not have if another is free.
        """
        waiting = list(waiting)
        spoken_for: set[Device] = set()
        cpu_is_spoken_for = False
        for job in waiting:
            count = self.wanted(job)
            if count:
                rest = [gpu for gpu in self._free if gpu not in spoken_for]
                shunned = (avoid or {}).get(job.name, ())
                if taken := self._choose(job, count, rest, waiting, shunned):
                    self._free = [gpu for gpu in self._free if gpu not in taken]
                    place = Place(
                        tuple(self._in_order(set(taken))),
                        self._threads(count),
                        self,
                        self._demand(job),
                        count,
                        tuple(shunned),
                    )
                    self._claims.append(place)
                    return job, place
                spoken_for |= self._awaited(job, count, waiting)
            elif not cpu_is_spoken_for:
                if self._cpu_is_free:
                    self._cpu_is_free = False
                    return job, Place((self._cpu,), self._threads(1))
                cpu_is_spoken_for = True
            if cpu_is_spoken_for and len(spoken_for) == len(self.gpus):
                break
        return None

    def _choose(
        self, job: Job, count: int, free: Sequence[Device], waiting: Sequence[Job], shunned: Collection[Device]
    ) -> list[Device]:
        """Return GPUs for a job, of the free ones those that are missed least; none if it should wait."""
        demand = self._demand(job)
        options = [each for each in self._sets(demand, self._with_room(demand, free)) if len(each) >= count]
        options = [each for each in options if not self._is_waste(job, count, each, waiting)]
        if not options:
            return []

        def cost(option: Sequence[Device]) -> tuple[int, int, int]:
            unloved = max(0, count - sum(gpu not in shunned for gpu in option))
            total = sum(_product(gpu) == _product(option[0]) for gpu in self.gpus)
            return unloved, max(memory_bytes(gpu) or 0 for gpu in option), total

        best = min(options, key=cost)  # the first of equals, so that runs repeat
        # Of mixed GPUs, too, the small ones first.
        return sorted(best, key=lambda gpu: (gpu in shunned, demand.is_mixed and (memory_bytes(gpu) or 0)))[:count]

    def _is_waste(self, job: Job, count: int, option: Sequence[Device], waiting: Sequence[Job]) -> bool:
        """Tell whether a waiting job needs GPUs of this set, too few would be left, and this job can have others."""
        products = {_product(gpu) for gpu in option}
        mine = self._products(job, count)
        if not mine - products:
            return False
        free = Counter(_product(gpu) for gpu in self._free)
        for other in waiting:
            wanted = self.wanted(other)
            if other is job or not wanted:
                continue
            theirs = self._products(other, wanted)
            if theirs < mine and theirs <= products and sum(free[each] for each in theirs) - count < wanted:
                return True
        return False

    def _products(self, job: Job, count: int) -> frozenset[Product]:
        """Return the products of which a job could ever be given GPUs."""
        sets = self._sets(self._demand(job), self.gpus)
        return frozenset(_product(gpu) for each in sets if len(each) >= count for gpu in each)

    def _awaited(self, job: Job, count: int, waiting: Sequence[Job]) -> set[Device]:
        """Return the GPUs that are kept for a job that cannot be placed now.

        Of several sets it is the one that lacks fewest, and others may go on with the rest. What lacks never becomes
        more, because nobody takes GPUs from that set; so the job's turn comes.
        """
        demand = self._demand(job)
        free = set(self._free)
        sets = [each for each in self._sets(demand, self.gpus) if len(each) >= count]
        sets = [each for each in sets if not self._is_waste(job, count, each, waiting)] or sets
        if not sets:
            return set()
        awaited = min(sets, key=lambda each: count - len(free.intersection(each)))
        if count - len(free.intersection(awaited)) <= 0:
            return set()  # there are enough, but others use their memory: nobody need wait for that
        return set(awaited)

    def give_back(self, place: Place) -> None:
        """Take back what a job was lent."""
        if not place.gpus:
            self._cpu_is_free = True
        if place in self._claims:
            self._claims.remove(place)
        self._free = self._in_order({*self._free, *place.gpus})

    def options(self, place: Place) -> tuple[Device, ...]:
        """Return the GPUs among which a claim may choose, any of which will do; of the product of its own come first.

        They are those that no job has, as far as the other claims can still be met. Only the oldest claim has a choice.
        """
        if not self._claims or self._claims[0] is not place:
            return ()
        own, count = place.devices, place.count
        if place.demand.is_mixed and count > 1:  # any choice must leave the others theirs
            return self._ranked(place, {*own, *self._with_room(place.demand, self._free)})
        others = [gpu for gpu in self._unsettled() if gpu not in own]
        by_product = replace(place.demand, is_mixed=False)  # of which any may stand for all
        sets = self._sets(by_product, self._ranked(place, {*own, *self._with_room(place.demand, others)}))
        fitting = [each for each in sets if len(each) >= count and self._leaves_enough(place, each[:count])]
        if count == 1:
            return self._ranked(place, {gpu for each in fitting for gpu in each})
        if not fitting:
            return own
        return tuple(fitting[int(time.monotonic()) % len(fitting)])  # others may hold one set and not another

    def _ranked(self, place: Place, gpus: set[Device]) -> tuple[Device, ...]:
        products = {_product(gpu) for gpu in place.devices}
        return tuple(sorted(self._in_order(gpus), key=lambda gpu: (gpu in place.avoid, _product(gpu) not in products)))

    def settle(self, place: Place, gpus: Sequence[Device]) -> None:
        """Turn a claim into a right to these GPUs; the other claims are moved to those that remain."""
        rest = [gpu for gpu in self._unsettled() if gpu not in gpus]
        self._claims.remove(place)
        place.devices = tuple(self._in_order(set(gpus)))
        found = self._shared_out(self._claims, rest)
        if found is None:  # what others leased cannot be helped; each keeps what is left of its own
            found = [tuple(gpu for gpu in claim.devices if gpu in rest) for claim in self._claims]
        for claim, devices in zip(self._claims, found, strict=True):
            claim.devices = devices
            rest = [gpu for gpu in rest if gpu not in devices]
        self._free = rest

    def _leaves_enough(self, place: Place, gpus: Sequence[Device]) -> bool:
        rest = [gpu for gpu in self._unsettled() if gpu not in gpus]
        return self._shared_out([claim for claim in self._claims if claim is not place], rest) is not None

    def _shared_out(self, claims: Sequence[Place], gpus: Sequence[Device]) -> list[tuple[Device, ...]] | None:
        """Return GPUs for each claim, its own as far as possible; None if they are too few."""
        # A claim to mixed GPUs is as many claims to one.
        parts = [
            (number, 1 if claim.demand.is_mixed else claim.count)
            for number, claim in enumerate(claims)
            for _ in range(claim.count if claim.demand.is_mixed else 1)
        ]
        hopeless: set[tuple[int, frozenset[Device]]] = set()

        def share(at: int, left: frozenset[Device]) -> list[list[Device]] | None:
            if at == len(parts):
                return []
            if (at, left) in hopeless:
                return None
            number, count = parts[at]
            for option in self._preferred(claims[number], count, left):
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
        return [tuple(self._in_order(each)) for each in found]

    def _preferred(self, claim: Place, count: int, gpus: Collection[Device]) -> list[list[Device]]:
        """Return a choice of each product, as they can stand for each other; what the claim has already comes first."""
        own_first = sorted(self._in_order(set(gpus)), key=lambda gpu: (gpu not in claim.devices, gpu not in self._free))
        sets = self._sets(replace(claim.demand, is_mixed=False), own_first)
        options = [each[:count] for each in sets if len(each) >= count]
        return sorted(options, key=lambda option: -len(set(option).intersection(claim.devices)))

    def _demand(self, job: Job) -> Demand:
        return Demand(job.vram_bytes, self._is_mixed or job.is_mixed)

    def _sets(self, demand: Demand, gpus: Sequence[Device]) -> list[list[Device]]:
        """Return the sets of GPUs from which a job may have any: one for each product, or one of all."""
        fitting = [gpu for gpu in gpus if not demand.vram_bytes or (memory_bytes(gpu) or 0) >= demand.vram_bytes]
        if demand.is_mixed:
            return [fitting] if fitting else []
        sets: dict[Product, list[Device]] = {}
        for gpu in fitting:
            sets.setdefault(_product(gpu), []).append(gpu)
        return list(sets.values())

    def _with_room(self, demand: Demand, gpus: Sequence[Device]) -> list[Device]:
        """Return the GPUs that have as much VRAM free as is asked for, as far as that is known."""
        if not demand.vram_bytes:
            return list(gpus)
        fitting = [gpu for gpu in gpus if (memory_bytes(gpu) or 0) >= demand.vram_bytes]
        return [gpu for gpu in fitting if (free := self._free_vram(gpu)) is None or free >= demand.vram_bytes]

    def _unsettled(self) -> list[Device]:
        return self._in_order({*self._free, *(gpu for claim in self._claims for gpu in claim.devices)})

    def _in_order(self, gpus: set[Device]) -> list[Device]:
        return [gpu for gpu in self.gpus if gpu in gpus]  # always theirs, so that runs repeat

    def _threads(self, slots: int) -> int:
        return max(1, self._cores * slots // self.count)


def memory_bytes(gpu: Device) -> int | None:
    """Return the memory that a GPU's jobs can have; None if unknown. An APU's models lie in the host's memory."""
    if gpu.is_apu and gpu.vram_bytes is not None:
        return gpu.vram_bytes + (gpu.gtt_bytes or 0)
    return gpu.vram_bytes


def gigabytes(count: int | None) -> str:
    """Return an amount of VRAM in the unit in which cards are sold and asked for; empty if unknown."""
    return "" if count is None else f"{count / 1e9:.4g} GB"


def free_vram(gpu: Device) -> int | None:
    """Return how much VRAM of a GPU is free now; None where the driver does not tell or hangs, or the GPU sleeps."""
    from rocmlab.devices import sample

    now = DRIVERS.now(f"the memory of {gpu.pci_address or gpu.name}", lambda: sample(gpu))
    if gpu.is_apu or now is None or now.vram_used_bytes is None or gpu.vram_bytes is None:
        return None
    return max(0, gpu.vram_bytes - now.vram_used_bytes)


def _product(gpu: Device) -> Product:
    return gpu.backend, gpu.gfx, gpu.name, gpu.vram_bytes


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
