"""What kernels of these tests need, and what is looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from run_fixtures import kernel as kernel

from rocmlab.kernels import holders


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of leases that are opened to look at them, in order."""
    found: list[Path] = []
    real = holders.opened

    def counted(path: Path, flags: int = os.O_RDONLY) -> int:
        found.append(path)
        return real(path, flags)

    monkeypatch.setattr(holders, "opened", counted)
    return found
