"""The processes that use a GPU, from the drivers and `/proc`: for leases and for telemetry.

KFD lists every process under every GPU, and gives process ids of the host (the initial PID namespace). What `/proc`
shows here are the same numbers only on the host and in a container that shares its process ids.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rocmlab.devices import roots

KFD_PROCESSES = "sys/class/kfd/kfd/proc"
MIN_BYTES = 64 * 2**20  # of KFD: HIP_VISIBLE_DEVICES leaves a process a little memory on the GPUs it does not use
INITIAL_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel's proc_ns.h, the same on every machine
SIMULATED_MARK = "rocmlab-simulated.json"


def namespace(pid: str = "self") -> int | None:
    """Return the PID namespace of a process, by default of this one; None if it cannot be read, as outside Linux."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None


def is_isolated(root: Path) -> bool:
    """Return whether the driver's process ids mean nothing in the `/proc` that can be seen from here.

    The mark of a simulated host names the namespace of its list of processes: that of the process that listed real
    ones. Where it names none, the listed processes are simulated.
    """
    if not sys.platform.startswith("linux"):
        return False
    if not roots.is_simulated(root):
        return namespace() not in (INITIAL_NAMESPACE, None)
    counted = _counted_by(root)
    return counted is not None and counted != namespace()


def _counted_by(root: Path) -> int | None:
    import json

    try:
        found = json.loads(roots.read_text(root / SIMULATED_MARK) or "{}")
    except ValueError:
        return None
    number = found.get("pid_namespace") if isinstance(found, dict) else None
    return number if isinstance(number, int) else None
