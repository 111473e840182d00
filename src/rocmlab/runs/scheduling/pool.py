"""The GPUs of a run by product, and which of them are free: a choice among thousands reads only a few."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby

from rocmlab.devices import Device
from rocmlab.runs.jobs import Resources

Product = int  # GPUs that can stand for each other have the same: which product of the run they are, from 0


class Pool:
    """GPUs by their number, which is their place in the run: what is free is always in that order, so that runs repeat.

    Products are numbered in the order of their first.
    """

    def __init__(self, gpus: Sequence[Device]) -> None:
        """Begin with all free."""
        self.gpus = tuple(gpus)  # by number
        self._numbers = {gpu: number for number, gpu in enumerate(self.gpus)}
        self._by_id = {id(gpu): number for number, gpu in enumerate(self.gpus)}  # a hash of forty fields takes longer
        kinds: dict[Hashable, Product] = {}
        self._products = [kinds.setdefault(kind_of(gpu), len(kinds)) for gpu in self.gpus]  # by number
        self._free: list[list[int]] = [[] for _ in kinds]  # numbers, in order, by product
        for number, product in enumerate(self._products):
            self._free[product].append(number)
        self.counts = list(map(len, self._free))  # how many there are of each product
        self.left = list(self.counts)  # how many of them are free
        # Bytes that a job can have of a GPU of each product, 0 if unknown.
        self.memory = [self.gpus[numbers[0]].memory_bytes or 0 for numbers in self._free]

    def __iter__(self) -> Iterator[Device]:
        """Go through what is free."""
        return (self.gpus[number] for number in merge(*self._free))

    def __contains__(self, gpu: Device) -> bool:
        """Return whether a GPU of the run is free."""
        return self._find(gpu)[-1]

    def _find(self, gpu: Device) -> tuple[int, list[int], int, bool]:
        """Return a GPU's number, the list that has it if it is free, where in it, and whether it does."""
        number = self.number(gpu)
        line = self._free[self._products[number]]
        at = bisect_left(line, number)
        return number, line, at, at < len(line) and line[at] == number

    def product(self, gpu: Device) -> Product:
        """Return what a GPU of the run is."""
        return self._products[self.number(gpu)]

    def products(self) -> set[Product]:
        """Return those of which a GPU is free."""
        return {product for product, count in enumerate(self.left) if count}

    def large_enough(self, resources: Resources) -> list[Product]:
        """Return those of which each GPU has as much memory as is requested, in their order."""
        return [product for product, memory in enumerate(self.memory) if memory >= (resources.vram_bytes or 0)]

    def most(self, resources: Resources) -> int:
        """Return how many a job could ever have together."""
        counts = [self.counts[product] for product in self.large_enough(resources)]
        return sum(counts) if resources.is_mixed else max(counts, default=0)

    def number(self, gpu: Device) -> int:
        """Return the place of a GPU in the run."""
        number = self._by_id.get(id(gpu))
        return self._numbers[gpu] if number is None else number

    def count_free(self, products: Iterable[Product]) -> int:
        """Return how many are free of these products."""
        return sum(map(self.left.__getitem__, products))

    def free_of_one(self, product: Product) -> Iterator[Device]:
        """Yield those that are free of a product."""
        return map(self.gpus.__getitem__, self._free[product])

    def free_of(self, products: Collection[Product]) -> Iterator[Device]:
        """Yield those that are free of these products: the small ones first, then in their order."""
        for _, alike in groupby(sorted(products, key=self.memory.__getitem__), key=self.memory.__getitem__):
            for number in merge(*(self._free[product] for product in alike)):
                yield self.gpus[number]

    def in_order(self, gpus: Iterable[Device]) -> list[Device]:
        """Return those that are of the run in their order, each once."""
        numbers = {self.number(gpu) for gpu in gpus if id(gpu) in self._by_id or gpu in self._numbers}
        return [self.gpus[number] for number in sorted(numbers)]

    def take(self, gpus: Iterable[Device]) -> None:
        """Let someone have these; one that is not free stays with the job that has it."""
        for gpu in gpus:
            number, line, at, is_free = self._find(gpu)
            if is_free:
                del line[at]
                self.left[self._products[number]] -= 1

    def give_back(self, gpus: Iterable[Device]) -> None:
        """Have these free again."""
        for gpu in gpus:
            number, line, at, is_free = self._find(gpu)
            if not is_free:
                line.insert(at, number)
                self.left[self._products[number]] += 1


def kind_of(gpu: Device) -> Hashable:
    """Return the properties by which GPUs are interchangeable: what it is, and what memory its jobs can have."""
    return gpu.backend, gpu.gfx, gpu.name, gpu.vram_bytes, gpu.memory_bytes


def sets_of(resources: Resources, gpus: Iterable[Device]) -> list[list[Device]]:
    """Return the sets of GPUs from which a job may have any: one for each product, or one of all."""
    fitting = [gpu for gpu in gpus if not resources.vram_bytes or (gpu.memory_bytes or 0) >= resources.vram_bytes]
    if resources.is_mixed:
        return [fitting] if fitting else []
    sets: dict[Hashable, list[Device]] = {}
    for gpu in fitting:
        sets.setdefault(kind_of(gpu), []).append(gpu)
    return list(sets.values())
