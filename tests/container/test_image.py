"""What is in the image, and that no later installation takes it away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import standins
from containers import Container, docker

pytestmark = pytest.mark.container
UNITS = Path(__file__).parent / "units"
COMMON = ("ipywidgets", "matplotlib", "pandas", "sklearn", "tensorboard", "tqdm")
PACKAGES = {"tensorflow": COMMON, "torch": (*COMMON, "accelerate", "datasets", "peft", "transformers")}
SITE = "import os, numpy; print(os.path.dirname(numpy.__path__[0]))"  # the folder with an interpreter's packages
# What is kept as the image has it, and where that is.
KEPT = """
import sys
from rocmlab.packages import base_packages, protection
base = base_packages.read(sys.argv[1])
print(*protection.pins(base.versions), *base.sites)
"""
OPENCL = """
from rocmlab.training import opencl
try:
    opencl.choose("cpu")
except opencl.CannotLink as err:
    print(err)
"""
PYTHONS = {name: f"/opt/{name}/bin/python" for name in ("tensorflow", "torch", "rocmlab")}


@pytest.mark.long
@pytest.mark.parametrize("environment", PYTHONS)
def test_environment_works(lab: Container, environment: str) -> None:
    """Each environment computes, or starts, what it is for."""
    program = (UNITS / f"unit_{environment}.py").read_text()

    printed = lab.as_lab_user("env", f"KERAS_BACKEND={environment}", PYTHONS[environment], "-", text=program)

    assert f"{environment} " in printed


@pytest.mark.long
@pytest.mark.parametrize("kernel", PACKAGES)
def test_kernels_have_what_people_import(lab: Container, kernel: str) -> None:
    """Tables, models, progress bars, widgets, TensorBoard and what fine-tuning needs take no `%pip install`."""
    program = (UNITS / "unit_packages.py").read_text()

    printed = lab.as_lab_user("env", f"KERAS_BACKEND={kernel}", PYTHONS[kernel], "-", *PACKAGES[kernel], text=program)

    assert [line.split()[0] for line in printed.splitlines()][: len(PACKAGES[kernel])] == list(PACKAGES[kernel])
    assert "TensorBoard wrote its events" in printed


@pytest.mark.parametrize(("kernel", "names"), [("tensorflow", "tensorflow, keras"), ("torch", "torch, transformers")])
def test_what_people_import_first_was_compiled_with_the_image(lab: Container, kernel: str, names: str) -> None:
    """Python compiles nothing, and takes no file for outdated: a container would do so again at its first import."""
    program = f"import numpy, pandas, scipy.stats, matplotlib.pyplot, sklearn.ensemble, ipykernel.kernelapp, {names}"

    printed = lab.as_lab_user("bash", "-c", f"PYTHONDONTWRITEBYTECODE=1 {PYTHONS[kernel]} -v -c '{program}' 2>&1")

    lines = printed.splitlines()
    assert len([line for line in lines if f" matches /opt/{kernel}/" in line]) > 1000
    assert [line for line in lines if line.startswith(f"# code object from /opt/{kernel}/")] == []


def test_opencl_says_what_it_lacks(lab: Container) -> None:
    """On a base without a linker PoCL's wheel would end the kernel's process."""
    printed = lab.as_lab_user(PYTHONS["torch"], "-", text=OPENCL)

    assert "cannot link" in printed
    assert "ld" in printed
    assert "apt.txt" in printed


@pytest.mark.parametrize("kernel", ["tensorflow", "torch"])
def test_users_may_add_to_each_folder_of_a_kernel(lab: Container, kernel: str) -> None:
    """Packages, and what Python compiles, whichever step of the build made the folder."""
    ours = ("-type", "d", "-user", "root")  # the other tests of this lab import, and Python makes folders for that

    assert lab.as_lab_user("find", f"/opt/{kernel}", *ours, "-not", "-perm", "-2070") == ""


def test_the_lab_shows_widgets(lab: Container) -> None:
    """JupyterLab has the extension that ipywidgets in a kernel need."""
    extensions = lab.as_lab_user("bash", "-c", "jupyter labextension list 2>&1")

    assert "@jupyter-widgets/jupyterlab-manager" in extensions


def test_the_lab_itself_cannot_be_changed_by_its_user(lab: Container) -> None:
    """A program of a notebook in root's PATH would run as root: by the health check, and by every `docker exec`."""
    folders = "/opt/rocmlab /usr/local/bin $(echo $PATH | tr : ' ')"

    found = lab.as_lab_user("bash", "-c", f"find {folders} -writable -not -type l 2>/dev/null || true")

    assert found == ""


def test_vs_code_attaches_as_the_labs_user(image: str, lab: Container) -> None:
    """With `docker exec --user`, as the image's label has it: with the lab's groups, its home and its interpreter."""
    (metadata,) = json.loads(
        docker("image", "inspect", "--format", '{{index .Config.Labels "devcontainer.metadata"}}', image)
    )
    python = metadata["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    script = f"mkdir -p ~/.vscode-server && touch ~/work/of-vs-code && id -u && id -G && {python} -c 'import torch'"

    uid, groups = docker("exec", "--user", metadata["remoteUser"], lab.id, "bash", "-c", script).splitlines()
    owner = lab.exec("stat", "--format", "%U", "/home/jovyan/work/of-vs-code", "/home/jovyan/share/home/.vscode-server")
    lab.exec("rm", "/home/jovyan/work/of-vs-code")

    status = lab.server_status()
    assert uid == status["Uid"].split()[0]
    assert set(groups.split()) == set(status["Groups"].split())
    assert owner.split() == ["jovyan", "jovyan"]


def test_only_kernels_with_a_framework_are_offered(lab: Container) -> None:
    """The server and the command line offer `tensorflow` and `torch`, and not JupyterLab's own Python."""
    served = json.loads(lab.request("/api/kernelspecs", token=lab.token)[1])["kernelspecs"]
    listed = json.loads(lab.as_lab_user("jupyter", "kernelspec", "list", "--json"))["kernelspecs"]

    assert set(served) == set(listed) == {"tensorflow", "torch"}


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["tensorflow", "torch"])
def test_kernel_has_its_keras_backend_and_the_share(lab: Container, kernel: str) -> None:
    """A notebook finds its framework through Keras and the share through the environment."""
    code = "import os; print(os.environ['KERAS_BACKEND'], os.environ['ROCMLAB_SHARE'], os.environ['ROCMLAB_BACKEND'])"

    assert lab.execute(kernel, code).split() == [kernel, "/home/jovyan/share", "cpu"]


def test_a_share_of_this_layout_is_known_to_the_image(lab: Container) -> None:
    """start.sh compares two files then, and starts no Python to check the layout."""
    lab.exec("cmp", "/usr/share/rocmlab/layout/.rocmlab/layout.json", "/home/jovyan/share/.rocmlab/layout.json")


def test_build_record_and_labels_agree(image: str, lab: Container, base_image: str) -> None:
    """The record in the image names base, backend and versions; so do the OCI labels."""
    record = json.loads(lab.exec("cat", "/etc/rocmlab-build.json"))
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", image))

    assert record["backend"] == labels["rocmlab.backend"] == "cpu"
    assert record["base_image"] == labels["org.opencontainers.image.base.name"] == base_image
    assert record["versions"]["torch"]["torch"].startswith("2.")
    assert record["versions"]["tensorflow"]["tensorflow-cpu"].startswith("2.")
    assert "ray" not in {*record["versions"]["lab"], *record["versions"]["torch"]}  # which only a cluster's lab has
    assert labels["org.opencontainers.image.title"] == "rocmlab"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


@pytest.mark.parametrize("kernel", ["tensorflow", "torch"])
def test_rocmlab_itself_is_kept_from_packages_of_users(lab: Container, kernel: str) -> None:
    """Each kernel finds the image's, and pip may not hide it by a package of that name from an index."""
    found = lab.exec(PYTHONS["rocmlab"], "-c", KEPT, PYTHONS[kernel]).split()

    assert any(each.startswith("rocmlab==") for each in found)
    assert "/opt/rocmlab/lib/site-packages" in found
    assert "denied" in lab.as_lab_user("sh", "-c", "touch /opt/rocmlab/lib/site-packages/rocmlab/x 2>&1 || true")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels: a harmless one, and two that would replace a framework."""
    folder = tmp_path_factory.mktemp("wheels")
    standins.wheel(folder, "harmless", "1.0", {"harmless.py": "answer = 42\n"})
    standins.wheel(folder, "tensorflow", "9.9", {"tensorflow/__init__.py": ""})
    standins.wheel(folder, "wants-tensorflow", "1.0", {"wanting.py": ""}, ["tensorflow>=9"])
    standins.wheel(folder, "torch", "9.9", {"torch/__init__.py": ""})
    standins.wheel(folder, "wants-torch", "1.0", {"wanting.py": ""}, ["torch>=9"])
    standins.wheel(folder, "rocmlab", "9.9", {"rocmlab/__init__.py": ""})
    folder.chmod(0o755)
    return folder


@pytest.fixture
def share() -> Iterator[str]:
    """A volume that containers share, one after the other."""
    name = docker("volume", "create").strip()
    yield name
    docker("volume", "rm", name)


@pytest.mark.long("pip in a container")  # test_packages_of_a_users_own_come_over_the_labs is in each run
@pytest.mark.parametrize("kernel", ["tensorflow", "torch"])
def test_pip_in_a_notebook_adds_but_never_replaces_the_framework(
    image: str, wheels: Path, share: str, kernel: str
) -> None:
    """`%pip install` adds to the share, rejects what would bring another build of a framework, and outlives containers.

    Where the image has other packages, what is missing is reported, and `packages sync` installs it again.
    """
    pip = "%pip install --no-index --find-links /wheels"
    mounts = [f"--volume={wheels}:/wheels:ro", f"--volume={share}:/home/jovyan/share"]
    works = f"import harmless, {kernel} as it; print('answer', harmless.answer, 'version', it.__version__)"
    with Container(image, *mounts) as container:
        container.wait_for_server()

        added = container.execute(kernel, f"{pip} harmless\nimport harmless; print('answer', harmless.answer)")
        names = (f"wants-{kernel}", f"{kernel}==9.9", "rocmlab==9.9")
        rejected = [container.execute(kernel, f"{pip} {name}") for name in names]
        still = container.execute(kernel, works)
        ours = container.execute(kernel, "import rocmlab; print('rocmlab', rocmlab.__version__)")

    assert "answer 42" in added
    assert "rocmlab 0." in ours
    assert all("ERROR: the packages cannot be installed" in each for each in rejected)
    assert "answer 42 version 2." in still
    with Container(image, *mounts) as container:
        container.wait_for_server()
        assert "answer 42 version 2." in container.execute(kernel, works)

        site = container.exec(PYTHONS[kernel], "-c", SITE).strip()
        container.exec("mkdir", f"{site}/another-1.0.dist-info")
        assert "ModuleNotFoundError" in container.execute(kernel, works)
        assert f"packages sync --kernel {kernel}" in container.as_lab_user("rocmlab", "packages", "list")

        container.as_lab_user("rocmlab", "packages", "sync", "--kernel", kernel)

        assert "answer 42 version 2." in container.execute(kernel, works)
