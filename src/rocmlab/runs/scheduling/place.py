"""What a job gets: its devices and its share of the cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rocmlab.devices import Device, visibility
from rocmlab.runs.jobs import Resources

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


class Lender(Protocol):
    """Decides which GPUs a place may still choose."""

    def options(self, place: Place) -> tuple[Device, ...]:
        """Return the GPUs among which a place may choose now."""

    def settle(self, place: Place, gpus: Sequence[Device]) -> None:
        """Turn a place's claim into a right to these GPUs."""

    def numbered(self, gpus: Sequence[Device]) -> Sequence[Device]:
        """Return GPUs with the numbers that they have now; raise RocmlabError if one is gone."""


@dataclass(eq=False)
class Place:
    """What one job gets.

    Which GPUs these are is open until they are leased: while it waits, a place may be given others of the run.
    """

    devices: tuple[Device, ...]  # its GPUs, or the CPU
    threads: int
    lender: Lender | None = field(default=None, repr=False)  # None: its devices are fixed
    resources: Resources = field(default_factory=Resources)
    count: int = 0  # of GPUs that it claims; it has fewer for a while only if others needed what it had
    excluded: tuple[Device, ...] = ()  # GPUs that it should not have if another will do
    node: str | None = None  # the machine of a cluster on which it is; None: this one
    fewest: int = 0  # with how few of them it begins where others keep the rest leased; 0: with all that it claims
    numbered: tuple[Device, ...] = ()  # its devices with the numbers that they had when the job began

    @property
    def gpus(self) -> tuple[Device, ...]:
        """Its GPUs; empty on the CPU."""
        return () if self.devices and self.devices[0].backend == "cpu" else self.devices

    def options(self) -> tuple[Device, ...]:
        """Return the GPUs among which it may choose now; none while an older place waits for its lease."""
        return self.lender.options(self) if self.lender else self.gpus

    def settle(self, gpus: Sequence[Device]) -> None:
        """Keep these GPUs, which are leased, for good."""
        if self.lender:
            self.lender.settle(self, gpus)
        else:
            self.devices = tuple(gpus)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return a worker's environment: pinned to the devices, with its share of the cores unless the user set one.

        Who sets OMP_NUM_THREADS means all of them: PyTorch goes by MKL_NUM_THREADS where that is set as well.
        """
        of_openmp = base.get("OMP_NUM_THREADS", "")
        limits = dict.fromkeys(THREADS, of_openmp if of_openmp.isdecimal() else str(self.threads))
        return {**limits, **visibility.apply(base, self.numbered or self.gpus)}

    def number(self) -> None:
        """Note the numbers that its GPUs have now: a mask counts those that are there, and one may have vanished.

        Raises:
            RocmlabError: one of its own has.
        """
        if self.gpus and self.lender:
            self.numbered = tuple(self.lender.numbered(self.gpus))
