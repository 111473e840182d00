"""torchvision and torchaudio: of the same build as PyTorch, or not there at all. The wheels are stand-ins."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "container"))
import standins

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "docker/build/companions.py"


@pytest.fixture(autouse=True)
def _only_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what this machine's pip is set to: another folder of wheels may have one that fits."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own, which sees the pip of the running one, with a PyTorch that is built for ROCm."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    packages = next((folder / "lib").glob("python3.*/site-packages"))
    pip = subprocess.run([sys.executable, "-c", "import pip; print(pip.__path__[0])"], capture_output=True, text=True)
    (packages / "pip").symlink_to(pip.stdout.strip())
    wheels = tmp_path_factory.mktemp("torch")
    standins.torch(wheels, hip="7.2.0")
    standins.wheel(wheels, "filelock", "4.0", {"filelock.py": ""})
    install(folder / "bin/python", "--find-links", str(wheels), str(wheels / "torch-2.13.0+rocm7.2-py3-none-any.whl"))
    return folder / "bin/python"


def install(python: Path, *arguments: str) -> None:
    """Install without asking an index."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", *arguments], check=True)


def vision(folder: Path, version: str, torch: str, program: str = "") -> None:
    """Write a wheel that says it is torchvision."""
    standins.wheel(folder, "torchvision", version, {"torchvision/__init__.py": program}, [f"torch=={torch}"])


def add(python: Path, wheels: Path) -> tuple[str, bool]:
    """Run the program; return its line on torchvision, and whether that is installed."""
    command = [python, PROGRAM, "", "--no-index", "--find-links", wheels]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    there = subprocess.run([python, "-c", "import torchvision"], capture_output=True, check=False).returncode == 0
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=True)
    return done.stdout.splitlines()[0], there


@pytest.mark.long
def test_the_build_that_matches_is_taken(python: Path, tmp_path: Path) -> None:
    """It is the version made for this PyTorch, not the newest one."""
    vision(tmp_path, "0.28.0+rocm7.2", "2.13.0")
    vision(tmp_path, "0.29.2+rocm7.2", "2.14.0")

    assert add(python, tmp_path) == ("torchvision 0.28.0+rocm7.2", True)


@pytest.mark.long
def test_a_build_for_other_hardware_is_removed(python: Path, tmp_path: Path) -> None:
    """The CPU's build imports next to ROCm's PyTorch, and would fail later, on the GPU."""
    vision(tmp_path, "0.28.0+cpu", "2.13.0")

    line, is_there = add(python, tmp_path)

    assert line == "torchvision omitted: the one found is built for cpu, PyTorch for rocm"
    assert not is_there


@pytest.mark.long
def test_one_that_cannot_be_imported_is_removed(python: Path, tmp_path: Path) -> None:
    """`transformers` looks whether it is there, and would fail with it."""
    vision(tmp_path, "0.28.0+rocm7.2", "2.13.0", 'raise RuntimeError("operator torchvision::nms does not exist")\n')

    line, is_there = add(python, tmp_path)

    assert line == "torchvision omitted: RuntimeError: operator torchvision::nms does not exist"
    assert not is_there


@pytest.mark.long
def test_where_there_is_none_the_line_names_what_adds_it(python: Path, tmp_path: Path) -> None:
    """A lab without them works; PyTorch stays as it is."""
    line, is_there = add(python, tmp_path)
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)

    assert line.startswith("torchvision omitted: Could not find a version that satisfies the requirement torchvision")
    assert line.endswith("; a wheel for PyTorch 2.13.0+rocm7.2 in the folder WHEELS adds it")
    assert not is_there
    assert version.stdout.strip() == "2.13.0+rocm7.2"
