"""A lab's interpreter with frameworks for a GPU, and a folder of wheels in the place of an index."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pip_environments
import pytest
from own_packages import Add, offer

from rocmlab.packages import installing
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement

LAB = (  # name, version, what it requires
    ("torch", "2.13.0+rocm7.2", ()),
    ("tensorflow-rocm", "2.20.0", ()),
    ("numpy", "2.4.0", ()),
    ("jax", "0.10.0", ("numpy>=2",)),
)
OFFERED = (
    ("harmless", "1.0", ()),
    ("harmless", "2.0", ()),
    ("numpy", "1.26.4", ()),
    ("trains", "1.0", ("torch>=2", "helper")),
    ("helper", "1.0", ()),
    ("torch", "9.9", ()),
    ("tensorflow", "9.9", ()),
    ("tensorflow-cpu", "2.20.0", ()),
    ("wants-torch", "1.0", ("torch>=9",)),
    ("wants-tensorflow", "1.0", ("tensorflow>=2.16",)),
    ("torchvision", "0.28.0", ("torch",)),
    ("sees", "1.0", ("torchvision",)),
)


@pytest.fixture(scope="session")
def lab_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a lab's environment; no test changes it."""
    folder = tmp_path_factory.mktemp("lab")
    pip_environments.create(folder / "venv")
    site = next((folder / "venv").glob("lib/python3*/site-packages"))
    for name, version, requires in LAB:
        with zipfile.ZipFile(offer(folder, name, version, requires)) as archive:
            archive.extractall(site)
    return str(folder / "venv/bin/python")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """What can be installed."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, version, requires in OFFERED:
        offer(folder, name, version, requires)
    return folder


@pytest.fixture(params=["uv", pytest.param("pip", marks=pytest.mark.long)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, lab_python: str, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    """Where packages go; uv installs them, in `make test-long` pip as well. No setting of the machine counts."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    values = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    values[installing.UV] = sys.prefix if request.param == "uv" else str(tmp_path / "no-uv")
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return Place(tmp_path / "share", "torch", lab_python)


@pytest.fixture
def add(place: Place) -> Add:
    """Install packages by their names."""
    return lambda *names, options=(): installing.add(place, [Requirement(each) for each in names], print, options)
