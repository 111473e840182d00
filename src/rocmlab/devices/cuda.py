"""NVIDIA GPUs, through the driver's own library NVML.

Inside a container NVML lists the GPUs that were passed to it, numbered from 0, as CUDA does there.
"""

from __future__ import annotations

from pathlib import Path

from rocmlab.devices import roots
from rocmlab.devices.model import Device

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.devices.nvml import Nvml


def has_device_nodes(root: Path) -> bool:
    """Return whether the NVIDIA driver made device nodes (`/dev/nvidia0` …) on the host below `root`."""
    return any(name.startswith("nvidia") and name[6:7].isdigit() for name in roots.list_names(root / "dev"))


def has_driver(root: Path) -> bool:
    """Return whether NVML may answer: a node of the driver, or that of WSL2, which shares the GPU of Windows."""
    return has_device_nodes(root) or any((root / "dev" / name).exists() for name in ("nvidiactl", "dxg"))


class Cuda:
    """NVIDIA GPUs."""

    name = "cuda"

    def discover(self, root: Path) -> list[Device]:
        """Return the GPUs that NVML lists, in its order (PCI order, the order of CUDA_DEVICE_ORDER=PCI_BUS_ID)."""
        if roots.is_simulated(root) or not has_driver(root):
            return []
        from rocmlab.devices import nvml

        roots.announce_only("NVIDIA's driver (libnvidia-ml.so.1)")
        with nvml.session() as library:
            return [] if library is None else listed(library)


def listed(library: Nvml) -> list[Device]:
    """Return the devices of an initialised NVML."""
    return [
        Device(backend="cuda", index=index, is_usable=True, smi_index=index, **library.identity(handle))
        for index, handle in library.handles()
    ]
