"""What jobs use of their devices while they run: read in the background, so that no job waits for a device that hangs.

A device is read when a job on it begins and ends, twice a second in the job's first ten seconds, so that a short job
has figures too, and every two seconds after that. A device that no job runs on is not read. The readings of each job
are kept in a file of its own.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocmlab.base import private
from rocmlab.base.background import BackgroundReader
from rocmlab.devices import Device, Sample, system_root
from rocmlab.devices.integral import Integral
from rocmlab.devices.readers import Reader, Readers
from rocmlab.devices.recording import Recorder, device_id
from rocmlab.notebook.outcome import Usage
from rocmlab.telemetry.energy import EnergyMeter

log = logging.getLogger("rocmlab")

UNKNOWN: Usage = {"peak_vram_bytes": None, "mean_busy_percent": None, "energy_joules": None}
GPUS = ("rocm", "cuda")  # backends whose devices can be read
EVERY_SECONDS = 2.0
YOUNG_SECONDS = 10.0  # a job's first seconds, in which most of what a short one does is done
YOUNG_EVERY_SECONDS = 0.5
TOGETHER_SECONDS = 0.2  # readings that are due so soon after each other are taken together
FRESH_SECONDS = 3.5 * EVERY_SECONDS  # how old the reading may be that is shown as the last one
LAST_SECONDS = 0.05  # how long the end of a job waits for its last reading at most; it takes 1 to 4 ms
CLOSE_SECONDS = 0.5  # for a reading that does not return


@dataclass(eq=False)
class _Use:
    """What one job used of one device so far."""

    source: _Source | None  # None: nothing can be known
    file: _File | None = None  # of the job's readings
    since: float = field(default_factory=time.monotonic)
    peak: int | None = None
    busy: Integral = field(default_factory=Integral)
    energy: EnergyMeter = field(default_factory=EnergyMeter)

    def add(self, now: float, sample: Sample, count: float | None) -> None:
        """Take a reading, and the device's own count of its energy in joules."""
        if sample.vram_used_bytes is not None:
            self.peak = max(self.peak or 0, sample.vram_used_bytes)
        self.busy.add(now, sample.busy_percent)
        self.energy.add_sample(now, sample, count)

    def end(self) -> None:
        """Note where the last reading is too old for the job's end: its energy is a part, then."""
        self.energy.end(time.monotonic(), FRESH_SECONDS)

    def usage(self) -> Usage:
        mean, joules = self.busy.mean, self.energy.joules
        found: Usage = {
            "peak_vram_bytes": self.peak,
            "mean_busy_percent": None if mean is None else round(mean, 1),
            "energy_joules": None if joules is None else round(joules, 1),
        }
        if joules is not None and not self.energy.is_whole:
            found["energy_is_partial"] = True
        return found


class _File:
    """The readings of one job; the thread alone writes them, as a disk may be slow, and gives up when it fails."""

    def __init__(self, path: Path, devices: Sequence[Device]) -> None:
        self._path = path
        self._devices = devices
        self._recorder: Recorder | None = None
        self._is_over = False
        self.energy_joules: dict[str, float | None] = {}  # by device, of jobs that have ended

    def begin(self) -> None:
        """Make the file."""
        try:
            if self._path.is_symlink():
                raise OSError("it is a link")
            os.close(private.create(str(self._path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW))
            self._recorder = Recorder(self._path, self._devices)
        except OSError as err:
            self._give_up(err)

    def write(self, device: Device, sample: Sample | None) -> None:
        """Write a reading; None is the end."""
        if self._is_over or self._recorder is None:
            return
        try:
            if sample is None:
                self._is_over = True
                self._recorder.end(energy_joules=self.energy_joules)
            else:
                self._recorder.add(device_id(device), sample)
        except OSError as err:
            self._give_up(err)

    def _give_up(self, err: OSError) -> None:
        self._is_over = True
        log.warning("no more samples in %s: %s", self._path.name, err.strerror or err)


@dataclass(eq=False)
class _Source:
    """A device that can be read, and the jobs that use it; the lock guards everything but the Reader."""

    device: Device
    uses: list[_Use] = field(default_factory=list)
    due: float = 0.0  # when the next reading is; 0: immediately; infinite while one is taken
    read_at: float = 0.0  # when the last reading began
    sample: Sample | None = None  # its last reading
    reader: Reader | None = None  # the thread's own
    is_open: bool = False
    hangs: bool = False  # its last reading has not returned

    def plan(self, now: float) -> None:
        """Set when the next reading is due."""
        age = now - max((use.since for use in self.uses), default=0.0)
        self.due = now + (YOUNG_EVERY_SECONDS if age < YOUNG_SECONDS else EVERY_SECONDS)


class Meters:
    """Reads the devices of running jobs. Its methods return immediately, and may be called from any thread."""

    def __init__(self, root: Path | None = None) -> None:
        """Read the host below `root`, by default `$ROCMLAB_ROOT` or `/`."""
        self._readers = Readers(root or system_root())
        self._drivers = BackgroundReader()
        self._lock = threading.Condition()  # told when a reading is wanted, and when one is taken
        self._jobs: dict[str, list[_Use]] = {}
        self._sources: dict[Hashable, _Source] = {}
        self._unwritten: list[tuple[_File, Device, Sample | None]] = []
        self._is_writing = False
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def begin(self, job: str, devices: Sequence[Device], samples: Path | None = None) -> None:
        """Start to measure a job on its devices; the file `samples` is there immediately, if anything can be read."""
        can_read = [device for device in devices if device.backend in GPUS]
        file = _File(samples, can_read) if samples is not None and can_read else None
        if file:
            file.begin()
        with self._lock:
            self._forget(self._jobs.pop(job, []))
            self._jobs[job] = [self._use(device, file) for device in devices]
            if self._thread is None and self._sources:
                self._thread = threading.Thread(target=self._read, name="rocmlab-meters", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def end(self, job: str) -> list[Usage]:
        """Return what a job used of each of its devices, in their order; empty if it was never begun.

        A last reading is waited for, but no longer than 50 ms: a device that hangs holds no one up.
        """
        with self._lock:
            uses = self._jobs.pop(job, [])
            sources = [use.source for use in uses if use.source is not None]
            if sources and not self._is_closed:
                requested_at = time.monotonic()
                for source in sources:
                    source.due = 0.0
                self._lock.notify_all()
                self._lock.wait_for(lambda: all(source.read_at >= requested_at for source in sources), LAST_SECONDS)
            for use in uses:
                use.end()
            self._forget(uses)
            return [use.usage() for use in uses]

    def flush(self, seconds: float) -> bool:
        """Wait until all that has been read is in the files, with a time limit; return whether it is."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._unwritten and not self._is_writing, seconds)

    def latest(self, device: Device) -> tuple[float | None, int | None]:
        """Return the last reading of a device on which a job runs: busy percent and bytes of VRAM in use."""
        with self._lock:
            source = self._sources.get(_identity(device))
            if source is None or not source.uses or source.sample is None:
                return None, None
            if time.monotonic() - source.read_at > FRESH_SECONDS:
                return None, None
            return source.sample.busy_percent, source.sample.vram_used_bytes

    def close(self) -> None:
        """Stop reading."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _use(self, device: Device, file: _File | None) -> _Use:
        if device.backend not in GPUS:
            return _Use(None)
        source = self._sources.setdefault(_identity(device), _Source(device))
        source.due = 0.0
        use = _Use(source, file)
        source.uses.append(use)
        return use

    def _forget(self, uses: Sequence[_Use]) -> None:
        for use in uses:
            if use.source is not None and use.file:
                use.file.energy_joules[device_id(use.source.device)] = use.usage()["energy_joules"]
        for use in uses:
            if use.source is not None:
                if use.file:
                    self._unwritten.append((use.file, use.source.device, None))
                    self._lock.notify_all()
                use.source.uses.remove(use)
                if not use.source.uses:
                    use.source.sample = None

    def _read(self) -> None:
        """Take the readings that are due, until the run is over."""
        try:
            while (due := self._wait()) is not None:
                self._write()
                for source in due:
                    now = time.monotonic()
                    sample, count = self._reading(source)
                    with self._lock:
                        self._keep(source, now, sample, count)
                self._write()
            self._write()
        finally:
            for source in list(self._sources.values()):
                if source.reader is not None and not source.hangs:
                    source.reader.close()
            self._readers.close()

    def _reading(self, source: _Source) -> tuple[Sample, float | None]:
        """Return a reading and the device's own count of its energy in joules; nothing is known of one that hangs."""
        found = None
        try:
            name = source.device.pci_address or source.device.name
            found = self._drivers.now(f"the sensors of {name}", lambda: _read(source, self._readers))
            source.hangs = found is None
        except Exception:
            log.warning("could not read %s", source.device.name, exc_info=True)
        return found or (Sample(time.time()), None)

    def _write(self) -> None:
        """Write what has been read, without the lock: a disk may be slow."""
        with self._lock:
            unwritten, self._unwritten = self._unwritten, []
            self._is_writing = bool(unwritten)
        for file, device, sample in unwritten:
            file.write(device, sample)
        if unwritten:
            with self._lock:
                self._is_writing = False
                self._lock.notify_all()

    def _wait(self) -> list[_Source] | None:
        """Return the devices to be read now, none where there is only something to write; None when the run is over."""
        with self._lock:
            while not self._is_closed:
                if self._unwritten:
                    return []
                now = time.monotonic()
                used = [source for source in self._sources.values() if source.uses]
                if any(source.due <= now for source in used):
                    due = [source for source in used if source.due <= now + TOGETHER_SECONDS]
                    for source in due:
                        source.due = math.inf
                    return due
                self._lock.wait(min(source.due for source in used) - now if used else None)
            return None

    def _keep(self, source: _Source, now: float, sample: Sample, count: float | None) -> None:
        source.read_at, source.sample = now, sample
        if source.due == math.inf:  # no other reading was requested meanwhile
            source.plan(now)
        for use in source.uses:
            if use.since <= now:
                use.add(now, sample, count)
                if use.file:
                    self._unwritten.append((use.file, source.device, sample))
        self._lock.notify_all()


def _read(source: _Source, readers: Readers) -> tuple[Sample, float | None]:
    """Open a device, unless it is open, and read it."""
    if not source.is_open:
        source.reader, source.is_open = readers.open(source.device), True
    if source.reader is None:
        return Sample(time.time()), None
    return source.reader.read(), source.reader.energy_joules


def _identity(device: Device) -> Hashable:
    return device.backend, device.pci_address or device.unique_id or device.index, device.partition
