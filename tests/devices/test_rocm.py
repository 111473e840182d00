"""AMD GPUs: what they are called and numbered, what they have, and who may use them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Gpu, make_host, write, write_node, write_partition

from rocmlab.devices import discover, sample, visibility
from rocmlab.devices.rocm import Rocm, rocm_version
from rocmlab.simulation import write_host

MI300X = 0x74A1


@pytest.fixture
def other_user() -> Iterator[Path]:
    """A folder for a test that runs as an ordinary user, whom permissions bind (root may open everything)."""
    folder = Path(tempfile.mkdtemp(prefix="rocmlab-test-"))
    folder.chmod(0o755)
    yield folder
    os.seteuid(os.getuid())
    shutil.rmtree(folder)


class TestNumbers:
    """Indices, addresses and nodes, which differ from each other."""

    def test_hip_index_follows_the_number_of_the_node_not_its_text(self, tmp_path: Path) -> None:
        """Node 10 comes after node 2, so its GPU has the higher HIP index; rocm-smi counts by PCI address."""
        root = make_host(tmp_path, Gpu(10, 0x0300, 128), Gpu(2, 0x8300, 129))

        found = Rocm().discover(root)

        assert [(gpu.index, gpu.smi_index, gpu.pci_address) for gpu in found] == [
            (0, 1, "0000:83:00.0"),
            (1, 0, "0000:03:00.0"),
        ]

    def test_pci_domain_other_than_zero_is_kept(self, tmp_path: Path) -> None:
        """Two GPUs on the same bus of different domains have different addresses, domain 0 first for rocm-smi."""
        root = make_host(
            tmp_path, Gpu(1, 0x0308, 128, domain=1), Gpu(2, 0x0308, 129), Gpu(3, 0x0308, 130, domain=0x10000)
        )

        found = Rocm().discover(root)

        assert [gpu.pci_address for gpu in found] == ["0001:03:01.0", "0000:03:01.0", "10000:03:01.0"]
        assert [gpu.smi_index for gpu in found] == [1, 0, 2]

    def test_cards_from_ten_on_are_found(self, tmp_path: Path) -> None:
        """The card node of each GPU is its own, also where the number has two digits."""
        root = make_host(tmp_path, *(Gpu(node, node << 8, 127 + node, card=node) for node in range(1, 13)))

        found = Rocm().discover(root)

        assert [f"/dev/dri/card{number}" for number in range(1, 13)] == [gpu.card_node for gpu in found]
        assert [f"/dev/dri/renderD{127 + number}" for number in range(1, 13)] == [gpu.render_node for gpu in found]

    def test_cards_are_joined_by_pci_address(self, tmp_path: Path) -> None:
        """Where KFD and DRM number render nodes differently, the card's files are those at the PCI address."""
        near = Gpu(1, 0x0300, 128, name="near", properties={"drm_render_minor": 129})
        far = Gpu(2, 0x0400, 129, name="far", properties={"drm_render_minor": 128})
        root = make_host(tmp_path, near, far)

        found, problems = Rocm().examine(root)

        assert [(gpu.name, gpu.render_node) for gpu in found] == [
            ("near", "/dev/dri/renderD129"),
            ("far", "/dev/dri/renderD128"),
        ]
        assert "node 1 is at 0000:03:00.0 and names renderD129" in problems[0].what

    def test_a_node_without_location_is_joined_by_its_render_node(self, tmp_path: Path) -> None:
        """The PCI address then comes from DRM, and the damage is reported."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, name="card", properties={"location_id": None}))

        found, problems = Rocm().examine(root)

        assert (found[0].name, found[0].pci_address) == ("card", "0000:03:00.0")
        assert "lacks location_id" in problems[0].what

    def test_kfd_id_and_node_are_told(self, tmp_path: Path) -> None:
        """They name the files of processes and links."""
        device = Rocm().discover(make_host(tmp_path, Gpu(3, 0x0300, 128)))[0]

        assert (device.kfd_node, device.kfd_id) == (3, 40003)


class TestIdentity:
    """What a GPU is."""

    @pytest.mark.parametrize(
        ("version", "gfx"),
        [
            (90010, "gfx90a"),
            (90402, "gfx942"),
            (110000, "gfx1100"),
            (110501, "gfx1151"),
            (80003, "gfx803"),
            (90012, "gfx90c"),
            (120001, "gfx1201"),
        ],
    )
    def test_gfx_target_is_spelled_in_hex(self, tmp_path: Path, version: int, gfx: str) -> None:
        """The decimal version of the topology becomes the name compilers use."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, gfx_target_version=version))

        assert gfx == Rocm().discover(root)[0].gfx

    def test_an_old_kernel_without_gfx_version_leaves_it_to_the_table(self, tmp_path: Path) -> None:
        """Kernels before 5.12 do not tell the target; the PCI id does."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, device_id=0x6860, properties={"gfx_target_version": None}))

        assert Rocm().discover(root)[0].gfx == "gfx900"

    def test_unique_id_zero_is_unknown(self, tmp_path: Path) -> None:
        """APUs report 0, which identifies nothing."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, unique_id=0))

        assert Rocm().discover(root)[0].unique_id is None

    def test_the_cards_own_name_comes_first(self, tmp_path: Path) -> None:
        """Then the table's by revision, by device, and at last the PCI id: no GPU is dropped."""
        root = make_host(
            tmp_path,
            Gpu(1, 0x0300, 128, name="A Board"),
            Gpu(2, 0x0400, 129, files={"revision": "0xcc\n"}),
            Gpu(3, 0x0500, 130),
            Gpu(4, 0x0600, 131, device_id=0xFFF0),
        )

        assert [gpu.name for gpu in Rocm().discover(root)] == [
            "A Board",
            "AMD Radeon RX 7900 XT",
            "AMD Radeon RX 7900 XTX/XT/GRE",
            "AMD GPU 1002:fff0",
        ]

    def test_padding_and_control_characters_do_not_reach_the_name(self, tmp_path: Path) -> None:
        """Captures pad with NUL bytes; a name with an escape sequence is not a name."""
        padded = Gpu(1, 0x0300, 128, name="Board" + "\0" * 4090)
        coloured = Gpu(2, 0x0400, 129, name="\x1b[31mred", files={"revision": "0xc8\n"})

        found = Rocm().discover(make_host(tmp_path, padded, coloured))

        assert [gpu.name for gpu in found] == ["Board", "AMD Radeon RX 7900 XTX"]

    def test_everything_a_card_tells_is_read(self, tmp_path: Path) -> None:
        """Each field has the value of its file, with the unit of the model."""
        files = {
            "mem_info_gtt_total": "16786171904\n",
            "current_link_width": "8\n",
            "max_link_width": "16\n",
            "current_link_speed": "8.0 GT/s PCIe\n",
            "max_link_speed": "16.0 GT/s PCIe\n",
            "current_compute_partition": "SPX\n",
            "current_memory_partition": "NPS1\n",
            "numa_node": "1\n",
            "serial_number": "692231000123\n",
        }
        gpu = Gpu(
            1,
            0x0300,
            128,
            90402,
            MI300X,
            files=files,
            properties={"hive_id": 0xAB, "simd_count": 1216, "simd_per_cu": 4},
        )
        root = make_host(tmp_path, gpu)
        write(root / "sys/module/amdgpu/version", "6.12.12\n")

        device = Rocm().discover(root)[0]

        assert (device.name, device.architecture, device.compute_units) == ("AMD Instinct MI300X", "CDNA3", 304)
        assert (device.vram_bytes, device.gtt_bytes, device.is_apu) == (25753026560, 16786171904, False)
        assert (device.link_width, device.link_width_max) == (8, 16)
        assert (device.link_speed_gts, device.link_speed_max_gts) == (8.0, 16.0)
        assert (device.compute_partition, device.memory_partition, device.partition) == ("SPX", "NPS1", 0)
        assert (device.numa_node, device.serial, device.xgmi_hive) == (1, "692231000123", f"{0xAB:016x}")
        assert (device.driver, device.pci_id) == ("amdgpu 6.12.12", "1002:74a1")

    def test_the_driver_of_the_kernel_itself_has_the_kernels_release(self, tmp_path: Path) -> None:
        """Only a driver built outside the kernel has a version of its own."""
        assert Rocm().discover(make_host(tmp_path, Gpu(1, 0x0300, 128)))[0].driver == "amdgpu 6.12.0-test"

    def test_absent_is_not_zero(self, tmp_path: Path) -> None:
        """NUMA node -1, speed Unknown, width 0 and missing files are unknown."""
        files = {"numa_node": "-1\n", "current_link_speed": "Unknown\n", "current_link_width": "0\n"}
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, vram_bytes=None, files=files))

        device = Rocm().discover(root)[0]

        values = (device.numa_node, device.link_speed_gts, device.link_width, device.vram_bytes, device.partition)
        assert values == (None, None, None, None, None)

    def test_vram_of_a_silent_card_is_that_of_its_banks(self, tmp_path: Path) -> None:
        """Without a large BAR the frame buffer is two banks, public and private; system memory does not count."""
        banks = ((1, 268435456), (2, 8321499136), (0, 64 << 30))
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, vram_bytes=None, banks=banks))

        assert Rocm().discover(root)[0].vram_bytes == 8589934592

    def test_the_link_of_a_card_with_a_switch_is_that_of_the_slot(self, tmp_path: Path) -> None:
        """Behind its own PCIe switch a GPU always runs at full width; the port to the slot counts, also in samples."""
        root = make_host(tmp_path)
        port = root / "sys/devices/pci0000:00/0000:00:01.1"
        upstream, downstream = port / "0000:01:00.0", port / "0000:01:00.0/0000:02:00.0"
        gpu = downstream / "0000:03:00.0"
        for folder, vendor, kind, width in (
            (port, "0x1022", "0x060400", 16),
            (upstream, "0x1002", "0x060400", 4),
            (downstream, "0x1002", "0x060400", 16),
            (gpu, "0x1002", "0x030000", 16),
        ):
            write(folder / "vendor", vendor)
            write(folder / "class", kind)
            write(folder / "current_link_width", str(width))
            write(folder / "max_link_width", "16")
        write(gpu / "uevent", "DRIVER=amdgpu\nPCI_ID=1002:744C\n")
        (gpu / "drm/renderD128").mkdir(parents=True)
        (gpu / "drm/renderD128/device").symlink_to("../../../0000:03:00.0")
        (root / "sys/class/drm").mkdir(parents=True)
        (root / "sys/class/drm/renderD128").symlink_to(gpu / "drm/renderD128")
        write_node(root, 1, Gpu(1, 0x0300, 128))

        device = Rocm().discover(root)[0]

        assert (device.link_width, device.link_width_max) == (4, 16)
        assert sample(device, root).link_width == 4

    @pytest.mark.parametrize(
        ("lanes", "speed", "most"), [("8", "8.0 GT/s PCIe", (8, 8.0)), ("32", "64.0 GT/s PCIe", (16, 16.0))]
    )
    def test_the_maximum_of_a_link_is_what_both_ends_have(
        self, tmp_path: Path, lanes: str, speed: str, most: tuple[int, float]
    ) -> None:
        """A slot with fewer lanes or an older PCIe limits the card; a better one or an unknown one does not."""
        root = write_host(tmp_path, gpus=1)
        port = (root / f"sys/bus/pci/devices/{Rocm().discover(root)[0].pci_address}").resolve().parent
        (port / "max_link_width").write_text(f"{lanes}\n")
        (port / "max_link_speed").write_text(f"{speed}\n")

        (device,) = Rocm().discover(root)
        (port / "max_link_width").unlink()
        (port / "max_link_speed").write_text("Unknown\n")
        (alone,) = Rocm().discover(root)

        assert (device.link_width_max, device.link_speed_max_gts) == most
        assert (alone.link_width_max, alone.link_speed_max_gts) == (16, 16.0)

    def test_a_simulated_host_says_so(self, tmp_path: Path) -> None:
        """Whatever is read below another root than `/` is marked simulated, the CPU included."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128))

        assert all(device.simulated for device in discover(root, {}))


class TestApu:
    """GPUs that share the host's memory."""

    def test_an_apu_beside_a_card(self, tmp_path: Path) -> None:
        """The APU is told by its target, and keeps both its small VRAM and the host memory it may use."""
        files = {"mem_info_gtt_total": "16441004032\n"}
        apu = Gpu(2, 0xC500, 129, 110500, 0x150E, vram_bytes=536870912, files=files, banks=((1, 16441004032),))
        root = make_host(tmp_path, Gpu(1, 0x0300, 128), apu)

        card, inside = Rocm().discover(root)

        assert (card.is_apu, inside.is_apu) == (False, True)
        assert (inside.vram_bytes, inside.gtt_bytes, inside.name) == (536870912, 16441004032, "AMD Radeon 880M/890M")

    def test_a_node_with_cpu_cores_is_an_apu(self, tmp_path: Path) -> None:
        """Older kernels describe an APU as one node."""
        gpu = Gpu(1, 0x0300, 128, 90002, 0xFFF0, properties={"cpu_cores_count": 8})

        assert Rocm().discover(make_host(tmp_path, gpu))[0].is_apu is True

    def test_an_unknown_target_is_told_by_its_memory(self, tmp_path: Path) -> None:
        """KFD counts host memory of an APU, so that its bank is larger than its VRAM; equal sizes mean a card."""
        new = {"gfx_target_version": 130000, "device_id": 0xFFF0}
        root = make_host(
            tmp_path,
            Gpu(1, 0x0300, 128, **new, vram_bytes=1 << 29, banks=((1, 16 << 30),)),
            Gpu(2, 0x0400, 129, **new, vram_bytes=1 << 34, banks=((1, 1 << 34),)),
            Gpu(3, 0x0500, 130, **new, vram_bytes=None),
        )

        assert [gpu.is_apu for gpu in Rocm().discover(root)] == [True, False, None]

    def test_mi300a_shares_its_target_with_cards(self, tmp_path: Path) -> None:
        """Its PCI id tells."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, 90402, 0x74A0), Gpu(2, 0x0400, 129, 90402, MI300X))

        assert [gpu.is_apu for gpu in Rocm().discover(root)] == [True, False]


class TestPartitions:
    """One card as several GPUs."""

    def _host(self, root: Path, *, with_bits: bool) -> Path:
        files = {"current_compute_partition": "CPX\n", "current_memory_partition": "NPS1\n"}
        first = Gpu(1, 0x0500, 128, 90402, MI300X, vram_bytes=192 << 30, banks=((1, 24 << 30),), files=files)
        second = Gpu(5, 0x0300, 136, 90402, MI300X, vram_bytes=192 << 30, banks=((1, 24 << 30),), files=files, card=8)
        make_host(root, first, second)
        for number in range(1, 4):
            for gpu, node, minor in ((first, 1 + number, 128 + number), (second, 5 + number, 136 + number)):
                location = gpu.location | number << 28 if with_bits else gpu.location
                write_node(root, node, gpu, location_id=location, drm_render_minor=minor)
                write_partition(root, minor, minor - 128, minor)
        return root

    @pytest.mark.parametrize("with_bits", [True, False])
    def test_each_partition_is_a_gpu_of_its_own(self, tmp_path: Path, with_bits: bool) -> None:
        """Partitions share the address and have a number, nodes and memory of their own; on older kernels as well."""
        found = Rocm().discover(self._host(tmp_path, with_bits=with_bits))

        assert list(range(8)) == [gpu.index for gpu in found]
        assert [gpu.partition for gpu in found] == [0, 1, 2, 3, 0, 1, 2, 3]
        assert [gpu.pci_address for gpu in found] == ["0000:05:00.0"] * 4 + ["0000:03:00.0"] * 4
        assert {24 << 30} == {gpu.vram_bytes for gpu in found}
        assert {"CPX"} == {gpu.compute_partition for gpu in found}
        assert [f"/dev/dri/renderD{minor}" for minor in (128, 129, 130, 131, 136, 137, 138, 139)] == [
            gpu.render_node for gpu in found
        ]
        assert [f"/dev/dri/card{number}" for number in (0, 1, 2, 3, 8, 9, 10, 11)] == [gpu.card_node for gpu in found]

    @pytest.mark.parametrize("with_bits", [True, False])
    def test_partitions_of_a_card_that_is_no_first_function(self, tmp_path: Path, with_bits: bool) -> None:
        """A virtual function has partitions from 0 as well: the number is not the function of the card."""
        files = {"current_compute_partition": "DPX\n"}
        card = Gpu(1, 0x0502, 128, 90402, MI300X, vram_bytes=192 << 30, banks=((1, 96 << 30),), files=files)
        root = make_host(tmp_path, card)
        location = card.location | 1 << 28 if with_bits else card.location
        write_node(root, 2, card, location_id=location, drm_render_minor=129)
        write_partition(root, 1, 1, 129)

        found = Rocm().discover(root)

        assert [(gpu.pci_address, gpu.partition) for gpu in found] == [("0000:05:00.2", 0), ("0000:05:00.2", 1)]

    def test_a_partition_knows_the_id_of_its_board(self, tmp_path: Path) -> None:
        """KFD gives each an id of its own with newer drivers, and the card's is what rocm-smi prints."""
        found = Rocm().discover(write_host(tmp_path / "host", profile="instinct", gpus=2, partition="dpx"))
        boards = [gpu.board_id for gpu in found]

        assert len({gpu.unique_id for gpu in found}) == 4
        assert boards[0] == boards[1] != boards[2] == boards[3]
        assert visibility.select(found, f"GPU-{boards[0]}") == found[:2]
        whole = Rocm().discover(write_host(tmp_path / "whole", profile="instinct", gpus=1))
        assert whole[0].board_id == whole[0].unique_id

    def test_rocm_smi_counts_by_address_then_partition(self, tmp_path: Path) -> None:
        """The second card has the lower address, so its partitions come first there."""
        found = Rocm().discover(self._host(tmp_path, with_bits=True))

        assert [gpu.smi_index for gpu in found] == [4, 5, 6, 7, 0, 1, 2, 3]

    def test_spare_render_nodes_of_an_undivided_card_are_no_gpus(self, tmp_path: Path) -> None:
        """The driver makes a render node for each possible partition, whether it is in use or not."""
        root = make_host(tmp_path, Gpu(1, 0x0500, 128, 90402, MI300X))
        write_partition(root, 1, 1, 129)

        assert len(Rocm().discover(root)) == 1

    def test_two_nodes_at_one_address_of_a_card_without_partitions(self, tmp_path: Path) -> None:
        """Both are listed, and the contradiction is reported."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128))
        write_node(root, 2, Gpu(2, 0x0300, 128))

        found, problems = Rocm().examine(root)

        assert [gpu.partition for gpu in found] == [None, None]
        assert "node 2 is at 0000:03:00.0, where another node is already" in problems[0].what


class TestUsability:
    """Which GPUs this process may use, and why not the others."""

    def test_an_absent_render_node_takes_no_index(self, tmp_path: Path) -> None:
        """ROCm skips a GPU that was not passed to the container, so the next is HIP 0; rocm-smi counts it."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129), absent=(128,))

        first, second = Rocm().discover(root)

        assert (first.index, first.why_not) == (None, "/dev/dri/renderD128 is missing")
        assert (second.index, second.smi_index) == (0, 1)

    def test_without_kfd_no_gpu_is_usable(self, tmp_path: Path) -> None:
        """The GPU is still listed, with the reason."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128), kfd=False)

        assert [(d.is_usable, d.why_not) for d in Rocm().discover(root)] == [(False, "/dev/kfd is missing")]

    def test_one_forbidden_node_stops_all(self, other_user: Path) -> None:
        """ROCm fails for every GPU when one render node exists and may not be opened."""
        root = make_host(other_user / "host", Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129))
        for name in ("kfd", "dri/renderD128"):
            (root / "dev" / name).chmod(0o666)
        (root / "dev/dri/renderD129").chmod(0)
        if os.getuid() == 0:
            os.seteuid(65534)

        first, second = Rocm().discover(root)
        as_root = Rocm().discover(root, as_root=True)

        assert not first.is_usable
        assert "stops ROCm for all GPUs" in str(first.why_not)
        assert "cannot be opened" in str(second.why_not)
        assert [gpu.index for gpu in as_root] == [0, 1]

    def test_a_forbidden_node_of_another_makers_gpu_stops_nothing(self, other_user: Path) -> None:
        """ROCm opens the render nodes of its own GPUs only."""
        root = make_host(other_user / "host", Gpu(1, 0x0300, 129))
        (root / "dev/dri/renderD128").touch()
        for name in ("kfd", "dri/renderD129"):
            (root / "dev" / name).chmod(0o666)
        (root / "dev/dri/renderD128").chmod(0)
        if os.getuid() == 0:
            os.seteuid(65534)

        assert Rocm().discover(root)[0].is_usable

    @pytest.mark.parametrize(
        ("gpu", "why"),
        [
            (Gpu(None, 0x0300, 128, 80003, 0x67DF), "gives it no compute node"),
            (Gpu(None, 0x0300, 128, driver="vfio-pci"), "vfio-pci, which keeps it for a virtual machine"),
            (Gpu(None, 0x0300, 128, driver="radeon"), "bound to radeon; ROCm needs amdgpu"),
            (Gpu(None, 0x0300, 128, driver=None), "sudo modprobe amdgpu"),
        ],
    )
    def test_a_gpu_without_compute_node_is_listed_with_the_reason(self, tmp_path: Path, gpu: Gpu, why: str) -> None:
        """Neither HIP nor rocm-smi counts it, and the others keep their numbers."""
        root = make_host(tmp_path, gpu, Gpu(1, 0x0400, 129))

        usable, other = Rocm().discover(root)

        assert (usable.index, usable.smi_index) == (0, 0)
        assert (other.index, other.smi_index, other.pci_address) == (None, None, "0000:03:00.0")
        assert why in str(other.why_not)

    def test_a_node_that_a_container_may_not_read(self, tmp_path: Path) -> None:
        """Its GPU is listed from DRM as not passed, without a problem: that is how a restricted container looks."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129), absent=(129,))
        fault = {"sys/class/kfd/kfd/topology/nodes/2/properties": "EPERM"}
        (root / "rocmlab-faults.json").write_text(json.dumps(fault))

        devices, problems = Rocm().examine(root)

        assert [gpu.why_not for gpu in devices] == [None, "/dev/dri/renderD129 is missing"]
        assert problems == []

    def test_other_makers_devices_and_amd_sound_are_no_gpus(self, tmp_path: Path) -> None:
        """Only display and processing devices of vendor 1002 are listed."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128))
        for address, vendor, kind in (("0000:01:00.0", "0x10de", "0x030000"), ("0000:03:00.1", "0x1002", "0x040300")):
            write(root / f"sys/bus/pci/devices/{address}/vendor", vendor)
            write(root / f"sys/bus/pci/devices/{address}/class", kind)

        assert len(Rocm().discover(root)) == 1


def test_the_hosts_rocm_version_is_read(tmp_path: Path) -> None:
    """/opt/rocm/.info/version may carry a build number behind a dash."""
    (tmp_path / "opt/rocm/.info").mkdir(parents=True)
    (tmp_path / "opt/rocm/.info/version").write_text("7.2.1-81\n")

    assert rocm_version(tmp_path) == "7.2.1"
    assert rocm_version(tmp_path / "elsewhere") is None
