"""Notebook 16 without a GPU: its kernel is compiled for AMD GPUs, and computed by Triton's interpreter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import Clone

pytestmark = pytest.mark.native

TRITON = "triton==3.7.0"  # which PyTorch 2.13 for a GPU brings; 200 MB
NOTEBOOK = Path(__file__).parents[2] / "notebooks/16_triton_kernel.ipynb"
TARGETS = {
    "gfx1100": "v_wmma",
    "gfx1151": "v_wmma",
    "gfx1201": "v_wmma",
    "gfx90a": "v_mfma",
    "gfx942": "v_mfma",
    "gfx950": "v_mfma",
}
COMPUTE = """
import torch, triton, triton.language as tl
{kernel}
torch.manual_seed(1)
size = 128
a, b = torch.randn(2, size, size).half()
c = torch.empty(size, size)
product[(size // 64, size // 64)](a, b, c, size, TILE=64, DEPTH=32)
truth = a.float() @ b.float()
assert (c - truth).abs().max() / truth.abs().max() < 1e-5, (c - truth).abs().max()
"""


def cells() -> dict[str, str]:
    """Return the notebook's code by the names of its cells."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"}


@pytest.fixture(scope="module")
def lab(built_lab: Clone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The lab's interpreter, and a folder with Triton, which it lacks."""
    python, folder = built_lab.folder / ".venv/bin/python", tmp_path_factory.mktemp("triton")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, TRITON]
    subprocess.run(install, check=True, timeout=600, env=built_lab.environment)
    yield python, str(folder)
    shutil.rmtree(folder)  # 700 MB


def run(lab: tuple[Path, str], folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program from a file, where Triton looks for a kernel's source, with a compiler's cache of its own."""
    python, triton = lab
    (folder / "program.py").write_text(program, encoding="utf-8")
    paths = os.pathsep.join((triton, str(NOTEBOOK.parents[1] / "src")))
    environment = {**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": str(folder / "cache"), **environment}
    command = [python, folder / "program.py"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_kernel_compiles_for_amd_gpus_and_the_rest_is_skipped(lab: tuple[Path, str], tmp_path: Path) -> None:
    """Without any GPU each target gets code with its matrix instructions; then the notebook names what it lacks."""
    done = run(lab, tmp_path, "\n\n".join(cells().values()))

    compiled = {line.split()[0]: line.split()[3] for line in done.stdout.splitlines() if line.startswith("gfx")}
    assert {name: text[:6] for name, text in compiled.items()} == TARGETS, done.stdout + done.stderr[-3000:]
    assert "Skipped: the product needs an AMD or NVIDIA GPU" in done.stderr
    assert "fix: run this notebook where there is one" in done.stderr


def test_the_kernel_computes_what_pytorch_does(lab: tuple[Path, str], tmp_path: Path) -> None:
    """Triton's interpreter runs it on the CPU, several tiles in each direction and several steps deep."""
    done = run(lab, tmp_path, COMPUTE.format(kernel=cells()["kernel"]), TRITON_INTERPRET="1")

    assert done.returncode == 0, done.stderr[-3000:]
