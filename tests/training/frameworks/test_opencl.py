"""OpenCL on the platform that is here: the chosen device computes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training import opencl

pytestmark = pytest.mark.frameworks

SOURCE = """
kernel void twice(global float *values) { values[get_global_id(0)] *= 2; }
"""

COMPUTE = """
import numpy as np, pyopencl as cl
from rocmlab.training import opencl, pocl
if UNKNOWN:
    device = opencl.visible()[0][0]
    assert pocl.rename(device, device.platform.version, "generic")
    assert pocl.REJECTED in opencl.compile_error(device)
device, description = opencl.choose("cpu")
context = cl.Context([device])
values = np.arange(1000, dtype=np.float32)
flags = cl.mem_flags
buffer = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=values)
source = "kernel void root(global float *a) { int i = get_global_id(0); a[i] = sqrt(a[i]) + exp(-a[i]); }"
queue = cl.CommandQueue(context)
cl.Program(context, source).build(cache_dir=False).root(queue, values.shape, None, buffer)
result = np.empty_like(values)
cl.enqueue_copy(queue, result, buffer)
np.testing.assert_allclose(result, np.sqrt(values) + np.exp(-values), rtol=1e-6)
print(description["platform"])
"""


def compute(before="", unknown=False, **environment):
    """Compute in another process, and return what it printed: the platform."""
    program = f"UNKNOWN = {unknown}\n{before}\n{COMPUTE}"
    environment = {**os.environ, "POCL_KERNEL_CACHE": "0", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_wheels_pocl_compiles_for_a_processor_that_it_does_not_know():
    """Told "generic", which its clang rejects and which it calls any newer processor, it still computes."""
    found = find_spec("pyopencl")
    folder = Path(found.origin).parent / ".libs" if found else None
    if folder is None or not (folder / "pocl.icd").exists():
        pytest.skip("PoCL's wheel is not installed (pip install 'pyopencl[pocl]')")

    assert "PoCL 3.0" in compute(unknown=True, OCL_ICD_VENDORS=str(folder))


@pytest.mark.long
def test_a_systems_pocl_computes_after_tensorflow():
    """Both bring an LLVM; each uses its own, in one process, and TensorFlow still computes afterwards."""
    if not find_spec("tensorflow") or not list(Path("/etc/OpenCL/vendors").glob("pocl*.icd")):
        pytest.skip("it takes TensorFlow and a system's PoCL (sudo apt-get install pocl-opencl-icd)")

    assert "Portable Computing Language" in compute("import tensorflow", OCL_ICD_VENDORS="/etc/OpenCL/vendors")


@pytest.fixture
def cl():
    """Return pyopencl, with a platform that has a device."""
    module = pytest.importorskip("pyopencl", reason="pyopencl is not installed (it is in the lab's kernel `torch`)")
    try:
        opencl.choose()
    except RocmlabError as err:
        pytest.skip(f"no OpenCL here: {err.problem.what}")
    return module


def test_every_device_computes_and_is_described(cl):
    """Each that its compiler knows, the chosen one among them, doubles numbers exactly; all have a kind and names."""
    usable = [device for device, _description in opencl.visible() if not opencl.compile_error(device)]
    assert opencl.choose()[0] in usable
    for device in usable:
        context = cl.Context([device])
        queue = cl.CommandQueue(context)
        values = np.arange(1000, dtype=np.float32)
        flags = cl.mem_flags
        buffer = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=values)
        result = np.empty_like(values)

        cl.Program(context, SOURCE).build(cache_dir=False).twice(queue, values.shape, None, buffer)
        cl.enqueue_copy(queue, result, buffer)

        np.testing.assert_array_equal(result, 2 * values)
    for _device, description in opencl.visible():
        assert description["backend"] in ("rocm", "cuda", "metal", "opencl", "cpu")
        assert all(description[name] for name in ("name", "platform", "driver"))
        assert description["simulated"] is False


def test_processor_is_a_cpu(cl):
    """What OpenCL drives on the processor is called a CPU, and asking for a GPU never answers with it."""
    if not any(description["backend"] == "cpu" for _device, description in opencl.visible()):
        pytest.skip("no OpenCL platform drives the CPU (pip install 'pyopencl[pocl]')")

    device, description = opencl.choose("cpu")

    assert device.type & cl.device_type.CPU
    assert description["backend"] == "cpu"
    if all(one["backend"] == "cpu" for _device, one in opencl.visible()):
        with pytest.raises(RocmlabError, match="no GPU"):
            opencl.choose("gpu")
    else:
        assert opencl.choose("gpu")[1]["backend"] != "cpu"
