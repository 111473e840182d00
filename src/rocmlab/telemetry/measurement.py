"""`rocmlab.measure()` measures what is done in a `with` block, and so does `%%gpu` a cell. See docs/cell-cost.md.

A thread of this process reads the GPUs that the process may use, as `rocmlab record` does, and the process itself. It
reads less often the longer the work takes, so that it costs far less than 1 % of it.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace

from rocmlab.base import cores
from rocmlab.devices import Device, Sample, device_id, discover, is_simulated, product_names, system_root
from rocmlab.devices.recording import Recording
from rocmlab.telemetry import smi_cells
from rocmlab.telemetry.cost import Cost, gpu_totals
from rocmlab.telemetry.processes import finder
from rocmlab.telemetry.sampler import Sampler

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

MIN_SECONDS, MAX_SECONDS = 0.2, 2.0  # between two readings
READINGS = 20  # after which they become rarer: the time to the next is this part of the time since the beginning
PROCESSES_SECONDS = 1.0  # between two looks at the processes on the GPUs, which cost more
FIRST_SECONDS = 0.5  # how long the work waits for the first reading; a GPU whose driver hangs gives none
LAST_SECONDS = 1.0  # the same for the last one
THIS: dict[str, dict[str, Any]] = {"cpu": {"name": "this process"}}  # what is drawn without a GPU
READ = ("busy_percent", "power_watts", "throttle_reasons")


class Measurement:
    """A context in which work is measured.

    Attributes:
        cost: what it cost; None before its end.
    """

    def __init__(self, show: bool) -> None:
        self.cost: Cost | None = None
        self._is_shown = show

    def __enter__(self) -> Measurement:
        """Begin."""
        self._watch = _Watch()
        self._began = time.perf_counter(), _cpu_seconds()
        return self

    def __exit__(self, *error: object) -> None:
        """End, also by an error, which is not changed."""
        wall, cpu = time.perf_counter() - self._began[0], _cpu_seconds() - self._began[1]
        self._watch.stop()
        self.cost = self._watch.cost(wall, cpu)
        if self._is_shown:
            show(self.cost)


def measure(show: bool = True) -> Measurement:
    """Measure what is done in a `with` block; `as measured` gives `measured.cost` after it.

    Args:
        show: whether to show it at the end: below the cell in a notebook, elsewhere on stderr.
    """
    return Measurement(show)


def show(cost: Cost) -> None:
    """Show it below the cell; outside Jupyter on stderr."""
    ipython = sys.modules.get("IPython")  # which may be missing, and importing it takes time
    if ipython is None or ipython.get_ipython() is None:
        sys.stderr.write(f"{cost!r}\n")
    else:
        ipython.display.display(cost)


class _Watch:
    """Reads the GPUs and this process until it is stopped, in a thread; one that a driver holds is left to it."""

    def __init__(self) -> None:
        """Start, and wait for the first reading."""
        self._has_read, self._over = threading.Event(), threading.Event()
        self._root = system_root()
        self._started = time.time()
        self._devices: dict[str, Device] | None = None  # None: not found yet
        self._samples: dict[str, list[Sample]] = {}
        self._energy: Mapping[str, float | None] = {}
        self._own: dict[str, tuple[int, bool]] = {}  # by device: bytes, and whether they are estimated
        self._process: list[dict[str, Any]] = []
        self._cores = cores.count()
        self._memory = _process_memory()
        self._thread = threading.Thread(target=self._work, name="rocmlab-measure", daemon=True)
        self._thread.start()
        self._has_read.wait(FIRST_SECONDS)

    def stop(self) -> None:
        """Have it read a last time, and wait for that."""
        self._over.set()
        self._thread.join(LAST_SECONDS)

    def _work(self) -> None:
        try:
            found = [device for device in discover(self._root) if device.is_usable and device.backend != "cpu"]
            self._samples = {device_id(device): [] for device in found}
            self._devices = {device_id(device): device for device in found}
            with closing(Sampler(found, self._root, limit_seconds=None, errors_seconds=math.inf)) as sampler:
                self._read(sampler, found)
        finally:
            self._has_read.set()

    def _read(self, sampler: Sampler, devices: Sequence[Device]) -> None:
        began, looked, is_last = time.monotonic(), -math.inf, False
        while not is_last:
            is_last, now = self._over.is_set(), time.monotonic()
            self._read_process()
            if devices:
                snapshot = sampler.read()
                self._energy = snapshot.energy_joules
                for name, sample in snapshot.samples.items():
                    self._samples[name].append(sample)
                if is_last or now - looked >= PROCESSES_SECONDS:
                    looked = now
                    self._look_at_processes(devices)
            self._has_read.set()
            if not is_last:
                self._over.wait(min(MAX_SECONDS, max(MIN_SECONDS, (now - began) / READINGS)))

    def _read_process(self) -> None:
        reading = {"time_seconds": time.time(), "gtt_used_bytes": self._memory(), "cpu_seconds": time.process_time()}
        if self._process:
            last = self._process[-1]
            cpu, wall = (reading[name] - last[name] for name in ("cpu_seconds", "time_seconds"))
            reading["busy_percent"] = min(100.0, 100 * cpu / wall / self._cores) if wall > 0 else None
        self._process.append(reading)

    def _look_at_processes(self, devices: Sequence[Device]) -> None:
        """Note what this process has on the GPUs."""
        for process in finder(self._root).find(devices):
            if process.local_pid == os.getpid() and process.vram_bytes is not None:
                seen = (process.vram_bytes, process.is_estimated)
                self._own[process.device] = max(self._own.get(process.device, seen), seen)

    def cost(self, wall_seconds: float, cpu_seconds: float) -> Cost:
        """Return what was read, as the cost of work that took this long."""
        known = self._devices or {}
        readings = {
            name: [reading for sample in list(self._samples[name]) if (reading := _known(device, sample))]
            for name, device in known.items()
        }
        devices = {name: device for name, device in known.items() if readings[name]}
        gpus = Recording(
            started=self._started,
            ended=time.time(),
            simulated=is_simulated(self._root),
            command=None,
            exit_code=None,
            devices={name: device.as_dict() for name, device in devices.items()},
            samples={name: readings[name] for name in devices},
            energy_joules={name: joules for name, joules in self._energy.items() if joules is not None},
        )
        in_vram = (name for name in devices if readings[name][0]["memory"] == "VRAM")  # which the driver's list means
        own = [self._own[name] for name in in_vram if name in self._own]
        memory = [reading["gtt_used_bytes"] for reading in self._process if reading["gtt_used_bytes"] is not None]
        totals = gpu_totals(gpus)
        busy = totals["mean_busy_percent"]
        return Cost(
            wall_seconds=wall_seconds,
            cpu_seconds=cpu_seconds,
            cpu_cores=self._cores,
            peak_process_bytes=max(memory, default=None),
            where=self._where(list(devices.values())),
            recording=gpus if devices else replace(gpus, devices=THIS, samples={"cpu": list(self._process)}),
            memory=" or ".join(sorted({readings[name][0]["memory"] for name in devices})),
            own_memory_bytes=sum(size for size, _ in own) if own else None,
            is_own_estimated=any(is_estimated for _, is_estimated in own),
            busy_seconds=None if busy is None else busy / 100 * wall_seconds * len(devices),
            **totals,
        )

    def _where(self, read: Sequence[Device]) -> str:
        """Return what was read, and what was not."""
        unread = [name for name, device in (self._devices or {}).items() if device not in read]
        asleep = sum(any(sample.is_asleep for sample in list(self._samples[name])) for name in unread)
        counts = {"asleep": asleep, "without readings": len(unread) - asleep}
        parts = [f"{count} GPU{'s' * (count > 1)} {state}" for state, count in counts.items() if count]
        text = ", ".join([product_names(read)] * bool(read) + parts)
        if not text:
            text = "the GPUs do not answer" if self._devices is None else "no usable GPU"
        return text if read or not is_simulated(self._root) else f"{text} (SIMULATED)"


def _known(device: Device, sample: Sample) -> dict[str, Any]:
    """Return what is known of a reading and is of use here; empty if nothing is, as of a GPU that sleeps."""
    row, whole = device.as_dict(), sample.as_dict()
    values = {**{name: whole[name] for name in READ}, "vram_used_bytes": smi_cells.memory_bytes(row, whole)[0]}
    known = {name: value for name, value in values.items() if value is not None}
    memory = "GTT" if smi_cells.uses_gtt(row, whole) else "VRAM"
    return {"time_seconds": sample.time_seconds, "memory": memory, **known} if known else {}


def _cpu_seconds() -> float:
    """Return the CPU time of this process, and of its child processes that have exited."""
    return time.process_time() + sum(os.times()[2:4])


def _process_memory() -> Callable[[], int | None]:
    """Return what reads how much of the host's memory this process has."""
    try:
        import psutil  # which each kernel of IPython has
    except ImportError:
        return lambda: None
    process = psutil.Process()
    return lambda: int(process.memory_info().rss)
