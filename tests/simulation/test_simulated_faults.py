"""Faults of simulated hosts have the effect on discovery and samples that they name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocmlab.devices import Device, discover, roots, sample
from rocmlab.doctor import checks
from rocmlab.doctor.model import BLOCKS, WARNS
from rocmlab.doctor.situation import Situation
from rocmlab.simulation import KINDS, write_host
from rocmlab.simulation.cards import add_card
from rocmlab.simulation.faults import apply_faults, parse_fault
from rocmlab.simulation.hosts import plan
from rocmlab.simulation.system import add_driver, add_system
from rocmlab.simulation.topology import add_topology
from rocmlab.simulation.trees import Tree

READ_OF_A_SLEEPER = {  # what the kernel answers from memory
    "uevent",
    "revision",
    "product_name",
    "unique_id",
    "serial_number",
    "numa_node",
    "mem_info_vram_total",
    "mem_info_gtt_total",
    "current_compute_partition",
    "current_memory_partition",
    "runtime_status",
}
SOURCES = str(Path(__file__).parents[2] / "src")


def gpus(root: Path) -> list[Device]:
    """The AMD GPUs of a host, without masks."""
    return [device for device in discover(root, {}) if device.backend == "rocm"]


class TestCards:
    """Faults of whole cards."""

    def test_a_vanished_card_leaves_no_trace(self, tmp_path: Path) -> None:
        """The others take its number."""
        found = gpus(write_host(tmp_path, gpus=3, faults=["vanish:0"]))

        assert [gpu.render_node for gpu in found] == ["/dev/dri/renderD129", "/dev/dri/renderD130"]
        assert [gpu.index for gpu in found] == [0, 1]

    def test_a_lost_card_is_still_listed_and_not_usable(self, tmp_path: Path) -> None:
        """The topology names a render node that is not there."""
        found = gpus(write_host(tmp_path, gpus=2, faults=["lost:0"]))

        assert {gpu.render_node: gpu.is_usable for gpu in found} == {
            "/dev/dri/renderD128": False,
            "/dev/dri/renderD129": True,
        }
        assert "renderD128 is missing" in str(found[-1].why_not)

    def test_a_degraded_link_is_half_as_wide(self, tmp_path: Path) -> None:
        """Eight lanes of sixteen, on that card alone."""
        found = gpus(write_host(tmp_path, gpus=2, faults=["degraded-link:1"]))

        assert [(gpu.link_width, gpu.link_width_max) for gpu in found] == [(16, 16), (8, 16)]

    def test_a_processor_may_have_a_small_gpu(self, tmp_path: Path) -> None:
        """It comes last, with two compute units."""
        found = gpus(write_host(tmp_path, gpus=1, faults=["igpu"]))

        assert [(gpu.gfx, gpu.compute_units) for gpu in found] == [("gfx1100", 96), ("gfx1036", 2)]

    def test_a_card_may_sleep(self, tmp_path: Path) -> None:
        """Nothing is read of it, so that it is not woken."""
        root = write_host(tmp_path, gpus=2, busy="50", faults=["asleep:0"])

        assert [sample(gpu, root).is_asleep for gpu in gpus(root)] == [True, False]
        states = [(root / f"sys/bus/pci/devices/{gpu.pci_address}/power_state").read_text() for gpu in gpus(root)]
        assert states == ["D3cold\n", "D0\n"]

    def test_finding_a_sleeping_card_does_not_wake_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel wakes a card for a look at its link: that is unknown then, and only its identity is read."""
        root = write_host(tmp_path, gpus=2, faults=["asleep:0"])
        read: list[str] = []
        monkeypatch.setattr(roots, "on_read", lambda name: read.append(os.path.realpath(name)))
        asleep, awake = gpus(root)

        assert (asleep.link_width, asleep.link_speed_gts, asleep.link_width_max) == (None, None, None)
        assert (awake.link_width, awake.link_width_max) == (16, 16)
        names = {os.path.basename(name) for name in read if f"/{asleep.pci_address}/" in name}
        assert names <= READ_OF_A_SLEEPER
        assert "runtime_status" in names

    def test_consumer_cards_lack_files(self, tmp_path: Path) -> None:
        """What is missing is unknown, and the rest is there."""
        root = write_host(tmp_path, products=("w7900",), gpus=1, busy="50", faults=["consumer"])
        found = gpus(root)[0]
        read = sample(found, root)

        assert (found.serial, read.memory_busy_percent, read.throttle_reasons) == (None, None, None)
        assert read.busy_percent == 50

    def test_memory_errors_are_counted(self, tmp_path: Path) -> None:
        """On server GPUs, by block."""
        root = write_host(tmp_path, profile="instinct", gpus=1, faults=["ecc"])
        read = sample(gpus(root)[0], root)

        assert ((read.ecc_corrected or {})["umc"], (read.ecc_uncorrected or {})["umc"]) == (117, 2)

    def test_a_slot_may_lack_atomics(self, tmp_path: Path) -> None:
        """KFD leaves the card out, which is on the bus and has its driver; doctor names it."""
        root = write_host(tmp_path, gpus=2, busy="50", faults=["no-atomics:0"])
        found = gpus(root)
        doctor = checks.BY_ID["pcie.atomics"].run(Situation(root, environment={}))[0]

        assert [(gpu.pci_address, gpu.index) for gpu in found] == [("0000:06:00.0", 0), ("0000:03:00.0", None)]
        assert "gives it no compute node" in str(found[1].why_not)
        assert (found[1].driver, found[1].render_node) == (found[0].driver, "/dev/dri/renderD128")
        assert doctor.status == WARNS
        assert "0000:03:00.0" in doctor.problem.what
        assert not (root / "sys/class/kfd/kfd/proc/41001").exists()


class TestReads:
    """Files that fail."""

    @pytest.mark.parametrize("kind", ["eio", "ebusy"])
    def test_a_failing_file_is_unknown_and_the_others_are_not(self, tmp_path: Path, kind: str) -> None:
        """One error costs one value of one GPU."""
        root = write_host(tmp_path, gpus=2, busy="50", faults=[f"{kind}:0:mem_info_vram_used"])
        first, second = (sample(gpu, root) for gpu in gpus(root))

        assert (first.vram_used_bytes, first.busy_percent) == (None, 50)
        assert second.vram_used_bytes is not None

    def test_load_is_unknown_when_file_and_table_fail(self, tmp_path: Path) -> None:
        """The table stands in for the file; without both there is no value, and not a 0."""
        root = write_host(tmp_path, gpus=1, busy="50", faults=["eio:0", "eio:0:gpu_metrics"])

        assert sample(gpus(root)[0], root).busy_percent is None

    @pytest.mark.slow
    def test_hung_firmware_gives_no_answer(self, tmp_path: Path) -> None:
        """A reader of its values waits; identity is still read."""
        root = write_host(tmp_path, gpus=1, busy="50", faults=["hang:0"])
        found = gpus(root)[0]
        program = "import sys; from rocmlab.devices.roots import read_text; print(read_text(sys.argv[1]))"
        path = root / "sys/bus/pci/devices" / str(found.pci_address)

        def read(name: str) -> str:
            command = [sys.executable, "-c", program, path / name]
            return subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": SOURCES},
                capture_output=True,
                text=True,
                timeout=3,
                check=True,
            ).stdout

        assert read("vendor") == "0x1002\n"
        with pytest.raises(subprocess.TimeoutExpired):
            read("gpu_busy_percent")


class TestAccess:
    """Nodes that are missing or closed."""

    def test_without_kfd_no_gpu_is_usable(self, tmp_path: Path) -> None:
        """All are listed, and say why."""
        found = gpus(write_host(tmp_path, gpus=2, faults=["no-kfd"]))

        assert [gpu.why_not for gpu in found] == ["/dev/kfd is missing"] * 2

    def test_without_driver_the_cards_are_on_the_bus(self, tmp_path: Path) -> None:
        """They are known by PCI id and cannot be used; the bus still has their links."""
        root = write_host(tmp_path, gpus=2, busy="50", faults=["no-driver"])
        found = gpus(root)

        assert [(gpu.pci_id, gpu.is_usable, gpu.link_width) for gpu in found] == [("1002:744c", False, 16)] * 2
        assert not (root / "sys/module/amdgpu").exists()
        assert not (root / "dev/kfd").exists()

    @pytest.mark.parametrize("fault", ["unreadable-node:0", "no-render-group"])
    def test_closed_nodes_show_to_root_too(self, tmp_path: Path, fault: str) -> None:
        """Anyone who asks, `devices` and doctor say the same, with the nodes read-only or not."""
        root = write_host(tmp_path, gpus=2, faults=[fault])
        asked = Situation(root, environment={})

        assert [gpu.is_usable for gpu in gpus(root)] == [False, False]
        assert checks.BY_ID["dev.perm"].run(asked)[0].status == BLOCKS

    def test_an_unreadable_node_stops_rocm(self, tmp_path: Path) -> None:
        """One closed node makes ROCm fail for every GPU."""
        found = gpus(write_host(tmp_path, gpus=2, faults=["unreadable-node:0"]))

        assert [gpu.is_usable for gpu in found] == [False, False]
        assert "renderD128" in str(found[0].why_not)

    def test_without_the_group_nobody_gets_in(self, tmp_path: Path) -> None:
        """Nodes belong to root, and there is no group that one could join."""
        root = write_host(tmp_path, gpus=1, faults=["no-render-group"])

        assert "render:" not in (root / "etc/group").read_text()
        assert "/dev/kfd cannot be opened" in str(gpus(root)[0].why_not)


def test_every_fault_is_explained(tmp_path: Path) -> None:
    """The command's help and the page of the docs list all of them."""
    page = (Path(__file__).parents[2] / "docs/simulate.md").read_text()
    text = subprocess.run(
        [sys.executable, "-m", "rocmlab", "simulate", "--help"],
        env={**os.environ, "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert [kind for kind in KINDS if kind not in text or f"`{kind}`" not in page] == []


@pytest.mark.parametrize("kind", KINDS)
def test_faults_combine(kind: str) -> None:
    """Any two of them, on one card of two, leave a host that can be described; a card that has gone stays gone."""
    host = plan("instinct", 2)
    fixed = Tree()
    add_system(fixed, host)
    add_driver(fixed)
    add_topology(fixed, host, mode=0o666, gid=None)
    for gpu in host.gpus:
        add_card(fixed, host, gpu, mode=0o666, gid=None)
    gone = f"{host.gpus[0].folder}/"
    for other in KINDS:
        tree = Tree(dict(fixed.files), dict(fixed.links), dict(fixed.nodes), set(fixed.folders))

        apply_faults(tree, host, [parse_fault(f"{kind}:0"), parse_fault(f"{other}:0")])

        left = [path for path in tree.files if path.startswith(gone)]
        assert bool(left) != bool({"vanish", "lost"} & {kind, other}), (kind, other, left)
