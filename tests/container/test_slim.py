"""The slim image: PyTorch from an index like AMD's, for exactly the requested ISA targets.

The index is a real one over HTTP with stand-ins of AMD's packages: their names, versions, extras and requirements, and
`rocm` as a source distribution. As AMD's does, it answers 403 for every name that it does not have. Nothing computes.
"""

from __future__ import annotations

import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import standins
from containers import TOKEN as LAB_TOKEN
from containers import Container, docker, mirror

pytestmark = [pytest.mark.container, pytest.mark.images, pytest.mark.long("the slim image")]
ROCM = "10.0.0"
TORCH, VISION = f"2.13.0+rocm{ROCM}", f"0.28.0+rocm{ROCM}"
PUBLISHED = ("gfx1100", "gfx1201", "gfx942")
SETUP = f"""
import os
from setuptools import setup

target = os.environ["ROCM_BOOTSTRAP_FORCE_GFX_ARCH"]  # without it AMD's looks for a GPU of the machine that builds
devices = {{f"device-{{each}}": [f"rocm-sdk-device-{{each}}=={ROCM}"] for each in {PUBLISHED!r}}}
setup(
    name="rocm", version="{ROCM}", py_modules=["rocm_sdk"], description=target,
    install_requires=["rocm-sdk-core=={ROCM}"],
    extras_require={{"libraries": ["rocm-sdk-libraries=={ROCM}"], **devices}},
)
"""


OFFERED = f"""
import urllib.request
address = "http://127.0.0.1:8888/api/kernelspecs?token={LAB_TOKEN}"
print(urllib.request.urlopen(address).read().decode())
"""


def publish(folder: Path) -> None:
    """Write what AMD's index has, as stand-ins."""
    devices = [f"amd-torch-device-{each}=={TORCH} ; extra == 'device-{each}'" for each in PUBLISHED]
    vision = [f"amd-torchvision-device-{each}=={VISION} ; extra == 'device-{each}'" for each in PUBLISHED]
    files = {
        "torch/__init__.py": standins.TORCH.format(version=TORCH),
        "torch/version.py": f"hip = {ROCM!r}\ncuda = None\n",
    }
    own = ["filelock", "setuptools", f"rocm[libraries]=={ROCM}", f"triton==3.7.1+rocm{ROCM}"]
    standins.wheel(folder, "torch", TORCH, files, [*own, *devices])
    standins.wheel(folder, "torchvision", VISION, {"torchvision/__init__.py": ""}, [f"torch=={TORCH}", *vision])
    standins.wheel(folder, "triton", f"3.7.1+rocm{ROCM}", {"triton/__init__.py": ""})
    for name in ("rocm-sdk-core", "rocm-sdk-libraries"):
        standins.wheel(folder, name, ROCM, {f"{name.replace('-', '_')}/__init__.py": ""})
    for each in PUBLISHED:
        standins.wheel(folder, f"rocm-sdk-device-{each}", ROCM, {f"_rocm_sdk_device_{each}/kernels": each})
        requires = [f"rocm[device-{each}]=={ROCM}"]
        standins.wheel(folder, f"amd-torch-device-{each}", TORCH, {f"_torch_device_{each}/kernels": each}, requires)
        standins.wheel(folder, f"amd-torchvision-device-{each}", VISION, {f"_vision_device_{each}/kernels": each})
    with tarfile.open(folder / f"rocm-{ROCM}.tar.gz", "w:gz") as archive:
        inside = {
            "setup.py": SETUP,
            "rocm_sdk.py": "",
            "pyproject.toml": '[build-system]\nrequires = ["setuptools", "rocm-bootstrap"]\n'
            'build-backend = "setuptools.build_meta"\n',
            "PKG-INFO": f"Metadata-Version: 2.1\nName: rocm\nVersion: {ROCM}\n",
        }
        for name, text in inside.items():
            entry = tarfile.TarInfo(f"rocm-{ROCM}/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


@contextmanager
def index_of(folder: Path, address: str) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder as a package index; yield its URL, and the names that were refused with 403."""
    refused: list[str] = []

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            if parts[0] == "files":
                return self.answer((folder / parts[1].replace("%2B", "+")).read_bytes())
            name = parts[-1].replace("-", "_")
            found = [file.name for file in folder.iterdir() if file.name.split("-")[0] == name]
            if not found:
                refused.append(parts[-1])
                return self.send_error(403)
            return self.answer("".join(f'<a href="/files/{each}">{each}</a>\n' for each in found).encode())

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer((address, 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{address}:{server.server_port}/rocm/whl-next/", refused
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The index, where containers of Docker's bridge reach this host."""
    folder = tmp_path_factory.mktemp("index")
    publish(folder)
    address = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}").strip()
    with index_of(folder, address) as served:
        yield served


@pytest.fixture(scope="module")
def settings(index: tuple[str, list[str]], base_image: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `make up IMAGE=slim` would write, but for the base and the index; pip trusts the latter without TLS."""
    configuration = Path(mirror()["PIP_CONFIG"])
    text = configuration.read_text() if configuration.is_file() else ""
    address = index[0].split("/")[2]
    path = tmp_path_factory.mktemp("pip") / "pip.conf"
    path.write_text(f"{text}\n[install]\ntrusted-host = {address.split(':')[0]}\n")
    return {
        "BASE_IMAGE": base_image,
        "TORCH_INDEX": index[0],
        "PIP_CONFIG": str(path),
        "ROCMLAB_IMAGE_KIND": "slim",
    }


@pytest.fixture(scope="module")
def slim_image(settings: dict[str, str], make_project) -> Iterator[str]:
    """A slim image for two targets, on the layers that the CPU image has in the cache."""
    tag = make_project("rocm", **settings, ROCMLAB_IMAGE_GFX="gfx1100,gfx1201").build()
    yield tag
    docker("image", "rm", tag)


def test_a_slim_image_has_exactly_the_kernels_of_its_targets(slim_image: str, index: tuple[str, list[str]]) -> None:
    """PyTorch, torchvision and the ROCm libraries for both targets, for no third one, and no TensorFlow."""
    with Container(slim_image, "--env=ROCMLAB_BACKEND=cpu", command=["sleep", "60"]) as container:
        record = json.loads(container.exec("cat", "/etc/rocmlab-build.json"))
        constraints = container.exec("cat", "/opt/torch/constraints.txt").split()

    torch = record["versions"]["torch"]
    assert (record["image"], record["gfx"], record["rocm"]) == ("slim", ["gfx1100", "gfx1201"], ROCM)
    assert torch["torch"] == TORCH
    assert torch["torchvision"] == VISION
    devices = {name.rpartition("-")[2] for name in torch if "-device-gfx" in name}
    assert devices == {"gfx1100", "gfx1201"}
    assert {f"rocm-sdk-device-{each}" for each in devices} <= set(torch)
    assert "tensorflow" not in record["versions"]
    assert f"amd-torch-device-gfx1100=={TORCH}" in constraints  # `%pip install` keeps it
    assert "torchaudio" in index[1]  # which this index answers with 403


def test_the_launcher_explains_how_to_get_tensorflow(slim_image: str) -> None:
    """PyTorch computes and is offered first; a cell in the kernel `tensorflow` is answered by what gets it."""
    with Container(slim_image, "--env=ROCMLAB_BACKEND=cpu") as container:
        container.wait_for_server()
        torch = container.execute("torch", "import torch; print(torch.version.hip)")
        kernel = json.loads(container.exec("cat", "/opt/rocmlab/share/jupyter/kernels/tensorflow/kernel.json"))
        offered = json.loads(container.exec("start.sh", "python3", "-c", OFFERED))
        caches = container.exec("ls", "/home/jovyan/share/cache")
        answer = container.execute("tensorflow", "print('computed')")
        plan = container.exec("start.sh", "rocmlab", "run", "--dry-run", "01_mnist_fc")

    assert torch == f"{ROCM}\n"
    assert kernel["display_name"] == "TensorFlow (not in this image)"
    assert offered["default"] == "torch"
    assert f"rocm{ROCM}-" in caches  # compiled kernels are of one ROCm
    assert answer == "NotInThisImage: this image has no TensorFlow\n"
    assert "make up IMAGE=full" in kernel["env"]["ROCMLAB_REFUSAL"]  # which a page shows below it
    assert "it runs with the kernel 'torch'" in plan


def test_a_target_without_wheels_stops_the_build(settings: dict[str, str], make_project) -> None:
    """An image without the kernels of its GPU would compute nothing."""
    with pytest.raises(RuntimeError, match="amd-torch-device-gfx906"):
        make_project("rocm", **settings, ROCMLAB_IMAGE_GFX="gfx906").build()
