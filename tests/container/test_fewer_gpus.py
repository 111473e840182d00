"""`make up GPUS=…`: exactly the chosen GPUs are passed to a real container, and inside they count from 0."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import standins
from hosts import Gpu, make_host
from second_user import open_to_others

from rocmlab.devices import visibility
from rocmlab.devices.rocm import Rocm
from rocmlab.stack import gpus, settings
from rocmlab.stack.choice import Choice

pytestmark = pytest.mark.container
# The order of KFD nodes is that of HIP; the render nodes' numbers and the PCI addresses follow another.
GPUS = (
    Gpu(1, 0x8300, 130, unique_id=0x1111222233334444),
    Gpu(2, 0x0300, 128, unique_id=0x2222333344445555),
    Gpu(9, 0x4600, 131, unique_id=0x3333444455556666, domain=1),
    Gpu(10, 0x2300, 129, unique_id=0x4444555566667777),
)
NODES = {"/dev/kfd": 61104, **{f"/dev/dri/renderD{gpu.minor}": 61800 + gpu.minor for gpu in GPUS}, "/dev/dri/card0": 44}
ROCM = Choice("rocm", "docker", "test")
MOUNT = """\
services:
  lab:
    environment:
      ROCMLAB_ROOT: /host
      ROCMLAB_BACKEND: rocm
    volumes:
      - {root}:/host:ro
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A host with four GPUs: the topology is a folder, and its /dev is that of anyone who looks, host or container."""
    root = make_host(tmp_path_factory.mktemp("host"), *GPUS)
    for path in sorted((root / "dev").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "dev").rmdir()
    (root / "dev").symlink_to("/dev")
    open_to_others(root)
    with standins.host_nodes(NODES):
        yield root


def inside(project, command: list[str]) -> str:
    """Return what a command prints in the running lab."""
    done = project.compose("exec", "-T", "lab", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("choice", "minors"),
    [
        ("0,2", [130, 131]),
        ("1-3", [128, 131, 129]),
        ("0000:23:00.0,0001:46:00.0", [131, 129]),
        ("GPU-2222333344445555", [128]),
    ],
)
def test_exactly_the_chosen_gpus_are_seen(make_project, image: str, host: Path, choice: str, minors: list[int]) -> None:
    """Only their render nodes exist inside, the lab's user opens them, and HIP counts them from 0 in KFD's order."""
    project = make_project("rocm", ROCMLAB_IMAGE=image)
    chosen = settings.load(project.folder, {"GPUS": choice})
    (project.folder / ".rocmlab").mkdir()
    (project.folder / gpus.OVERLAY).write_text(gpus.overlay(gpus.passed(chosen, ROCM, [], host)))
    (project.folder / "mount.yaml").write_text(MOUNT.format(root=host))
    project.settings["COMPOSE_FILE"] = ":".join([*gpus.overlays(chosen, ROCM), "mount.yaml"])
    project.write()
    try:
        up: subprocess.CompletedProcess[str] = project.compose("up", "--detach", "--wait")
        assert up.returncode == 0, up.stderr + project.compose("logs").stdout
        nodes = inside(project, ["ls", "/dev/dri"]).split()
        seen = json.loads(inside(project, ["start.sh", "rocmlab", "devices", "--json"]))["devices"]
    finally:
        project.compose("down", "--volumes")

    usable = [device for device in seen if device["backend"] == "rocm" and device["is_usable"]]
    on_the_host = visibility.select(Rocm().discover(host, as_root=True), choice)
    in_hip_order = sorted(on_the_host, key=lambda device: device.index)
    assert nodes == sorted(f"renderD{minor}" for minor in minors)
    assert [device["index"] for device in usable] == list(range(len(minors)))
    assert [device["render_node"] for device in usable] == [f"/dev/dri/renderD{minor}" for minor in minors]
    assert [device["pci_address"] for device in usable] == [device.pci_address for device in in_hip_order]
    assert [device["unique_id"] for device in usable] == [device.unique_id for device in in_hip_order]
    hidden = [device for device in seen if device["backend"] == "rocm" and not device["is_usable"]]
    assert len(hidden) == len(GPUS) - len(minors)
    assert all("is missing" in device["why_not"] for device in hidden)
