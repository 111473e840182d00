"""One look at the devices, the processes on them and what these belong to, for the child process of `rocmlab smi`."""

from __future__ import annotations

import os
import time

from rocmlab.cli import smi_lab
from rocmlab.devices import is_simulated, survey
from rocmlab.telemetry.attribution import attribute
from rocmlab.telemetry.model import device_id
from rocmlab.telemetry.owners import LabSource, ProcSource
from rocmlab.telemetry.sampler import Sampler

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from rocmlab.base.errors import Problem
    from rocmlab.devices import Device
    from rocmlab.telemetry.owners import Source

    Row = dict[str, Any]
    Choose = Callable[[list[Device]], list[Device]]

SURVEY_SECONDS = 10.0  # how often it is looked whether devices came or went
SILENCE_SECONDS = 10.0  # a lab that did not answer is not asked again before
CPU_SECONDS = 0.2  # the CPU's load is the difference of two readings


class Look:
    """Keeps what need not be found again for the next look: devices, open files, and whether there is a lab."""

    def __init__(self, root: Path, choose: Choose, asks_lab: bool) -> None:
        self._root, self._choose, self._asks_lab = root, choose, asks_lab
        self._devices: list[Device] = []
        self._hidden = 0
        self._problems: list[Problem] = []
        self._sampler: Sampler | None = None
        self._surveyed_at = 0.0
        self._kernels: list[Row] | None = None
        self._ask_again_at = 0.0
        self._is_asked = False
        self._sources: list[Source] = [ProcSource(root)]
        if smi_lab.is_here():
            self._sources.insert(0, LabSource(self._ask_lab, root))

    def view(self) -> Row:
        """Return the fields of a View.

        Raises:
            RocmlabError: a requested device is not there when it is first looked for.
        """
        sampler = self._sampling()
        snapshot = sampler.read()
        self._is_asked = False
        processes = self._processes()
        if self._asks_lab:
            self._ask_lab()
        hung = sampler.hanging
        rows = []
        for device in self._devices:
            name = device_id(device)
            sample, energy = snapshot.samples.get(name), snapshot.energy_joules.get(name)
            reading = {"sample": sample.as_dict() if sample else None, "energy_joules": energy}
            rows.append({**device.as_dict(), "id": name, **reading})
        return {
            "time_seconds": snapshot.time_seconds,
            "devices": rows,
            "processes": processes,
            "kernels": self._kernels,
            "problems": [
                *(dict(vars(problem)) for problem in self._problems),
                *(_hangs(device) for device in self._devices if device_id(device) in hung),
            ],
            "hung": hung,
            "simulated_root": str(self._root) if is_simulated(self._root) else None,
            "host": "" if is_simulated(self._root) else os.uname().nodename,
            "hidden": self._hidden,
        }

    def _sampling(self) -> Sampler:
        """Return the sampler, told which devices are there."""
        now = time.monotonic()
        if self._sampler is not None and now - self._surveyed_at < SURVEY_SECONDS:
            return self._sampler
        found, self._problems = survey(self._root)
        if self._sampler is None:
            chosen = self._choose(found)
        else:
            known = {device_id(device) for device in self._devices}
            chosen = [device for device in found if not self._hidden or device_id(device) in known]
        self._surveyed_at = now
        self._devices = chosen
        if self._sampler is not None:
            self._sampler.devices = chosen
            return self._sampler
        self._hidden = len(found) - len(chosen)
        self._sampler = Sampler(chosen, self._root)
        if all(device.backend == "cpu" for device in chosen):
            self._sampler.read()
            time.sleep(CPU_SECONDS)
        return self._sampler

    def _processes(self) -> list[Row] | None:
        gpus = [device for device in self._devices if device.backend != "cpu"]
        if not gpus:
            return []
        found = [process.as_dict() for process in attribute(gpus, self._root, self._sources)]
        owners = [process["owner"] for process in found if (process["owner"] or {}).get("kernel_id")]
        if owners:
            by_id = {kernel.get("kernel_id"): kernel for kernel in self._ask_lab()}
            for owner in owners:
                owner.update(_told(by_id.get(owner["kernel_id"], {})))
        return found

    def _ask_lab(self) -> list[Row]:
        """Return the lab's kernels; it is asked at most once in a look."""
        if not self._is_asked:
            self._is_asked = True
            if time.monotonic() >= self._ask_again_at:
                self._kernels = smi_lab.kernels()
                if self._kernels is None:
                    self._ask_again_at = time.monotonic() + SILENCE_SECONDS
        return self._kernels or []


def _hangs(device: Device) -> Row:
    return {
        "what": f"{device.name} ({device_id(device)}) does not answer",
        "why": "the GPU or its driver hangs",
        "fix": "see `sudo dmesg | grep -i -e amdgpu -e nvrm | tail`; a hung GPU needs a restart",
    }


def _told(kernel: Row) -> Row:
    """Return what the lab knows of a kernel now, as fields of an Owner; a notebook may have got another name."""
    if not kernel:
        return {}
    found = {"kernel_state": kernel.get("state"), "idle_seconds": kernel.get("idle_seconds")}
    return found | {name: kernel[name] for name in ("notebook", "kernel_name") if kernel.get(name)}
