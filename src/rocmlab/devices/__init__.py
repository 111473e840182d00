"""Which devices there are, what they are called, and who may use them; read from the system itself."""

from rocmlab.devices.discovery import discover, sample, survey
from rocmlab.devices.model import Backend, Device, Sample, device_id, product_names
from rocmlab.devices.roots import is_simulated, system_root

__all__ = [
    "Backend",
    "Device",
    "Sample",
    "device_id",
    "discover",
    "is_simulated",
    "product_names",
    "sample",
    "survey",
    "system_root",
]
