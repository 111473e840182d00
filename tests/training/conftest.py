"""Fixtures: a clean environment, the tiny data set under its name, a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import tiny

import rocmlab
from rocmlab.training.datasets import DATASETS

SRC = str(Path(rocmlab.__file__).parents[1])


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    """Keep the user's share, data folder, proxies and masks out of the tests."""
    for name in ("ROCMLAB_SHARE", "ROCMLAB_DATA_DIR", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "JUPYTER_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def register(monkeypatch):
    """Register the tiny data set with the given sources."""

    def register(*sources):
        monkeypatch.setitem(DATASETS, "tiny", tiny.dataset(*sources))

    return register


@pytest.fixture
def lines():
    """Return a list that collects progress lines through its `append`."""
    return []


EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, kernel_name="python3", timeout=60).execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.fixture
def execute(tmp_path):
    """Return a function that runs one cell in a kernel of this interpreter and returns its outputs."""

    def execute(source):
        path = tmp_path / "notebook.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([SRC, *filter(None, sys.path)])}
        subprocess.run([sys.executable, "-c", EXECUTE, str(path)], env=env, check=True, capture_output=True)
        return nbformat.read(path, as_version=4).cells[0].outputs

    return execute
