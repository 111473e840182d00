"""`rocmlab leases`: who holds which GPU since when, and which processes use one without a lease."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rocmlab.base import lease_folder
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.devices import use_remembered_root
from rocmlab.cli.main import command_parser
from rocmlab.devices import Device, discover, is_simulated, system_root
from rocmlab.kernels import gpu_processes
from rocmlab.kernels.gpu_processes import GpuProcess
from rocmlab.kernels.leases import Holder, Leases
from rocmlab.telemetry.smi_cells import number


def main(command: str, arguments: Sequence[str]) -> int:
    """Print the leases of this host, whoever has them; exit code 0 whether there are any or not."""
    chosen = build_parser(command).parse_args(arguments)
    use_remembered_root()
    leases = Leases.of_host(_environment())
    if problem := lease_folder.problem(leases.folder):
        raise RocmlabError.of(problem)
    states = _states(leases)
    if chosen.json:
        facts = {"simulated": is_simulated(system_root()), "folder": str(leases.folder)}
        print(json.dumps({**facts, "gpus": [state.as_dict() for state in states]}, indent=1))
    else:
        print("\n".join(_lines(states)))
    return 0


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab leases`."""
    parser = command_parser(command)
    parser.add_argument("--json", action="store_true", help="print everything known, as JSON")
    return parser


def _environment() -> dict[str, str]:
    """Return the environment, with LEASES_DIR as the project here has it; inside a lab, the lab's own."""
    if os.environ.get("ROCMLAB_RUNTIME") or os.environ.get(lease_folder.SETTING):
        return dict(os.environ)
    from rocmlab.stack import project_folder, settings

    folder = project_folder.nearest()
    chosen = settings.load(folder).get(lease_folder.SETTING) if folder else ""
    return {**os.environ, lease_folder.SETTING: chosen}


@dataclass(frozen=True)
class State:
    """Who has one GPU."""

    gpu: Device
    holder: Holder | None  # of its lease; None if it is free
    unmanaged: list[GpuProcess] | None  # what uses it without a lease; None if its driver does not answer

    def as_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        names = ("backend", "index", "name", "pci_address", "partition", "unique_id")
        identity = {name: getattr(self.gpu, name) for name in names}
        unmanaged = None
        if self.unmanaged is not None:
            unmanaged = [{"pid": each.pid, "name": each.name, "vram_bytes": each.vram_bytes} for each in self.unmanaged]
        return {**identity, "lease": asdict(self.holder) if self.holder else None, "foreign": unmanaged}

    def lines(self) -> list[str]:
        """Return it for a terminal."""
        parts = (number(self.gpu.as_dict()), self.gpu.pci_address, self.gpu.name)
        return [
            "  ".join(filter(None, parts)),
            f"  leased to {self.holder}" if self.holder else "  not leased",
            *(f"  used without a lease by {each}" for each in self.unmanaged or ()),
            *(["  its driver does not answer, so its processes are not known"] if self.unmanaged is None else []),
        ]


def _states(leases: Leases) -> list[State]:
    """Return the state of every GPU, whether or not this process may use it: a mask does not hide who holds it."""
    gpus = [device for device in discover() if device.backend != "cpu"]
    seen = gpu_processes.in_time(gpus)
    held = leases.held(gpus)
    found = []
    for gpu in gpus:
        holder = held.get(gpu)
        found.append(State(gpu, holder, gpu_processes.unmanaged(seen[gpu], holder) if gpu in seen else None))
    return found


def _lines(states: Sequence[State]) -> list[str]:
    mark = ["SIMULATED: not the GPUs of this machine"] if is_simulated(system_root()) else []
    lines = [line for state in states for line in state.lines()]
    return [*mark, *(lines or ["no GPU found to lease"])]
