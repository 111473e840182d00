"""What the views are fed with: samples of all devices at one instant, and the processes on them with their owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rocmlab.devices import Device, Sample, device_id

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any

__all__ = ["NO_ANSWER", "GpuProcess", "Owner", "Snapshot", "device_id", "is_up"]

# Fields of a Sample that are no answer of the device: the PCIe link belongs to the bus, and is there without a driver.
NO_ANSWER = ("time_seconds", "is_asleep", "link_width", "link_speed_gts")


@dataclass(frozen=True)
class Owner:
    """What a GPU process belongs to, as far as that is known."""

    kind: str  # kernel (of JupyterLab), job (of a run), container, or process (none of these)
    notebook: str | None = None  # its path as the Jupyter server shows it now, or that of the job
    kernel_id: str | None = None  # of the Jupyter server
    kernel_name: str | None = None  # of the kernelspec, such as torch-gpu0
    kernel_state: str | None = None  # idle, busy, starting
    idle_seconds: float | None = None  # since its last work; None while it is busy, or if that is unknown
    run: str | None = None  # name of the run's folder
    job: str | None = None
    container: str | None = None  # first 12 digits of its id; None: in none that can be seen from here
    is_estimated: bool = False  # inferred (such as: the only owner of this GPU), not read

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class GpuProcess:
    """One process on one GPU. Source: `/sys/class/kfd/kfd/proc/<pid>` (rocm), NVML (cuda), `/proc/<pid>`."""

    device: str  # by `device_id`
    pid: int  # as the driver counts: KFD gives numbers of the host
    local_pid: int | None = None  # the same process as this namespace counts; None if it is not visible from here
    name: str | None = None  # of its program
    command: str | None = None  # with arguments, cut
    user: str | None = None
    started_seconds: float | None = None  # Unix time
    vram_bytes: int | None = None
    sdma_seconds: float | None = None  # of copying, since it was started
    compute_units_percent: float | None = None  # occupied at this instant: not a share of time
    evicted_seconds: float | None = None  # it was put aside for others
    owner: Owner | None = None
    is_estimated: bool = False  # local_pid was inferred

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return {**vars(self), "owner": self.owner.as_dict() if self.owner else None}


@dataclass(frozen=True)
class Snapshot:
    """All devices at one instant."""

    time_seconds: float  # Unix time
    samples: Mapping[str, Sample]  # by `device_id`
    energy_joules: Mapping[str, float | None] = field(default_factory=dict)  # since the sampler was started
    processes: tuple[GpuProcess, ...] | None = None  # None: not requested

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return {
            "time_seconds": self.time_seconds,
            "samples": {name: sample.as_dict() for name, sample in self.samples.items()},
            "energy_joules": dict(self.energy_joules),
            "processes": None if self.processes is None else [each.as_dict() for each in self.processes],
        }


def is_up(device: Device, sample: Sample | None) -> bool | None:
    """Return whether a device answers; None for a partition that is there, and has no sensors of its own."""
    if sample is None:
        return False
    if device.partition:
        return None
    return sample.is_asleep or any(value is not None for name, value in vars(sample).items() if name not in NO_ANSWER)
