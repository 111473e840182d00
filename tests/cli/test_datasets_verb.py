"""`rocmlab datasets` on the host, where there is no lab yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from clones import clone, without_docker


def test_the_making_of_the_lab_is_one_line_until_it_fails(tmp_path: Path) -> None:
    """Standard output is for the answer; where the lab cannot be made, what was said of it is told, too."""
    lab = clone(tmp_path / "rocmlab")
    python = tmp_path / "python3"
    python.write_text(
        '#!/bin/sh\ncase "$*" in *venv*|*virtualenv*) echo no room for it >&2; exit 1;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    environment = {**lab.environment, "PYTHONPATH": "src", "RUNTIME": "native", "PYTHON": str(python)}
    environment["PATH"] = without_docker(os.environ["PATH"])

    done = subprocess.run(
        [sys.executable, "-m", "rocmlab", "datasets", "list"],
        cwd=lab.folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    said = done.stderr.splitlines()
    assert done.returncode != 0
    assert done.stdout == ""
    assert said[0].startswith("the lab is made first")
    assert "no room for it" in done.stderr
    assert "making .venv with" in done.stderr
