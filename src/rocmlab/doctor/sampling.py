"""One reading of every AMD GPU in a child process, so that a hung driver costs a time limit and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SILENT = "no answer"
PROGRAM = r"""
import json, sys, threading
from pathlib import Path
from rocmlab.devices.rocm import Rocm

def read(device, root):
    sample = Rocm().sample(device, root)
    known = [value for value in sample.as_dict().values() if value not in (None, False)]
    said = "asleep" if sample.is_asleep else f"{len(known) - 1} values"
    sys.stdout.write(json.dumps([device.pci_address, said]) + "\n")  # one call, so that threads do not mix
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
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    try:
        output = child.communicate(timeout=limit_seconds)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        output = _rest(child)
    answers: dict[str, str] = {}
    for line in output.splitlines():
        if line.endswith("]"):  # the last one may be truncated
            address, said = json.loads(line)
            answers[address] = said or f"{SILENT} within {limit_seconds:g} s"
    return answers


def _rest(child: subprocess.Popen[str]) -> str:
    """Return what a killed child had printed; one that even a kill does not end is abandoned."""
    try:
        return child.communicate(timeout=1)[0]
    except subprocess.TimeoutExpired as err:
        said = err.stdout or b""
        return said.decode(errors="replace") if isinstance(said, bytes) else said
