"""AMD's compilers make code for every supported GPU from this project's kernels; without one, nothing is run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import oracle_hip
import pytest

from rocmlab.devices import products
from rocmlab.simulation import write_host

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

NOTEBOOK = Path(__file__).parents[2] / "notebooks/09_opencl_kernels.ipynb"
SUPPORTED = [gfx for gfx in products.targets() if products.target(gfx).support in ("yes", "partly")]
SHAPES = [  # of the notebook's kernels: source, and its TILE and PER
    ("source", 16, 1),
    ("naive_source", 16, 1),
    ("tiled_source", 16, 1),
    ("tiled_source", 32, 4),
    ("tiled_source", 64, 16),
]
HIP_KERNEL = """
extern "C" __global__ void product(int size, const float *a, const float *b, float *c) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < size; k++) sum += a[row * size + k] * b[k * size + column];
    c[row * size + column] = sum;
}
"""


def kernels() -> dict[str, str]:
    """Return the OpenCL sources of the notebook by the name that each has there."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    found = dict(re.findall(r'(?m)^(\w+) = """(.*?)"""', code, re.DOTALL))
    return {name: text for name, text in found.items() if text.startswith("\nkernel ")}


def host_of_every_target(folder: Path) -> Path:
    """Write a host with one GPU of each supported target."""
    host = write_host(folder, gpus=len(SUPPORTED))
    for node, gfx in enumerate(SUPPORTED, start=1):
        path = host / f"sys/devices/virtual/kfd/kfd/topology/nodes/{node}/properties"
        major, minor, step = int(gfx[3:-2]), int(gfx[-2], 16), int(gfx[-1], 16)
        version = f"gfx_target_version {major * 10000 + minor * 100 + step}"
        path.write_text(re.sub(r"(?m)^gfx_target_version .*$", version, path.read_text()))
    return host


def compiled(printed: str) -> dict[str, str]:
    """Return by target the one that the code says it is for; options such as sramecc+ are omitted."""
    lines = [line.split() for line in printed.splitlines()]
    return {name.partition(":")[0]: meant.partition("--")[2].partition(":")[0] for name, meant, _ in lines}


def test_a_hip_kernel_compiles_for_every_supported_target(tmp_path: Path) -> None:
    """The code that hiprtc makes names its target."""
    probe = oracle_hip.probe(tmp_path, "compile_probe")
    printed = oracle_hip.start(
        write_host(tmp_path / "host"), probe, "hiprtc", oracle_hip.library("libhiprtc"), *SUPPORTED, stdin=HIP_KERNEL
    )

    assert compiled(printed) == {gfx: gfx for gfx in SUPPORTED}


@pytest.mark.parametrize(("name", "tile", "per"), SHAPES)
def test_the_opencl_kernels_of_the_notebook_compile_for_every_supported_target(
    tmp_path: Path, name: str, tile: int, per: int
) -> None:
    """AMD's OpenCL builds each for each GPU of a simulated host, with the options that the notebook gives."""
    probe, host = oracle_hip.probe(tmp_path, "compile_probe"), host_of_every_target(tmp_path / "host")
    arguments = ("opencl", oracle_hip.library("libamdocl64"), f"-D TILE={tile} -D PER={per}")

    assert compiled(oracle_hip.start(host, probe, *arguments, stdin=kernels()[name])) == {gfx: gfx for gfx in SUPPORTED}


def test_a_wrong_kernel_is_not_compiled(tmp_path: Path) -> None:
    """The compiler's message is what the probe ends with: success above means something."""
    probe = oracle_hip.probe(tmp_path, "compile_probe")

    with pytest.raises(AssertionError, match="use of undeclared identifier 'nonsense'"):
        oracle_hip.start(
            write_host(tmp_path / "host"),
            probe,
            "hiprtc",
            oracle_hip.library("libhiprtc"),
            SUPPORTED[0],
            stdin="__global__ void wrong() { nonsense; }",
        )


def test_the_notebook_has_these_kernels() -> None:
    """Those that are compiled are all of them, in the shapes that it runs."""
    code = NOTEBOOK.read_text(encoding="utf-8")

    assert set(kernels()) == {name for name, _, _ in SHAPES}
    assert all(f"({name}, {tile}, {per})" in code for name, tile, per in SHAPES[1:])
