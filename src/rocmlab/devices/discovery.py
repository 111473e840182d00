"""All devices of a host, whatever made them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base.errors import Problem
from rocmlab.devices.cpu import Cpu
from rocmlab.devices.cuda import Cuda
from rocmlab.devices.metal import Metal
from rocmlab.devices.model import Backend, Device, Sample
from rocmlab.devices.rocm import Rocm
from rocmlab.devices.roots import is_simulated, list_names, read_text, system_root

MASKS = (  # names, or how they begin, of the variables that `visibility` reads; it is imported only for them
    "HSA_OVERRIDE_GFX_VERSION",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "AMD_VISIBLE_DEVICES",
)
ROCM = Rocm()
ALL: tuple[Backend, ...] = (ROCM, Cuda(), Metal(), Cpu())


def discover(root: Path | None = None, environment: Mapping[str, str] | None = None) -> list[Device]:
    """Return every device: usable GPUs first, then GPUs this process cannot use, the CPU last.

    The root is by default `$ROCMLAB_ROOT` or `/`, the environment, whose masks hide GPUs, that of this process.
    """
    return survey(root, environment)[0]


def survey(
    root: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[list[Device], list[Problem]]:
    """Return what `discover` returns, and what is damaged or contradictory in the host's description or the masks."""
    where = root or system_root()
    masks = os.environ if environment is None else environment
    found, problems = ROCM.examine(where)
    problems += _no_host(where)
    found += [device for backend in ALL if backend is not ROCM for device in backend.discover(where)]
    if any(name.startswith(MASKS) for name in masks):
        from rocmlab.devices import visibility

        problems += visibility.problems(masks, found)
        found = visibility.mark_overridden(visibility.mark_hidden(found, masks), masks)
    return sorted(found, key=lambda device: (device.backend == "cpu", not device.is_usable)), problems


def fingerprint(root: Path) -> object:
    """Return what differs when there are other devices; it costs a hundredth of finding them."""
    return (
        list_names(root / "sys/class/drm"),
        read_text(root / "sys/class/kfd/kfd/topology/generation_id"),
        list_names(root / "dev/dri"),
        [name for name in list_names(root / "dev") if name.startswith(("kfd", "nvidia"))],
    )


def _no_host(root: Path) -> list[Problem]:
    """Tell of a simulated host that is none, which would look like a machine without GPUs."""
    if not is_simulated(root) or os.path.isdir(f"{root}/sys"):
        return []
    if not os.path.exists(root):
        why = "the folder does not exist"
    else:
        why = "it has no folder sys" if os.path.isdir(root) else "it is not a folder"
    return [
        Problem(
            f"{os.fsencode(root).decode('utf-8', 'replace')} is not a simulated host",
            why,
            "scripts/rocmlab simulate FOLDER writes one; without ROCMLAB_ROOT this machine is read",
        )
    ]


def sample(device: Device, root: Path | None = None) -> Sample:
    """Read one device; whatever cannot be read is None, as a load that is the difference of two readings."""
    from contextlib import closing

    from rocmlab.devices.readers import Readers

    with closing(Readers(root or system_root())) as readers:
        reader = readers.open(device, full=True)
        if reader is None:
            return Sample(time.time())
        with closing(reader):
            return reader.read()
