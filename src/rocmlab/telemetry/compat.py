"""The same values under the names, labels and units of AMD's own exporter, so that AMD's Grafana dashboards work.

Source of the names: ROCm/device-metrics-exporter, docs/configuration/metricslist.md and grafana/dashboard_*.json
(2026-11). That exporter reads Instinct cards only; here Radeon cards and APUs answer as well, as far as their driver
tells. As there, everything is a gauge, memory is in MiB, energy in microjoules and clocks in MHz.

What the dashboards' queries demand of labels: `cluster_name` must not be empty (Prometheus refuses a selector whose
every matcher may be empty), `gpu_uuid` must distinguish GPUs, and `card_model`, the part number of the board, decides
which of two metrics is queried: power and temperature of an MI300, or of any other card.
"""

from __future__ import annotations

import os
import re
import socket
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from rocmlab.base.background import BackgroundReader
from rocmlab.devices import Device, Sample, roots
from rocmlab.telemetry.metrics_families import Families, Labels
from rocmlab.telemetry.model import GpuProcess, Snapshot, device_id, is_up

CLUSTER = "rocmlab"
VENDOR = "Advanced Micro Devices Inc. [AMD/ATI]"
MIB = 1 << 20
MEGA = 1e6
MICROJOULES = 1e6  # in a joule

TEXT_SECONDS = 0.5  # in which a text of the card is read, or is omitted until it comes
READER = BackgroundReader(TEXT_SECONDS)
_texts: dict[Hashable, str | None] = {}  # by file and card

# Part numbers of the MI300 family, whose socket power has a name of its own in the dashboards.
PACKAGE_POWER = re.compile(r"102-G302\d\d-")

# name, meaning, more labels, field of a Sample, what it is divided by
GAUGES: tuple[tuple[str, str, Mapping[str, str], str, float], ...] = (
    ("gpu_gfx_activity", "Share of time in which the graphics engine worked, percent.", {}, "busy_percent", 1),
    ("gpu_gfx_busy_instantaneous", "The same, by compute core.", {"xcc_index": "0"}, "busy_percent", 1),
    ("gpu_umc_activity", "Share of time in which the memory worked, percent.", {}, "memory_busy_percent", 1),
    ("gpu_edge_temperature", "Degrees Celsius at the edge.", {}, "edge_celsius", 1),
    ("gpu_junction_temperature", "Degrees Celsius at the hotspot.", {}, "junction_celsius", 1),
    ("gpu_memory_temperature", "Degrees Celsius of the memory.", {}, "memory_celsius", 1),
    ("gpu_power_usage", "Watts.", {}, "power_watts", 1),
    ("gpu_clock", "MHz.", {"clock_type": "system", "clock_index": "0"}, "core_clock_hertz", MEGA),
    ("gpu_clock", "MHz.", {"clock_type": "memory", "clock_index": "1"}, "memory_clock_hertz", MEGA),
    ("gpu_max_clock", "Highest MHz.", {"clock_type": "system", "clock_index": "0"}, "core_clock_max_hertz", MEGA),
    ("gpu_max_clock", "Highest MHz.", {"clock_type": "memory", "clock_index": "1"}, "memory_clock_max_hertz", MEGA),
    ("gpu_total_vram", "MiB of its own memory.", {}, "vram_total_bytes", MIB),
    ("gpu_used_vram", "MiB of it in use.", {}, "vram_used_bytes", MIB),
    ("gpu_total_gtt", "MiB of the host's memory that it may use.", {}, "gtt_total_bytes", MIB),
    ("gpu_used_gtt", "MiB of it in use.", {}, "gtt_used_bytes", MIB),
    ("pcie_speed", "PCIe gigatransfers per second.", {}, "link_speed_gts", 1),
    ("pcie_replay_count", "PCIe packets sent again.", {}, "pcie_replays", 1),
)


def add(
    families: Families,
    snapshot: Snapshot,
    gpus: Sequence[Device],
    leases: Sequence[tuple[str, str | None]] = (),
    root: Path | None = None,
) -> None:
    """Add the metrics of AMD's exporter for these GPUs; the arguments are those of `metrics.exposition`."""
    where = root or roots.system_root()
    jobs = _jobs(snapshot.processes or (), leases)
    host: dict[str, object] = {"hostname": socket.gethostname(), "cluster_name": CLUSTER}
    host["simulated"] = "1" if any(gpu.simulated for gpu in gpus) else None
    present = sum(device_id(gpu) in snapshot.samples for gpu in gpus)
    families.gauge("gpu_nodes_total", "GPUs of this host.", host, present)
    for place, gpu in enumerate(gpus):
        name = device_id(gpu)
        labels = labels_of(gpu, place, where) | {"job_id": jobs[name][0], "job_user": jobs[name][1]}
        sample = snapshot.samples.get(name)
        _add_device(families, gpu, labels, sample)
        energy = snapshot.energy_joules.get(name)
        if energy is not None:
            families.gauge("gpu_energy_consumed", "Microjoules.", labels, energy * MICROJOULES)
        for process in snapshot.processes or ():
            if process.device == name:
                _add_process(families, gpu, labels, process)


def labels_of(gpu: Device, place: int, root: Path) -> dict[str, object]:
    """Return AMD's labels of a GPU; `place` is its number where no tool has one. No sleeping card is woken."""
    folder = root / "sys/bus/pci/devices" / gpu.pci_address if gpu.pci_address else None
    number = next((number for number in (gpu.smi_index, gpu.index) if number is not None), place)
    is_amd = gpu.backend == "rocm"
    return {
        "hostname": socket.gethostname(),
        "cluster_name": CLUSTER,
        "gpu_id": number,
        "gpu_uuid": gpu.unique_id or device_id(gpu),  # consumer cards and APUs have none
        "gpu_partition_id": gpu.partition or 0,
        "gpu_compute_partition_type": (gpu.compute_partition or "").lower(),
        "gpu_memory_partition_type": (gpu.memory_partition or "").lower(),
        "serial_number": gpu.serial,
        "card_model": (_text(folder / "product_number", gpu) if folder else None) or gpu.pci_id or gpu.name,
        "card_series": gpu.name,
        "card_vendor": VENDOR if is_amd else None,
        "driver_version": (gpu.driver or "").removeprefix("amdgpu").strip(),
        "vbios_version": _text(folder / "vbios_version", gpu) if folder else None,
        "simulated": "1" if gpu.simulated else None,
    }


def _text(path: Path, gpu: Device) -> str | None:
    """Return a text that a card does not change: it is read once for each card, and waited for once if it hangs."""
    key = (path, gpu.unique_id, gpu.pci_id)

    def read() -> None:
        text = roots.read_text(path)
        if text is not None or not os.path.exists(path):
            _texts[key] = text  # also when the answer comes late; after an error the next call tries again

    if key not in _texts:
        READER.now(f"{path.name} of {device_id(gpu)}", read)
    return _texts.get(key)


def _jobs(
    processes: Sequence[GpuProcess], leases: Sequence[tuple[str, str | None]]
) -> defaultdict[str, tuple[str | None, str | None]]:
    """Return by device what AMD's exporter would know from Slurm: the job, here the notebook, and its user."""
    notebooks: dict[str, set[str]] = defaultdict(set)
    users: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        if process.owner and process.owner.notebook:
            notebooks[process.device].add(process.owner.notebook)
            if process.user:
                users[process.device].add(process.user)
    for name, notebook in leases:
        if notebook:
            notebooks[name].add(notebook)
    found: defaultdict[str, tuple[str | None, str | None]] = defaultdict(lambda: (None, None))
    for name, several in notebooks.items():
        found[name] = ",".join(sorted(several)), ",".join(sorted(users[name]))
    return found


def _add_device(families: Families, gpu: Device, labels: Labels, sample: Sample | None) -> None:
    named = {**labels, "GPU_UUID": labels["gpu_uuid"]}  # the overview's variable queries the label's earlier name
    families.gauge("gpu_health", "1 if it answers and has no uncorrected error.", named, _health(gpu, sample))
    families.gauge("pcie_max_speed", "Highest PCIe gigatransfers per second.", labels, gpu.link_speed_max_gts)
    if sample is None:
        return
    for name, meaning, more, field, divisor in GAUGES:
        value = getattr(sample, field)
        families.gauge(name, meaning, {**labels, **more}, None if value is None else value / divisor)
    volts = sample.voltage_volts
    families.gauge("gpu_gfx_voltage", "Millivolts of the core.", labels, None if volts is None else volts * 1000)
    # One or the other: the dashboards add the two up.
    is_package = PACKAGE_POWER.match(str(labels["card_model"]))
    name = "gpu_package_power" if is_package else "gpu_average_package_power"
    families.gauge(name, "Watts of the package.", labels, sample.power_watts)
    for kind, used, total in (
        ("vram", sample.vram_used_bytes, sample.vram_total_bytes),
        ("gtt", sample.gtt_used_bytes, sample.gtt_total_bytes),
    ):
        free = None if used is None or total is None else (total - used) / MIB
        families.gauge(f"gpu_free_{kind}", "MiB of it that are free.", labels, free)
    for kind, counts in (("correct", sample.ecc_corrected), ("uncorrect", sample.ecc_uncorrected)):
        if counts is None:
            continue
        families.gauge(f"gpu_ecc_{kind}_total", f"Errors in memories, {kind}ed by ECC.", labels, sum(counts.values()))
        for block, count in counts.items():
            name = f"gpu_ecc_{kind}_{re.sub(r'[^a-z0-9_]', '_', block.lower().removeprefix('pcie_'))}"
            families.gauge(name, f"Errors in one block, {kind}ed by ECC.", labels, count)


def _health(gpu: Device, sample: Sample | None) -> bool | None:
    """Return whether a GPU is healthy; None for a partition that has nothing to go by."""
    up = is_up(gpu, sample)
    if not up or sample is None:
        return up
    return not any((sample.ecc_uncorrected or {}).values())


def _add_process(families: Families, gpu: Device, labels: Labels, process: GpuProcess) -> None:
    share, units = process.compute_units_percent, gpu.compute_units
    families.gauge(
        "gpu_process_cu_occupancy",
        "Compute units that a process occupies at this instant.",
        {**labels, "process_id": process.pid, "job_id": process.owner.notebook if process.owner else None},
        None if share is None or units is None else share * units / 100,
    )
