"""What all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

OURS = (
    "BACKEND",
    "RUNTIME",
    "GPUS",
    "PORT",
    "SHARE",
    "NOTEBOOKS_DIR",
    "JUPYTER_TOKEN",
    "BASE_IMAGE",
    "TORCH_INDEX",
    "PYTHON",
    "TENSORFLOW_INDEX",
    "WHEELS",
    "CA_BUNDLE",
    "PIP_CONFIG",
    "NB_UID",
    "NB_GID",
    "SHM_SIZE",
    "COMPOSE_PROJECT_NAME",
)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the caller's environment says of rocmlab; `make test BACKEND=…` must not change a test."""
    for name in (*OURS, *(name for name in os.environ if name.startswith("ROCMLAB_"))):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def repository() -> Path:
    """The root of this source tree."""
    return Path(__file__).parents[1]


@pytest.fixture
def captures(repository: Path) -> Path:
    """Real sysfs trees of AMD hardware, kept outside the repository."""
    folder = repository.parent / "shared/captures"
    if not folder.is_dir():
        pytest.skip("no captures of real hardware beside the clone (../shared/captures)")
    return folder
