"""A simulated host for the kernels of JupyterLab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_hosts import Host, simulated_host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A simulated host with two GPUs, rocmlab installed, and an empty folder for kernelspecs."""
    with simulated_host(tmp_path, monkeypatch) as found:
        yield found
