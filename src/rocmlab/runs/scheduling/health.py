"""GPUs on which one job after another dies: they rest, or the one that is broken would be the free one each time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from rocmlab.base import formatting
from rocmlab.devices import Device
from rocmlab.notebook.outcome import Outcome
from rocmlab.runs.scheduling.pool import Pool

DEATHS = 3  # one after another on the same GPU; fewer may be the jobs' own
REST_SECONDS = 300.0  # the first time; twice as long each further time
MAX_REST_SECONDS = 3600.0
MAX_DOUBLINGS = 4  # which is more than that; a run may have thousands of deaths, and a float ends at 2 ** 1024
# What frameworks report where the device fails; a full memory or an index out of range is the job's own.
DEVICE_ERROR = re.compile(
    r"\b(HIP|CUDA)[ _]error\b|\bhipError|\bcudaError|\bCUDA_ERROR_|\bHSA_STATUS_ERROR", re.IGNORECASE
)
OWN = re.compile(r"out[ _]?of[ _]?memory|device-side assert", re.IGNORECASE)


def is_death(outcome: Outcome) -> bool:
    """Return whether a job ended as it does on a broken GPU: its kernel died, or the device failed, or it is gone."""
    if outcome.status == "kernel died" or outcome.is_unplaced:
        return True
    error = outcome.notebook.error if outcome.notebook else None
    text = f"{(error or {}).get('name', '')}: {(error or {}).get('value', '')}"
    return outcome.status == "failed" and bool(DEVICE_ERROR.search(text)) and not OWN.search(text)


class Health:
    """How jobs end on the GPUs of a run, one GPU each: with several it is not known which of them failed."""

    def __init__(self, free: Pool, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin; `free` has what no job has, and `clock` counts seconds."""
        self._free = free
        self._clock = clock
        self._deaths: dict[Device, int] = {}
        self._until: dict[Device, float] = {}  # of those that rest

    def note(self, gpus: Sequence[Device], outcome: Outcome) -> str | None:
        """Note how a job ended on GPUs that are free again; return why its GPU rests, if it does."""
        if len(gpus) != 1 or len(self._free.gpus) < 2:
            return None
        (gpu,) = gpus
        if not is_death(outcome):
            if outcome.status in ("ok", "skipped", "failed"):
                self._deaths.pop(gpu, None)
            return None
        deaths = self._deaths[gpu] = self._deaths.get(gpu, 0) + 1
        if deaths < DEATHS and not outcome.is_unplaced:
            return None
        doublings = min(max(0, deaths - DEATHS), MAX_DOUBLINGS)
        seconds = min(MAX_REST_SECONDS, REST_SECONDS * 2**doublings)
        self._until[gpu] = self._clock() + seconds
        self._free.take([gpu])
        name = formatting.device_label([gpu.as_dict()])
        why = "it is gone" if outcome.is_unplaced else f"{deaths} jobs in a row died on it"
        return f"{name} gets no further job for {formatting.duration(seconds)}, while others have one: {why}"

    def wake(self, *, is_idle: bool) -> bool:
        """Have those free again that have rested enough, or all if nothing else runs; return whether there were any."""
        now = self._clock()
        rested = [gpu for gpu, until in self._until.items() if is_idle or until <= now]
        for gpu in rested:
            del self._until[gpu]
        self._free.give_back(rested)
        return bool(rested)
