"""Samples of devices in a file while something runs, and their summary.

The file has a JSON object a line: a head, a line for each Sample with only what is known, and an end. docs/record.md
explains it. A reader accepts a truncated last line, and a file that has no end yet.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.devices.integral import Integral
from rocmlab.devices.model import Device, Sample, device_id

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from io import FileIO
    from typing import Any

__all__ = ["Recorder", "Recording", "Summary", "device_id", "integral", "memory_field", "read", "series", "summarise"]
VERSION = 1
LINE_BYTES = 65536  # most that a line may have


class Recorder:
    """Writes one file. Each line is in the file when its method returns.

    After the end, or when the disk has not taken a line, the file is closed, and what comes later is dropped. Any
    thread may write.
    """

    def __init__(self, path: Path, devices: Sequence[Device], command: Sequence[str] | None = None) -> None:
        """Begin a file, or replace it.

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        self._lock = threading.Lock()
        self._file: FileIO = path.open("wb", buffering=0)
        names = ("backend", "index", "name", "gfx", "pci_address", "vram_bytes", "pool")
        self._write(
            {
                "rocmlab_samples": VERSION,
                "started": time.time(),
                "simulated": any(device.simulated for device in devices),
                "command": None if command is None else list(command),
                "devices": {device_id(device): {name: getattr(device, name) for name in names} for device in devices},
            }
        )

    def add(self, device: str, sample: Sample) -> None:
        """Write a sample of a device, by `device_id`.

        Raises:
            OSError: the disk does not take it.
        """
        known = {
            name: round(value, 3) if isinstance(value, float) else value  # no sensor has more digits
            for name, value in vars(sample).items()
            if value is not None and value is not False
        }
        self._write({"device": device, **known})

    def move(self, path: Path) -> None:
        """Give the file another name in its folder, in place of the file that has it.

        Raises:
            OSError: it keeps its name.
        """
        os.replace(self.path, path)
        self.path = path

    def end(self, exit_code: int | None = None, energy_joules: Mapping[str, float | None] | None = None) -> None:
        """Write the end, and close the file; one that is closed stays as it is.

        Args:
            exit_code: of what ran; None where there is none.
            energy_joules: by device, where it is known better than from the area below the power.

        Raises:
            OSError: the disk does not take it.
        """
        try:
            energy = {name: joules for name, joules in (energy_joules or {}).items() if joules is not None}
            self._write({"ended": time.time(), "exit_code": exit_code, "energy_joules": energy})
        finally:
            self.close()

    def close(self) -> None:
        """Close the file, without an end if it has none."""
        with self._lock:
            self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        rest = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        with self._lock:
            if self._file.closed:
                return
            try:
                while rest:
                    rest = rest[self._file.write(rest) or 0 :]
            except OSError:
                self._file.close()
                raise


@dataclass(frozen=True)
class Recording:
    """The content of a file."""

    started: float  # Unix time
    ended: float | None  # None: it is still written, or its writer was killed
    simulated: bool
    command: tuple[str, ...] | None
    exit_code: int | None
    devices: dict[str, dict[str, Any]]  # by id
    samples: dict[str, list[dict[str, Any]]]  # by device: fields of each Sample that are known, in order of time
    energy_joules: dict[str, float] = field(default_factory=dict)


def read(path: Path) -> Recording:
    """Read a file; truncated and unknown lines are skipped.

    Raises:
        RocmlabError: it is not such a file, or of a newer version.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = _parsed(file.readline(LINE_BYTES * 16))
        if head.get("rocmlab_samples") != VERSION:
            raise RocmlabError(
                f"{path} has no samples that this version can read",
                f"its first line does not name version {VERSION}",
                "give a file that `rocmlab record` or `rocmlab run` has written",
            )
        devices = {str(name): dict(facts) for name, facts in dict(head.get("devices") or {}).items()}
        samples: dict[str, list[dict[str, Any]]] = {name: [] for name in devices}
        end: dict[str, Any] = {}
        for raw in file:
            line = _parsed(raw)
            if isinstance(line.get("time_seconds"), int | float) and line.get("device") in samples:
                samples[line["device"]].append(line)
            elif "ended" in line:
                end = line
    command = head.get("command")
    return Recording(
        started=float(head.get("started") or 0.0),
        ended=end.get("ended"),
        simulated=bool(head.get("simulated")),
        command=tuple(map(str, command)) if isinstance(command, list) else None,
        exit_code=end.get("exit_code"),
        devices=devices,
        samples=samples,
        energy_joules=dict(end.get("energy_joules") or {}),
    )


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Summary:
    """How one device was used while something ran; None is unknown."""

    device: str
    name: str
    seconds: float  # between the first and the last reading
    mean_busy_percent: float | None
    max_busy_percent: float | None
    peak_vram_bytes: int | None  # of the memory that `memory_field` names
    mean_power_watts: float | None
    energy_joules: float | None


def summarise(recording: Recording) -> list[Summary]:
    """Return a few numbers for each device; means are over time."""
    found = []
    for device, samples in recording.samples.items():
        busy = series(samples, "busy_percent")
        power = series(samples, "power_watts")
        memory = series(samples, memory_field(recording, device))
        power_area = integral(power)
        times = [float(sample["time_seconds"]) for sample in samples]
        energy = recording.energy_joules.get(device, power_area.area if power_area.seconds else None)
        found.append(
            Summary(
                device=device,
                name=str(recording.devices[device].get("name") or device),
                seconds=times[-1] - times[0] if times else 0.0,
                mean_busy_percent=integral(busy).mean,
                max_busy_percent=max((value for _, value in busy), default=None),
                peak_vram_bytes=int(max(value for _, value in memory)) if memory else None,
                mean_power_watts=power_area.mean,
                energy_joules=energy,
            )
        )
    return found


def memory_field(recording: Recording, device: str) -> str:
    """Return the field of the memory that models take of a device: of an APU mostly the host's, as of the CPU.

    A job's file has VRAM alone, and one of an earlier version does not name the pool: then it is VRAM.
    """
    is_of_host = device == "cpu" or recording.devices[device].get("pool") == "gtt"
    has_it = any("gtt_used_bytes" in sample for sample in recording.samples[device])
    return "gtt_used_bytes" if is_of_host and has_it else "vram_used_bytes"


def series(samples: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    """Return time and value of each Sample that has the field."""
    return [
        (float(sample["time_seconds"]), float(sample[name]))
        for sample in samples
        if isinstance(sample.get(name), int | float)
    ]


def integral(points: Sequence[tuple[float, float]]) -> Integral:
    """Return the area below a curve, with how many seconds it stretches over and the mean."""
    found = Integral()
    for now, value in points:
        found.add(now, value)
    return found
