"""OpenCL devices for notebooks that write their own kernels: which there are, and which one to use.

A processor that OpenCL drives (PoCL) is called a CPU here, whatever it can do.
"""

from __future__ import annotations

import importlib
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.training import pocl
from rocmlab.training.placement import CHOICES, Description

Device = Any  # pyopencl.Device

INSTALL = (
    "on a CPU: pip install 'pyopencl[pocl]' into this kernel's environment\n"
    "on Debian or Ubuntu: sudo apt-get install pocl-opencl-icd (a CPU) or mesa-opencl-icd (AMD GPUs without ROCm; "
    "set RUSTICL_ENABLE=radeonsi)\n"
    "with ROCm: sudo apt-get install rocm-opencl-runtime\n"
    "then look at `clinfo -l`, and whether /dev/kfd and /dev/dri can be opened (make doctor)"
)

GET_LINKER = (
    "gcc and libc6-dev as lines of apt.txt next to the notebooks, then make up; "
    "without Docker: sudo apt-get install gcc libc6-dev"
)
PROBE = "kernel void probe(global float *a) { a[get_global_id(0)] += 1; }"


class CannotLink(RocmlabError):
    """PoCL's wheel is the only platform, and the system lacks what it links kernels with."""


def choose(device: str = "auto", platform: str = "") -> tuple[Device, Description]:
    """Return the OpenCL device a notebook requested, and its description.

    `auto` takes the first GPU, else the first CPU; `gpu` insists on a GPU; `cpu` on a CPU. A device for which its
    platform cannot compile a kernel is skipped, if there is another one of the same kind. The description is that
    of `placement`, with `platform` and `driver` (their names and versions) in addition.

    Args:
        device: "auto", "gpu" or "cpu".
        platform: only devices of platforms whose name contains this, in any case; "" takes all.

    Raises:
        CannotLink: the only ones are of PoCL's wheel, and the system has no linker.
        RocmlabError: OpenCL, a platform of that name or a device of that kind is missing, none of them compiles, or an
            argument is unknown.
    """
    if device not in CHOICES:
        raise RocmlabError(f"device={device!r} is unknown", "", f"use one of: {', '.join(CHOICES)}")
    found = visible(platform)
    kinds = {"auto": ("gpu", "cpu"), "gpu": ("gpu",), "cpu": ("cpu",)}[device]
    for kind in kinds:
        candidates = [(one, each) for one, each in found if (each["backend"] == "cpu") == (kind == "cpu")]
        if candidates:
            return _first_that_compiles(candidates)
    listed = ", ".join(f"{one['name']} ({one['platform']})" for _device, one in found) or "no device"
    wanted = " or ".join(kind.upper() for kind in kinds)
    raise RocmlabError(
        f"device={device!r}, but OpenCL has no {wanted}",
        f"its platforms list: {listed}",
        INSTALL,
    )


def _first_that_compiles(candidates: list[tuple[Device, Description]]) -> tuple[Device, Description]:
    """Return the first device for which its platform compiles a kernel: a compiler may be older than the processor.

    PoCL's wheel is given an older processor's name only where no platform compiles as it is.

    Raises:
        CannotLink: the only one that compiles is PoCL's wheel, which would end the process when it links.
        RocmlabError: none does.
    """
    reasons, unlinked = [], ""
    for one, description in candidates:
        error = compile_error(one)
        if not error and not (unlinked := _link_error(one)):
            return one, description
        reasons.append(f"{description['platform']}: {error or unlinked}")
    for (one, description), reason in zip(candidates, reasons, strict=True):
        if pocl.REJECTED in reason and _compiles_for_older(one) and not (unlinked := _link_error(one)):
            return one, description
    if unlinked:
        raise CannotLink("PoCL's wheel cannot link a kernel for this CPU", unlinked, GET_LINKER)
    raise RocmlabError(
        f"no OpenCL platform here can compile for {candidates[0][1]['name']}",
        "\n".join(reasons),
        f"a newer OpenCL platform:\n{INSTALL}",
    )


def compile_error(device: Device) -> str:
    """Compile a small kernel, and return the compiler's reason if it fails; empty if it does not."""
    cl = _pyopencl()
    try:
        cl.Program(cl.Context([device]), PROBE).build()
    except cl.Error as err:
        lines = [line.strip() for line in str(err).splitlines() if "error:" in line]
        return (lines or [str(err).strip().splitlines()[0]])[0]
    return ""


def _compiles_for_older(device: Device) -> bool:
    """Give a device of PoCL's wheel an older processor's name; return whether its compiler takes that one."""
    return bool(pocl.rename(device, device.platform.version, pocl.processor())) and not compile_error(device)


def _link_error(device: Device) -> str:
    return pocl.link_error() if pocl.is_wheel(device.platform.version) else ""


def compute_with_wheel() -> None:
    """Run a small kernel with PoCL's wheel, under the processor's name that it takes; it may end the process."""
    cl = _pyopencl()
    device = next(one for one, _ in visible() if pocl.is_wheel(one.platform.version))
    if compile_error(device):
        _compiles_for_older(device)
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4)
    cl.Program(context, PROBE).build(cache_dir=False).probe(queue, (1,), None, buffer)
    queue.finish()


def visible(platform: str = "") -> list[tuple[Device, Description]]:
    """Return every GPU and CPU that OpenCL's platforms list, in their order, with its description.

    Raises:
        RocmlabError: pyopencl is not installed, there is no platform, or none of that name.
    """
    cl = _pyopencl()
    pocl.prepare()
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader's way to say that it found no driver
        platforms = []
    if not platforms:
        raise RocmlabError("OpenCL has no platform here", "no driver (ICD) is installed that its loader finds", INSTALL)
    chosen = [one for one in platforms if platform.lower() in one.name.lower()]
    if not chosen:
        names = ", ".join(one.name for one in platforms)
        raise RocmlabError(
            f"platform={platform!r} is missing", f"the platforms are: {names}", f"leave it empty, or:\n{INSTALL}"
        )
    found = [(device, one) for one in chosen for device in _devices(cl, one)]
    return [(device, _describe(cl, device, one, index)) for index, (device, one) in enumerate(found)]


def _pyopencl() -> Any:  # noqa: ANN401  the module
    try:
        return importlib.import_module("pyopencl")
    except ImportError as err:
        raise RocmlabError("pyopencl is not installed for this kernel", f"importing it failed: {err}", INSTALL) from err


def _devices(cl: Any, platform: Any) -> list[Device]:  # noqa: ANN401  pyopencl and its Platform
    """Return a platform's GPUs and CPUs; a platform without devices raises an error."""
    try:
        found = platform.get_devices()
    except cl.Error:
        return []
    return [one for one in found if one.type & (cl.device_type.GPU | cl.device_type.CPU)]


def _describe(cl: Any, device: Device, platform: Any, index: int) -> Description:  # noqa: ANN401
    return {
        "backend": _backend(cl, device),
        "name": _name(device),
        "index": index,
        "pci": _pci(device),
        "simulated": False,
        "platform": f"{platform.name} ({' '.join(platform.version.split(',')[0].split())})",
        "driver": device.driver_version,
    }


def _backend(cl: Any, device: Device) -> str:  # noqa: ANN401
    """Return the kind of hardware: rocm (AMD GPUs, whichever driver), cuda, metal, cpu, or opencl for other GPUs."""
    if device.type & cl.device_type.CPU:
        return "cpu"
    maker = device.vendor.lower()
    makers = {"advanced micro devices": "rocm", "amd": "rocm", "nvidia": "cuda", "apple": "metal"}
    return next((backend for word, backend in makers.items() if word in maker), "opencl")


def _name(device: Device) -> str:
    """Return the product's name; ROCm's `name` is the gfx target, and the product is in an extension of AMD."""
    board = getattr(device, "board_name_amd", "") if "cl_amd_device_attribute_query" in device.extensions else ""
    name = device.name.strip()
    return f"{board.strip()} ({name})" if board and board.strip() != name else name


def _pci(device: Device) -> str | None:
    """Return the PCI address; None where the driver does not report it.

    Source: CL_DEVICE_TOPOLOGY_AMD, or CL_DEVICE_PCI_*_ID_NV.
    """
    if "cl_amd_device_attribute_query" in device.extensions:
        at = device.topology_amd
        return f"0000:{at.bus & 0xFF:02x}:{at.device:02x}.{at.function:x}"
    if "cl_nv_device_attribute_query" in device.extensions:
        slot = device.pci_slot_id_nv  # device and function in one number, as PCI has them
        return f"{device.pci_domain_id_nv:04x}:{device.pci_bus_id_nv:02x}:{slot >> 3:02x}.{slot & 7:x}"
    return None
