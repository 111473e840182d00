"""Metrics for Prometheus: the values of a sample in base units, safe labels, nothing that is unknown."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import prometheus_tools as tools
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from rocmlab import devices
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, Sample
from rocmlab.simulation import PROFILES, write_host
from rocmlab.telemetry import metrics
from rocmlab.telemetry.model import GpuProcess, Owner, Snapshot, device_id

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.4"


def read(root: Path) -> tuple[list[Device], Snapshot]:
    """Sample a simulated host once."""
    found = devices.discover(root, {})
    samples = {device_id(device): devices.sample(device, root) for device in found}
    return found, Snapshot(1000.5, samples, dict.fromkeys(samples, 12.5))


def series(text: bytes) -> Series:
    """Parse the older text; a series that comes twice is an error."""
    found: Series = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def of(found: Series, name: str, **labels: str) -> list[float]:
    """Return the values of the series with this name and at least these labels."""
    return [value for (other, given), value in found.items() if other == name and labels.items() <= dict(given).items()]


def gpus(found: Iterable[Device]) -> list[Device]:
    """Leave out the CPU."""
    return [device for device in found if device.backend != "cpu"]


@pytest.fixture(params=sorted(PROFILES))
def host(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[Device], Snapshot]:
    """A busy simulated host of each profile, with errors where its cards count any."""
    return read(write_host(tmp_path / "host", profile=request.param, busy="steady", faults=["ecc"]))


def test_values_are_those_of_the_sample_in_base_units(host: tuple[list[Device], Snapshot]) -> None:
    """Each known field of each GPU comes with its labels, and no field that is unknown comes at all."""
    found, snapshot = host
    written = series(metrics.exposition(snapshot, found)[0])

    for gpu in gpus(found):
        sample = snapshot.samples[device_id(gpu)]
        where = {"pci": gpu.pci_address or "", "gpu": str(gpu.index), "smi_index": str(gpu.smi_index)}
        expected = {
            ("busy_ratio", ""): sample.busy_percent and sample.busy_percent / 100,
            ("memory_busy_ratio", ""): sample.memory_busy_percent and sample.memory_busy_percent / 100,
            ("vram_used_bytes", ""): sample.vram_used_bytes,
            ("vram_total_bytes", ""): sample.vram_total_bytes,
            ("gtt_used_bytes", ""): sample.gtt_used_bytes,
            ("gtt_total_bytes", ""): sample.gtt_total_bytes,
            ("power_watts", ""): sample.power_watts,
            ("power_cap_watts", ""): sample.power_cap_watts,
            ("temperature_celsius", "edge"): sample.edge_celsius,
            ("temperature_celsius", "junction"): sample.junction_celsius,
            ("temperature_celsius", "memory"): sample.memory_celsius,
            ("temperature_critical_celsius", "junction"): sample.junction_critical_celsius,
            ("clock_hertz", "core"): sample.core_clock_hertz,
            ("clock_hertz", "memory"): sample.memory_clock_hertz,
            ("voltage_volts", ""): sample.voltage_volts,
            ("fan_rpm", ""): sample.fan_rpm,
            ("fan_ratio", ""): sample.fan_percent and sample.fan_percent / 100,
            ("pcie_link_width_lanes", ""): sample.link_width,
            ("pcie_link_transfers_per_second", ""): sample.link_speed_gts and sample.link_speed_gts * 1e9,
            ("pcie_replays_total", ""): sample.pcie_replays,
            ("energy_joules_total", ""): 12.5,
            ("up", ""): 1,
        }
        for (name, part), value in expected.items():
            more = {"domain" if name.startswith("clock") else "sensor": part} if part else {}
            assert of(written, f"rocmlab_gpu_{name}", **where, **more) == ([] if value is None else [value]), name


def test_everything_simulated_says_so(host: tuple[list[Device], Snapshot]) -> None:
    """No series of a simulated host can be taken for hardware."""
    found, snapshot = host

    written = series(metrics.exposition(snapshot, found, names="both")[0])

    assert written
    assert all(("simulated", "1") in labels for _, labels in written)
    real = [replace(device, simulated=False) for device in found]
    assert not any("simulated" in dict(labels) for _, labels in series(metrics.exposition(snapshot, real)[0]))


def test_errors_and_reasons_come_by_name(tmp_path: Path) -> None:
    """ECC counts by block and severity; a reason to throttle is there while it applies."""
    instinct, at_work = read(write_host(tmp_path / "mi", profile="instinct", gpus=1, faults=["ecc"]))
    radeon, busy = read(write_host(tmp_path / "rx", gpus=1, busy="steady"))
    _, idle = read(write_host(tmp_path / "idle", gpus=1))

    counted = series(metrics.exposition(at_work, instinct)[0])
    held_back, free = (series(metrics.exposition(each, radeon)[0]) for each in (busy, idle))

    assert of(counted, "rocmlab_gpu_ecc_errors_total", block="umc", severity="uncorrected") == [2]
    assert of(counted, "rocmlab_gpu_ecc_errors_total", block="umc", severity="corrected") == [117]
    assert of(counted, "rocmlab_gpu_throttled") == []  # its revision of gpu_metrics does not tell
    assert of(held_back, "rocmlab_gpu_throttle_active", reason="PPT0") == [1]
    assert of(held_back, "rocmlab_gpu_throttled") == [1]
    assert (of(free, "rocmlab_gpu_throttle_active"), of(free, "rocmlab_gpu_throttled")) == ([], [0])


def test_the_cpu_is_no_gpu(host: tuple[list[Device], Snapshot]) -> None:
    """A host's CPU is a device of ours, and has no series here."""
    found, snapshot = host

    written = series(metrics.exposition(snapshot, found, names="both")[0])

    assert of(written, "rocmlab_gpus") == [len(gpus(found))]
    assert not any(dict(labels).get("model") == found[-1].name for _, labels in written)


def test_a_device_that_says_nothing_is_down() -> None:
    """Without a sample, with an empty one, or with the link alone; but not asleep, and not a partition."""
    gpu = Device("rocm", 0, "card", True, pci_address="0000:03:00.0")
    asleep, empty = Sample(1.0, is_asleep=True), Sample(1.0)

    def up(device: Device, sample: Sample | None) -> list[float]:
        samples = {} if sample is None else {device_id(device): sample}
        return of(series(metrics.exposition(Snapshot(1.0, samples), [device])[0]), "rocmlab_gpu_up")

    assert up(gpu, None) == up(gpu, empty) == [0]
    assert up(gpu, Sample(1.0, link_width=16, link_speed_gts=16.0)) == [0]  # readable without a driver
    assert up(gpu, asleep) == up(replace(gpu, partition=0), Sample(1.0, busy_percent=0.0)) == [1]
    assert up(replace(gpu, partition=1), empty) == []
    assert up(replace(gpu, partition=1), None) == [0]  # it is missing


def test_partitions_answer_with_their_card(tmp_path: Path) -> None:
    """A partition has no sensors of its own, and counts as answering if the first one of its card does."""
    found, snapshot = read(write_host(tmp_path / "host", profile="instinct", gpus=2, partition="cpx"))
    first = next(name for name, sample in snapshot.samples.items() if sample.busy_percent is not None)
    silent = replace(snapshot, samples={**snapshot.samples, first: Sample(1.0)})

    counts = [of(series(metrics.exposition(one, found)[0]), "rocmlab_gpus") for one in (snapshot, silent)]

    assert counts == [[16], [8]]


def test_partitions_of_one_card_are_apart(tmp_path: Path) -> None:
    """Eight partitions share a PCI address and differ in the label `partition`."""
    found, snapshot = read(write_host(tmp_path / "host", profile="instinct", gpus=1, partition="cpx"))

    written = series(metrics.exposition(snapshot, found, names="both")[0])

    assert len({dict(labels)["partition"] for name, labels in written if name == "rocmlab_gpu_info"}) == 8
    assert len(of(written, "rocmlab_gpu_busy_ratio")) == 1


def process(**known: object) -> GpuProcess:
    """A process on the card 0000:03:00.0."""
    return GpuProcess(**{"device": "0000:03:00.0", "pid": 42, **known})  # type: ignore[arg-type]


CARD = Device("rocm", 0, "card", True, pci_address="0000:03:00.0", compute_units=96)


def test_processes_come_with_their_notebook() -> None:
    """What a process has, and all that is known of its owner."""
    owner = Owner("kernel", notebook="a/b.ipynb", kernel_id="k", run="r", job="j", container="c", idle_seconds=60.0)
    one = process(
        name="python", user="ada", vram_bytes=5, compute_units_percent=25.0, sdma_seconds=1.5, evicted_seconds=2.0,
        owner=owner, is_estimated=True,
    )  # fmt: skip

    written = series(metrics.exposition(Snapshot(1.0, {}, processes=(one, process(pid=7))), [CARD])[0])

    known = {"pid": "42", "process": "python", "user": "ada", "owner": "kernel", "notebook": "a/b.ipynb"}
    known |= {"kernel_id": "k", "run": "r", "job": "j", "container": "c", "estimated": "1", "pci": "0000:03:00.0"}
    assert of(written, "rocmlab_gpu_process_vram_bytes", **known) == [5]
    assert of(written, "rocmlab_gpu_process_compute_units_ratio", **known) == [0.25]
    assert of(written, "rocmlab_gpu_process_sdma_seconds_total", **known) == [1.5]
    assert of(written, "rocmlab_gpu_process_evicted_seconds_total", **known) == [2]
    assert of(written, "rocmlab_gpu_process_kernel_idle_seconds", **known) == [60]
    assert not any(dict(labels).get("pid") == "7" for _, labels in written)  # of which nothing is known


def test_leases_come_with_their_notebook() -> None:
    """One series for each GPU that is held; a lease of a GPU that is missing is omitted."""
    held = [("0000:03:00.0", "mnist.ipynb"), ("0000:99:00.0", "elsewhere.ipynb")]

    written = series(metrics.exposition(Snapshot(1.0, {}), [CARD], leases=held)[0])

    assert of(written, "rocmlab_lease_held", notebook="mnist.ipynb", gpu="0") == [1]
    assert len(of(written, "rocmlab_lease_held")) == 1


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ('<script>"\\\n.ipynb', '<script>"\\\n.ipynb'),
        ("\u202egnp.ipynb", "\u202egnp.ipynb"),
        ("a\x00\x1b[31m.ipynb", "a\ufffd\ufffd[31m.ipynb"),
        ("no utf-8: \udcff", "no utf-8: ?"),
        ("x" * 10_000, "x" * 199 + "…"),
    ],
)
def test_hostile_names_stay_text(name: str, kept: str, accept: str) -> None:
    """Whatever a notebook is called, the exposition can be read, and no label is longer than 200 characters."""
    snapshot = Snapshot(1.0, {}, processes=(process(vram_bytes=5, owner=Owner("kernel", notebook=name)),))

    text = metrics.exposition(snapshot, [CARD], names="both", accept=accept)[0].decode()

    parse = openmetrics.text_string_to_metric_families if accept else text_string_to_metric_families
    samples = [sample for family in parse(text) for sample in family.samples]
    found = {sample.labels["notebook"] for sample in samples if "notebook" in sample.labels}
    assert found == {kept}


def test_the_same_process_twice_is_one_series() -> None:
    """A series that comes twice would make Prometheus refuse all of them."""
    twice = Snapshot(1.0, {}, processes=(process(vram_bytes=5), process(vram_bytes=6)))

    assert of(series(metrics.exposition(twice, [CARD])[0]), "rocmlab_gpu_process_vram_bytes") == [5]


def test_openmetrics_is_for_who_accepts_it(host: tuple[list[Device], Snapshot]) -> None:
    """Prometheus gets OpenMetrics with units, curl the older text, with the same series in it."""
    found, snapshot = host

    modern, modern_type = metrics.exposition(snapshot, found, names="both", accept=OPENMETRICS)
    plain, plain_type = metrics.exposition(snapshot, found, names="both", accept="*/*")

    assert modern_type.startswith("application/openmetrics-text")
    assert plain_type.startswith("text/plain")
    families = list(openmetrics.text_string_to_metric_families(modern.decode()))
    read_back = {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}
    assert read_back == series(plain)
    assert {family.name: family.unit for family in families}["rocmlab_gpu_power_watts"] == "watts"


def test_counters_are_counters(host: tuple[list[Device], Snapshot]) -> None:
    """All names that end with `_total` are counters, and no other is; AMD's own names are gauges, as there."""
    found, snapshot = host

    families = list(text_string_to_metric_families(metrics.exposition(snapshot, found)[0].decode()))
    theirs = text_string_to_metric_families(metrics.exposition(snapshot, found, names="amd")[0].decode())

    counters = {sample.name for family in families if family.type == "counter" for sample in family.samples}
    assert counters == {
        sample.name for family in families for sample in family.samples if sample.name.endswith("_total")
    }
    assert "rocmlab_gpu_energy_joules_total" in counters
    assert {family.type for family in theirs} == {"gauge"}


def test_promtool_has_nothing_to_say(host: tuple[list[Device], Snapshot]) -> None:
    """`promtool check metrics` finds no name, unit or help text to complain of in ours."""
    found, snapshot = host
    one = process(device=device_id(found[0]), vram_bytes=5, sdma_seconds=1.0, compute_units_percent=1.0)
    whole = replace(snapshot, processes=(replace(one, owner=Owner("kernel", idle_seconds=1.0)),))
    leases = [(device_id(found[0]), "a.ipynb")]

    done = tools.run(
        tools.promtool(), "check", "metrics", text=metrics.exposition(whole, found, leases=leases)[0].decode()
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_unknown_names_are_refused() -> None:
    """The error lists the names there are."""
    with pytest.raises(RocmlabError) as caught:
        metrics.exposition(Snapshot(1.0, {}), [], names="nvidia")

    assert caught.value.problem.fix == "choose one of: rocmlab, amd, both"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without prometheus_client the error says how to get it, or where else the metrics are."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(RocmlabError) as caught:
        metrics.exposition(Snapshot(1.0, {}), [])

    assert caught.value.problem.what == "prometheus_client is not installed"
    assert "/rocmlab/metrics" in caught.value.problem.fix
