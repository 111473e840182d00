"""The names, labels and units of AMD's own exporter: what its four published dashboards ask for is answered.

The lists below are ours; their source is ROCm/device-metrics-exporter, grafana/dashboard_{gpu,job,node,overview}.json
(version 1.4.1) and docs/configuration/metricslist.md, read in 2026-11.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from panel_servers import Reads
from test_metrics_exposition import of, process, read, series

from rocmlab.devices import Device, Sample
from rocmlab.simulation import write_host
from rocmlab.telemetry import compat, metrics
from rocmlab.telemetry.model import Owner, Snapshot, device_id

# Metrics in the queries of the dashboards that a Radeon card can answer, and what else an Instinct card can.
RADEON = {
    "gpu_average_package_power",
    "gpu_edge_temperature",
    "gpu_energy_consumed",
    "gpu_gfx_activity",
    "gpu_gfx_busy_instantaneous",
    "gpu_health",
    "gpu_junction_temperature",
    "gpu_memory_temperature",
    "gpu_nodes_total",
    "gpu_total_vram",
    "gpu_used_vram",
    "pcie_max_speed",
    "pcie_replay_count",
}
INSTINCT = {"gpu_ecc_correct_total", "gpu_ecc_uncorrect_total"}
# No file of the driver tells these at a price that a look each second may have, or only a profiler can.
UNANSWERED = {
    "gpu_hbm_temperature",  # deprecated
    "pcie_bandwidth",  # the driver counts for a second before it answers
    "pcie_recovery_count",
    "pcie_replay_rollover_count",
    "pcie_nack_received_count",
    "pcie_nack_sent_count",
    "gpu_prof_sm_active",
    "gpu_prof_occupancy_per_cu",
    "gpu_prof_occupancy_per_active_cu",
    "gpu_prof_simd_utilization",
    "gpu_prof_tensor_active_percent",
    "gpu_prof_gui_util_percent",
}
LABELS = {  # in the queries, variables and tables of the dashboards; `pod` is Kubernetes' alone
    "card_model",
    "card_series",
    "card_vendor",
    "cluster_name",
    "driver_version",
    "gpu_id",
    "gpu_partition_id",
    "gpu_uuid",
    "hostname",
    "vbios_version",
}
MI300_PART = "102-G30211-00"  # one that the dashboards know


def names_of(text: bytes) -> set[str]:
    """Return the names of all series."""
    return {name for name, _ in series(text)}


def test_a_radeon_answers_what_the_dashboards_ask(tmp_path: Path) -> None:
    """All metrics but those that need ECC, each with all labels the dashboards select by."""
    root = write_host(tmp_path / "host", busy="steady")
    found, snapshot = read(root)

    written = series(metrics.exposition(snapshot, found, names="amd", root=root)[0])

    names = {name for name, _ in written}
    assert names >= RADEON
    assert not names & (UNANSWERED | INSTINCT | {"gpu_package_power"})
    for name, labels in written:
        assert name == "gpu_nodes_total" or {label for label, _ in labels} >= LABELS, name


def test_the_simulated_mi300x_is_one_that_the_dashboards_know(tmp_path: Path) -> None:
    """Its part number chooses the metric of its power; the overview's variable `GPU_UUID` has a value for each GPU."""
    root = write_host(tmp_path / "host", profile="instinct", gpus=2, busy="steady")
    found, snapshot = read(root)

    written = series(metrics.exposition(snapshot, found, names="amd", root=root)[0])

    assert len(of(written, "gpu_package_power", card_model=MI300_PART)) == 2
    uuids = {dict(labels).get("GPU_UUID") for name, labels in written if name == "gpu_health"}
    assert uuids == {gpu.unique_id for gpu in found if gpu.backend == "rocm"}


def test_an_instinct_answers_with_its_errors(tmp_path: Path) -> None:
    """It has no sensor at the edge; its blocks come by name."""
    root = write_host(tmp_path / "host", profile="instinct", gpus=1, faults=["ecc"])
    found, snapshot = read(root)

    written = series(metrics.exposition(snapshot, found, names="amd", root=root)[0])

    other = {"gpu_edge_temperature", "gpu_average_package_power"}  # an MI300 has a name of its own for its power
    assert {name for name, _ in written} >= ((RADEON | INSTINCT) - other) | {"gpu_package_power"}
    assert of(written, "gpu_ecc_correct_total") == [117]
    assert of(written, "gpu_ecc_uncorrect_umc") == [2]
    assert of(written, "gpu_ecc_correct_bif") == [0]  # sysfs calls that block pcie_bif
    assert of(written, "gpu_health") == [0]
    assert of(written, "gpu_clock", clock_type="system") == [132]


def test_an_apu_answers(tmp_path: Path) -> None:
    """Where the official exporter gives zeros or nothing; its models live in the host's memory."""
    root = write_host(tmp_path / "host", profile="apu", busy="steady")
    found, snapshot = read(root)

    written = series(metrics.exposition(snapshot, found, names="amd", root=root)[0])

    absent = {"gpu_junction_temperature", "gpu_memory_temperature"}
    assert {name for name, _ in written} >= RADEON - absent
    assert not {name for name, _ in written} & absent
    assert of(written, "gpu_used_gtt") == [snapshot.samples[device_id(found[0])].gtt_used_bytes / 2**20]  # type: ignore[operator]
    assert of(written, "gpu_gfx_activity", gpu_uuid=found[0].pci_address or "") == [97]


def test_units_are_those_of_amd() -> None:
    """Percent, MiB, microjoules, watts, MHz, GT/s, millivolts, compute units."""
    gpu = Device("rocm", 0, "card", True, pci_address="0000:03:00.0", compute_units=96, link_speed_max_gts=16.0)
    sample = Sample(
        1.0,
        busy_percent=50.0,
        vram_used_bytes=3 << 20,
        vram_total_bytes=10 << 20,
        power_watts=200.0,
        core_clock_hertz=2_498_000_000,
        link_speed_gts=8.0,
        voltage_volts=0.9,
    )
    one = process(compute_units_percent=25.0)
    snapshot = Snapshot(1.0, {device_id(gpu): sample}, {device_id(gpu): 1.5}, (one,))

    written = series(metrics.exposition(snapshot, [gpu], names="amd")[0])

    expected = {
        "gpu_gfx_activity": 50,
        "gpu_used_vram": 3,
        "gpu_free_vram": 7,
        "gpu_energy_consumed": 1_500_000,
        "gpu_average_package_power": 200,
        "gpu_power_usage": 200,
        "gpu_clock": 2498,
        "pcie_speed": 8,
        "pcie_max_speed": 16,
        "gpu_gfx_voltage": 900,
        "gpu_process_cu_occupancy": 24,
    }
    assert {name: of(written, name) for name in expected} == {name: [value] for name, value in expected.items()}


@pytest.mark.parametrize(
    ("part", "name"), [(MI300_PART, "gpu_package_power"), ("102-D65208-0C", "gpu_average_package_power")]
)
def test_power_has_the_name_that_the_part_number_is_asked_for(tmp_path: Path, part: str, name: str) -> None:
    """The dashboards add both names up, so a card has one of them: an MI300 the first, any other the second."""
    root = write_host(tmp_path / "host", profile="instinct", gpus=1, busy="steady")
    found, snapshot = read(root)
    (root / f"sys/bus/pci/devices/{found[0].pci_address}/product_number").write_text(f"{part}\n")

    written = series(metrics.exposition(snapshot, found, names="amd", root=root)[0])

    power = {"gpu_package_power", "gpu_average_package_power"} & {name for name, _ in written}
    assert power == {name}
    assert of(written, name, card_model=part) == [snapshot.samples[device_id(found[0])].power_watts]


def test_labels_tell_gpus_apart_in_amds_order(tmp_path: Path) -> None:
    """gpu_id is AMD's own number, which is not that of HIP; no two GPUs share a gpu_uuid; the host has its name."""
    root = write_host(tmp_path / "host", profile="instinct", gpus=4)
    found, snapshot = read(root)

    written = series(metrics.exposition(snapshot, found, names="amd", root=root)[0])

    labels = [dict(labels) for name, labels in written if name == "gpu_health"]
    by_id = {each["gpu_id"]: each["gpu_uuid"] for each in labels}
    assert by_id == {str(gpu.smi_index): gpu.unique_id for gpu in found if gpu.backend == "rocm"}
    assert len(set(by_id.values())) == 4
    assert {each["hostname"] for each in labels} == {socket.gethostname()}
    assert {each["cluster_name"] for each in labels} == {"rocmlab"}  # must not be empty


def test_the_notebook_is_the_job() -> None:
    """What Slurm's job is to AMD's exporter is the notebook here: that of the processes, or that of the lease."""
    gpu = Device("rocm", 0, "card", True, pci_address="0000:03:00.0")
    two = tuple(process(pid=pid, user="ada", owner=Owner("kernel", notebook=f"{pid}.ipynb")) for pid in (1, 2))
    sampled = {device_id(gpu): Sample(1.0, busy_percent=1.0)}

    shared = series(metrics.exposition(Snapshot(1.0, sampled, processes=two), [gpu], names="amd")[0])
    leased = series(
        metrics.exposition(Snapshot(1.0, sampled), [gpu], names="amd", leases=[(device_id(gpu), "3.ipynb")])[0]
    )
    free = series(metrics.exposition(Snapshot(1.0, sampled), [gpu], names="amd")[0])

    assert of(shared, "gpu_gfx_activity", job_id="1.ipynb,2.ipynb", job_user="ada") == [1]
    assert of(leased, "gpu_gfx_activity", job_id="3.ipynb") == [1]
    assert not any("job_id" in dict(labels) for _, labels in free)


def test_a_card_that_is_gone_is_unhealthy() -> None:
    """0 for one that is missing, nothing for a partition that has no sensors."""
    gpu = Device("rocm", 0, "card", True, pci_address="0000:03:00.0")
    partition = Device("rocm", 1, "card", True, pci_address="0000:06:00.0", partition=1)

    snapshot = Snapshot(1.0, {device_id(partition): Sample(1.0)})
    written = series(metrics.exposition(snapshot, [gpu, partition], names="amd")[0])

    assert of(written, "gpu_health") == [0]


def test_both_is_both(tmp_path: Path) -> None:
    """Ours and theirs do not share a name."""
    found, snapshot = read(write_host(tmp_path / "host", busy="steady"))

    ours, theirs, both = (
        names_of(metrics.exposition(snapshot, found, names=names)[0]) for names in ("rocmlab", "amd", "both")
    )

    assert both == ours | theirs
    assert not ours & theirs
    assert compat.PACKAGE_POWER.match(MI300_PART)


def test_texts_of_a_card_are_read_once(tmp_path: Path) -> None:
    """They do not change; counted by the kernel."""
    root = write_host(tmp_path / "host", profile="instinct", gpus=1)
    found, snapshot = read(root)
    folder = root / "sys/bus/pci/devices" / str(found[0].pci_address)
    with closing(Reads(folder / "vbios_version")) as reads:
        first = series(metrics.exposition(snapshot, found, names="amd", root=root)[0])
        assert reads.count() > 0
        second = series(metrics.exposition(snapshot, found, names="amd", root=root)[0])
        assert reads.count() == 0

    assert first == second
    assert {dict(labels)["vbios_version"] for name, labels in first if name == "gpu_gfx_activity"} != {""}


@pytest.mark.slow
def test_a_text_that_hangs_is_left_out_and_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card's values are there without it, the other card has it, and the next answer does not wait a minute."""
    root = write_host(tmp_path / "host", gpus=2, busy="steady", faults=["hang:0:vbios_version"])
    found, snapshot = read(root)

    first = series(metrics.exposition(snapshot, found, names="amd", root=root)[0])
    monkeypatch.setattr(compat.READER, "seconds", 60.0)  # so that waiting again is seen on any machine
    began = time.monotonic()
    metrics.exposition(snapshot, found, names="amd", root=root)

    assert time.monotonic() - began < 10
    versions = {
        dict(labels)["gpu_id"]: dict(labels).get("vbios_version", "")
        for name, labels in first
        if name == "gpu_gfx_activity"
    }
    assert sorted(map(bool, versions.values())) == [False, True]


def test_a_text_that_comes_late_is_known_to_the_next_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that always takes longer than a scrape waits is not missing for ever."""
    root = write_host(tmp_path / "host", gpus=1, busy="steady")
    found, _ = read(root)
    may_answer, real = threading.Event(), compat.roots.read_text
    monkeypatch.setattr(compat, "TEXT_SECONDS", 0.1)
    monkeypatch.setattr(compat, "READER", compat.BackgroundReader(0.1))
    monkeypatch.setattr(compat.roots, "read_text", lambda path: may_answer.wait(30) and real(path))

    first = compat.labels_of(found[0], 0, root)["vbios_version"]
    may_answer.set()
    end = time.monotonic() + 10
    while not (later := compat.labels_of(found[0], 0, root)["vbios_version"]) and time.monotonic() < end:
        time.sleep(0.01)

    assert first is None
    assert later
