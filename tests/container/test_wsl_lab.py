"""The lab on WSL2: a stand-in for /dev/dxg on this host, and real containers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import standins
from clones import Clone, clone
from containers import docker

pytestmark = pytest.mark.container
LIBRARIES = Path("/usr/lib/wsl/lib")
LOOK = """
import json, os
os.close(os.open("/dev/dxg", os.O_RDWR))
wanted = ("LD_LIBRARY_PATH", "HSA_ENABLE_DXG_DETECTION", "ROCMLAB_BACKEND")
print(json.dumps({**{name: os.environ.get(name) for name in wanted}, "uid": os.getuid(), "nodes": os.listdir("/dev"),
    "lent": os.listdir("/usr/lib/wsl/lib"), "writable": os.access("/usr/lib/wsl", os.W_OK)}))
"""


@pytest.fixture
def wsl() -> Iterator[None]:
    """A host with /dev/dxg and the libraries that Windows lends, and without /dev/kfd."""
    if LIBRARIES.parent.exists():
        pytest.skip("this host is WSL2 itself")
    with standins.host_nodes({"/dev/dxg": 0}, mode=0o666):
        LIBRARIES.mkdir(parents=True)
        (LIBRARIES / "libdxcore.so").touch()
        try:
            yield
        finally:
            (LIBRARIES / "libdxcore.so").unlink()
            LIBRARIES.rmdir()
            LIBRARIES.parent.rmdir()


@pytest.fixture
def lab(image: str, base_image: str, tmp_path: Path) -> Iterator[Clone]:
    """A clone whose image for ROCm is that of the CPU under another name, with the label that `make up` looks for."""
    name = f"rocmlab-test-wsl-{os.getpid()}"
    found = clone(tmp_path / "rocmlab", BASE_IMAGE=base_image, COMPOSE_PROJECT_NAME=name)
    yield found
    found.make("clean", succeeds=False)
    subprocess.run(["docker", "volume", "rm", "--force", f"{name}_share"], capture_output=True, check=False)


def prepare(lab: Clone, image: str) -> None:
    """Make the image that `make up` would build."""
    program = "from rocmlab.stack import project; print(project.plan(project.find()).lab.inputs)"
    environment = {**lab.environment, **lab.settings, "PYTHONPATH": "src"}
    inputs = subprocess.run(
        ["python3", "-c", program], cwd=lab.folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    text = f"FROM {image}\nENV ROCMLAB_BACKEND=rocm\nLABEL rocmlab.inputs={inputs}\n"
    docker("build", f"--tag={lab.settings['COMPOSE_PROJECT_NAME']}:rocm", "-", text=text)


def test_make_up_passes_dxg_and_says_what_cannot_be_shown(wsl: None, lab: Clone, image: str) -> None:
    """The backend is rocm, the lab is not stopped for lack of a listed GPU, and its user opens the node."""
    prepare(lab, image)

    printed = lab.make("up").stdout
    container = docker(
        "ps", "--quiet", "--filter", f"label=com.docker.compose.project={lab.env['COMPOSE_PROJECT_NAME']}"
    )
    seen = json.loads(docker("exec", container.strip(), "start.sh", "python3", "-c", LOOK))

    assert "backend rocm, runtime docker (WSL2's /dev/dxg found" in printed
    assert len([line for line in printed.splitlines() if line.startswith("WSL2: ")]) == 1
    assert lab.answers()
    assert lab.env["COMPOSE_FILE"] == "compose.yaml:docker/compose.wsl.yaml"
    assert seen["HSA_ENABLE_DXG_DETECTION"] == "1"
    assert seen["LD_LIBRARY_PATH"].split(":")[0] == str(LIBRARIES)
    assert seen["lent"] == ["libdxcore.so"]
    assert not seen["writable"]
    assert seen["uid"] == 1000
    assert "kfd" not in seen["nodes"]

    refused = lab.make("up", GPUS="0", succeeds=False).stdout
    assert "error: GPUS=0 was requested, and this is WSL2" in refused
