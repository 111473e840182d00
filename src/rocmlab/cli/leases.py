"""`rocmlab leases`: who holds which GPU since when, who waits, and which processes use one without a lease."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rocmlab.base import formatting, lease_folder
from rocmlab.base.errors import RocmlabError
from rocmlab.base.host_limits import HostLimits
from rocmlab.cli.devices import use_remembered_root
from rocmlab.cli.main import command_parser
from rocmlab.devices import Device, discover, is_simulated, system_root
from rocmlab.kernels import estimates, gpu_processes
from rocmlab.kernels.gpu_processes import GpuProcess
from rocmlab.kernels.leases import Holder, Leases, Waiter, key
from rocmlab.telemetry.smi_cells import number


def main(command: str, arguments: Sequence[str]) -> int:
    """Print the leases of this host, whoever has them; exit code 0 whether there are any or not."""
    chosen = build_parser(command).parse_args(arguments)
    use_remembered_root()
    leases = Leases.of_host(_environment())
    if unusable := lease_folder.problem(leases.folder):
        raise RocmlabError.of(unusable)
    limits: HostLimits | None = None
    problem: RocmlabError | None = None
    try:
        limits = leases.limits()
    except RocmlabError as err:  # the leases are shown all the same
        problem = err
    states = _states(leases)
    queue = _queue(leases, states)
    if chosen.json:
        facts = {"simulated": is_simulated(system_root()), "folder": str(leases.folder)}
        facts |= {"limits": limits.as_dict() if limits else None}
        gpus, waiting = [state.as_dict() for state in states], [place.as_dict() for place in queue]
        print(json.dumps({**facts, "gpus": gpus, "waiting": waiting}, indent=1))
    else:
        print("\n".join([*_lines(states), *_queue_lines(queue), *(_limit_lines(limits) if limits else [])]))
    if problem:
        raise problem
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
    kept: Waiter | None = None  # for whom it is kept while it is free

    def as_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        names = ("backend", "index", "name", "pci_address", "partition", "unique_id")
        identity = {name: getattr(self.gpu, name) for name in names}
        unmanaged = None
        if self.unmanaged is not None:
            unmanaged = [{"pid": each.pid, "name": each.name, "vram_bytes": each.vram_bytes} for each in self.unmanaged]
        kept = asdict(self.kept.holder) if self.kept else None
        return {**identity, "lease": asdict(self.holder) if self.holder else None, "kept": kept, "foreign": unmanaged}

    def lines(self) -> list[str]:
        """Return it for a terminal."""
        parts = (number(self.gpu.as_dict()), self.gpu.pci_address, self.gpu.name)
        return [
            "  ".join(filter(None, parts)),
            f"  leased to {self.holder}" if self.holder else "  not leased",
            *([f"  kept for {self.kept}, who waits"] if self.kept else []),
            *(f"  used without a lease by {each}" for each in self.unmanaged or ()),
            *(["  its driver does not answer, so its processes are not known"] if self.unmanaged is None else []),
        ]


def _states(leases: Leases) -> list[State]:
    """Return the state of every GPU, whether or not this process may use it: a mask does not hide who holds it."""
    gpus = [device for device in discover() if device.backend != "cpu"]
    seen = gpu_processes.in_time(gpus)
    held, kept = leases.held(gpus), leases.kept()
    found = []
    for gpu in gpus:
        holder = held.get(gpu)
        others = gpu_processes.unmanaged(seen[gpu], holder) if gpu in seen else None
        found.append(State(gpu, holder, others, None if holder else kept.get(key(gpu))))
    return found


@dataclass(frozen=True)
class Place:
    """One place of the queue."""

    number: int
    waiter: Waiter
    gpus: list[Device]  # among which it chooses, as far as they are known here
    start_seconds: float | None  # Unix time at which it is likely to get them; None if that is unknown

    def as_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        waiter = self.waiter
        return {
            **asdict(waiter.holder),
            "count": waiter.count,
            "gpus": [gpu.pci_address or gpu.name for gpu in self.gpus],
            "since_seconds": waiter.since_seconds,
            "is_stopped": waiter.is_stopped,
            "is_at_limit": waiter.is_at_limit,
            "start_seconds": self.start_seconds,
        }

    def lines(self, now_seconds: float) -> list[str]:
        """Return it for a terminal."""
        waiter = self.waiter
        among = ", ".join(number(gpu.as_dict()) for gpu in self.gpus) or "GPUs that are not seen from here"
        waits = formatting.duration(max(0.0, now_seconds - waiter.since_seconds))
        begins = "unknown when"
        if self.start_seconds is not None:
            begins = f"in about {formatting.duration(max(0.0, self.start_seconds - now_seconds))}, by earlier runs"
        states = {
            "its user has as many GPUs as this host allows; others are served meanwhile": waiter.is_at_limit,
            "it does not answer (stopped or paused?); others are served meanwhile": waiter.is_stopped,
        }
        return [
            f"  {self.number}. {formatting.plural(waiter.count, 'GPU')} of {among}: {waiter}",
            f"     waits for {waits}; begins: {begins}",
            *(f"     {text}" for text, is_so in states.items() if is_so),
        ]


def _queue(leases: Leases, states: Sequence[State]) -> list[Place]:
    """Return who waits, in the order in which they are served."""
    waiters, now_seconds = leases.waiting(), time.time()
    gpus = {key(state.gpu): state.gpu for state in states}
    held = {key(state.gpu): state.holder for state in states if state.holder}
    starts = estimates.starts(waiters, held, now_seconds)
    return [
        Place(place, waiter, [gpus[name] for name in waiter.locks if name in gpus], start)
        for place, (waiter, start) in enumerate(zip(waiters, starts, strict=True), 1)
    ]


def _queue_lines(queue: Sequence[Place]) -> list[str]:
    if not queue:
        return []
    now_seconds = time.time()
    return ["waiting, in this order:", *(line for place in queue for line in place.lines(now_seconds))]


def _limit_lines(limits: HostLimits) -> list[str]:
    found = {
        f"a user may have {formatting.plural(limits.gpus_per_user or 0, 'GPU')} at a time": limits.gpus_per_user,
        f"a kernel may hold its GPUs for {formatting.duration(limits.hold_seconds or 0)} while other users wait": (
            limits.hold_seconds
        ),
    }
    drained = [f"no GPU is leased now: {why}"] if (why := limits.why_drained()) else []
    return drained + [f"{text} ({limits.path})" for text, value in found.items() if value is not None]


def _lines(states: Sequence[State]) -> list[str]:
    mark = ["SIMULATED: not the GPUs of this machine"] if is_simulated(system_root()) else []
    lines = [line for state in states for line in state.lines()]
    return [*mark, *(lines or ["no GPU found to lease"])]
