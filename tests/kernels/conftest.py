"""A real kernel of this interpreter."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A kernelspec that points at this interpreter, in an environment without the user's own Jupyter settings."""
    home = tmp_path_factory.mktemp("jupyter")
    path = home / "kernels/test-kernel/kernel.json"
    path.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    path.write_text(json.dumps({"argv": argv, "display_name": "Test", "language": "python"}))
    source = str(Path(__file__).parents[2] / "src")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(home))
        patch.setenv("JUPYTER_CONFIG_DIR", str(home / "config"))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))))
        for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
            patch.delenv(name, raising=False)
        yield "test-kernel"
