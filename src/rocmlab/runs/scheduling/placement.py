"""Which job runs next and where: a slot is one GPU, and there is one place on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rocmlab.base import formatting
from rocmlab.base.background import DRIVERS
from rocmlab.base.cores import count as count_cores
from rocmlab.base.errors import Problem
from rocmlab.devices import Device, product_names, visibility
from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.chosen import choose_gpus as choose_gpus
from rocmlab.runs.scheduling.outlook import Ask, Outlooks, Waiting
from rocmlab.runs.scheduling.pool import Demand, Pool, Product, memory_bytes, sets_of
from rocmlab.runs.scheduling.sharing import shared_out

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


@dataclass(eq=False)
class Place:
    """What one job gets.

    Which GPUs these are is open until they are leased: while it waits, a place may be given others of the run.
    """

    devices: tuple[Device, ...]  # its GPUs, or the CPU
    threads: int
    slots: Slots | None = field(default=None, repr=False)  # where it is from; None if nobody lends it
    demand: Demand = field(default_factory=Demand)
    count: int = 0  # of GPUs that it claims; it has fewer for a while only if others needed what it had
    avoid: tuple[Device, ...] = ()  # GPUs that it should not have if another will do
    node: str | None = None  # the machine of a cluster on which it is; None: this one
    fewest: int = 0  # with how few of them it begins where others keep the rest leased; 0: with all that it claims

    @property
    def gpus(self) -> tuple[Device, ...]:
        """Its GPUs; empty on the CPU."""
        return () if self.devices and self.devices[0].backend == "cpu" else self.devices

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
        self._free = Pool(self.gpus)
        self._claims: dict[Place, None] = {}  # not settled, oldest first
        self._have_theirs = True  # each claim has as many GPUs as it claims
        self._cpu_is_free = True
        self._cores = cores or count_cores()
        self._is_mixed = is_mixed
        self._free_vram = free_vram
        self._largest: dict[Demand, int] = {}  # known answers: ten thousand jobs ask for the same
        self._outlooks = Outlooks(self._free)

    def wanted(self, job: Job) -> int:
        """Return how many GPUs a job gets; 0 is the place on the CPU."""
        if job.gpus == "all":
            most = self._most(self._demand(job))
            return most if most >= (job.min_gpus or 1) else 0
        if job.gpus is None:
            return min(1, len(self.gpus))
        return job.gpus

    def shortage(self, job: Job) -> str | None:
        """Return why a job that requests all GPUs gets the CPU: `it needs 2 GPUs, this run has 1`; else None."""
        if job.min_gpus is None or self.wanted(job):
            return None
        most = self._most(self._demand(job))
        have = formatting.plural(most, "GPU") + " of one product" * (0 < most < len(self.gpus)) if most else "none"
        return f"it needs {formatting.plural(job.min_gpus, 'GPU')}, this run has {have}"

    def problem(self, job: Job) -> Problem | None:
        """Return why a job could never be placed: it asks for more GPUs, or for more VRAM, than there is."""
        wanted = self.wanted(job)
        demand = self._demand(job)
        largest = self._most(demand)
        if job.vram_bytes and (wanted or job.gpus != 0) and not largest:
            sizes = sorted({gigabytes(memory_bytes(gpu)) or "an unknown amount" for gpu in self.gpus})
            return Problem(
                f"it asks for GPUs with {gigabytes(job.vram_bytes)} of VRAM",
                f"those of this run have {', '.join(sizes)}" if sizes else "this run has no GPU",
                "ask for less, or run it where there is more",
            )
        if wanted <= largest:
            return None
        asked = formatting.plural(wanted, "GPU")
        if wanted <= len(self.gpus):
            with_vram = f" with {gigabytes(job.vram_bytes)} of VRAM" if job.vram_bytes else " of one product"
            why = f"this run has {largest}{with_vram}: {product_names(self.gpus)}"
            return Problem(f"it asks for {asked}", why, "ask for fewer, or let it mix products: --mixed")
        return Problem(
            f"it asks for {asked}",
            f"this run has {len(self.gpus) or 'none'}",
            'ask for fewer ("all" takes what there is), or run it where there are more',
        )

    def usual_environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a job that asks for no number of GPUs, but for which of them it gets."""
        return Place((), self._threads(1)).environment(base)

    def ask(self, job: Job) -> Ask:
        """Return what a job asks for: the same object for all that could stand in for each other."""
        return self._outlooks.ask(self.wanted(job), self._demand(job))

    def take(
        self, waiting: Iterable[Job], avoid: Mapping[str, Collection[Device]] | None = None
    ) -> tuple[Job, Place] | None:
        """Return the next job and its place, taken from what is free; None if nothing can start now.

        Args:
            waiting: in the order of their turn.
            avoid: by the name of a job, GPUs that it should not have if another is free.
        """
        known = [(0, job, self.ask(job)) for job in waiting]
        return self.take_one(known, frozenset(ask for _, _, ask in known), avoid or {})

    def take_one(
        self,
        waiting: Iterable[Waiting],
        asks: frozenset[Ask],
        avoid: Mapping[str, Collection[Device]],
    ) -> tuple[Job, Place] | None:
        """Do as `take` does, with jobs of which it is known what they ask; of those that ask the same one is enough.

        Args:
            waiting: in the order of their turn.
            asks: all that they ask; the same object as long as it is the same.
            avoid: as `take` has it.
        """
        left = self._free.products()  # of which a GPU is free that is not kept for a job whose turn is before
        outlooks = self._outlooks.of(asks)
        cpu_is_free = self._cpu_is_free
        for _, job, ask in waiting:
            if not ask.count:
                if cpu_is_free:
                    self._cpu_is_free = False
                    return job, Place((self._cpu,), self._threads(1))
            elif not ask.products.isdisjoint(left):
                outlook = outlooks.get(ask) or outlooks.setdefault(ask, self._outlooks.look(ask))
                if not outlook.offers.isdisjoint(left):
                    shunned = avoid.get(job.name, ())
                    if taken := self._choose(ask, outlook.offers & left, shunned):
                        place = self._claim(ask, taken, shunned)
                        place.fewest = job.min_gpus or 0
                        return job, place
                left -= outlook.awaited
            if not left and not cpu_is_free:
                break
        return None

    def _claim(self, ask: Ask, gpus: Sequence[Device], shunned: Collection[Device]) -> Place:
        self._free.take(gpus)
        devices = tuple(sorted(gpus, key=self._free.number))
        place = Place(devices, self._threads(ask.count), self, ask.demand, ask.count, tuple(shunned))
        self._claims[place] = None
        return place

    def _choose(self, ask: Ask, products: Collection[Product], shunned: Collection[Device]) -> list[Device]:
        """Return GPUs of these products for a job, of the free ones those that are missed least; none if it waits."""
        if ask.demand.is_mixed:
            roomy = self._roomy(ask.demand, products)
            found = [] if self._outlooks.is_waste(ask, roomy) else self._pick(ask, self._free.free_of(roomy), shunned)
            return found if len(found) == ask.count else []
        best: tuple[tuple[int, int, int, int], list[Device]] | None = None
        for product in products:
            found = self._pick(ask, self._free.free_of_one(product), shunned)
            if len(found) == ask.count:
                unloved = sum(gpu in shunned for gpu in found) if shunned else 0
                first = min(map(self._free.number, found))  # so that runs repeat
                cost = (unloved, self._free.memory[product], self._free.counts[product], first)
                if best is None or cost < best[0]:
                    best = cost, found
        return best[1] if best else []

    def _pick(self, ask: Ask, gpus: Iterable[Device], shunned: Collection[Device]) -> list[Device]:
        """Return as many GPUs with room as are asked for, or what there is; in their order, the shunned ones last."""
        found: list[Device] = []
        unloved: list[Device] = []
        for gpu in gpus:
            if self._has_room(ask.demand, gpu):
                (unloved if gpu in shunned else found).append(gpu)
                if len(found) == ask.count:
                    return found
        return [*found, *unloved][: ask.count]

    def _roomy(self, demand: Demand, products: Collection[Product]) -> frozenset[Product]:
        """Return those of which a GPU is free that has room."""
        return frozenset(
            product
            for product in products
            if any(self._has_room(demand, gpu) for gpu in self._free.free_of_one(product))
        )

    def give_back(self, place: Place) -> None:
        """Take back what a job was lent."""
        if not place.gpus:
            self._cpu_is_free = True
        self._claims.pop(place, None)
        self._free.give_back(place.gpus)

    def options(self, place: Place) -> tuple[Device, ...]:
        """Return the GPUs among which a claim may choose, any of which will do; of the product of its own come first.

        They are those that no job has, as far as the other claims can still be met. Only the oldest claim has a choice.
        """
        if place is not next(iter(self._claims), None):
            return ()
        own, count = place.devices, place.count
        if place.demand.is_mixed and count > 1:  # any choice must leave the others theirs
            return self._ranked(place, {*own, *self._with_room(place.demand, self._free)})
        others = [gpu for gpu in self._unsettled() if gpu not in own]
        by_product = replace(place.demand, is_mixed=False)  # of which any may stand for all
        sets = sets_of(by_product, self._ranked(place, {*own, *self._with_room(place.demand, others)}))
        fitting = [each for each in sets if len(each) >= count and self._leaves_enough(place, each[:count])]
        if count == 1:
            return self._ranked(place, {gpu for each in fitting for gpu in each})
        if not fitting:
            return own
        return tuple(fitting[int(time.monotonic()) % len(fitting)])  # others may hold one set and not another

    def _ranked(self, place: Place, gpus: Collection[Device]) -> tuple[Device, ...]:
        products = set(map(self._free.product, place.devices))
        in_order = self._free.in_order(gpus)
        return tuple(sorted(in_order, key=lambda gpu: (gpu in place.avoid, self._free.product(gpu) not in products)))

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
        """Tell whether a claim can be met with these GPUs while each other claim keeps what it has, which is enough."""
        own = set(map(self._free.number, place.devices))
        return self._have_theirs and all(self._free.number(gpu) in own or gpu in self._free for gpu in gpus)

    def _demand(self, job: Job) -> Demand:
        return Demand(job.vram_bytes, self._is_mixed or job.is_mixed)

    def _most(self, demand: Demand) -> int:
        """Return how many GPUs a job could ever get."""
        if demand not in self._largest:
            self._largest[demand] = self._free.most(demand)
        return self._largest[demand]

    def _with_room(self, demand: Demand, gpus: Iterable[Device]) -> list[Device]:
        """Return the GPUs that have as much VRAM free as is asked for, as far as that is known."""
        if not demand.vram_bytes:
            return list(gpus)
        fitting = [gpu for gpu in gpus if (memory_bytes(gpu) or 0) >= demand.vram_bytes]
        return [gpu for gpu in fitting if self._has_room(demand, gpu)]

    def _has_room(self, demand: Demand, gpu: Device) -> bool:
        """Tell whether a GPU has as much VRAM free as is asked for, as far as that is known."""
        return not demand.vram_bytes or (free := self._free_vram(gpu)) is None or free >= demand.vram_bytes

    def _unsettled(self) -> list[Device]:
        return self._free.in_order((*self._free, *(gpu for claim in self._claims for gpu in claim.devices)))

    def _threads(self, slots: int) -> int:
        return max(1, self._cores * slots // self.count)


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
