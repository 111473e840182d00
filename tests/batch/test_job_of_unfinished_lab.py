"""A queued job of an exported run may begin while the lab's frameworks are still being installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rocmlab.base import installation
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import export


def test_a_job_does_not_use_a_half_installed_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nothing completes it any more, which is the job's error."""
    (tmp_path / installation.PART).write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    with pytest.raises(RocmlabError, match="TensorFlow and PyTorch are not installed"):
        export.main("export", ["job", str(tmp_path / "run"), "1"])
