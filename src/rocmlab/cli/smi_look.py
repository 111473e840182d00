"""Read the devices, their processes and whose these are once, in the child process of `rocmlab smi`."""

from __future__ import annotations

import os
import time

from rocmlab.cli import smi_lab
from rocmlab.devices import is_simulated, roots, survey
from rocmlab.telemetry.model import device_id
from rocmlab.telemetry.observer import Observer
from rocmlab.telemetry.owners import LabSource, ProcSource

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

    def __init__(self, root: Path, choose: Choose, queries_lab: bool) -> None:
        self._root, self._choose, self._asks_lab = root, choose, queries_lab
        self._known: set[str] | None = None  # the devices that were shown last; None before the first look
        self._hidden = 0
        self._problems: list[Problem] = []
        self._kernels: list[Row] | None = None
        self._ask_again_at = 0.0
        self._is_asked = False
        sources: list[Source] = [ProcSource(root)]
        if smi_lab.is_here():
            sources.insert(0, LabSource(self._ask_lab, root))
        self._observer = Observer(root, self._find, sources, discover_seconds=SURVEY_SECONDS)

    def view(self) -> Row:
        """Return the fields of a View.

        Raises:
            RocmlabError: a requested device is not there when it is first looked for.
        """
        is_first = self._known is None
        snapshot = self._observer.samples()
        devices = self._observer.devices
        if is_first and all(device.backend == "cpu" for device in devices):
            time.sleep(CPU_SECONDS)
            snapshot = self._observer.samples()
        self._is_asked = False
        processes = self._processes()
        if self._asks_lab:
            self._ask_lab()
        hung = self._observer.hanging()
        rows = []
        for device in devices:
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
                *(problem.as_dict() for problem in self._problems),
                *(
                    roots.hanging(f"{device.name} ({device_id(device)}) does not answer").as_dict()
                    for device in devices
                    if device_id(device) in hung
                ),
            ],
            "hung": hung,
            "simulated_root": str(self._root) if is_simulated(self._root) else None,
            "host": "" if is_simulated(self._root) else os.uname().nodename,
            "hidden": self._hidden,
        }

    def _find(self) -> list[Device]:
        """Return the devices to show: at first those that were chosen, then those of them that are still there."""
        found, self._problems = survey(self._root)
        if self._known is None:
            chosen = self._choose(found)
            self._hidden = len(found) - len(chosen)
        else:
            chosen = [device for device in found if not self._hidden or device_id(device) in self._known]
        self._known = {device_id(device) for device in chosen}
        return chosen

    def _processes(self) -> list[Row] | None:
        if all(device.backend == "cpu" for device in self._observer.devices):
            return []  # no GPU, no process; and the lab is not queried for nothing
        processes = self._observer.processes()
        if processes is None:
            return None
        found = [process.as_dict() for process in processes]
        owners = [process["owner"] for process in found if (process["owner"] or {}).get("kernel_id")]
        if owners:
            by_id = {kernel.get("kernel_id"): kernel for kernel in self._ask_lab()}
            for owner in owners:
                owner.update(_told(by_id.get(owner["kernel_id"], {})))
        return found

    def _ask_lab(self) -> list[Row]:
        """Return the lab's kernels; it is queried at most once per reading."""
        if not self._is_asked:
            self._is_asked = True
            if time.monotonic() >= self._ask_again_at:
                self._kernels = smi_lab.kernels()
                if self._kernels is None:
                    self._ask_again_at = time.monotonic() + SILENCE_SECONDS
        return self._kernels or []


def _told(kernel: Row) -> Row:
    """Return what the lab knows of a kernel now, as fields of an Owner; a notebook may have got another name."""
    if not kernel:
        return {}
    found = {"kernel_state": kernel.get("state"), "idle_seconds": kernel.get("idle_seconds")}
    return found | {name: kernel[name] for name in ("notebook", "kernel_name") if kernel.get(name)}
