"""The places of one machine: its GPUs, each of which is a slot, and one place on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rocmlab.base import cores as processors
from rocmlab.base import formatting
from rocmlab.base.background import DRIVERS
from rocmlab.base.errors import Problem
from rocmlab.devices import Device, product_names
from rocmlab.notebook.outcome import Outcome
from rocmlab.runs.jobs import Resources
from rocmlab.runs.scheduling.chosen import choose_gpus as choose_gpus
from rocmlab.runs.scheduling.health import Health
from rocmlab.runs.scheduling.outlook import Outlooks
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.pool import Pool
from rocmlab.runs.scheduling.scheduler import CPU, Demand, Group, Scheduler
from rocmlab.runs.scheduling.sharing import Claims


class Slots(Scheduler):
    """The GPUs of a run and its place on the CPU.

    A job gets the least that fits: of the free GPUs those with the least VRAM, and no GPU that a waiting job needs
    while another would do. Several GPUs are of one product unless the job says that they may be mixed. The job that
    waits longest goes first, and one that waits for several GPUs is not overtaken by others that want these, or it
    would wait for ever. Jobs for the CPU and jobs for GPUs do not wait for each other.
    """

    def __init__(
        self,
        gpus: Sequence[Device],
        cpu: Device,
        cores: int | None = None,
        is_mixed: bool = False,
        free_vram: Callable[[Device], int | None] = lambda device: None,
        numbered: Callable[[Sequence[Device]], Sequence[Device]] = lambda gpus: gpus,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with all GPUs free.

        Args:
            gpus: of the run.
            cpu: the place of jobs without one.
            cores: that the jobs share; None: all that this process may use.
            is_mixed: whether every job may get GPUs of different products.
            free_vram: returns how many bytes of a GPU are free now; None: unknown.
            numbered: returns GPUs with the numbers that they have now, and raises RocmlabError where one is gone.
            clock: counts seconds.
        """
        super().__init__(is_mixed=is_mixed)
        self.gpus = tuple(gpus)
        self.count = max(1, len(self.gpus))
        self._cpu = cpu
        self._cpu_is_free = True
        self._free = Pool(self.gpus)
        self._claims = Claims(self._free, self._has_room, numbered)
        self._cores = cores or processors.count()
        self._free_vram = free_vram
        self._health = Health(self._free, clock)
        self._outlooks = Outlooks(self._free, self.demand)

    def usual_environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a job that requests no number of GPUs, but for which of them it gets."""
        return Place((), self._threads(1)).environment(base)

    def release(self, place: Place) -> None:
        """Have what a job had free again."""
        if not place.gpus:
            self._cpu_is_free = True
        self._claims.remove(place)

    def note_end(self, place: Place, outcome: Outcome) -> str | None:
        """Note how a job ended on GPUs that are free again; return why its GPU rests, if it does."""
        return self._health.note(place.gpus, outcome)

    def wake(self, *, is_idle: bool) -> bool:
        """Use GPUs again that have rested enough, or all if nothing else runs; return whether there were any."""
        return self._health.wake(is_idle=is_idle)

    def _resolve(self, resources: Resources) -> Demand:
        most = self._free.most(resources)
        count = min(1, len(self.gpus)) if resources.gpus is None else resources.gpus
        if count == "all":
            count = most if most >= (resources.min_gpus or 1) else 0
        problem = self._problem(resources, count, most)
        shortage = None
        if resources.min_gpus is not None and not count:
            have = formatting.plural(most, "GPU") + " of one product" * (0 < most < len(self.gpus)) if most else "none"
            shortage = f"it needs {formatting.plural(resources.min_gpus, 'GPU')}, this run has {have}"
        products = [] if problem else self._free.large_enough(resources)
        if not resources.is_mixed:
            products = [each for each in products if self._free.counts[each] >= count]
        return Demand(resources, count, frozenset(products if count else [CPU]), problem, shortage)

    def _problem(self, resources: Resources, wanted: int, most: int) -> Problem | None:
        """Return why a job could never be placed: it requests more GPUs, or more VRAM, than there is."""
        if resources.vram_bytes and (wanted or resources.gpus != 0) and not most:
            sizes = sorted({gigabytes(gpu.memory_bytes) or "an unknown amount" for gpu in self.gpus})
            return Problem(
                f"it asks for GPUs with {gigabytes(resources.vram_bytes)} of VRAM",
                f"those of this run have {', '.join(sizes)}" if sizes else "this run has no GPU",
                "ask for less, or run it where there is more",
            )
        if wanted <= most:
            return None
        requested = formatting.plural(wanted, "GPU")
        if wanted <= len(self.gpus):
            with_vram = (
                f" with {gigabytes(resources.vram_bytes)} of VRAM" if resources.vram_bytes else " of one product"
            )
            why = f"this run has {most}{with_vram}: {product_names(self.gpus)}"
            return Problem(f"it asks for {requested}", why, "ask for fewer, or let it mix products: --mixed")
        return Problem(
            f"it asks for {requested}",
            f"this run has {len(self.gpus) or 'none'}",
            'ask for fewer ("all" takes what there is), or run it where there are more',
        )

    def _available(self, requested: frozenset[Resources]) -> set[Group]:
        self._outlooks.begin_turn(requested)
        return self._free.products() | ({CPU} if self._cpu_is_free else set())

    def _place(self, demand: Demand, groups: set[Group], last: Place | None) -> Place | None:
        if not demand.count:
            self._cpu_is_free = False
            return Place((self._cpu,), self._threads(1))
        offers = self._outlooks.of(demand).offers & groups
        excluded = last.gpus if last else ()
        gpus = self._choose(demand, offers, excluded) if offers else []
        if not gpus:
            return None
        devices = tuple(sorted(gpus, key=self._free.number))
        place = Place(devices, self._threads(demand.count), self._claims, demand.resources, demand.count, excluded)
        place.fewest = demand.resources.min_gpus or 0
        self._claims.add(place)
        return place

    def _kept_for(self, demand: Demand) -> frozenset[Group]:
        return self._outlooks.of(demand).awaited if demand.count else frozenset((CPU,))

    def _choose(self, demand: Demand, products: Collection[Group], excluded: Collection[Device]) -> list[Device]:
        """Return GPUs of these products for a job, of the free ones those that are missed least; none if it waits."""
        if demand.resources.is_mixed:
            roomy = frozenset(
                product
                for product in products
                if any(self._has_room(demand.resources, gpu) for gpu in self._free.free_of_one(product))
            )
            if self._outlooks.is_waste(demand, roomy):
                return []
            found = self._pick(demand, self._free.free_of(roomy), excluded)
            return found if len(found) == demand.count else []
        best: tuple[tuple[int, int, int, int], list[Device]] | None = None
        for product in products:
            found = self._pick(demand, self._free.free_of_one(product), excluded)
            if len(found) == demand.count:
                disliked = sum(gpu in excluded for gpu in found) if excluded else 0
                first = min(map(self._free.number, found))  # so that runs repeat
                cost = (disliked, self._free.memory[product], self._free.counts[product], first)
                if best is None or cost < best[0]:
                    best = cost, found
        return best[1] if best else []

    def _pick(self, demand: Demand, gpus: Iterable[Device], excluded: Collection[Device]) -> list[Device]:
        """Return as many GPUs with room as are requested, or what there is; in their order, the excluded ones last."""
        found: list[Device] = []
        second_choice: list[Device] = []
        for gpu in gpus:
            if self._has_room(demand.resources, gpu):
                (second_choice if gpu in excluded else found).append(gpu)
                if len(found) == demand.count:
                    return found
        return [*found, *second_choice][: demand.count]

    def _has_room(self, resources: Resources, gpu: Device) -> bool:
        """Return whether a GPU has as much VRAM free as is requested, as far as that is known."""
        return not resources.vram_bytes or (free := self._free_vram(gpu)) is None or free >= resources.vram_bytes

    def _threads(self, slots: int) -> int:
        return max(1, self._cores * slots // self.count)


def gigabytes(count: int | None) -> str:
    """Return an amount of VRAM in the unit in which cards are sold and requested; empty if unknown."""
    return "" if count is None else f"{count / 1e9:.4g} GB"


def free_vram(gpu: Device) -> int | None:
    """Return how much VRAM of a GPU is free now; None where the driver does not report it or hangs, or it sleeps."""
    from rocmlab.devices import sample

    now = DRIVERS.now(f"the memory of {gpu.pci_address or gpu.name}", lambda: sample(gpu))
    if gpu.pool == "gtt" or now is None or now.vram_used_bytes is None or gpu.vram_bytes is None:
        return None
    return max(0, gpu.vram_bytes - now.vram_used_bytes)


def numbered(gpus: Sequence[Device]) -> Sequence[Device]:
    """Return the GPUs of a job with the numbers that they have now.

    Raises:
        RocmlabError: one of them is gone, or cannot be used any more.
    """
    from rocmlab.kernels import ownership

    fix = "make doctor, on the host, shows what is wrong with it; when it is back: rocmlab run --resume last"
    return ownership.numbered(gpus, "this job", fix)
