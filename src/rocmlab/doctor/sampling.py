"""One reading of every AMD GPU in a child process, so that a hung driver costs a time limit and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rocmlab.doctor import child

SILENT = "no answer"
PROGRAM = r"""
import json, sys, threading
from pathlib import Path
from rocmlab.devices import sample
from rocmlab.devices.rocm import Rocm

def read(device, root):
    found = sample(device, root)
    known = [value for value in found.as_dict().values() if value not in (None, False)]
    state = "asleep" if found.is_asleep else f"{len(known) - 1} values"
    sys.stdout.write(json.dumps([device.pci_address, state]) + "\n")  # one call, so that threads do not mix
    sys.stdout.flush()

root = Path(sys.argv[1])
found = {}
for device in Rocm().discover(root, as_root=True):
    if device.pci_address and device.kfd_node is not None:
        found.setdefault(device.pci_address, device)
for address in found:
    print(json.dumps([address, None]), flush=True)
threads = [threading.Thread(target=read, args=(device, root), daemon=True) for device in found.values()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def probe(root: Path, limit_seconds: float) -> dict[str, str]:
    """Return what each GPU answered by PCI address: how many values, `asleep`, or that there was no answer."""
    _, output = child.run(
        [sys.executable, "-c", PROGRAM, str(root.absolute())],
        child.with_package(os.environ),
        limit_seconds,
        errors=subprocess.DEVNULL,
    )
    answers: dict[str, str] = {}
    for line in output.splitlines():
        if line.endswith("]"):  # the last one may be truncated
            address, answer = json.loads(line)
            answers[address] = answer or f"{SILENT} within {limit_seconds:g} s"
    return answers
