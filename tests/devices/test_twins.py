"""Synthetic twins of what public captures show: small hosts of the same class, written here, so that everyone has them.

`scripts/fetch-captures` fetches the captures themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from hosts import Gpu, make_host, make_node, write_node

from rocmlab.cli.table import device_lines, table_lines
from rocmlab.devices import Device, discover, sample
from rocmlab.devices.model import device_id
from rocmlab.devices.rocm import Rocm
from rocmlab.telemetry.smi_table import table

BANK = ((1, 24 << 30),)
RADEON_SENSORS = {
    "hwmon/hwmon2/name": "radeon\n",
    "hwmon/hwmon2/temp1_input": "41000\n",
    "hwmon/hwmon2/temp1_crit": "120000\n",
    "hwmon/hwmon2/fan1_input": "900\n",
}


def device_rows(found: list[Device]) -> list[str]:
    """Return the first line of each in the table of `rocmlab devices`."""
    return [line for line in table_lines([device.as_dict() for device in found], 160) if line.startswith("HIP")]


class TestSupport:
    """Targets that ROCm has no kernels for, or that no list of it has."""

    @pytest.mark.parametrize(
        ("version", "word", "reason"),
        [
            (70001, "may not work", "no list of ROCm's targets has gfx701, so it may not work"),
            (80002, "may not work", "has gfx802"),
            (100103, "may not work", "has gfx1013"),
            (130000, "may not work", "has gfx1300"),
            (100102, "unsupported", "ROCm's usual packages have no kernels for gfx1012"),
            (100303, "wrong results", "install and compute wrong results (unsloth#8412)"),
        ],
    )
    def test_devices_says_what_the_doctor_says(self, tmp_path: Path, version: int, word: str, reason: str) -> None:
        """The process may use the GPU, and `yes` alone would be a promise."""
        found = Rocm().discover(make_host(tmp_path, Gpu(1, 0x0300, 128, gfx_target_version=version)))

        rows = [device.as_dict() for device in found]
        lines = table_lines(rows, 80)

        assert found[0].is_usable
        assert lines[1].endswith(word)
        assert reason in " ".join(" ".join(lines[2:]).split())
        assert device_lines(rows)[0].endswith(f"SIMULATED {word}")

    @pytest.mark.parametrize(
        ("environment", "support"),
        [
            ({"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}, ["overridden", "works", "wrong", "overridden"]),
            ({"HSA_OVERRIDE_GFX_VERSION_1": "10.3.0"}, ["overridden", "works", "wrong", "unsupported"]),
            ({"HSA_OVERRIDE_GFX_VERSION_9": "10.3.0"}, ["override", "works", "wrong", "unsupported"]),
            ({"HSA_OVERRIDE_GFX_VERSION": "gfx1030"}, ["override", "works", "wrong", "unsupported"]),
        ],
    )
    def test_an_override_is_seen_as_the_doctor_sees_it(
        self, tmp_path: Path, environment: dict[str, str], support: list[str]
    ) -> None:
        """A GPU that passes for a supported one has no caveat; one with wrong results keeps it."""
        versions = (100302, 110000, 100303, 100101)
        gpus = [Gpu(n, n << 8, 127 + n, gfx_target_version=v) for n, v in enumerate(versions, 1)]

        found = discover(make_host(tmp_path, *gpus), environment)[:4]

        assert [gpu.support for gpu in found] == support
        words = {"wrong": "wrong results", "unsupported": "unsupported"}
        shown = [
            line.rstrip().endswith(words.get(s, "yes")) for line, s in zip(device_rows(found), support, strict=True)
        ]
        assert shown == [True] * 4

    def test_a_supported_card_is_usable_without_a_remark(self, tmp_path: Path) -> None:
        """Also one that TensorFlow needs an override for, which the doctor knows how to set."""
        gpus = (Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129, gfx_target_version=100302))
        rows = [device.as_dict() for device in Rocm().discover(make_host(tmp_path, *gpus))]

        assert [line.endswith("yes") for line in table_lines(rows, 160)[1:]] == [True, True]


class TestPartitionsWithoutCards:
    """A KFD topology alone of eight MI300X in CPX mode, one of whose 64 nodes is missing."""

    def _host(self, root: Path) -> Path:
        make_host(root)
        node = 2
        for gpu in range(8):
            for part in range(8):
                if (gpu, part) == (3, 0):
                    continue
                card = Gpu(node, (0x05 + 0x10 * gpu) << 8 | part, 126 + node, 90402, 0x74A1, 0xA000 + gpu, banks=BANK)
                write_node(root, node, card)
                make_node(root / f"dev/dri/renderD{card.minor}")
                node += 1
        return root

    def test_nodes_that_share_a_unique_id_are_partitions_of_one_gpu(self, tmp_path: Path) -> None:
        """Older kernels number them as PCI functions, so that their addresses differ."""
        found, problems = Rocm().examine(self._host(tmp_path))

        assert (len(found), problems) == (63, [])
        assert {gpu.pci_address for gpu in found} == {f"0000:{0x05 + 0x10 * gpu:02x}:00.0" for gpu in range(8)}
        assert [gpu.partition for gpu in found[:8]] == list(range(8))
        assert [gpu.partition for gpu in found[24:31]] == list(range(1, 8))
        assert [gpu.index for gpu in found] == [gpu.smi_index for gpu in found] == list(range(63))

    def test_smi_groups_them_and_shows_their_memory(self, tmp_path: Path) -> None:
        """Two lines for each GPU, and nothing about sensors that no one reports."""
        rows = [
            device.as_dict() | {"id": device_id(device), "sample": None}
            for device in Rocm().discover(self._host(tmp_path))
        ]

        lines = ["".join(text for text, _ in line) for line in table(rows, {}, 120)][1:]

        assert len(lines) == 16
        assert lines[0].endswith("no reading, 24.0 GiB")
        assert lines[1].rstrip().endswith("7 more partitions, 24.0 GiB each")
        assert lines[7].rstrip().endswith("6 more partitions, 24.0 GiB each")

    def test_two_whole_gpus_with_one_id_stay_two(self, tmp_path: Path) -> None:
        """Cards that cannot be divided are where they are, whatever their unique ids."""
        found = Rocm().discover(make_host(tmp_path, Gpu(1, 0x0300, 128), Gpu(2, 0x0301, 129)))

        assert [(gpu.pci_address, gpu.partition) for gpu in found] == [("0000:03:00.0", None), ("0000:03:00.1", None)]


class TestApu:
    """An APU with VRAM of its own and more GTT, as Strix Halo has."""

    FILES: ClassVar[dict[str, str]] = {
        "mem_info_vram_used": f"{1 << 30}\n",
        "mem_info_gtt_total": f"{29 << 30}\n",
        "mem_info_gtt_used": f"{2 << 30}\n",
    }

    def look(self, tmp_path: Path, bank_gib: int) -> tuple[Device, dict, dict]:
        """Return the APU with a memory bank of this size, its row in tables, and a sample of it."""
        gpu = Gpu(1, 0xC500, 128, 110501, 0x1586, 0, vram_bytes=4 << 30, files=self.FILES, banks=((1, bank_gib << 30),))
        root = make_host(tmp_path, gpu)
        found = Rocm().discover(root)[0]
        return found, found.as_dict() | {"id": device_id(found)}, sample(found, root).as_dict()

    @pytest.mark.parametrize(
        ("bank_gib", "pool", "column", "reading"),
        [
            (29, "gtt", "29.0 GiB GTT", "GTT 2.0 of 29.0 GiB (hipMalloc is not counted); VRAM 1.0 of 4.0 GiB"),
            (4, "vram", "4.0 GiB VRAM", "VRAM 1.0 of 4.0 GiB; GTT 2.0 of 29.0 GiB (hipMalloc is not counted)"),
        ],
    )
    def test_both_memories_are_shown_the_one_of_frameworks_first(
        self, tmp_path: Path, bank_gib: int, pool: str, column: str, reading: str
    ) -> None:
        """KFD's bank is the one that HIP allocates from: GTT on newer kernels, VRAM before."""
        found, row, values = self.look(tmp_path, bank_gib)

        lines = table_lines([row | {"sample": values}], 200)
        screen = ["".join(text for text, _ in line) for line in table([row], {row["id"]: values}, 200)]

        assert found.pool == pool
        assert column in lines[1]
        assert lines[2].strip().startswith(reading)
        first, second = ("GTT 29.0", "VRAM 4.0") if pool == "gtt" else ("VRAM 4.0", "GTT 29.0")
        assert table_lines([row], 200)[2].strip() == f"{first} GiB, where frameworks allocate; {second} GiB"
        other = "VRAM 1.0/4.0" if pool == "gtt" else "GTT 2.0/29.0"
        assert f"frameworks allocate from {pool.upper()}; {other} GiB; hipMalloc does not count" in screen[-1]

    @pytest.mark.parametrize(("bank_gib", "most"), [(19, 19), (40, 29)])
    def test_the_smaller_of_two_limits_is_what_frameworks_can_allocate(
        self, tmp_path: Path, bank_gib: int, most: int
    ) -> None:
        """KFD's bank and the card's GTT have limits of their own; both sizes stay readable."""
        found, row, values = self.look(tmp_path, bank_gib)

        lines = table_lines([row], 200)
        screen = ["".join(text for text, _ in line) for line in table([row], {row["id"]: values}, 200)]

        assert (found.memory_bytes, found.pool_bytes, found.gtt_bytes) == (most << 30, most << 30, 29 << 30)
        assert f" {most}.0 GiB GTT " in lines[1]
        assert ("frameworks allocate at most 19.0 GiB;" in lines[2]) == (most == 19)
        assert any(f"2.0/{most}.0 GiB" in line for line in screen)


class TestOlderThanRocm:
    """Cards of GCN 1 and 2: R7 240, R9 280, HD 7870."""

    @pytest.mark.parametrize(
        ("device_id", "generation"),
        [
            (0x6613, "GCN 1 (Oland)"),
            (0x679A, "GCN 1 (Tahiti)"),
            (0x6818, "GCN 1 (Pitcairn)"),
            (0x6658, "GCN 2 (Bonaire)"),
        ],
    )
    @pytest.mark.parametrize("driver", ["radeon", "amdgpu", None])
    def test_its_generation_is_the_reason(
        self, tmp_path: Path, device_id: int, generation: str, driver: str | None
    ) -> None:
        """Whatever driver it has: no other driver, slot or kernel would help."""
        root = make_host(tmp_path, Gpu(None, 0x0100, 128, device_id=device_id, driver=driver))

        found = Rocm().discover(root)[0]

        assert found.why_not == f"it is {generation}, which ROCm has never supported"
        assert found.name == f"AMD {generation} 1002:{device_id:04x}"

    @pytest.mark.parametrize("device_id", [0x7550, 0x73FF, 0x67DF, 0x66A0])
    def test_a_newer_card_without_compute_node_is_not_called_old(self, tmp_path: Path, device_id: int) -> None:
        """RX 9070, RX 6600, RX 580, Radeon VII: the slot is the usual reason."""
        root = make_host(tmp_path, Gpu(None, 0x0100, 128, device_id=device_id))

        why_not = str(Rocm().discover(root)[0].why_not)

        assert "old" not in why_not
        assert "atomic" in why_not

    def test_the_sensors_of_radeon_are_read(self, tmp_path: Path) -> None:
        """Its first temperature has no label, and is the edge."""
        card = Gpu(None, 0x0100, 128, device_id=0x6818, driver="radeon", vram_bytes=None, files=RADEON_SENSORS)
        root = make_host(tmp_path, card)

        reading = sample(Rocm().discover(root)[0], root)

        assert (reading.edge_celsius, reading.edge_critical_celsius, reading.fan_rpm) == (41.0, 120.0, 900)
