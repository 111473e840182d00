"""Which job runs next and where: a slot is one GPU, and there is one place on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocmlab.devices import Device, visibility
from rocmlab.errors import Problem, RocmlabError
from rocmlab.runner.jobs import Job

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


@dataclass(eq=False)
class Place:
    """What one job gets.

    Which GPUs these are is open until they are leased: while it waits, a place may be given others of the run.
    """

    devices: tuple[Device, ...]  # its GPUs, or the CPU
    threads: int
    slots: Slots | None = field(default=None, repr=False)  # where it is from; None if nobody lends it

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

    The job that waits longest goes first, and one that waits for several GPUs is not overtaken by others that want
    GPUs, or it would wait for ever. Jobs for the CPU and jobs for GPUs do not wait for each other.

    Another program may lease a GPU of the run. So a place is first a claim to so many of the GPUs that no job of the
    run has, and is settled when they are leased; claims are settled in the order in which they were made.
    """

    def __init__(self, gpus: Sequence[Device], cpu: Device, cores: int | None = None) -> None:
        self.gpus = tuple(gpus)
        self.count = max(1, len(self.gpus))
        self._cpu = cpu
        self._free = list(self.gpus)
        self._claims: list[Place] = []  # not settled, oldest first
        self._cpu_is_free = True
        self._cores = cores or count_cores()

    def wanted(self, job: Job) -> int:
        """Return how many GPUs a job gets; 0 is the place on the CPU."""
        if job.gpus == "all":
            return len(self.gpus)
        return min(1, len(self.gpus)) if job.gpus is None else job.gpus

    def problem(self, job: Job) -> Problem | None:
        """Return why a job could never be placed: it asks for more GPUs than there are."""
        if self.wanted(job) <= len(self.gpus):
            return None
        return Problem(
            f"it asks for {self.wanted(job)} GPUs",
            f"this run has {len(self.gpus)}",
            'change its metadata ("all" takes what there is), or run it where there are more',
        )

    def take(self, waiting: Sequence[Job]) -> tuple[Job, Place] | None:
        """Return the next job and its place, taken from what is free; None if nothing can start now."""
        gpus_are_spoken_for = cpu_is_spoken_for = False
        for job in waiting:
            count = self.wanted(job)
            if count and not gpus_are_spoken_for:
                if count <= len(self._free):
                    taken, self._free = self._free[:count], self._free[count:]
                    place = Place(tuple(taken), self._threads(count), self)
                    self._claims.append(place)
                    return job, place
                gpus_are_spoken_for = True
            elif not count and not cpu_is_spoken_for:
                if self._cpu_is_free:
                    self._cpu_is_free = False
                    return job, Place((self._cpu,), self._threads(1))
                cpu_is_spoken_for = True
        return None

    def give_back(self, place: Place) -> None:
        """Take back what a job was lent."""
        if not place.gpus:
            self._cpu_is_free = True
        if place in self._claims:
            self._claims.remove(place)
        self._free = self._in_order({*self._free, *place.gpus})

    def options(self, place: Place) -> tuple[Device, ...]:
        """Return the GPUs among which a claim may choose: all that no job has. Only the oldest claim has a choice."""
        if not self._claims or self._claims[0] is not place:
            return ()
        return tuple(self._unsettled())

    def settle(self, place: Place, gpus: Sequence[Device]) -> None:
        """Turn a claim into a right to these GPUs; the other claims are moved to those that remain."""
        rest = [gpu for gpu in self._unsettled() if gpu not in gpus]
        self._claims.remove(place)
        place.devices = tuple(self._in_order(set(gpus)))
        for claim in self._claims:
            count = len(claim.devices)
            claim.devices, rest = tuple(rest[:count]), rest[count:]
        self._free = rest

    def _unsettled(self) -> list[Device]:
        return self._in_order({*self._free, *(gpu for claim in self._claims for gpu in claim.devices)})

    def _in_order(self, gpus: set[Device]) -> list[Device]:
        return [gpu for gpu in self.gpus if gpu in gpus]  # always theirs, so that runs repeat

    def _threads(self, slots: int) -> int:
        return max(1, self._cores * slots // self.count)


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_gpus(devices: Sequence[Device], choice: str | None, environment: Mapping[str, str]) -> list[Device]:
    """Return the GPUs of a run.

    Args:
        devices: all that this process sees.
        choice: `--gpus`: `all`, `none`, a number of GPUs, or a list as in `GPUS=`; None: what the lab itself has.
        environment: where the lab's backend and its own mask stand.

    Raises:
        RocmlabError: the choice cannot be had; a GPU that was asked for is never replaced by the CPU.
    """
    backend = environment.get("ROCMLAB_BACKEND")
    seen = [
        device for device in visibility.mark_hidden(devices, environment) if device.backend == backend or not backend
    ]
    if choice is None:
        chosen = visibility.remaining(seen, environment)
        if not chosen and backend in ("rocm", "cuda") and not visibility.hides_all(environment, backend):
            reasons = [f"{device.name}: {device.why_not}" for device in seen if not device.is_usable]
            raise RocmlabError(
                f"this lab is for the backend {backend}, and no GPU can be used here",
                "\n".join(reasons) or "the driver lists none",
                "make up, which says more; to run on the CPU on purpose: --gpus none",
            )
        return chosen
    if choice == "0":
        raise RocmlabError(
            "--gpus 0 may mean two things", "no GPU, or GPU 0", "--gpus none, or --gpus 0, (with the comma)"
        )
    if not choice.isdecimal():
        return visibility.select(seen, choice)
    usable = visibility.select(seen, "all")
    if int(choice) > len(usable):
        raise RocmlabError(
            f"--gpus {choice} asks for {choice} GPUs",
            f"{len(usable)} can be used here",
            "ask for fewer, or `rocmlab devices` says why a GPU cannot be used",
        )
    return usable[: int(choice)]
