"""Real hardware, as captured: identity as its files say, read manually and written here."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import make_node

from rocmlab.devices import Device
from rocmlab.devices.rocm import Rocm

CARDS = {
    # name of the capture: pci_id, address, name, gfx, VRAM, GTT, width now and most, speed now and most, unique_id
    "rx580": (
        "67df",
        "0000:09:00.0",
        "AMD Radeon RX 580 Series",
        "gfx803",
        4294967296,
        8342712320,
        None,
        16,
        None,
        8.0,
        None,
    ),
    "vega56": (
        "687f",
        "0000:0b:00.0",
        "AMD Radeon RX Vega 56/64",
        "gfx900",
        8573157376,
        8342863872,
        16,
        16,
        8.0,
        8.0,
        None,
    ),
    "rx5700xt": (
        "731f",
        "0000:28:00.0",
        "AMD Radeon RX 5600/5700 XT",
        "gfx1010",
        None,
        None,
        16,
        None,
        16.0,
        None,
        None,
    ),
    "rx6900xt": (
        "73bf",
        "0000:0c:00.0",
        "AMD Radeon RX 6900 XT",
        "gfx1030",
        17163091968,
        16786171904,
        16,
        16,
        16.0,
        16.0,
        "946d7e1ef9b172dd",
    ),
    "rx7600s": (
        "7480",
        "0000:03:00.0",
        "AMD Radeon RX 7600 / 7600S/7700S",
        "gfx1102",
        None,
        None,
        8,
        None,
        16.0,
        None,
        None,
    ),
    "rx7800xt": (
        "747e",
        "0000:03:00.0",
        "AMD Radeon RX 7700 XT/7800 XT",
        "gfx1101",
        None,
        None,
        16,
        None,
        16.0,
        None,
        None,
    ),
    "rx7900xtx": (
        "744c",
        "0000:03:00.0",
        "AMD Radeon RX 7900 XTX/XT/GRE",
        "gfx1100",
        None,
        None,
        16,
        None,
        16.0,
        None,
        None,
    ),
    "rx9070xt": (
        "7550",
        "0000:0f:00.0",
        "AMD Radeon RX 9070/9070 XT",
        "gfx1201",
        None,
        None,
        16,
        None,
        32.0,
        None,
        None,
    ),
    "strixpoint": (
        "150e",
        "0000:c1:00.0",
        "AMD Radeon 880M",
        "gfx1150",
        536870912,
        16441004032,
        16,
        16,
        16.0,
        16.0,
        None,
    ),
}
ARCHITECTURES = {
    "rx580": "GCN4",
    "vega56": "GCN5.0",
    "rx5700xt": "RDNA1",
    "rx6900xt": "RDNA2",
    "rx7600s": "RDNA3",
    "rx7800xt": "RDNA3",
    "rx7900xtx": "RDNA3",
    "rx9070xt": "RDNA4",
    "strixpoint": "RDNA3.5",
}
# node, address, render node, unique_id (decimal, as the file has it)
MI210 = [
    (2, "0000:63:00.0", 128, 1801979520617338022),
    (3, "0000:43:00.0", 129, 5847760019078012339),
    (4, "0000:03:00.0", 130, 10645161697164847644),
    (5, "0000:26:00.0", 131, 4847253685048710349),
    (6, "0000:e3:00.0", 132, 12585367064092601175),
    (7, "0000:c3:00.0", 133, 11779194899033552202),
    (8, "0000:83:00.0", 134, 17888023871577450191),
    (9, "0000:a3:00.0", 135, 14073402507705256557),
]


def _card_host(captures: Path, name: str, root: Path) -> Path:
    card = next((captures / "cards" / name).glob("card*"))
    (root / "sys/class/drm").mkdir(parents=True)
    (root / "sys/class/drm" / card.name).symlink_to(card)
    return root


def _kfd_host(nodes: Path, root: Path, *minors: int) -> Path:
    (root / "sys/class/kfd/kfd/topology").mkdir(parents=True)
    (root / "sys/class/kfd/kfd/topology/nodes").symlink_to(nodes)
    for name in ("kfd", *(f"dri/renderD{minor}" for minor in minors)):
        make_node(root / "dev" / name)
    return root


@pytest.mark.parametrize("name", CARDS)
def test_every_card_has_the_identity_of_its_files(captures: Path, tmp_path: Path, name: str) -> None:
    """A card alone, without KFD and device nodes, is listed as what it is and as not usable."""
    device = Rocm().discover(_card_host(captures, name, tmp_path))[0]

    assert CARDS[name] == (
        str(device.pci_id).removeprefix("1002:"),
        device.pci_address,
        device.name,
        device.gfx,
        device.vram_bytes,
        device.gtt_bytes,
        device.link_width,
        device.link_width_max,
        device.link_speed_gts,
        device.link_speed_max_gts,
        device.unique_id,
    )
    assert ARCHITECTURES[name] == device.architecture
    assert device.is_apu is (name == "strixpoint")
    assert (device.driver, device.numa_node, device.serial) == ("amdgpu", None, None)
    assert (device.index, device.smi_index, device.is_usable) == (None, None, False)


def test_the_eight_mi210_have_the_identity_of_their_files(captures: Path, tmp_path: Path) -> None:
    """All eight, in the order of their nodes, although the capture lacks gpu_id, name and mem_banks."""
    root = _kfd_host(captures / "kfd/mi210x8-xgmi/nodes", tmp_path, *range(128, 136))

    found = Rocm().discover(root)

    assert [(gpu.kfd_node, gpu.pci_address, gpu.render_node, gpu.unique_id) for gpu in found] == [
        (node, address, f"/dev/dri/renderD{minor}", f"{unique:016x}") for node, address, minor, unique in MI210
    ]
    assert list(range(8)) == [gpu.index for gpu in found]
    assert {("AMD Instinct MI210", "gfx90a", "CDNA2", 104, False, "1002:740f")} == {
        (gpu.name, gpu.gfx, gpu.architecture, gpu.compute_units, gpu.is_apu, gpu.pci_id) for gpu in found
    }
    assert [f"{12609507387757274807:016x}"] * 4 + [f"{18091350218769748594:016x}"] * 4 == [
        gpu.xgmi_hive for gpu in found
    ]
    assert {(None, None)} == {(gpu.kfd_id, gpu.vram_bytes) for gpu in found}


def test_rocm_smi_numbers_the_eight_mi210_differently(captures: Path, tmp_path: Path) -> None:
    """In the order of rocm-smi their HIP indices are 2, 3, 1, 0, 6, 7, 5, 4, as amd-smi prints them."""
    root = _kfd_host(captures / "kfd/mi210x8-xgmi/nodes", tmp_path, *range(128, 136))

    found = sorted(Rocm().discover(root), key=lambda gpu: gpu.smi_index or 0)

    assert [gpu.index for gpu in found] == [2, 3, 1, 0, 6, 7, 5, 4]


def test_a_container_with_two_of_the_eight(captures: Path, tmp_path: Path) -> None:
    """HIP renumbers from 0 over what was passed; rocm-smi's numbers stay, because it counts from sysfs."""
    root = _kfd_host(captures / "kfd/mi210x8-xgmi/nodes", tmp_path, 130, 133)

    usable = [gpu for gpu in Rocm().discover(root) if gpu.is_usable]

    assert [(gpu.index, gpu.smi_index, gpu.pci_address) for gpu in usable] == [
        (0, 0, "0000:03:00.0"),
        (1, 6, "0000:c3:00.0"),
    ]


def test_the_vega_of_an_old_kernel(captures: Path, tmp_path: Path) -> None:
    """No gfx_target_version and no domain: the target comes from the table, the VRAM from the bank.

    Node 2 of the capture is a copy of node 1, which is a contradiction.
    """
    root = _kfd_host(captures / "kfd/vega10x1/topology/nodes", tmp_path, 128, 129)

    found, problems = Rocm().examine(root)

    assert {("AMD Radeon Instinct MI25", "gfx900", "0000:19:00.0", 64, 17163091968, 13261)} == {
        (gpu.name, gpu.gfx, gpu.pci_address, gpu.compute_units, gpu.vram_bytes, gpu.kfd_id) for gpu in found
    }
    assert [gpu.unique_id for gpu in found] == [f"{14073402507705256556:016x}", f"{14073402507705256557:016x}"]
    assert [problem.what for problem in problems] == ["KFD node 2 is at 0000:19:00.0, where another node is already"]


def test_strix_point_with_its_topology(captures: Path, tmp_path: Path) -> None:
    """The APU's node has no CPU cores and its bank is the limit of GTT; 24 SIMDs are 12 compute units."""
    root = _card_host(captures, "strixpoint", tmp_path)
    (root / "sys/class/kfd").mkdir()
    (root / "sys/class/kfd/kfd").symlink_to(captures / "cards/strixpoint/kfd")
    for name in ("kfd", "dri/renderD128"):
        make_node(root / "dev" / name)

    device = Rocm().discover(root)[0]

    expected = Device(
        backend="rocm",
        index=0,
        name="AMD Radeon 880M",
        is_usable=True,
        gfx="gfx1150",
        pci_address="0000:c1:00.0",
        render_node="/dev/dri/renderD128",
        vram_bytes=536870912,
        simulated=True,
        smi_index=0,
        kfd_node=1,
        kfd_id=59419,
        card_node="/dev/dri/card1",
        pci_id="1002:150e",
        architecture="RDNA3.5",
        support="works",
        compute_units=12,
        is_apu=True,
        gtt_bytes=16441004032,
        pool="gtt",
        pool_bytes=16441004032,
        link_width=16,
        link_width_max=16,
        link_speed_gts=16.0,
        link_speed_max_gts=16.0,
        driver="amdgpu",
    )
    assert expected == device
