"""OpenCL on the platform that is here: the chosen device computes."""

from __future__ import annotations

import numpy as np
import pytest

from rocmlab.errors import RocmlabError
from rocmlab.training import opencl

pytestmark = pytest.mark.frameworks

SOURCE = """
kernel void twice(global float *values) { values[get_global_id(0)] *= 2; }
"""


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
