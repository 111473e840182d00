"""Fixtures of tests that run notebooks, for the `conftest.py` of a folder: a real kernel, and two simulated GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import kept_converter
import notebook_files
import pytest
from watching import Watcher

from rocmlab.devices import Device
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.scheduling.placement import Slots

__all__ = [
    "_any_disk_is_large_enough",
    "_converter_is_kept",
    "cpu",
    "gpus",
    "kernel",
    "run_folder",
    "slots",
    "watcher",
]


@pytest.fixture(autouse=True)
def _any_disk_is_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small disk of the machine that tests is not what is tested."""
    monkeypatch.setenv("MIN_FREE_DISK_GB", "0")


@pytest.fixture
def watcher() -> Watcher:
    """A display that remembers."""
    return Watcher()


@pytest.fixture(scope="session")
def gpus() -> list[Device]:
    """Two GPUs of a simulated host."""
    return [
        Device(
            backend="rocm",
            index=index,
            name="Radeon RX 7900 XTX",
            is_usable=True,
            gfx="gfx1100",
            pci_address=f"0000:0{index + 3}:00.0",
            simulated=True,
        )
        for index in range(2)
    ]


@pytest.fixture(scope="session")
def cpu() -> Device:
    """The processor."""
    return Device(backend="cpu", index=0, name="a processor", is_usable=True)


@pytest.fixture
def slots(gpus: list[Device], cpu: Device) -> Slots:
    """Two slots."""
    return Slots(gpus, cpu)


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[RunFolder]:
    """An empty run folder."""
    made = RunFolder.create(tmp_path / "share", "test")
    yield made
    made.close()


@pytest.fixture(scope="session", autouse=True)
def _converter_is_kept(kernel: str) -> Iterator[None]:
    """Runs in this process share one converter, started in the environment of the test kernel."""
    with kept_converter.kept():
        yield


@pytest.fixture(scope="session", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A kernelspec that points at this interpreter, in an environment without the user's own Jupyter settings."""
    home = tmp_path_factory.mktemp("jupyter")
    notebook_files.write_kernel(home / "kernels/test-kernel", sys.executable)
    source = str(Path(__file__).parents[1] / "src")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(home))
        patch.setenv("JUPYTER_CONFIG_DIR", str(home / "config"))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))))
        for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
            patch.delenv(name, raising=False)
        yield "test-kernel"
