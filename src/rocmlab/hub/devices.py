"""The GPUs of this host that the hub gives to labs."""

from __future__ import annotations

from pathlib import Path

from rocmlab.devices import Device, discover, visibility
from rocmlab.hub.configuration import Configuration
from rocmlab.stack import gpus
from rocmlab.stack.choice import Choice


def devices_of(found: Configuration) -> list[Device]:
    """Return the GPUs that labs can be given, in the order of HIP; those that the setting GPUS names."""
    root = Path(found.root)
    choice = Choice(found.backend, found.runtime, "", is_simulated=found.root != "/")
    if not gpus.takes_leases(choice):
        return []
    given = gpus.given_from(choice, discover(root, {}), root)
    chosen = visibility.select(given, found.lab.get("GPUS", "all"))
    return [device for device in chosen if device.is_usable and device.index is not None]
