"""AMD GPUs from the KFD topology."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Gpu, make_host

from rocmlab.devices import discover
from rocmlab.devices.rocm import Rocm, kfd_gpus


@pytest.fixture
def other_user() -> Iterator[Path]:
    """A folder for a test that runs as an ordinary user, whom permissions bind (root may open everything)."""
    folder = Path(tempfile.mkdtemp(prefix="rocmlab-test-"))
    folder.chmod(0o755)
    yield folder
    os.seteuid(os.getuid())
    shutil.rmtree(folder)


class TestIdentity:
    """What a GPU is called and numbered."""

    def test_hip_index_follows_the_number_of_the_node_not_its_text(self, tmp_path: Path) -> None:
        """Node 10 comes after node 2, so its GPU has the higher HIP index."""
        root = make_host(tmp_path, Gpu(10, 0x0300, 128), Gpu(2, 0x8300, 129))

        found = Rocm().discover(root)

        assert [(device.index, device.pci_address) for device in found] == [(0, "0000:83:00.0"), (1, "0000:03:00.0")]

    @pytest.mark.parametrize(
        ("version", "gfx"),
        [(90010, "gfx90a"), (90402, "gfx942"), (110000, "gfx1100"), (110501, "gfx1151"), (80003, "gfx803")],
    )
    def test_gfx_target_is_spelled_in_hex(self, tmp_path: Path, version: int, gfx: str) -> None:
        """The decimal version of the topology becomes the name compilers use."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, gfx_target_version=version))

        assert gfx == Rocm().discover(root)[0].gfx

    def test_pci_domain_other_than_zero_is_kept(self, tmp_path: Path) -> None:
        """Two GPUs on the same bus of different domains have different addresses."""
        root = make_host(tmp_path, Gpu(1, 0x0308, 128, domain=1))

        assert Rocm().discover(root)[0].pci_address == "0001:03:01.0"

    def test_unique_id_zero_is_unknown(self, tmp_path: Path) -> None:
        """APUs report 0, which identifies nothing."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, unique_id=0))

        assert Rocm().discover(root)[0].unique_id is None

    def test_missing_files_are_unknown_not_zero(self, tmp_path: Path) -> None:
        """A card without mem_info_vram_total has unknown VRAM, and is listed by its PCI id."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, vram_bytes=None))

        device = Rocm().discover(root)[0]

        assert device.vram_bytes is None
        assert device.name == "AMD GPU 1002:744c"

    def test_a_simulated_host_says_so(self, tmp_path: Path) -> None:
        """Whatever is read below another root than `/` is marked simulated, the CPU included."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128))

        assert all(device.simulated for device in discover(root))


class TestUsability:
    """Which GPUs this process may use, and why not the others."""

    def test_an_absent_render_node_takes_no_index(self, tmp_path: Path) -> None:
        """A GPU that was not passed to the container is skipped by ROCm, so the next one is HIP 0."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129), absent=(128,))

        first, second = Rocm().discover(root)

        assert (first.index, first.why_not) == (None, "/dev/dri/renderD128 is not here")
        assert second.index == 0

    def test_without_kfd_no_gpu_is_usable(self, tmp_path: Path) -> None:
        """The GPU is still listed, with the reason."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128), kfd=False)

        assert [(d.is_usable, d.why_not) for d in Rocm().discover(root)] == [(False, "/dev/kfd is not here")]

    def test_one_forbidden_node_stops_all(self, other_user: Path) -> None:
        """ROCm fails for every GPU when one render node exists and may not be opened."""
        root = make_host(other_user / "host", Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129))
        for name in ("kfd", "dri/renderD128"):
            (root / "dev" / name).chmod(0o666)
        (root / "dev/dri/renderD129").chmod(0)
        if os.getuid() == 0:
            os.seteuid(65534)

        first, second = Rocm().discover(root)

        assert not first.is_usable
        assert "stops ROCm for all GPUs" in str(first.why_not)
        assert "cannot be opened" in str(second.why_not)


class TestBrokenTrees:
    """A broken tree gives unknowns, never a traceback."""

    @pytest.mark.parametrize(
        "text", ["", "\0" * 4096, "simd_count", "simd_count many\n", "\xff\xfe garbage", "simd_count 8\n"]
    )
    def test_any_properties_file_is_survived(self, tmp_path: Path, text: str) -> None:
        """Whatever the file holds, discovery ends with a list."""
        root = make_host(tmp_path)
        node = root / "sys/class/kfd/kfd/topology/nodes/1"
        node.mkdir()
        (node / "properties").write_bytes(text.encode("latin-1"))

        assert all(device.backend == "rocm" for device in Rocm().discover(root))

    def test_no_topology_means_no_gpu(self, tmp_path: Path) -> None:
        """A host without the driver has the CPU alone."""
        assert [device.backend for device in discover(tmp_path)] == ["cpu"]


def test_the_eight_mi210_of_a_real_capture_are_found(captures: Path, tmp_path: Path) -> None:
    """The first GPU node of the capture is 0000:63:00.0 on renderD128, gfx90a, as its files say."""
    nodes = tmp_path / "sys/class/kfd/kfd/topology"
    nodes.mkdir(parents=True)
    (nodes / "nodes").symlink_to(captures / "kfd/mi210x8-xgmi/nodes")

    found = kfd_gpus(tmp_path)

    assert len(found) == 8
    assert found[0].pci_address == "0000:63:00.0"
    assert {"gfx90a"} == {gpu.gfx for gpu in found}
    assert found[0].unique_id == f"{1801979520617338022:016x}"
