"""The GPUs that AMD's HIP runtime finds on simulated hosts, against those that rocmlab finds on the same ones."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oracle_hip
import pytest

from rocmlab.devices import Device, discover, topology
from rocmlab.simulation import KINDS, write_host

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

HOSTS: dict[str, dict[str, Any]] = {
    "radeon": {"profile": "radeon", "gpus": 8},
    "radeon of several kinds": {"products": ("w7900", "rx7800xt", "rx9070xt", "rx7900xt"), "gpus": 4, "seed": 7},
    "radeon and a small GPU": {"gpus": 2, "faults": ("igpu",)},
    "instinct": {"profile": "instinct"},
    "two hives": {"profile": "instinct", "products": ("mi210",), "gpus": 16},
    "dpx": {"profile": "instinct", "partition": "dpx", "gpus": 2},
    "qpx": {"profile": "instinct", "partition": "qpx", "gpus": 2},
    "cpx": {"profile": "instinct", "partition": "cpx"},
    "cpx on an older driver": {
        "profile": "instinct",
        "partition": "cpx",
        "gpus": 2,
        "partitions_are_functions": True,
    },
    "apu": {"profile": "apu"},
    "mixed": {"profile": "mixed", "gpus": 4},
}
FIELDS: dict[str, Callable[[Device], Any]] = {  # of HIP's answer, from our description
    "address": lambda gpu: gpu.pci_address,
    "uuid": lambda gpu: gpu.unique_id or "XX",
    "gfx": lambda gpu: gpu.gfx,
    "units": lambda gpu: gpu.compute_units,
    "total": lambda gpu: gpu.memory_bytes,
    "free": lambda gpu: gpu.memory_bytes,
    "name": lambda gpu: gpu.name,
}
Applies = Callable[[Device, Any, Any], bool]  # to a device, HIP's value and ours
# All that differs, and why: (field, when, reason). The numbers of GPUs never differ.
KNOWN: tuple[tuple[str, Applies, str], ...] = (
    (
        "units",
        lambda gpu, theirs, ours: (gpu.architecture or "").startswith("RDNA") and ours == 2 * theirs,
        "HIP counts RDNA's work-group processors, of two compute units each",
    ),
    (
        "name",
        lambda gpu, theirs, ours: bool(gpu.serial),
        "HIP prints libdrm's name, rocmlab what the card's own memory says",
    ),
    (
        "name",
        lambda gpu, theirs, ours: bool(gpu.is_apu),
        "libdrm appends Graphics, or has no name of its own",
    ),
    (
        "address",
        lambda gpu, theirs, ours: bool(gpu.partition) and theirs[:-1] == ours[:-1],
        "older drivers number partitions by the function of the PCI address; rocmlab gives the card's",
    ),
)
XGMI = 4  # hsa_amd_link_info_type_t


@dataclass(frozen=True)
class Host:
    """A simulated host, what HIP finds there, and what rocmlab does."""

    theirs: list[dict[str, Any]]
    ours: list[Device]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the probe is compiled."""
    return tmp_path_factory.mktemp("built")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, built: Path) -> dict[str, Host]:
    """Every host, looked at once."""
    found = {}
    for turn, (name, options) in enumerate(HOSTS.items()):
        root = write_host(tmp_path_factory.mktemp("host") / str(turn), **options)
        found[name] = Host(oracle_hip.seen(root, built, whole=True)[0]["gpus"], usable(root))
    return found


def usable(root: Path) -> list[Device]:
    """Return the GPUs to which rocmlab gives a HIP index, in its order."""
    gpus = [device for device in discover(root, {}) if device.backend == "rocm" and device.index is not None]
    return sorted(gpus, key=lambda gpu: gpu.index or 0)


@pytest.mark.parametrize("name", HOSTS)
def test_hip_finds_the_same_gpus_in_the_same_order(hosts: dict[str, Host], name: str) -> None:
    """Number, order, PCI address, UUID, target, compute units, memory and name; differences have a reason in KNOWN."""
    host = hosts[name]
    unexplained = [
        f"GPU {gpu.index} {field}: HIP {theirs!r}, rocmlab {ours!r}"
        for gpu, answer in zip(host.ours, host.theirs, strict=True)
        for field, theirs, ours in compared(gpu, answer)
        if theirs != ours and not any(each == field and is_meant(gpu, theirs, ours) for each, is_meant, _ in KNOWN)
    ]

    assert unexplained == []
    assert [gpu.index for gpu in host.ours] == list(range(len(host.theirs)))
    assert host.theirs


def compared(gpu: Device, answer: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return each field with HIP's value and ours; HIP adds features to a target, such as gfx942:sramecc+:xnack-."""
    plain = {**answer, "gfx": answer["gfx"].partition(":")[0]}
    return [(field, plain[field], ours(gpu)) for field, ours in FIELDS.items()]


def test_every_known_difference_still_exists(hosts: dict[str, Host]) -> None:
    """One that is gone leaves the list."""
    pairs = [pair for host in hosts.values() for pair in zip(host.ours, host.theirs, strict=True)]
    seen = {
        reason
        for gpu, answer in pairs
        for field, theirs, ours in compared(gpu, answer)
        for each, is_meant, reason in KNOWN
        if each == field and theirs != ours and is_meant(gpu, theirs, ours)
    }

    assert seen == {reason for _, _, reason in KNOWN}


@pytest.mark.parametrize("name", HOSTS)
def test_xgmi_peers_are_those_of_the_hive(hosts: dict[str, Host], name: str) -> None:
    """HIP reports a link of XGMI between two GPUs exactly where rocmlab shows one hive."""
    host = hosts[name]
    theirs = [{peer for peer, kind, _ in answer["peers"] if kind == XGMI} for answer in host.theirs]
    ours = [
        {other.index for other in host.ours if gpu.xgmi_hive and other.xgmi_hive == gpu.xgmi_hive} - {gpu.index}
        for gpu in host.ours
    ]

    assert theirs == ours
    assert any(ours) == (HOSTS[name].get("profile") == "instinct")


@pytest.mark.parametrize("name", HOSTS)
def test_memory_is_granted_up_to_what_the_gpu_has(hosts: dict[str, Host], name: str) -> None:
    """An allocation reduces what is free by its size, and one of twice the memory is refused."""
    for answer in hosts[name].theirs:
        assert answer["free"] - answer["free_after"] == 1 << 28
        assert answer["too_much"] == 2  # hipErrorOutOfMemory


@pytest.mark.long
@pytest.mark.parametrize("profile", ["radeon", "instinct", "apu", "mixed"])
def test_faults_hide_the_same_gpus_from_both(tmp_path: Path, built: Path, profile: str) -> None:
    """With each fault, on one GPU and on all, HIP finds the GPUs that rocmlab calls usable."""
    differing = []
    for kind in KINDS:
        for fault in (kind, f"{kind}:0"):
            root = write_host(tmp_path / fault.replace(":", "-"), profile=profile, faults=[fault])
            theirs = oracle_hip.addresses(oracle_hip.seen(root, built)[0])
            ours = [gpu.pci_address for gpu in usable(root)]
            if theirs != ours:
                differing.append(f"{fault}: HIP {theirs}, rocmlab {ours}")

    assert differing == []


def test_hip_orders_a_real_topology_as_rocmlab_does(tmp_path: Path, built: Path, captures: Path) -> None:
    """Eight MI210 as a real kernel described them: HIP's indices are those of the nodes, its peers those of a hive.

    The capture has neither memory nor caches nor DRM: these are the simulated host's.
    """
    root = write_host(tmp_path, profile="instinct", products=("mi210",))
    nodes = root / "sys/devices/virtual/kfd/kfd/topology/nodes"
    shutil.copytree(captures / "kfd/mi210x8-xgmi/nodes", nodes, dirs_exist_ok=True)
    for path in nodes.glob("*/properties"):
        caches = len(list((path.parent / "caches").iterdir()))
        path.write_text(re.sub(r"(?m)^caches_count .*$", f"caches_count {caches}", path.read_text()))

    answers = oracle_hip.seen(root, built, whole=True)[0]["gpus"]

    real = topology.read(root).gpus
    hives = [{turn for turn, other in enumerate(real) if other.hive == node.hive} for node in real]
    assert [answer["address"] for answer in answers] == [node.pci_address for node in real]
    assert [answer["uuid"] for answer in answers] == [node.unique_id for node in real]
    assert [gpu.unique_id for gpu in usable(root)] == [node.unique_id for node in real]
    assert [
        {peer for peer, kind, _ in answer["peers"] if kind == XGMI} | {turn} for turn, answer in enumerate(answers)
    ] == hives
    assert sorted(answers, key=lambda answer: answer["address"]) != answers


def test_rocminfo_counts_compute_units_as_rocmlab_does(tmp_path: Path) -> None:
    """Below HIP, the runtime counts them one by one, on RDNA as well."""
    root = write_host(tmp_path, profile="mixed", gpus=4)
    printed = oracle_hip.start(root, "rocminfo", variables={"NO_COLOR": "1"})
    agents = [part for part in re.split(r"(?m)^Agent \d+", printed) if re.search(r"Device Type: +GPU", part)]
    units = [int(found[1]) for part in agents if (found := re.search(r"Compute Unit: +(\d+)", part))]

    assert units == [gpu.compute_units for gpu in usable(root)] == [96, 16, 64, 96]
