"""How the lab is given GPUs: the files that Compose reads, and what is rejected before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import Gpu, make_host

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover
from rocmlab.stack import gpus, settings
from rocmlab.stack.choice import Choice
from rocmlab.stack.engine import Engine

TWO = (Gpu(1, 0x8300, 129), Gpu(2, 0x0300, 128, unique_id=7))
ROCM = Choice("rocm", "docker", "test")
CUDA = Choice("cuda", "docker", "test")
SIMULATED = Choice("cpu", "docker", "test", is_simulated=True)
ENGINE = Engine(is_usable=True, version="26.1.5")


@pytest.mark.parametrize(
    ("choice", "flags", "files"),
    [
        (ROCM, {}, [gpus.LEASES_OVERLAY]),
        (ROCM, {"GPUS": "0"}, [gpus.LEASES_OVERLAY, gpus.OVERLAY]),
        (ROCM, {"GPU_PASSTHROUGH": "cdi"}, [gpus.LEASES_OVERLAY, gpus.OVERLAY]),
        (Choice("rocm", "docker", "test", is_wsl=True), {}, ["docker/compose.wsl.yaml"]),
        (SIMULATED, {}, ["docker/compose.cpu.yaml", "docker/compose.simulated.yaml"]),
        (SIMULATED, {"GPUS": "1"}, ["docker/compose.cpu.yaml", "docker/compose.simulated.yaml", gpus.OVERLAY]),
        (Choice("cpu", "docker", "test"), {"GPUS": "none"}, ["docker/compose.cpu.yaml"]),
        (CUDA, {"GPU_PASSTHROUGH": "cdi"}, ["docker/compose.cuda.yaml", gpus.LEASES_OVERLAY]),
    ],
)
def test_each_way_has_its_files(
    tmp_path: Path, repository: Path, choice: Choice, flags: dict[str, str], files: list[str]
) -> None:
    """After the base file, the special last; all but the generated one are in the project."""
    found = gpus.overlays(settings.load(tmp_path, flags), choice)

    assert found == ["compose.yaml", *files]
    assert all((repository / name).is_file() for name in found if name != gpus.OVERLAY)


def test_a_node_of_a_cluster_has_one_file_more(tmp_path: Path, repository: Path) -> None:
    """It comes before the generated one."""
    (tmp_path / ".env").write_text("CLUSTER=head\nGPUS=1\n")

    found = gpus.overlays(settings.load(tmp_path, {}), SIMULATED)

    assert found[-2:] == [gpus.CLUSTER_OVERLAY, gpus.OVERLAY]
    assert (repository / gpus.CLUSTER_OVERLAY).is_file()


def test_podman_has_no_cluster(tmp_path: Path) -> None:
    """The error names the ways that work."""
    (tmp_path / ".env").write_text("CLUSTER=192.168.1.10:6379\n")
    found = settings.load(tmp_path, {})

    with pytest.raises(RocmlabError, match=r"(?s)this lab runs in Podman.*RUNTIME=native"):
        gpus.check(found, Choice("cpu", "podman", "test"), Engine(is_usable=False), [], tmp_path)


class TestCdi:
    """GPU_PASSTHROUGH=cdi."""

    @pytest.mark.parametrize(
        ("choice", "way", "what"),
        [
            (ROCM, "cdl", "GPU_PASSTHROUGH=cdl is unknown"),
            (ROCM, "cdi", "does not take GPUs by their CDI names"),
            (Choice("rocm", "podman", "test"), "cdi", "only Docker's lab on Linux"),
            (Choice("rocm", "docker", "test", is_wsl=True), "cdi", "only Docker's lab on Linux"),
        ],
    )
    def test_where_it_cannot_work_it_is_refused(self, tmp_path: Path, choice: Choice, way: str, what: str) -> None:
        """With the way back in the fix."""
        root = make_host(tmp_path / "host", *TWO)

        with pytest.raises(RocmlabError, match=what) as caught:
            gpus.check(settings.load(tmp_path, {"GPU_PASSTHROUGH": way}), choice, ENGINE, [], root)

        assert "nodes" in caught.value.problem.fix

    def test_chosen_gpus_are_named_by_address(self, tmp_path: Path) -> None:
        """HIP 0 is AMD's 1 here; the address is the same for both."""
        root = make_host(tmp_path / "host", *TWO)
        chosen = settings.load(tmp_path, {"GPUS": "0", "GPU_PASSTHROUGH": "cdi"})

        text = gpus.overlay(gpus.passed(chosen, ROCM, [], root))

        assert 'device_ids: ["amd.com/gpu=0000:83:00.0"]' in text
        assert "devices: !reset []" in text

    def test_yaml_is_left_to_the_engine(self, tmp_path: Path) -> None:
        """AMD's toolkit may have written amd.yaml, which we cannot read: no name is rejected then."""
        root = make_host(tmp_path / "host", *TWO)
        engine = Engine(is_usable=True, version="28.3", cdi_folders=(str(tmp_path / "cdi"),))
        chosen = settings.load(tmp_path, {"GPU_PASSTHROUGH": "cdi"})
        (tmp_path / "cdi").mkdir()
        with pytest.raises(RocmlabError, match="does not know"):
            gpus.check(chosen, ROCM, engine, [], root)

        (tmp_path / "cdi/amd.yaml").write_text("kind: amd.com/gpu\n")

        gpus.check(chosen, ROCM, engine, [], root)

    def test_none_hides_them_by_a_mask(self, tmp_path: Path) -> None:
        """The nodes stay, for a lab for AMD GPUs refuses to start without."""
        chosen = settings.load(tmp_path, {"GPUS": "none", "GPU_PASSTHROUGH": "cdi"})

        text = gpus.overlay(gpus.passed(chosen, ROCM, [], make_host(tmp_path / "host", *TWO)))

        assert 'device_ids: ["amd.com/gpu=all"]' in text
        assert 'HIP_VISIBLE_DEVICES: "-1"' in text


class TestSimulated:
    """GPUS=… on a simulated host is a matter of masks: nothing real is passed."""

    def test_the_mask_names_the_chosen(self, tmp_path: Path) -> None:
        """By HIP index, whatever way the user named them."""
        root = make_host(tmp_path / "host", *TWO)

        chosen = settings.load(tmp_path, {"GPUS": "03:00.0"})
        text = gpus.overlay(gpus.passed(chosen, SIMULATED, discover(root, {}), root))

        assert 'HIP_VISIBLE_DEVICES: "1"' in text
        assert "devices:" not in text

    def test_a_gpu_that_it_has_not_is_refused(self, tmp_path: Path) -> None:
        """As on a real host."""
        root = make_host(tmp_path / "host", *TWO)

        with pytest.raises(RocmlabError, match="GPU 5 not found"):
            gpus.check(settings.load(tmp_path, {"GPUS": "5"}), SIMULATED, ENGINE, discover(root, {}), root)
