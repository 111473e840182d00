"""The ROCm branch of the build, on a base that stands in for AMD's image.

It is Debian with a `tensorflow-rocm` that says it is built with ROCm, and a PyTorch wheel that says it has HIP.
Neither computes; the build only examines them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import standins
from clones import clone, lighten
from containers import Container, docker

pytestmark = pytest.mark.container
# Of the kernel, as of /opt/torch (standins.UNUSED_BESIDE_TORCH).
UNUSED_IN_KERNEL = ("contourpy", "fonttools", "kiwisolver", "matplotlib", "numpy", "pillow")
UNUSED = re.compile(
    r"/build/environment (/opt/rocmlab|/opt/torch) [^&\n]*(?:&& (?:/opt/rocmlab|/build/compile)[^&\n]*)?"
)
DOCKERFILE = """
FROM {base}
COPY *.whl /tmp/
RUN for wheel in /tmp/*.whl; do \
      python3 -m zipfile -e $wheel $(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
    done && rm /tmp/*.whl
"""


@pytest.fixture(scope="module")
def bare(image: str, make_project, base_image: str) -> Iterator[str]:
    """The Dockerfile's own stage `base`, from the cache of the CPU image: no second download of apt's packages."""
    folder = str(make_project("cpu").folder)
    tag = "rocmlab-test/bare"
    chosen = ["--target=base", f"--build-arg=BASE_IMAGE={base_image}", f"--file={folder}/docker/Dockerfile"]
    docker("build", f"--tag={tag}", *chosen, folder)
    yield tag
    docker("image", "rm", tag)


@pytest.fixture(scope="module")
def make_base(bare: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Return a function that makes a stand-in for AMD's image."""
    tags = []

    def make(name: str, *, rocm: bool, numpy: str = "", **others: str) -> str:
        folder = tmp_path_factory.mktemp(name)
        standins.tensorflow(folder, rocm=rocm)
        if numpy:  # TensorFlow requires it, so every base has it
            subprocess.run(["python3", "-m", "pip", "download", "-q", "--no-deps", "-d", folder, numpy], check=True)
        for distribution, version in others.items():
            standins.wheel(folder, distribution, version, {f"{distribution}_standin.py": ""})
        (folder / "Dockerfile").write_text(DOCKERFILE.format(base=bare))
        tags.append(f"rocmlab-test/{name}")
        docker("build", "--tag", tags[-1], str(folder))
        return tags[-1]

    yield make
    for tag in tags:
        docker("image", "rm", tag)


def torch_wheels(folder: Path, *, hip: str | None) -> str:
    """Write the stand-in for PyTorch and return its folder."""
    standins.torch(folder, hip=hip)
    return str(folder)


@pytest.fixture(scope="module")
def rocm_base(make_base) -> str:
    """A base with TensorFlow for ROCm and its NumPy, without pip, and with a package that is older than the lock's."""
    return make_base("rocm", rocm=True, numpy="numpy==1.26.4", tzdata="2024.1")


@pytest.fixture(scope="module")
def make_light(make_project):
    """Return a function that makes a project for ROCm whose /opt/torch lacks what is unused here."""

    def make(**settings: str):
        project = make_project("rocm", **settings)
        lighten(project.folder / "requirements/torch.txt", *standins.UNUSED_BESIDE_TORCH)
        return project

    return make


def checked_only(project):
    """Leave the environments of JupyterLab and PyTorch empty in a build that must stop before it needs one."""
    file = project.folder / "docker/Dockerfile"
    text, count = UNUSED.subn(r"mkdir -p \1 ", file.read_text())
    assert count == 2
    file.write_text(text)
    return project


@pytest.fixture(scope="module")
def rocm_settings(rocm_base: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the image on the stand-in base is built from; anyone who gives the same finds its layers in the cache."""
    wheels = torch_wheels(tmp_path_factory.mktemp("hip"), hip="7.2.0")
    jax = standins.jax_plugin(Path(wheels), "rocm7")
    return {"BASE_IMAGE": rocm_base, "WHEELS": wheels, "TORCH_INDEX": "", "JAX_PACKAGES": jax}


@pytest.fixture(scope="module")
def rocm_image(make_light, rocm_settings: dict[str, str]) -> Iterator[str]:
    """The ROCm image on the stand-in base."""
    tag = make_light(**rocm_settings).build()
    yield tag
    docker("image", "rm", tag)


def test_base_keeps_its_own_packages(rocm_image: str) -> None:
    """The kernel's needs are added to the base's interpreter; what it had, TensorFlow first, has the same version."""
    with Container(rocm_image, "--env=ROCMLAB_BACKEND=cpu", command=["sleep", "60"]) as container:
        record = json.loads(container.exec("cat", "/etc/rocmlab-build.json"))
        constraints = container.exec("cat", "/etc/rocmlab-constraints.txt").split()
        kernel = json.loads(container.exec("cat", "/opt/rocmlab/share/jupyter/kernels/tensorflow/kernel.json"))

    versions = record["versions"]["tensorflow"]
    assert record["backend"] == "rocm"
    assert record["interpreters"]["tensorflow"].startswith("/usr/bin/python3")
    assert versions["tensorflow-rocm"] == "2.20.0.dev0+selfbuilt"
    assert (versions["numpy"], versions["tzdata"]) == ("1.26.4", "2024.1")
    assert {"ipykernel", "matplotlib", "pip", "rocmlab"} <= set(versions)
    assert {"ipywidgets", "pandas", "scikit-learn", "tqdm"} <= set(versions)
    assert {"tensorflow-rocm==2.20.0.dev0+selfbuilt", "tzdata==2024.1", "tensorflow<0"} <= set(constraints)
    assert kernel["env"]["PIP_CONSTRAINT"] == "/etc/rocmlab-constraints.txt"
    assert record["versions"]["torch"]["torch"] == "2.13.0+rocm7.2"
    assert record["versions"]["torch"]["triton-rocm"] == "3.7.0"
    assert record["versions"]["torch"]["jax-rocm7-plugin"] == "0.10.2+standin"


def test_our_layers_stay_small(rocm_image: str, base_image: str) -> None:
    """On a base that has TensorFlow, what we add is at most 700 MB; PyTorch and its environment are counted apart."""
    layers = history(rocm_image)[: -len(history(base_image))]
    apart = ("/opt/torch", "/build/torch", "/build/tensorflow", "COPY *.whl", "for wheel in")
    ours = {step: size for step, size in layers if size and not any(word in step for word in apart)}

    assert len(ours) >= 4, ours
    assert sum(ours.values()) <= 700e6, ours


def history(image: str) -> list[tuple[str, int]]:
    """Return how each layer was made and its size in bytes, the newest first."""
    lines = docker("history", "--no-trunc", "--human=false", "--format", "{{json .}}", image).splitlines()
    return [(entry["CreatedBy"], int(entry["Size"])) for entry in map(json.loads, lines)]


def test_kernels_of_the_rocm_image_start(rocm_image: str) -> None:
    """Both kernels run in it and import what was built for ROCm."""
    with Container(rocm_image, "--env=ROCMLAB_BACKEND=cpu") as container:
        container.wait_for_server()
        tensorflow = container.execute("tensorflow", "import tensorflow as tf; print(tf.test.is_built_with_rocm())")
        torch = container.execute("torch", "import torch; print(torch.version.hip)")

    assert tensorflow == "True\n"
    assert torch == "7.2.0\n"


@pytest.mark.long
def test_pytorch_without_hip_stops_the_build(rocm_base: str, make_light, tmp_path: Path) -> None:
    """A CPU PyTorch in a ROCm image would compute on the CPU silently."""
    wheels = torch_wheels(tmp_path, hip=None)

    with pytest.raises(RuntimeError, match=r"PyTorch 2\.13\.0 is not built for rocm .* set TORCH_INDEX"):
        make_light(BASE_IMAGE=rocm_base, WHEELS=wheels, TORCH_INDEX="").build()


@pytest.mark.long
def test_a_jax_that_would_not_find_its_plugin_stops_the_build(rocm_base: str, make_light, tmp_path: Path) -> None:
    """Packages were requested, and none of them is the plugin for AMD's GPUs."""
    wheels = torch_wheels(tmp_path, hip="7.2.0")
    jax = standins.jax_plugin(Path(wheels), "cuda13")

    with pytest.raises(RuntimeError, match=r"has no plugin for rocm.*JAX_PACKAGES="):
        make_light(BASE_IMAGE=rocm_base, WHEELS=wheels, TORCH_INDEX="", JAX_PACKAGES=jax).build()


@pytest.mark.long
def test_tensorflow_without_rocm_stops_the_build(make_base, make_light) -> None:
    """So would a TensorFlow that is not built with ROCm."""
    base = make_base("norocm", rocm=False)

    with pytest.raises(RuntimeError, match=r"is not built with rocm.*set BASE_IMAGE"):
        checked_only(make_light(BASE_IMAGE=base)).build()


def test_base_without_tensorflow_stops_the_build(bare: str, make_project) -> None:
    """Only the CPU backend brings its own TensorFlow."""
    with pytest.raises(RuntimeError, match="no Python of the base image has TensorFlow"):
        checked_only(make_project("rocm", BASE_IMAGE=bare)).build()


@pytest.mark.long
def test_conflict_with_the_base_stops_the_build(make_base, make_light) -> None:
    """A base too old for the kernel is named at once, not by a kernel that dies later."""
    base = make_base("old", rocm=True, traitlets="4.0")
    project = checked_only(make_light(BASE_IMAGE=base))
    lighten(project.folder / "requirements/kernel.txt", *UNUSED_IN_KERNEL)

    with pytest.raises(RuntimeError, match=r"packages of \S+ do not go with the lab's.*traitlets"):
        project.build()


@pytest.fixture
def host_nodes() -> Iterator[dict[str, int]]:
    """Stand-ins for a GPU's nodes on this very host: two odd groups without a name, mode 0660."""
    groups = {"/dev/kfd": 61104, "/dev/dri/renderD128": 61992}
    with standins.host_nodes(groups):
        yield groups


def test_make_up_takes_an_amd_host_without_being_told(
    rocm_settings: dict[str, str], host_nodes: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Device nodes and an engine choose docker/rocm; `.env` has the nodes' numbers; no GPU inside is an error.

    The nodes are stand-ins, so the lab sees no GPU in the topology: `make up` must refuse to leave it running. Plain
    `docker compose up` then starts it from the same `.env`, and a process of the lab's user opens both nodes.
    """
    name = f"rocmlab-test-rocm-{os.getpid()}"
    found = clone(tmp_path_factory.mktemp("rocm-up") / "rocmlab", COMPOSE_PROJECT_NAME=name, **rocm_settings)
    lighten(found.folder / "requirements/torch.txt", *standins.UNUSED_BESIDE_TORCH)
    try:
        done = found.make("up", succeeds=False)

        assert "backend rocm, runtime docker (AMD GPU found" in done.stdout
        assert "error: the lab has no usable GPU for the backend rocm" in done.stdout
        assert not docker("ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={name}").strip()
        assert found.env["COMPOSE_FILE"] == "compose.yaml:docker/compose.leases.yaml"
        assert {found.env["RENDER_GID"], found.env["VIDEO_GID"]} == {"61104", "61992"}

        subprocess.run(
            ["docker", "compose", "up", "--detach", "--wait"], cwd=found.folder, env=found.environment, check=True
        )
        container = docker("ps", "--quiet", "--filter", f"label=com.docker.compose.project={name}").strip()
        program = (
            "import os; [os.open(path, os.O_RDWR) for path in ('/dev/kfd', '/dev/dri/renderD128')]; print(os.getuid())"
        )
        assert docker("exec", container, "start.sh", "python3", "-c", program).strip() == "1000"
    finally:
        subprocess.run(["docker", "compose", "down", "--volumes"], cwd=found.folder, env=found.environment, check=False)
        docker("image", "rm", "--force", f"{name}:rocm")
