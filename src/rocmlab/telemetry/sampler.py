"""Reads all devices at the same time, repeatedly; one that hangs, sleeps or is missing does not stop the others.

A read that hangs in the driver cannot be interrupted. So the readings are taken by a thread; where it does not come
back in time, each device that it has not read gets a thread of its own, and all of them together half as much time. A
thread is left to the device that holds it; that device is asked again when its thread has come back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rocmlab.devices import Device, Sample
from rocmlab.devices.readers import Reader, Readers
from rocmlab.telemetry.energy import EnergyMeter
from rocmlab.telemetry.model import Snapshot, device_id

log = logging.getLogger("rocmlab")

LIMIT_SECONDS = 2.0  # for all devices to answer; half of it again for each by itself
AGAIN_SECONDS = 5.0  # after which a device that could not be opened is retried
ERRORS_SECONDS = 15.0  # how old counts of memory errors may be: older drivers write each look at them into their log


class Sampler:
    """Reads the devices of one host. Its methods may be called from any thread."""

    _worker: _Worker | None = None

    def __init__(
        self,
        devices: Sequence[Device],
        root: Path,
        limit_seconds: float | None = LIMIT_SECONDS,
        errors_seconds: float = ERRORS_SECONDS,
    ) -> None:
        """Prepare to read; nothing is opened yet.

        Args:
            devices: of the host below `root`.
            root: of the host.
            limit_seconds: how long is waited for the devices, and half as long again for those that keep it waiting;
                None to read in the thread of the caller, who then waits with a device that hangs. That saves two
                changes of thread, up to 0.1 ms of CPU time.
            errors_seconds: how old counts of memory errors may be; 0 to read them each time.
        """
        self._root = root
        self._limit_seconds = limit_seconds
        self._errors_seconds = errors_seconds
        self._readers = Readers(root)
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self.devices = devices

    @property
    def devices(self) -> Sequence[Device]:
        """The devices that are read; those that stay keep their files and their energy."""
        return [watched.device for watched in self._watched.values()]

    @devices.setter
    def devices(self, devices: Sequence[Device]) -> None:
        with self._lock:
            before, self._watched = self._watched, {}
            for device in devices:
                name = device_id(device)
                known = before.pop(name, None) or _Watched(device, self._errors_seconds)
                known.device = device
                self._watched[name] = known
            for gone in before.values():
                gone.close()

    @property
    def hanging(self) -> list[str]:
        """The devices, by `device_id`, whose reading has not come back."""
        return [name for name, watched in self._watched.items() if watched.is_hanging]

    def is_whole(self, name: str) -> bool:
        """Return whether a device's energy, by `device_id`, is all that it used since its first reading."""
        return name in self._watched and self._watched[name].energy.is_whole

    def read(self) -> Snapshot:
        """Return what all devices report now; a device that cannot be read has a Sample in which nothing is known."""
        with self._lock:
            now = time.time()
            watched = list(self._watched.values())
            self._read([each for each in watched if not each.is_hanging])
            return Snapshot(
                time_seconds=now,
                samples={
                    name: each.sample if each.sample is not None else Sample(now)
                    for name, each in self._watched.items()
                },
                energy_joules={name: each.energy.joules for name, each in self._watched.items()},
            )

    def _read(self, pending: Sequence[_Watched]) -> None:
        for each in self._watched.values():
            each.sample = None
        if self._limit_seconds is None:
            _Batch(pending).read(self._readers)
            return
        if not pending:
            return
        worker = self._worker = self._worker or _Worker(self._readers)
        batch = _Batch(pending)
        worker.tasks.put(batch)
        if not batch.wait(self._limit_seconds):
            self._read_apart(batch, worker, self._limit_seconds / 2)

    def _read_apart(self, batch: _Batch, worker: _Worker, seconds: float) -> None:
        """Read what a batch has not come to, each in a thread of its own; leave behind what takes longer."""
        self._worker = None
        parts = [(batch, worker)]
        for each in batch.cut():
            parts.append((_Batch([each]), _Worker(self._readers)))
            parts[-1][1].tasks.put(parts[-1][0])
        end = time.monotonic() + seconds
        for part, own in parts:
            part.wait(max(0.0, end - time.monotonic()))
            hanging = part.leave()
            if hanging is not None:
                log.warning("reading %s takes too long: it hangs", device_id(hanging.device))
            elif self._worker is None:
                self._worker = own
            else:
                own.tasks.put(None)

    def close(self) -> None:
        """Give everything back but what a hanging device holds."""
        with self._lock:
            if self._worker is not None:
                self._worker.tasks.put(None)
                self._worker.thread.join(self._limit_seconds)
                self._worker = None
            is_free = not self.hanging
            for watched in self._watched.values():
                watched.close()
            self._watched = {}
            if is_free:
                self._readers.close()

    def __del__(self) -> None:
        if self._worker is not None:
            self._worker.tasks.put(None)  # else its thread would wait for ever, and keep all files open


class _Watched:
    """One device, its reader, and its last sample."""

    def __init__(self, device: Device, errors_seconds: float) -> None:
        self.device = device
        self._errors_seconds = errors_seconds
        self.sample: Sample | None = None
        self.energy = EnergyMeter()
        self.is_hanging = False
        self._reader: Reader | None = None
        self._open_at = 0.0  # when it is tried to open it next
        self._is_gone = False  # it is not wanted any more
        self._has_failed = False

    def read(self, readers: Readers) -> Sample:
        """Return what it reports now."""
        reader = self._reader
        if reader is None:
            now = time.monotonic()
            if now >= self._open_at:
                self._open_at = now + AGAIN_SECONDS
                reader = self._reader = readers.open(self.device, full=True, errors_seconds=self._errors_seconds)
            if reader is None:
                return Sample(time.time())
        sample = reader.read()
        self.energy.add_sample(time.monotonic(), sample, reader.energy_joules)
        return sample

    def fail(self) -> Sample:
        """Return what is known after a defect of the reader: nothing. What it keeps may be wrong: it is dropped."""
        if not self._has_failed:
            self._has_failed = True
            log.exception("%s cannot be read: a bug in rocmlab", device_id(self.device))
        reader, self._reader = self._reader, None
        self._open_at = time.monotonic() + AGAIN_SECONDS
        if reader is not None:
            with suppress(Exception):
                reader.close()
        return Sample(time.time())

    def come_back(self) -> None:
        """Be read again, after a reading that took too long."""
        self.is_hanging = False
        if self._is_gone:
            self.close()

    def close(self) -> None:
        self._is_gone = True
        if not self.is_hanging and self._reader is not None:
            self._reader.close()
            self._reader = None


class _Batch:
    """Devices that one thread reads one after another."""

    def __init__(self, pending: Sequence[_Watched]) -> None:
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()  # told when all have answered
        self._pending = pending
        self._count = len(pending)  # how many of them are to be read
        self._answered = 0
        self._lock = threading.Lock()
        self._is_left = False

    def read(self, readers: Readers) -> bool:
        """Read all; return whether a caller still waits for them."""
        for each in self._pending:
            try:
                sample = each.read(readers)
            except Exception:  # whatever is wrong with one device, the others are read
                sample = each.fail()
            with self._lock:
                if self._is_left:
                    each.come_back()
                    return False
                each.sample = sample
                self._answered += 1
                if self._answered == self._count:
                    break
        return True

    def wait(self, seconds: float) -> bool:
        """Wait until all have answered; return whether they have."""
        try:
            self.done.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def cut(self) -> Sequence[_Watched]:
        """End the batch after the device that is being read; return those that come after it."""
        with self._lock:
            self._count = min(self._answered + 1, self._count)
            return self._pending[self._count :]

    def leave(self) -> _Watched | None:
        """Wait no longer; return the device that has not answered, which is marked as hanging."""
        with self._lock:
            if self._answered == self._count:
                return None
            self._is_left = True
            hanging = self._pending[self._answered]
            hanging.is_hanging = True
            return hanging


class _Worker:
    """A thread that reads batches of devices, until one is left to it."""

    def __init__(self, readers: Readers) -> None:
        self.tasks: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._readers = readers
        self.thread = threading.Thread(target=self._work, name="rocmlab-sampler", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (batch := self.tasks.get()) is not None:
            if not batch.read(self._readers):
                return
            batch.done.put(None)
