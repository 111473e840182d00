"""Which image a lab for AMD GPUs is built as, and for which ISA targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, discover
from rocmlab.simulation import write_host
from rocmlab.stack import image_kind, resolve, settings
from rocmlab.stack.choice import Choice
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.engine import Engine
from rocmlab.stack.image_kind import ImageKind

ROCM = Choice("rocm", "docker", "test")


def decided(tmp_path: Path, *targets: str, choice: Choice = ROCM, **flags: str) -> ImageKind:
    """Decide for a host whose GPUs have these ISA targets."""
    devices = [Device("rocm", number, "a GPU", is_usable=True, gfx=gfx) for number, gfx in enumerate(targets)]
    return image_kind.decide(settings.load(tmp_path, flags), choice, devices)


def test_without_a_wish_the_image_is_the_full_one(tmp_path: Path) -> None:
    """Every GPU's kernels, on AMD's own image."""
    assert decided(tmp_path, "gfx1100", "gfx906") == ImageKind("full", possible=("gfx1100",))
    assert decided(tmp_path, choice=Choice("cpu", "docker", "")) == ImageKind("full")


def test_a_slim_image_is_for_the_gpus_that_are_here(tmp_path: Path) -> None:
    """Each target once, sorted, so that the same GPUs in another order do not build it again."""
    kind = decided(tmp_path, "gfx1201", "gfx1100", "gfx1201", IMAGE="slim")

    assert (kind.name, kind.targets, kind.note) == ("slim", ("gfx1100", "gfx1201"), "")


def test_another_hosts_targets_can_be_named(tmp_path: Path) -> None:
    """Then no GPU is needed here."""
    assert decided(tmp_path, IMAGE="slim", GFX="gfx1201, gfx1100").targets == ("gfx1100", "gfx1201")


@pytest.mark.parametrize("gfx", ["gfx906", "gfx1100,gfx803", "gfx1033", "gfx9999"])
def test_a_named_target_without_wheels_is_an_error(tmp_path: Path, gfx: str) -> None:
    """It names the target, and the image that has it; gfx1033 has wheels that compute wrong results."""
    with pytest.raises(RocmlabError, match="AMD has no wheels for gfx") as caught:
        decided(tmp_path, IMAGE="slim", GFX=gfx)

    assert "make up IMAGE=full" in caught.value.problem.fix


@pytest.mark.parametrize("gfx", ["1100", "gfx11", "rx7900", "gfx1100;rm -rf /"])
def test_what_is_no_target_is_an_error(tmp_path: Path, gfx: str) -> None:
    """It goes into a command of the build."""
    with pytest.raises(RocmlabError, match="is not a list of ISA targets"):
        decided(tmp_path, IMAGE="slim", GFX=gfx)


def test_gpus_without_wheels_get_the_full_image_and_a_message(tmp_path: Path) -> None:
    """A lab that works is better than none."""
    kind = decided(tmp_path, "gfx906", IMAGE="slim")

    assert kind.name == "full"
    assert "AMD has no wheels for gfx906" in kind.note


def test_a_gpu_without_wheels_beside_others_is_named(tmp_path: Path) -> None:
    """The image is for the others, and it is no surprise that this one does not work."""
    kind = decided(tmp_path, "gfx1100", "gfx90c", IMAGE="slim")

    assert (kind.name, kind.targets) == ("slim", ("gfx1100",))
    assert "no wheels for gfx90c" in kind.note


def test_an_override_is_a_target_too(tmp_path: Path) -> None:
    """The frameworks look for the kernels of the target that the GPU is made to look like."""
    (tmp_path / ".env").write_text("HSA_OVERRIDE_GFX_VERSION=10.3.0\n")

    assert decided(tmp_path, "gfx1032", IMAGE="slim").targets == ("gfx1030", "gfx1032")


@pytest.mark.parametrize("choice", [Choice("cpu", "docker", ""), Choice("rocm", "native", "")])
def test_where_it_has_no_effect_a_note_says_so(tmp_path: Path, choice: Choice) -> None:
    """A copied `.env` does not stop the lab of a machine without AMD GPUs."""
    kind = decided(tmp_path, choice=choice, IMAGE="slim")

    assert kind.name == "full"
    assert "IMAGE=slim has no effect" in kind.note


def test_without_a_known_target_it_asks_for_one(tmp_path: Path) -> None:
    """WSL2 lists no GPUs."""
    with pytest.raises(RocmlabError) as caught:
        decided(tmp_path, choice=Choice("rocm", "docker", "", is_wsl=True), IMAGE="slim")

    assert "make up IMAGE=slim GFX=gfx1100" in caught.value.problem.fix


def test_a_typo_is_an_error(tmp_path: Path) -> None:
    """Not silently 20 GB."""
    with pytest.raises(RocmlabError, match="IMAGE=slm is unknown"):
        decided(tmp_path, "gfx1100", IMAGE="slm")


def test_a_slim_image_has_its_own_base_and_index(tmp_path: Path) -> None:
    """A small Ubuntu and AMD's index; each can be chosen, and the full image's return with it."""
    (tmp_path / "notebooks").mkdir()
    root = write_host(tmp_path / "host", products=("rx7900xtx",))

    def values(**flags: str) -> dict[str, str]:
        given = settings.load(tmp_path, flags)
        devices = discover(root)
        return resolve.resolve(given, ROCM, devices, root, image_kind.decide(given, ROCM, devices))

    slim, full, own = values(IMAGE="slim"), values(), values(IMAGE="slim", TORCH_INDEX="https://example.org/whl")
    assert (slim["BASE_IMAGE"], slim["ROCMLAB_IMAGE_KIND"]) == ("ubuntu:24.04", "slim")
    assert slim["ROCMLAB_IMAGE_GFX"] == "gfx1100"
    assert slim["TORCH_INDEX"].endswith("/rocm/whl-next/")
    assert own["TORCH_INDEX"] == "https://example.org/whl"
    assert full["BASE_IMAGE"].startswith("rocm/tensorflow:")
    assert not [name for name in full if name.startswith("ROCMLAB_IMAGE_")]


def test_a_single_command_for_the_cpu_builds_nothing_slim(tmp_path: Path) -> None:
    """`.env` describes a slim lab, and `make run-notebooks BACKEND=cpu` does not rewrite it; Compose also reads it."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / ".env").write_text("ROCMLAB_BACKEND=rocm\nROCMLAB_IMAGE_KIND=slim\nROCMLAB_IMAGE_GFX=gfx1100\n")
    given = settings.load(tmp_path, {"BACKEND": "cpu"})
    cpu = Choice("cpu", "docker", "test")
    values = resolve.resolve(given, cpu, [], tmp_path, image_kind.decide(given, cpu, []))

    environment = DockerLab(given, values, Engine(is_usable=True)).environment

    assert (environment["ROCMLAB_IMAGE_KIND"], environment["ROCMLAB_IMAGE_GFX"]) == ("full", "")


def test_a_debian_image_is_for_the_gpus_that_are_here(tmp_path: Path) -> None:
    """Its base is made here and named by the targets, so that other GPUs mean another base; the build is the usual."""
    (tmp_path / "notebooks").mkdir()
    root = write_host(tmp_path / "host", products=("mi210",))
    given, devices = settings.load(tmp_path, {"IMAGE": "debian"}), discover(root)
    kind = image_kind.decide(given, ROCM, devices)

    docker = resolve.resolve(given, ROCM, devices, root, kind)
    podman = resolve.resolve(given, Choice("rocm", "podman", "test"), devices, root, kind)

    assert (kind.name, kind.targets, kind.note) == ("debian", ("gfx90a",), "")
    assert docker["BASE_IMAGE"] == "rocmlab-debian-rocm:gfx90a"
    assert podman["BASE_IMAGE"] == "localhost/rocmlab-debian-rocm:gfx90a"
    assert image_kind.made_for(docker["BASE_IMAGE"]) == image_kind.made_for(podman["BASE_IMAGE"]) == ("gfx90a",)
    assert image_kind.made_for("mirror.example.org/rocmlab-debian-rocm:gfx90a") == (), "another machine made it"
    assert docker["TORCH_INDEX"].endswith("/rocm7.2")
    assert not [name for name in docker if name.startswith("ROCMLAB_IMAGE_")]


def test_a_gpu_that_debian_has_no_kernels_for_gets_the_full_image(tmp_path: Path) -> None:
    """A lab that works is better than none; a target that was named is an error."""
    kind = decided(tmp_path, "gfx1201", IMAGE="debian")
    assert kind.name == "full"
    assert "no common kernels for gfx1201" in kind.note

    with pytest.raises(RocmlabError, match="GFX=gfx942 cannot be built as a debian image"):
        decided(tmp_path, IMAGE="debian", GFX="gfx942")
