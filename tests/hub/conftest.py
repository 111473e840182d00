"""One hub for all tests: two users and an administrator, on a simulated host with two GPUs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hubs
import pytest

from rocmlab.simulation import write_host


@pytest.fixture(scope="session")
def machine() -> Iterator[hubs.Machine]:
    """The hub, running."""
    if why := hubs.missing():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="rocmlab-hub-", dir="/tmp"))  # which the users can enter
    folder.chmod(0o755)
    patch = pytest.MonkeyPatch()
    try:
        patch.setenv("ROCMLAB_ROOT", "")
        host = write_host(folder / "host", gpus=2)
        found = hubs.Machine(folder, Path(host), ("ada", "bob", "chief"))
        try:
            found.start()
            yield found
        finally:
            found.stop()
    finally:
        patch.undo()
        shutil.rmtree(folder, ignore_errors=True)
