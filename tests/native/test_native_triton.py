"""Notebook 16 without a GPU: its kernel is compiled for all supported GPUs, and computed by Triton's interpreter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import Clone

from rocmlab.devices import products

pytestmark = pytest.mark.native

TRITON = "triton==3.7.0"  # which PyTorch 2.13 for a GPU brings; 200 MB
NOTEBOOK = Path(__file__).parents[2] / "notebooks/16_triton_kernel.ipynb"
SUPPORTED = {gfx for gfx in products.targets() if products.target(gfx).support in ("yes", "partly")}
# By target, the instruction that multiplies: Instinct's and Radeon's matrix units; RDNA 2 has dot products of two.
UNITS = {"gfx9": "v_mfma", "gfx10": "v_dot2", "gfx11": "v_wmma", "gfx12": "v_wmma"}
DROPPED = ("gfx803", "gfx900", "gfx906")  # which the notebook names as those that Triton rejects
REJECTED = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
{kernel}
signature = {{"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "size": "i32"}}
signature |= {{"TILE": "constexpr", "DEPTH": "constexpr"}}
for name in {names!r}:
    source = ASTSource(product, signature, constexprs={{"TILE": 64, "DEPTH": 32}})
    try:
        triton.compile(source, target=GPUTarget("hip", name, 64))
    except RuntimeError:
        print("rejected", name)
"""
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


@pytest.mark.long
def test_the_kernel_compiles_for_amd_gpus_and_the_rest_is_skipped(lab: tuple[Path, str], tmp_path: Path) -> None:
    """Without any GPU each supported one gets code with its instructions; then the notebook names what it lacks."""
    done = run(lab, tmp_path, "\n\n".join(cells().values()))

    compiled = {line.split()[0]: line.split()[3] for line in done.stdout.splitlines() if line.startswith("gfx")}
    expected = {gfx: UNITS[gfx[:-2]] for gfx in SUPPORTED}
    assert {name: text[:6] for name, text in compiled.items()} == expected, done.stdout + done.stderr[-3000:]
    assert "Skipped: the product needs an AMD or NVIDIA GPU" in done.stderr
    assert "fix: run this notebook where there is one" in done.stderr


def test_triton_rejects_what_rocm_dropped(lab: tuple[Path, str], tmp_path: Path) -> None:
    """The targets that are missing from the notebook are missing from Triton, not only from the list."""
    done = run(lab, tmp_path, REJECTED.format(kernel=cells()["kernel"], names=DROPPED))

    assert tuple(line.split()[1] for line in done.stdout.splitlines()) == DROPPED, done.stdout + done.stderr[-3000:]
    assert {products.target(gfx).support for gfx in DROPPED} == {"dropped"}
    assert done.stderr.count("unsupported target") == len(DROPPED)


def test_the_kernel_computes_what_pytorch_does(lab: tuple[Path, str], tmp_path: Path) -> None:
    """Triton's interpreter runs it on the CPU, several tiles in each direction and several steps deep."""
    done = run(lab, tmp_path, COMPUTE.format(kernel=cells()["kernel"]), TRITON_INTERPRET="1")

    assert done.returncode == 0, done.stderr[-3000:]
