"""What devices and their processes do, as metrics for Prometheus: OpenMetrics, or the older text where it is requested.

Base units throughout: bytes, watts, degrees Celsius, hertz, joules, seconds, and shares from 0 to 1. An unknown value
is absent, never 0. Names and labels: docs/monitoring.md. `rocmlab.telemetry.compat` adds those of AMD's own exporter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, Sample
from rocmlab.telemetry.metrics_families import Families, Labels
from rocmlab.telemetry.model import GpuProcess, Owner, Snapshot, device_id, is_up

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

NAMES = ("rocmlab", "amd", "both")
GIGA = 1e9

Leases = Iterable[tuple[str, str | None]]  # device (by `device_id`) and notebook

# name, meaning, more labels, field of a Sample, what it is divided by
GAUGES: tuple[tuple[str, str, Mapping[str, str], str, float], ...] = (
    ("busy_ratio", "Share of time in which the GPU was busy, 0 to 1.", {}, "busy_percent", 100),
    ("memory_busy_ratio", "Share of time in which its memory was busy, 0 to 1.", {}, "memory_busy_percent", 100),
    ("vram_used_bytes", "VRAM in use.", {}, "vram_used_bytes", 1),
    ("vram_total_bytes", "VRAM in all.", {}, "vram_total_bytes", 1),
    ("gtt_used_bytes", "Host memory that the GPU uses (GTT); without hipMalloc on an APU.", {}, "gtt_used_bytes", 1),
    ("gtt_total_bytes", "Host memory that the GPU may use (GTT).", {}, "gtt_total_bytes", 1),
    ("power_watts", "Power draw; the average where the driver reports one.", {}, "power_watts", 1),
    ("power_cap_watts", "Power cap in force.", {}, "power_cap_watts", 1),
    ("power_cap_max_watts", "Highest power cap that can be set.", {}, "power_cap_max_watts", 1),
    ("temperature_celsius", "Temperature by sensor.", {"sensor": "edge"}, "edge_celsius", 1),
    ("temperature_celsius", "Temperature by sensor.", {"sensor": "junction"}, "junction_celsius", 1),
    ("temperature_celsius", "Temperature by sensor.", {"sensor": "memory"}, "memory_celsius", 1),
    ("temperature_critical_celsius", "Critical temperature.", {"sensor": "edge"}, "edge_critical_celsius", 1),
    ("temperature_critical_celsius", "Critical temperature.", {"sensor": "junction"}, "junction_critical_celsius", 1),
    ("temperature_critical_celsius", "Critical temperature.", {"sensor": "memory"}, "memory_critical_celsius", 1),
    ("clock_hertz", "Clock frequency by domain.", {"domain": "core"}, "core_clock_hertz", 1),
    ("clock_hertz", "Clock frequency by domain.", {"domain": "memory"}, "memory_clock_hertz", 1),
    ("clock_max_hertz", "Highest clock frequency by domain.", {"domain": "core"}, "core_clock_max_hertz", 1),
    ("clock_max_hertz", "Highest clock frequency by domain.", {"domain": "memory"}, "memory_clock_max_hertz", 1),
    ("voltage_volts", "Voltage of the core.", {}, "voltage_volts", 1),
    ("fan_rpm", "Fan speed in revolutions per minute.", {}, "fan_rpm", 1),
    ("fan_ratio", "Fan speed, 0 to 1 of its full speed.", {}, "fan_percent", 100),
    ("pcie_link_width_lanes", "PCIe lanes in use.", {}, "link_width", 1),
)


def exposition(
    snapshot: Snapshot,
    devices: Sequence[Device],
    *,
    names: str = "rocmlab",
    accept: str = "",
    leases: Leases | None = None,
    root: Path | None = None,
    lab: Mapping[str, str] | None = None,
) -> tuple[bytes, str]:
    """Return the metrics of one instant, and their content type.

    Args:
        snapshot: what the devices report. A device that has no sample there is missing; one without a value is down.
        devices: which there are, and those that there were; the CPU has no metrics here.
        names: `rocmlab` (this project's), `amd` (those of AMD's device-metrics-exporter) or `both`.
        accept: the header `Accept` of the request; without it, or without OpenMetrics in it, the older text.
        leases: which devices are leased, and by which notebook; None: not known here.
        lab: labels of the lab that answers, its `user` and `lab`; None: no lab does, or who asks may not know.
        root: the host, which AMD's labels for part number and firmware are read from; `$ROCMLAB_ROOT` or `/`.

    Raises:
        RocmlabError: prometheus_client is not installed, or there are no such names.
    """
    encoder, content_type, registry = _client(accept)
    families = collect(snapshot, devices, names=names, leases=leases, root=root, lab=lab)
    registry.register(families)
    return encoder(registry), content_type


def check_library() -> None:
    """Report that prometheus_client is missing.

    Raises:
        RocmlabError: it is.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError as err:
        raise RocmlabError(
            "prometheus_client is not installed",
            f"{sys.executable} has no such package, and metrics are written with it",
            f"{sys.executable} -m pip install prometheus_client\n"
            "or use the lab, which has it: its metrics are at <address of the lab>/rocmlab/metrics",
        ) from err


def _client(accept: str) -> tuple[Callable[..., bytes], str, CollectorRegistry]:
    check_library()
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    encoder, content_type = choose_encoder(accept)
    return encoder, content_type, CollectorRegistry(auto_describe=False)


def collect(
    snapshot: Snapshot,
    devices: Sequence[Device],
    *,
    names: str = "rocmlab",
    leases: Leases | None = None,
    root: Path | None = None,
    lab: Mapping[str, str] | None = None,
) -> Families:
    """Return the families of `exposition`, not yet written."""
    if names not in NAMES:
        raise RocmlabError(f"unknown metric names: {names!r}", "", f"choose one of: {', '.join(NAMES)}")
    families = Families()
    gpus = _listed(snapshot, [device for device in devices if device.backend != "cpu"])
    held = list(leases) if leases is not None else None
    if names in ("rocmlab", "both"):
        _add_ours(families, snapshot, gpus, held)
        if lab:
            families.info("rocmlab_lab", "Whose lab this is.", lab)
    if names in ("amd", "both"):
        from rocmlab.telemetry import compat

        compat.add(families, snapshot, gpus, held or (), root)
    return families


def _listed(snapshot: Snapshot, gpus: Sequence[Device]) -> list[Device]:
    """Leave out what is missing because its card is divided otherwise by now."""
    cards = {gpu.pci_address for gpu in gpus if gpu.pci_address and device_id(gpu) in snapshot.samples}
    return [gpu for gpu in gpus if device_id(gpu) in snapshot.samples or gpu.pci_address not in cards]


def labels_of(device: Device) -> dict[str, object]:
    """Return the labels that identify a device."""
    return {
        "gpu": device.index,
        "smi_index": device.smi_index,
        "pci": device.pci_address,
        "partition": device.partition,
        "uuid": device.unique_id,
        "model": device.name,
        "gfx": device.gfx,
        "simulated": "1" if device.simulated else None,
    }


def _add_ours(
    families: Families, snapshot: Snapshot, gpus: Sequence[Device], leases: Sequence[tuple[str, str | None]] | None
) -> None:
    simulated = {"simulated": "1" if any(gpu.simulated for gpu in gpus) else None}
    families.info("rocmlab_exporter", "The exporter itself.", {"version": __version__, **simulated})
    families.gauge("rocmlab_sample_time_seconds", "When this was read, in Unix time.", simulated, snapshot.time_seconds)
    up = {device_id(gpu): is_up(gpu, snapshot.samples.get(device_id(gpu))) for gpu in gpus}
    cards = {gpu.pci_address for gpu in gpus if up[device_id(gpu)]}
    answering = [gpu for gpu in gpus if up[device_id(gpu)] or (gpu.partition and gpu.pci_address in cards)]
    families.gauge("rocmlab_gpus", "GPUs that answer, usable or not.", simulated, len(answering))
    for gpu in gpus:
        _add_device(families, gpu, snapshot.samples.get(device_id(gpu)), snapshot.energy_joules.get(device_id(gpu)))
    by_id = {device_id(gpu): gpu for gpu in gpus}
    for process in snapshot.processes or ():
        if process.device in by_id:
            _add_process(families, by_id[process.device], process)
    for name, notebook in leases or ():
        if name in by_id:
            labels = {**labels_of(by_id[name]), "notebook": notebook}
            families.gauge("rocmlab_lease_held", "1 for each GPU that a notebook has for itself.", labels, 1)


def _add_device(families: Families, gpu: Device, sample: Sample | None, energy_joules: float | None) -> None:
    labels = labels_of(gpu)
    more = {
        "backend": gpu.backend,
        "architecture": gpu.architecture,
        "driver": gpu.driver,
        "render_node": gpu.render_node,
        "compute_partition": gpu.compute_partition,
        "memory_partition": gpu.memory_partition,
    }
    families.info("rocmlab_gpu", "Which GPU this is.", {**labels, **more})
    usable = gpu.is_usable and sample is not None
    families.gauge("rocmlab_gpu_usable", "1 if it is there and this process may use it.", labels, usable)
    families.gauge("rocmlab_gpu_up", "1 if it answers, 0 if nothing can be read from it.", labels, is_up(gpu, sample))
    families.gauge(
        "rocmlab_gpu_pcie_link_width_max_lanes", "PCIe lanes that card and slot have.", labels, gpu.link_width_max
    )
    families.gauge(
        "rocmlab_gpu_pcie_link_max_transfers_per_second",
        "PCIe transfers per second and lane that card and slot can do.",
        labels,
        None if gpu.link_speed_max_gts is None else gpu.link_speed_max_gts * GIGA,
    )
    if sample is None:
        return
    asleep = sample.is_asleep if is_up(gpu, sample) else None
    families.gauge("rocmlab_gpu_asleep", "1 while it is suspended; nothing else is read then.", labels, asleep)
    for name, meaning, more_labels, field, divisor in GAUGES:
        value = getattr(sample, field)
        families.gauge(
            f"rocmlab_gpu_{name}", meaning, {**labels, **more_labels}, None if value is None else value / divisor
        )
    families.counter("rocmlab_gpu_energy_joules_total", "Energy since the sampler was started.", labels, energy_joules)
    families.counter(
        "rocmlab_gpu_pcie_replays_total", "PCIe packets sent again since the driver was loaded.", labels,
        sample.pcie_replays,
    )  # fmt: skip
    families.gauge(
        "rocmlab_gpu_pcie_link_transfers_per_second",
        "PCIe transfers per second and lane.",
        labels,
        None if sample.link_speed_gts is None else sample.link_speed_gts * GIGA,
    )
    _add_errors(families, labels, sample)
    if sample.throttle_reasons is not None:
        families.gauge(
            "rocmlab_gpu_throttled", "1 while it holds its clocks back.", labels, bool(sample.throttle_reasons)
        )
        for reason in sample.throttle_reasons:
            families.gauge(
                "rocmlab_gpu_throttle_active",
                "1 for each reason for which it holds its clocks back.",
                {**labels, "reason": reason},
                1,
            )


def _add_errors(families: Families, labels: Labels, sample: Sample) -> None:
    for severity, counts in (("corrected", sample.ecc_corrected), ("uncorrected", sample.ecc_uncorrected)):
        for block, count in (counts or {}).items():
            families.counter(
                "rocmlab_gpu_ecc_errors_total",
                "Errors in memories, by block and severity, since the driver was loaded.",
                {**labels, "block": block, "severity": severity},
                count,
            )


def _add_process(families: Families, gpu: Device, process: GpuProcess) -> None:
    owner = process.owner or Owner("process")
    labels = {
        **labels_of(gpu),
        "pid": process.pid,
        "process": process.name,
        "user": process.user,
        "owner": owner.kind,
        "notebook": owner.notebook,
        "kernel_id": owner.kernel_id,
        "run": owner.run,
        "job": owner.job,
        "container": owner.container,
        "estimated": "1" if owner.is_estimated or process.is_estimated else None,
    }
    share = process.compute_units_percent
    families.gauge("rocmlab_gpu_process_vram_bytes", "GPU memory that a process holds.", labels, process.vram_bytes)
    families.gauge(
        "rocmlab_gpu_process_compute_units_ratio",
        "Share of the compute units that a process occupies at this instant.",
        labels,
        None if share is None else share / 100,
    )
    families.counter(
        "rocmlab_gpu_process_sdma_seconds_total", "Time that its copies took.", labels, process.sdma_seconds
    )
    families.counter(
        "rocmlab_gpu_process_evicted_seconds_total", "Time for which it was put aside for others.", labels,
        process.evicted_seconds,
    )  # fmt: skip
    families.gauge(
        "rocmlab_gpu_process_kernel_idle_seconds",
        "Time since the last work of the kernel that it belongs to; absent while the kernel works.",
        labels,
        owner.idle_seconds,
    )
