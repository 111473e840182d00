"""Which devices there are, what they are called, and who may use them; read from the system itself."""

from rocmlab.devices.discovery import discover
from rocmlab.devices.model import Backend, Device
from rocmlab.devices.roots import is_simulated, system_root

__all__ = ["Backend", "Device", "discover", "is_simulated", "system_root"]
