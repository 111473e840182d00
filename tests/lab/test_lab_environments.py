"""Environments of the user's own as kernels: real ones of venv and uv, and the layout of conda's made here."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_hosts import Host, started

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import main as run_command
from rocmlab.devices import Device
from rocmlab.kernels import kernelspec
from rocmlab.kernels.gpus import Gpus
from rocmlab.lab import environments, kernels, offers
from rocmlab.lab.environments import Environment

SITE = f"lib/python3.{sys.version_info.minor}/site-packages"


def made(folder: Path, *, has_kernel: bool = True) -> Path:
    """Make an environment by venv; ipykernel is this interpreter's."""
    venv.create(folder, with_pip=False)
    if has_kernel:
        site = next(each for each in sys.path if each.endswith("site-packages"))
        (folder / SITE / "base.pth").write_text(f"import site; site.addsitedir({site!r})\n")
    return folder


@pytest.fixture
def lab(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A lab whose command and kernelspecs are those of the test."""
    kernels.install(host.prefix, {"torch": sys.executable})
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    monkeypatch.setattr(offers, "base_folder", lambda: host.prefix / "share/jupyter/kernels")
    return host


@pytest.mark.long
@pytest.mark.slow
def test_an_environment_is_offered_leased_and_removed(
    lab: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one free GPU, each, all and none, as the lab's own; it is offered again after an upgrade, from the share."""
    folder = made(tmp_path / "My Project/.venv")
    assert run_command(["kernels", "add", str(folder.parent), "--user"]) == 0

    names = {each.name for each in lab.specs.iterdir() if each.name.startswith("my-")}
    assert names == {f"my-project{suffix}" for suffix in ("", "-all", "-gpu0", "-gpu1", "-cpu")}
    spec = json.loads((lab.specs / "my-project-all/kernel.json").read_text())
    assert spec["display_name"] == "My Project (all 2 GPUs, SIMULATED)"

    async def scenario() -> None:
        async with started("my-project-gpu1", "/notebooks/a.ipynb") as talk:
            assert (await talk.run("import os, sys; print(sys.prefix, os.environ['HIP_VISIBLE_DEVICES'])")).split() == [
                *str(folder).split(),
                "1",
            ]
            assert lab.holders() == [None, "/notebooks/a.ipynb"]

    asyncio.run(scenario())
    for each in lab.specs.iterdir():
        for file in each.iterdir():
            file.unlink()
    assert run_command(["kernels", "install", "--user"]) == 0
    assert (lab.specs / "my-project-cpu/kernel.json").exists()

    (folder / "bin/python").unlink()
    assert run_command(["kernels", "install", "--user"]) == 0
    assert "NoEnvironment" in (lab.specs / "my-project/kernel.json").read_text()
    assert run_command(["kernels", "remove", "my-project", "--user"]) == 0
    assert not (lab.specs / "my-project").exists()
    assert (lab.specs / "torch").exists()
    capsys.readouterr()
    assert run_command(["kernels", "remove", "my-project", "--user"]) == 2
    assert "is not a kernel that was added" in capsys.readouterr().err


@pytest.mark.slow
def test_without_ipykernel_the_command_is_that_of_its_kind(tmp_path: Path) -> None:
    """Pip for venv, uv for uv's, conda for conda's, pixi for pixi's."""
    plain = made(tmp_path / "plain", has_kernel=False)
    subprocess.run(
        [Path(sys.prefix, "bin/uv"), "venv", "-q", "--no-config", "-p", sys.executable, tmp_path / "a/.venv"],
        check=True,
    )
    pixi = made(tmp_path / "b/.pixi/envs/default", has_kernel=False)
    for folder in (pixi, made(tmp_path / "conda", has_kernel=False)):
        (folder / "conda-meta").mkdir()

    def fix(path: Path) -> str:
        with pytest.raises(RocmlabError, match="has no ipykernel") as caught:
            environments.look(str(path))
        return caught.value.problem.fix

    assert fix(plain) == f"{plain}/bin/python -m pip install ipykernel"
    assert fix(plain / "bin/python") == fix(plain)
    assert fix(tmp_path / "a") == f"uv pip install --python {tmp_path}/a/.venv/bin/python ipykernel"
    assert fix(tmp_path / "b") == f"pixi add --manifest-path {tmp_path}/b ipykernel"
    assert fix(tmp_path / "conda").endswith(f"install --prefix {tmp_path}/conda ipykernel")


@pytest.mark.slow
def test_what_condas_activation_sets_is_set_in_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the scripts of its packages, and by `conda env config vars`; a dollar stays one. The layout is made here."""
    folder = made(tmp_path / "envs/gdal")
    (folder / "etc/conda/activate.d").mkdir(parents=True)
    (folder / "conda-meta").mkdir()
    (folder / "conda-meta/state").write_text('{"env_vars": {"MY_KEY": "a$b"}}')
    (folder / "etc/conda/activate.d/gdal.sh").write_text('echo hello\nexport GDAL_DATA="$CONDA_PREFIX/share/gdal"\n')
    monkeypatch.setenv("UNCHANGED", "1")

    found = environments.look(str(folder))
    (spec,) = environments.specifications([found]).values()

    assert found.kind == "conda"
    assert found.variables["GDAL_DATA"] == f"{folder}/share/gdal"
    assert spec["env"]["MY_KEY"] == "a$$b"
    assert {"UNCHANGED", "HOME"} & found.variables.keys() == set()
    (folder / "etc/conda/activate.d/bad.sh").write_text("exit 3\n")
    with pytest.raises(RocmlabError, match="cannot be activated"):
        environments.look(str(folder))


@pytest.mark.parametrize("name", ["torch", "torch-mine", "tensorflow", "a-cpu", "a-all", "a-gpu12", "A", "../a", "-a"])
def test_names_that_kernels_have_already_are_errors(tmp_path: Path, name: str) -> None:
    """And what is no name of a kernelspec."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    assert environments.NAME.fullmatch("torch2")
    with pytest.raises(RocmlabError):
        environments.look(str(tmp_path), name)


def test_what_is_no_environment_is_an_error(tmp_path: Path) -> None:
    """Also one whose interpreter is on another machine."""
    with pytest.raises(RocmlabError, match="is not an environment"):
        environments.look(str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(tmp_path / "gone")
    with pytest.raises(RocmlabError, match="is missing here"):
        environments.look(str(tmp_path))
    (tmp_path / "a:b/bin").mkdir(parents=True)
    (tmp_path / "a:b/bin/python").symlink_to(sys.executable)
    with pytest.raises(RocmlabError, match="cannot be on PATH"):
        environments.look(str(tmp_path / "a:b"))


@pytest.mark.parametrize(
    ("backend", "library", "words"),
    [
        ("rocm", "libtorch_cuda.so", "2.13.0 of mine is built for CUDA"),
        ("rocm", "libtorch_cpu.so", "built for the CPU"),
        ("cuda", "libtorch_hip.so", "need a build for CUDA"),
        ("rocm", "libtorch_hip.so", ""),
        ("cuda", "libtorch_cuda.so", ""),
    ],
)
def test_a_build_for_other_hardware_is_named(tmp_path: Path, backend: str, library: str, words: str) -> None:
    """With the command for it; the index is the one of the lab's own PyTorch. Nothing is imported."""
    (tmp_path / SITE / "torch/lib").mkdir(parents=True)
    (tmp_path / SITE / "torch-2.13.0.dist-info").mkdir()
    (tmp_path / SITE / "torch/lib" / library).touch()
    (tmp_path / "lab/bin").mkdir(parents=True)
    (tmp_path / "lab/rocmlab-index").write_text("http://index.test/gpu\n")
    gpu = Device(backend=backend, index=0, name="a GPU", is_usable=True)

    found = Environment("mine", "mine", str(tmp_path), "uv")
    problem = environments.wrong_build(found, Gpus((gpu,)), str(tmp_path / "lab/bin/python"))

    assert words in (problem.what + problem.why if problem else "")
    assert bool(words) is (problem is not None)
    if problem:
        assert problem.fix.endswith("--reinstall torch --index-url http://index.test/gpu")
    assert environments.wrong_build(found, Gpus(), None) is None


def listed(share: Path, **changed: object) -> Path:
    """Write a list of one environment."""
    one = {"name": "mine", "title": "mine", "prefix": sys.prefix, "kind": "venv", "variables": {}}
    (share / "packages").mkdir(exist_ok=True)
    path = share / environments.FILE
    path.write_text(json.dumps({"environments": [one | changed]}))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "changed",
    [
        *({"name": "torch"}, {"name": "../../mine"}, {"name": 1}, {"variables": {"A": 1}}),
        *({"of_a_later_version": 1}, {"variables": None}),
    ],
)
def test_a_list_of_something_else_is_not_used_and_not_replaced(tmp_path: Path, changed: dict[str, object]) -> None:
    """No kernel of the lab is replaced, and nothing is written outside of the folder; the error names the file."""
    assert len(environments.read(str(tmp_path))) == 0
    listed(tmp_path)
    assert len(environments.read(str(tmp_path))) == 1
    listed(tmp_path, **changed)
    with pytest.raises(RocmlabError, match=r"environments\.json"):
        environments.read(str(tmp_path))


def test_a_list_that_others_may_write_starts_no_programs(tmp_path: Path) -> None:
    """Neither one that belongs to another user."""
    path = listed(tmp_path)
    path.chmod(0o666)
    with pytest.raises(RocmlabError, match="0666"):
        environments.read(str(tmp_path))
    path.chmod(0o660)
    assert environments.read(str(tmp_path))
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(RocmlabError, match="belongs to uid 12345"):
            environments.read(str(tmp_path))


def test_with_a_list_that_cannot_be_read_the_lab_offers_its_own_kernels(
    lab: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And names the problem; `kernels list` as well. Nothing is added, for the list would be replaced."""
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path))
    listed(tmp_path).write_text("[")
    assert run_command(["kernels", "install", "--user"]) == 0
    assert "environments.json" in capsys.readouterr().err
    assert (lab.specs / "torch-all/kernel.json").exists()
    assert run_command(["kernels", "list"]) == 0
    shown = capsys.readouterr()
    assert "torch-all" in shown.out
    assert "environments.json" in shown.err
    assert run_command(["kernels", "add", sys.prefix, "--name", "other", "--user"]) == 2
    assert (tmp_path / environments.FILE).read_text() == "["


def test_the_name_of_another_environment_is_an_error(tmp_path: Path) -> None:
    """Its notebooks would run in the new one; the same folder again replaces what is known of it."""
    one = Environment("app", "app", "/one/.venv", "venv")
    assert environments.with_added([one], replace(one, kind="uv")) == [replace(one, kind="uv")]
    with pytest.raises(RocmlabError, match="/one/"):
        environments.with_added([one], replace(one, prefix="/two/.venv"))


def test_the_gpus_of_a_kernel_are_those_of_its_lease_whatever_an_activation_sets(tmp_path: Path) -> None:
    """A mask of conda's variables would have two jobs on one GPU. A dollar in a path is no variable."""
    prefix = tmp_path / "a$HOME"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python").symlink_to(sys.executable)
    found = Environment("a", "a", str(prefix), "conda", {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"})
    (spec,) = environments.specifications([found]).values()
    own = kernelspec.environment(spec, {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0", "PATH": "/bin"})
    assert [own["HIP_VISIBLE_DEVICES"], own["CUDA_VISIBLE_DEVICES"]] == ["0", "0"]
    assert own["PATH"] == f"{prefix}/bin:/bin"
    assert own["CONDA_PREFIX"] == str(prefix)


def test_an_environment_of_another_python_is_an_error(tmp_path: Path) -> None:
    """As after an upgrade of the system, or where it was made on the host and the lab is a container."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    (tmp_path / "lib/python3.5/site-packages").mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    with pytest.raises(RocmlabError, match="another one than it was made with"):
        environments.look(str(tmp_path))


def test_the_list_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    """It is an error that names the file."""
    (tmp_path / "packages").mkdir()
    (tmp_path / environments.FILE).write_text("[")
    with pytest.raises(RocmlabError, match=r"environments\.json"):
        environments.read(str(tmp_path))
    assert environments.read(None) == []
