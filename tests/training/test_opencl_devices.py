"""OpenCL devices as drivers describe them, and the errors where there are none."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training import opencl

CPU, GPU, ACCELERATOR = 2, 4, 8  # cl_device_type


class ClError(Exception):
    """Stands where pyopencl.Error does."""


def device(kind, name, vendor, **more):
    """Return what a driver says of a device."""
    usual = {"extensions": "", "driver_version": "1", "platform": SimpleNamespace(version="OpenCL 1.2 Some Driver")}
    return SimpleNamespace(type=kind, name=name, vendor=vendor, **{**usual, **more})


class Program:
    """Replaces pyopencl.Program: an old compiler rejects a processor that it does not know."""

    def __init__(self, context, _source):
        self.device = context[0]

    def build(self):
        """Compile."""
        if self.device is OLD:
            raise ClError("clBuildProgram failed\n\nerror: unknown target CPU 'generic'\nDevice failed to build")


ROCM = device(
    GPU,
    "gfx1100",
    "Advanced Micro Devices, Inc.",
    extensions="cl_khr_fp64 cl_amd_device_attribute_query",
    board_name_amd="AMD Radeon RX 7900 XTX",
    topology_amd=SimpleNamespace(bus=3, device=0, function=0),
    driver_version="3635.0 (HSA1.1,LC)",
)
RUSTICL = device(GPU, "AMD Radeon RX 480 Graphics (radeonsi, polaris10)", "AMD")
NVIDIA = device(
    GPU,
    "NVIDIA H200",
    "NVIDIA Corporation",
    extensions="cl_nv_device_attribute_query",
    pci_domain_id_nv=0,
    pci_bus_id_nv=0x83,
    pci_slot_id_nv=0,
)
POCL = device(CPU, "pthread-AMD EPYC", "AuthenticAMD")
OLD = device(CPU, "pthread-AMD EPYC", "AuthenticAMD")
FPGA = device(ACCELERATOR, "board", "Xilinx")


@pytest.fixture
def host(monkeypatch):
    """Return a function that makes pyopencl list platforms: names with their devices."""

    def install(**platforms):
        def listed(name, devices):
            version = "OpenCL 3.0 Some Driver  1.2, Release, LLVM"
            return SimpleNamespace(name=name, version=version, get_devices=lambda: list(devices))

        found = [listed(name, devices) for name, devices in platforms.items()]
        kinds = SimpleNamespace(CPU=CPU, GPU=GPU)
        fake = SimpleNamespace(
            get_platforms=lambda: found,
            device_type=kinds,
            Error=ClError,
            Context=lambda devices: devices,
            Program=Program,
        )
        monkeypatch.setitem(sys.modules, "pyopencl", fake)
        return fake

    return install


def test_auto_takes_a_gpu_before_a_cpu(host):
    """A GPU is taken wherever it is in the list, and described with product, address, platform and driver."""
    host(PoCL=[POCL], ROCm=[ROCM])

    chosen, description = opencl.choose()

    assert chosen is ROCM
    assert description == {
        "backend": "rocm",
        "name": "AMD Radeon RX 7900 XTX (gfx1100)",
        "index": 1,
        "pci": "0000:03:00.0",
        "simulated": False,
        "platform": "ROCm (OpenCL 3.0 Some Driver 1.2)",
        "driver": "3635.0 (HSA1.1,LC)",
    }


@pytest.mark.parametrize(
    ("found", "backend", "pci"),
    [(RUSTICL, "rocm", None), (NVIDIA, "cuda", "0000:83:00.0"), (POCL, "cpu", None)],
    ids=["rusticl", "nvidia", "pocl"],
)
def test_kind_of_hardware_and_address(host, found, backend, pci):
    """The backend is the hardware's, whichever driver serves it; a CPU is a CPU, although AMD made it."""
    host(one=[found])

    _chosen, description = opencl.choose()

    assert (description["backend"], description["pci"]) == (backend, pci)


def test_cpu_and_platform_are_chosen_by_name(host):
    """`cpu` leaves GPUs aside, and a part of a platform's name is enough."""
    host(Rusticl=[RUSTICL], ROCm=[ROCM, FPGA], PoCL=[POCL])

    assert opencl.choose("cpu")[0] is POCL
    assert opencl.choose("gpu", "rocm")[0] is ROCM
    assert [one for one, _description in opencl.visible("ROCM")] == [ROCM]


def test_a_platform_that_does_not_know_the_processor_is_passed_over(host):
    """Another one of the same kind is taken; where none is, the error has the compiler's reason and what to install."""
    host(Old=[OLD], New=[POCL])
    assert opencl.choose()[0] is POCL

    host(Old=[OLD])
    with pytest.raises(RocmlabError, match="can compile for pthread-AMD EPYC") as caught:
        opencl.choose()
    assert "unknown target CPU 'generic'" in caught.value.problem.why
    assert "pocl-opencl-icd" in caught.value.problem.fix


@pytest.mark.parametrize(
    ("platforms", "arguments", "said"),
    [
        ({}, (), "OpenCL has no platform here"),
        ({"PoCL": [POCL]}, ("gpu",), "OpenCL has no GPU"),
        ({"PoCL": [POCL]}, ("auto", "rocm"), "the platforms are: PoCL"),
        ({"Xilinx": [FPGA]}, (), "no GPU or CPU"),
    ],
    ids=["no platform", "no gpu", "no such platform", "no device"],
)
def test_what_is_missing_is_named_with_what_to_install(host, platforms, arguments, said):
    """The error names what is missing and what to install."""
    host(**platforms)

    with pytest.raises(RocmlabError, match=said) as caught:
        opencl.choose(*arguments)

    for command in ("pyopencl[pocl]", "pocl-opencl-icd", "rocm-opencl-runtime"):
        assert command in caught.value.problem.fix


def test_loader_without_drivers(host):
    """The loader's error for a host without drivers becomes the same sentence."""

    def fails():
        raise ClError("PLATFORM_NOT_FOUND_KHR")

    host().get_platforms = fails

    with pytest.raises(RocmlabError, match="OpenCL has no platform here"):
        opencl.visible()


def test_missing_package_and_unknown_word(monkeypatch):
    """Without pyopencl the error explains how to get it; an unknown device is rejected before anything is queried."""
    monkeypatch.setitem(sys.modules, "pyopencl", None)

    with pytest.raises(RocmlabError, match="pyopencl is not installed"):
        opencl.choose()
    with pytest.raises(RocmlabError, match="auto, gpu, cpu"):
        opencl.choose("tpu")
