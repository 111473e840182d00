"""The GPUs themselves: supported, of one kind, well connected, awake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hosts import Gpu
from situations import TWO, Looker, fires, host, pci, put, silent, skipped

from rocmlab.devices import topology
from rocmlab.devices.rocm import DeniedNodes, Rocm
from rocmlab.doctor import checks
from rocmlab.doctor.checks import gpus as gpus_checks
from rocmlab.doctor.model import BLOCKS, WARNS
from rocmlab.simulation import write_host

NAVI23 = Gpu(2, 0x0600, 129, gfx_target_version=100302)
POLARIS = Gpu(3, 0x0900, 130, gfx_target_version=80003)
STRIX = Gpu(4, 0xC500, 131, gfx_target_version=110500, device_id=0x150E, unique_id=0)


def at(tmp_path: Path, *gpus: Gpu, side: str = "host") -> Looker:
    """Look at a host with these GPUs."""
    return Looker(host(tmp_path / "host", *gpus), tmp_path / "project", side=side)


class TestSupport:
    """Does the framework have kernels for the target."""

    def test_a_target_that_tensorflow_ignores(self, tmp_path: Path) -> None:
        """The line for `.env` is exact; written there, it makes the check silent."""
        look = at(tmp_path, NAVI23)

        found = fires(look(), "gfx.support", WARNS)
        assert "gfx1032" in found.problem.what
        assert "echo HSA_OVERRIDE_GFX_VERSION=10.3.0 >>.env" in found.problem.fix

        look.env_file(HSA_OVERRIDE_GFX_VERSION="10.3.0")
        silent(look(), "gfx.support")

    def test_natively_the_line_in_the_env_file_counts_as_well(self, tmp_path: Path) -> None:
        """And where it is wrong, the fix is in the same file."""
        look = at(tmp_path, NAVI23)
        look.runtime = "native"
        fires(look(), "gfx.support", WARNS)

        look.env_file(HSA_OVERRIDE_GFX_VERSION="10.3.0")
        silent(look(), "gfx.support")
        look.env_file(HSA_OVERRIDE_GFX_VERSION="11.0.0")
        assert "sed -i" in fires(look(), "env.override", BLOCKS).problem.fix

    def test_beside_another_generation_the_override_is_for_one_node(self, tmp_path: Path) -> None:
        """For all GPUs it would break the other one."""
        look = at(tmp_path, TWO[0], NAVI23)

        assert "HSA_OVERRIDE_GFX_VERSION_2=10.3.0" in fires(look(), "gfx.support", WARNS).problem.fix

        look.env_file(HSA_OVERRIDE_GFX_VERSION_2="10.3.0")
        silent(look(), "gfx.support")

    def test_a_target_without_hope(self, tmp_path: Path) -> None:
        """A Polaris alone stops the lab; next to a supported card it is a warning, and chosen away it is silent."""
        fires(at(tmp_path / "alone", POLARIS)(), "gfx.support", BLOCKS)
        look = at(tmp_path / "both", TWO[0], POLARIS)
        fires(look(), "gfx.support", WARNS)

        look.chosen = {"GPUS": "0"}
        silent(look(), "gfx.support")

    @pytest.mark.parametrize("version", [70001, 80002, 100103, 130000])
    def test_an_unknown_target_may_not_work(self, tmp_path: Path, version: int) -> None:
        """What the table does not have is neither fine nor unsupported: a warning with what to try."""
        look = at(tmp_path, Gpu(1, 0x0300, 128, gfx_target_version=version))

        found = fires(look(), "gfx.support", WARNS)

        assert "support is unknown, it may not work" in found.problem.what
        assert "--only compute.torch" in found.problem.fix
        assert "ROCm: unknown" in found.evidence[0]

    def test_support_is_a_sentence(self, tmp_path: Path) -> None:
        """Word and note of the table make one text."""
        texts = [
            fires(
                at(tmp_path / f"{version}", Gpu(1, 0x0300, 128, gfx_target_version=version))(), "gfx.support"
            ).evidence
            for version in (110002, 110503)
        ]

        assert texts[0][0].endswith("gfx1102: ROCm: partly supported, by packages since ROCm 7.14; TensorFlow: no")
        assert texts[1][0].endswith("gfx1153: ROCm: not supported; TensorFlow: no")

    def test_a_target_that_computes_wrong_results(self, tmp_path: Path) -> None:
        """It blocks, next to another card and with an override as well, until it is not chosen."""
        look = at(tmp_path, TWO[0], Gpu(2, 0x0600, 129, gfx_target_version=100303))

        found = fires(look(), "gfx.results", BLOCKS)
        assert "gfx1033" in found.problem.what
        assert "unsloth#8412" in found.problem.why
        assert "gfx.results" in skipped(look(), "gfx.support")

        look.chosen = {"GPUS": "0"}
        silent(look(), "gfx.results")
        look.chosen = {}
        look.env_file(HSA_OVERRIDE_GFX_VERSION_2="10.3.0")
        fires(look(), "gfx.results", BLOCKS)
        assert "gfx.results" in skipped(look(), "gfx.support")


def test_an_integrated_gpu_among_the_cards(tmp_path: Path) -> None:
    """`make up GPUS=…` with the indices that are printed makes it silent."""
    look = at(tmp_path, TWO[0], STRIX)

    found = fires(look(), "igpu", WARNS)
    assert "make up GPUS=0" in found.problem.fix

    look.chosen = {"GPUS": "0"}
    silent(look(), "igpu")


def test_an_integrated_gpu_alone_is_what_the_lab_is_for(tmp_path: Path) -> None:
    """Nothing to hide it behind."""
    silent(at(tmp_path, STRIX)(), "igpu")


APU_FILES = {"mem_info_gtt_total": f"{31 << 30}\n"}


def _apu(bank_gib: int, vram_gib: int = 4) -> Gpu:
    return Gpu(
        1, 0xC500, 128, 110501, 0x1586, 0, vram_bytes=vram_gib << 30, files=APU_FILES, banks=((1, bank_gib << 30),)
    )


def test_the_limit_of_an_apus_memory(tmp_path: Path) -> None:
    """A note has the kernel's parameter, GiB times 262,144; with that limit it is silent."""
    look = at(tmp_path, _apu(31))
    put(look.root, "proc/meminfo", f"MemTotal: {62 << 20} kB\nMemAvailable: {40 << 20} kB")
    put(look.root, "sys/module/ttm/parameters/pages_limit", str(31 * 262144))

    found = silent(look(), "apu.memory")
    assert "at most 31.0 GiB" in found.reason
    assert f"ttm.pages_limit={46 * 262144} (46 GiB)" in found.reason

    put(look.root, "sys/bus/pci/devices/0000:c5:00.0/mem_info_gtt_total", str(46 << 30))
    assert (
        "at most 31.0 GiB" in silent(look(), "apu.memory").reason
    )  # KFD's bank, from which HIP allocates, is as before
    put(
        look.root,
        "sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties",
        f"heap_type 1\nsize_in_bytes {46 << 30}\n",
    )
    assert silent(look(), "apu.memory").reason == ""


def test_a_limit_of_the_card_is_named(tmp_path: Path) -> None:
    """amdgpu.gttsize may leave less than ttm.pages_limit does: raising the latter alone would change nothing."""
    look = at(tmp_path, _apu(40))
    put(look.root, "proc/meminfo", f"MemTotal: {62 << 20} kB\nMemAvailable: {40 << 20} kB")
    put(look.root, "sys/module/ttm/parameters/pages_limit", str(40 * 262144))

    assert "without a smaller amdgpu.gttsize" in silent(look(), "apu.memory").reason


def test_an_older_kernel_gives_an_apu_its_own_memory_alone(tmp_path: Path) -> None:
    """KFD's bank is the VRAM there; on a newer kernel it is GTT, and the check is silent."""
    found = fires(at(tmp_path / "old", _apu(4))(), "apu.memory", WARNS)

    assert found.problem.what.startswith("frameworks can use 4.0 GiB")
    assert "6.10" in found.problem.fix
    silent(at(tmp_path / "new", _apu(31))(), "apu.memory")
    assert skipped(at(tmp_path / "card", TWO[0])(), "apu.memory") == "no APU is chosen"


def width(root: Path, now: int, most: int) -> None:
    """Give the first card a link."""
    pci(
        root,
        "0000:03:00.0",
        "amdgpu",
        current_link_width=str(now),
        max_link_width=str(most),
        current_link_speed="2.5 GT/s PCIe",
        max_link_speed="16.0 GT/s PCIe",
    )


def test_a_card_in_the_wrong_slot(look: Looker) -> None:
    """Four lanes of sixteen warn; a low speed alone does not, for cards rest at it."""
    width(look.root, 4, 16)

    found = fires(look(), "pcie.link", WARNS)
    assert "4 of its 16 PCIe lanes" in found.problem.what
    assert found.about == "host"

    width(look.root, 16, 16)
    assert "2.5 of 16.0 GT/s" in silent(look(), "pcie.link").evidence[0]


def test_a_slot_with_fewer_lanes_than_the_card(tmp_path: Path) -> None:
    """All lanes that card and slot have in common are in use, and the card could have more in another slot."""
    root = write_host(tmp_path / "host", gpus=1)
    folder = (root / "sys/bus/pci/devices/0000:03:00.0").resolve()
    for name in ("current_link_width", "../current_link_width", "../max_link_width"):
        (folder / name).write_text("4\n")

    found = fires(Looker(root, tmp_path / "project")(), "pcie.link", WARNS)

    assert "4 of its 16 PCIe lanes" in found.problem.what


def test_a_small_window_into_the_memory(look: Looker) -> None:
    """256 MiB of 24 GiB warn, all of it does not."""
    folder = "sys/class/drm/renderD128/device"
    put(look.root, f"{folder}/mem_info_vis_vram_total", "268435456")

    assert "Resizable BAR" in fires(look(), "rebar", WARNS).problem.fix

    put(look.root, f"{folder}/mem_info_vis_vram_total", "25753026560")
    silent(look(), "rebar")


def test_a_gpu_that_is_switched_off(look: Looker) -> None:
    """D3cold warns, D0 does not."""
    pci(look.root, "0000:03:00.0", "amdgpu", power_state="D3cold")

    assert "/sys/bus/pci/devices/0000:03:00.0/power/control" in fires(look(), "runtimepm", WARNS).problem.fix

    pci(look.root, "0000:03:00.0", "amdgpu", power_state="D0")
    silent(look(), "runtimepm")


def test_a_damaged_description(tmp_path: Path) -> None:
    """A KFD node without its target is named; whole, it is silent."""
    broken = Gpu(1, 0x0300, 128, properties={"gfx_target_version": None, "location_id": None})

    assert "KFD node 1" in fires(at(tmp_path / "a", broken)(), "gpu.description", WARNS).problem.what
    silent(at(tmp_path / "b", TWO[0])(), "gpu.description")


@pytest.mark.parametrize("side", ["host", "container"])
def test_nodes_that_a_container_may_not_read_are_no_damage(tmp_path: Path, side: str) -> None:
    """The kernel denies them (EPERM) because their GPUs were not given; any other failure is damage, on both sides."""
    look = at(tmp_path, *TWO, side=side)
    node = "sys/class/kfd/kfd/topology/nodes/7/properties"
    put(look.root, node, "simd_count 8")
    faults = look.root / "rocmlab-faults.json"
    faults.write_text(json.dumps({node: "EPERM"}))

    silent(look(), "gpu.description")
    assert [type(problem) for problem in look().examined[1]] == [DeniedNodes]

    faults.write_text(json.dumps({node: "EIO"}))
    found = fires(look(), "gpu.description", WARNS)
    assert found.problem.what == "node 7 of the KFD topology cannot be read"
    assert "damaged" in found.problem.why


def test_a_damaged_node_is_neither_a_containers_doing_nor_missing_atomics(tmp_path: Path) -> None:
    """On a host the GPU's reason and the doctor name the damage; intact, both are silent."""
    look = at(tmp_path, *TWO)
    node = look.root / "sys/class/kfd/kfd/topology/nodes/2/properties"
    intact = node.read_text()
    node.write_text("")

    lost = Rocm().discover(look.root)[1]
    assert lost.why_not == "the kernel's description of KFD node 2 is damaged, which may be this GPU"
    assert [one.status for one in checks.BY_ID["pcie.atomics"].run(look())] == ["unknown"]
    assert "node 2" in fires(look(), "gpu.description", WARNS).problem.what

    node.write_text(intact)
    silent(look(), "pcie.atomics")
    silent(look(), "gpu.description")


def test_a_gpu_that_a_container_was_not_given_has_its_atomics(tmp_path: Path) -> None:
    """KFD denies its description there (EPERM), and lists it all the same."""
    look = at(tmp_path, *TWO, side="container")
    (look.root / "dev/dri/renderD129").unlink()
    fault = {"sys/class/kfd/kfd/topology/nodes/2/properties": "EPERM"}
    (look.root / "rocmlab-faults.json").write_text(json.dumps(fault))

    assert "0000:06:00.0 was not given to this container" in silent(look(), "pcie.atomics").evidence
    assert Rocm().discover(look.root)[1].why_not == "/dev/dri/renderD129 is missing"


def test_a_denied_node_and_a_damaged_one_are_no_missing_atomics(tmp_path: Path) -> None:
    """Each accounts for one GPU that KFD does not list; a damaged node of a CPU accounts for none."""
    look = at(tmp_path, *TWO, side="container")
    nodes = look.root / "sys/class/kfd/kfd/topology/nodes"
    (look.root / "rocmlab-faults.json").write_text(
        json.dumps({"sys/class/kfd/kfd/topology/nodes/1/properties": "EPERM"})
    )
    (nodes / "2/properties").write_text("")
    assert [one.status for one in checks.BY_ID["pcie.atomics"].run(look())] == ["unknown"]

    put(look.root, "sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0")
    (nodes / "0/properties").write_text("")
    assert topology.read(look.root).damaged == (2,)


def test_a_card_older_than_rocm_may_sleep(look: Looker) -> None:
    """Beside a GPU that ROCm uses, a GCN 1 card for the screen in D3cold needs no advice."""
    pci(look.root, "0000:09:00.0", "amdgpu", device="0x6613", power_state="D3cold")

    assert "0000:09:00.0" not in str(checks.BY_ID["runtimepm"].run(look()))


def test_an_override_for_one_partition_is_not_for_the_others(tmp_path: Path) -> None:
    """Partitions share their PCI address; each has a node of its own."""
    root = write_host(tmp_path / "cpx", gpus=1, profile="instinct", partition="cpx")
    look = Looker(root, tmp_path / "project")
    look.env_file(HSA_OVERRIDE_GFX_VERSION_3="9.4.2")

    overridden = [gpus_checks._is_overridden(look(), gpu) for gpu in look().passed]

    assert len(overridden) == 8
    assert sum(overridden) == 1


def test_cards_are_read_as_discovery_reads_them(look: Looker) -> None:
    """Also one whose files are gone but for `uevent`; another vendor's card is none."""
    card = look.root / "sys/bus/pci/devices/0000:03:00.0"
    for name in ("vendor", "device", "class"):
        (card / name).unlink()
    pci(look.root, "0000:0a:00.0", "nvidia", vendor="0x10de")
    pci(look.root, "0000:09:00.0", None, power_state="D3cold")

    found = look().pci_gpus

    assert [(gpu.address, gpu.driver) for gpu in found] == [
        ("0000:03:00.0", "amdgpu"),
        ("0000:06:00.0", "amdgpu"),
        ("0000:09:00.0", None),
    ]
    assert str(found[0]) == "0000:03:00.0 1002:744c driver amdgpu"
    assert found[2].power_state == "D3cold"


def test_what_no_gpu_tells_is_no_finding(look: Looker) -> None:
    """Many cards have no power state, and APUs no width."""
    (look.root / "sys/class/drm/renderD128/device/power_state").unlink(missing_ok=True)

    assert "power state" in skipped(look(), "runtimepm")


class TestSlimImage:
    """An image with the kernels of some GPUs only."""

    def test_a_gpu_that_it_was_not_built_for(self, tmp_path: Path) -> None:
        """A card was exchanged: the next `make up` builds for it; with the right targets no override is needed."""
        look = at(tmp_path, NAVI23)
        look.env_file(ROCMLAB_IMAGE_GFX="gfx1100")

        found = fires(look(), "gfx.support", BLOCKS)
        assert "has no kernels in this slim image" in found.problem.what
        assert "make up IMAGE=full" in found.problem.fix

        look.env_file(ROCMLAB_IMAGE_GFX="gfx1100,gfx1032")
        silent(look(), "gfx.support")
