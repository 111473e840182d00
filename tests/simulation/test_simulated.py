"""Simulated hosts: what is written, and that discovery takes it for what it is meant to be."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, discover, sample
from rocmlab.simulation import PRODUCTS, PROFILES, is_ours, write_host


def gpus(root: Path) -> list[Device]:
    """The AMD GPUs of a host, without masks."""
    return [device for device in discover(root, {}) if device.backend == "rocm"]


def digest(root: Path) -> str:
    """What all files, links and modes of a tree come to."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        kind = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found.update(f"{path.relative_to(root)} {path.lstat().st_mode:o} ".encode() + kind)
    return found.hexdigest()


class TestProfiles:
    """Each kind of host has the traits it stands for."""

    def test_radeon_cards_are_usable_and_named(self, tmp_path: Path) -> None:
        """Consumer cards are known by id, since their memory holds no name."""
        found = gpus(write_host(tmp_path, gpus=2))

        assert [(gpu.index, gpu.name, gpu.gfx, gpu.compute_units, gpu.is_usable) for gpu in found] == [
            (0, "AMD Radeon RX 7900 XTX", "gfx1100", 96, True),
            (1, "AMD Radeon RX 7900 XTX", "gfx1100", 96, True),
        ]
        assert all(gpu.simulated for gpu in found)

    def test_instinct_gpus_are_numbered_otherwise_by_hip_than_by_address(self, tmp_path: Path) -> None:
        """On two sockets HIP's order is not rocm-smi's, and all GPUs share a hive."""
        found = gpus(write_host(tmp_path, profile="instinct"))

        assert [gpu.index for gpu in found] == list(range(8))
        assert [gpu.smi_index for gpu in found] == [2, 3, 1, 0, 6, 7, 5, 4]
        assert len({gpu.xgmi_hive for gpu in found}) == 1
        assert {gpu.numa_node for gpu in found} == {0, 1}
        assert [gpu.compute_partition for gpu in found] == ["SPX"] * 8

    def test_cpx_divides_each_gpu_in_eight(self, tmp_path: Path) -> None:
        """Partitions have their own render nodes, and a share of units and memory."""
        root = write_host(tmp_path, profile="instinct", gpus=2, partition="cpx")
        found = gpus(root)

        assert [gpu.render_node for gpu in found] == [f"/dev/dri/renderD{128 + number}" for number in range(16)]
        assert [gpu.partition for gpu in found] == [*range(8), *range(8)]
        assert {gpu.compute_units for gpu in found} == {38}
        assert (root / "sys/class/drm/renderD129/device").resolve().name == "amdgpu_xcp_0"

    def test_undivided_mi300x_have_the_nodes_of_their_partitions_all_the_same(self, tmp_path: Path) -> None:
        """The driver makes eight render nodes whatever the mode, so the second GPU's is renderD136."""
        root = write_host(tmp_path, profile="instinct", gpus=2)

        assert [gpu.render_node for gpu in gpus(root)] == ["/dev/dri/renderD128", "/dev/dri/renderD136"]
        assert (root / "dev/dri/renderD143").exists()

    def test_an_apu_has_host_memory_and_no_id(self, tmp_path: Path) -> None:
        """Its models live in GTT; it has one temperature, no fan and no power cap."""
        root = write_host(tmp_path, profile="apu", busy="60")
        found = gpus(root)[0]
        read = sample(found, root)

        assert (found.is_apu, found.unique_id, found.vram_bytes, found.gtt_bytes) == (True, None, 1 << 30, 62 << 30)
        assert read.edge_celsius is not None
        assert (read.junction_celsius, read.fan_rpm, read.power_cap_watts) == (None, None, None)
        assert read.gtt_used_bytes is not None
        assert read.gtt_used_bytes > 10 << 30

    def test_a_mixed_host_has_every_trap(self, tmp_path: Path) -> None:
        """An APU next to cards of other targets, a PCI domain other than 0000, card numbers from 1."""
        found = gpus(write_host(tmp_path, profile="mixed"))

        assert [gpu.gfx for gpu in found] == ["gfx1100", "gfx1150", "gfx1201"]
        assert [gpu.is_apu for gpu in found] == [False, True, False]
        assert found[2].pci_address == "0001:03:00.0"
        assert found[0].card_node == "/dev/dri/card1"

    @pytest.mark.long
    @pytest.mark.parametrize("key", PRODUCTS)
    def test_each_product_is_known_to_our_data_file(self, tmp_path: Path, key: str) -> None:
        """Names and targets are found for every product, and its samples are whole."""
        root = write_host(tmp_path, gpus=1, products=(key,), busy="70")
        found = gpus(root)[0]
        read = sample(found, root)

        assert not found.name.startswith("AMD GPU 1002:")
        assert found.compute_units == PRODUCTS[key].compute_units
        assert (read.busy_percent, read.core_clock_max_hertz) == (70, PRODUCTS[key].core_clocks[1] * 1_000_000)

    @pytest.mark.slow
    @pytest.mark.long
    @pytest.mark.parametrize("profile", PROFILES)
    def test_sixty_four_gpus_fit(self, tmp_path: Path, profile: str) -> None:
        """Nodes and cards of two digits sort as numbers, and nothing appears twice."""
        found = gpus(write_host(tmp_path, profile=profile, gpus=64))

        assert [gpu.index for gpu in found] == list(range(64))
        assert found[63].render_node == "/dev/dri/renderD191"
        assert all(len({getattr(gpu, name) for gpu in found}) == 64 for name in ("pci_address", "kfd_id", "smi_index"))
        assert len(list((tmp_path / "sys/bus/pci/devices").iterdir())) == 128  # and the port above each

    def test_a_busy_gpu_is_hotter_faster_and_fuller_than_an_idle_one(self, tmp_path: Path) -> None:
        """The values of one instant belong together."""
        root = write_host(tmp_path, gpus=2, busy="0:95")
        busy, idle = (sample(gpu, root) for gpu in gpus(root))

        assert (busy.busy_percent, idle.busy_percent) == (95, 0)
        for name in ("power_watts", "junction_celsius", "core_clock_hertz", "vram_used_bytes", "fan_rpm"):
            assert getattr(busy, name) > getattr(idle, name), name
        assert busy.vram_used_bytes < busy.vram_total_bytes
        assert busy.power_watts <= busy.power_cap_watts
        assert busy.junction_celsius < busy.junction_critical_celsius

    def test_a_busy_gpu_has_a_process(self, tmp_path: Path) -> None:
        """KFD lists what uses it, by the id that names its files."""
        root = write_host(tmp_path, gpus=2, busy="1:80")
        found = gpus(root)[1]
        processes = list((root / "sys/class/kfd/kfd/proc").iterdir())

        assert len(processes) == 1
        assert int((processes[0] / f"vram_{found.kfd_id}").read_text()) > 0
        assert (root / "proc" / processes[0].name / "comm").read_text() == "python3\n"


class TestWriting:
    """Where it may be written, and how."""

    def test_the_same_seed_writes_the_same_files(self, tmp_path: Path) -> None:
        """Another seed has other ids."""
        first, second, third = (
            write_host(tmp_path / name, profile="mixed", busy="training", seed=seed)
            for name, seed in (("a", 5), ("b", 5), ("c", 6))
        )

        assert digest(first) == digest(second)
        assert gpus(first)[0].unique_id != gpus(third)[0].unique_id

    def test_a_folder_with_other_things_is_refused_and_kept(self, tmp_path: Path) -> None:
        """Nothing is written next to someone's files."""
        (tmp_path / "thesis.txt").write_text("years of work")

        with pytest.raises(RocmlabError, match="is not empty"):
            write_host(tmp_path)

        assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]

    def test_a_folder_that_looks_like_a_host_but_is_not_ours_is_refused(self, tmp_path: Path) -> None:
        """Without the mark, `sys` may be anything."""
        (tmp_path / "sys").mkdir()

        with pytest.raises(RocmlabError, match="is not a simulated host"):
            write_host(tmp_path)

    def test_other_things_beside_a_simulated_host_are_kept(self, tmp_path: Path) -> None:
        """Rewriting removes what we wrote and refuses to touch the rest."""
        write_host(tmp_path)
        (tmp_path / "notes").write_text("mine")

        with pytest.raises(RocmlabError, match="it holds notes"):
            write_host(tmp_path, gpus=1)
        assert len(gpus(tmp_path)) == 2

    def test_rewriting_keeps_the_leases(self, tmp_path: Path) -> None:
        """Kernels may run on the host's GPUs: what they have leased stays theirs."""
        lock = write_host(tmp_path) / "run/lock/rocmlab/a.lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        before = lock.stat()

        write_host(tmp_path, gpus=1)

        assert os.path.samestat(before, lock.stat())
        assert len(gpus(tmp_path)) == 1

    def test_rewriting_leaves_nothing_of_the_earlier_host(self, tmp_path: Path) -> None:
        """A folder written twice is the same as one written once."""
        write_host(tmp_path / "twice", profile="instinct", busy="90", faults=["eio:0"])
        write_host(tmp_path / "twice", profile="radeon", gpus=1)
        write_host(tmp_path / "once", profile="radeon", gpus=1)

        assert is_ours(tmp_path / "twice")
        assert digest(tmp_path / "twice") == digest(tmp_path / "once")

    def test_nodes_are_plain_files_open_to_all(self, tmp_path: Path) -> None:
        """Writing needs no root, and the host can be used by anybody."""
        root = write_host(tmp_path, gpus=1)
        node = (root / "dev/dri/renderD128").stat()

        assert stat.S_ISREG(node.st_mode)
        assert stat.S_IMODE(node.st_mode) == 0o666

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes; run the tests as root")
    def test_root_can_have_real_nodes(self, tmp_path: Path) -> None:
        """They have the kernel's numbers, the group of the host's render, and the mode of udev."""
        root = write_host(tmp_path, gpus=1, character_nodes=True)
        node = (root / "dev/dri/renderD128").stat()

        assert stat.S_ISCHR(node.st_mode)
        assert (os.major(node.st_rdev), os.minor(node.st_rdev)) == (226, 128)
        assert f"render:x:{node.st_gid}:" in (root / "etc/group").read_text()
        assert stat.S_IMODE(node.st_mode) == 0o660

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"gpus": 0}, "1 to 64"),
            ({"gpus": 65}, "1 to 64"),
            ({"profile": "geforce"}, "unknown profile"),
            ({"products": ("rtx",)}, "unknown product"),
            ({"partition": "cpx"}, "has partitions"),
            ({"partition": "tpx"}, "unknown partition"),
            ({"profile": "instinct", "gpus": 9, "partition": "cpx"}, "at most 64"),
            ({"busy": "very"}, "not a pattern"),
            ({"busy": "0:120"}, "not a pattern"),
            ({"faults": ("broken",)}, "unknown fault"),
            ({"faults": ("eio:x",)}, "HIP index"),
            ({"faults": ("eio:7",)}, "GPU 7 not found"),
            ({"faults": ("eio:0:nothing",)}, "is not a file"),
            ({"faults": ("eio:0:../../etc/passwd",)}, "PCI folder"),
            ({"faults": ("vanish:0:soon",)}, "seconds"),
        ],
    )
    def test_impossible_hosts_are_explained(self, tmp_path: Path, arguments: dict[str, object], message: str) -> None:
        """Nothing is written, and the error says what would be possible."""
        with pytest.raises(RocmlabError, match=message):
            write_host(tmp_path / "host", **arguments)  # type: ignore[arg-type]

        assert not (tmp_path / "host").exists()
