"""`rocmlab bench NAME` of a developers' benchmark: in a clone it measures, elsewhere it explains where they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["up", "devices", "runner", "telemetry", "cluster"])
def test_outside_of_a_clone_the_source_repository_is_named(name: str, repository: Path, tmp_path: Path) -> None:
    """The package has no benchmarks of developers: an error with its fix, and no traceback."""
    shutil.copytree(repository / "src/rocmlab", tmp_path / "site/rocmlab", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "rocmlab", "bench", name]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: the benchmark {name} is not installed\n")
    assert f"scripts/rocmlab bench {name}" in done.stderr
    assert "Traceback" not in done.stderr
