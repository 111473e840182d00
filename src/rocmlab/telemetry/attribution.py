"""The processes on each GPU, and what each of them belongs to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rocmlab.devices import Device
from rocmlab.telemetry.model import GpuProcess, Owner, device_id
from rocmlab.telemetry.owners import Source, merged
from rocmlab.telemetry.processes import Finder, changed, finder

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocmlab.telemetry.proc import Process


def attribute(devices: Sequence[Device], root: Path, sources: Sequence[Source]) -> list[GpuProcess]:
    """Return the processes on these GPUs with their owners.

    Args:
        devices: whose processes are wanted.
        root: of the host.
        sources: who knows owners, the most believed first, such as `LabSource` before `ProcSource`. Keep them from one
            call to the next: they remember what they have found.
    """
    for source in sources:
        source.begin()
    known = finder(root)
    by_name = {device_id(device): device for device in devices}
    found = [(process, _owners(process, sources)) for process in known.find(devices)]
    nameless = Counter(process.device for process, owners in found if not owners)
    return [
        _owned(process, owners, known, by_name[process.device], nameless[process.device], sources)
        for process, owners in found
    ]


def _owners(process: GpuProcess, sources: Sequence[Source]) -> list[Owner]:
    return [owner for source in sources if (owner := source.owner(process)) is not None]


def _owned(
    process: GpuProcess, owners: list[Owner], known: Finder, device: Device, nameless: int, sources: Sequence[Source]
) -> GpuProcess:
    owner = merged(owners)
    if process.is_estimated:
        owner = changed(owner, is_estimated=True)
    elif not owners and known.table.is_isolated:
        possible = known.possible(device)
        # With more in the driver's list than there are here, one of them is another container's.
        owner = (_only_owner(possible, sources) if nameless <= len(possible) else None) or owner
    return changed(process, owner=owner)


def _only_owner(processes: Sequence[Process], sources: Sequence[Source]) -> Owner | None:
    """Return whose all of these processes are, as an estimate; None if they are of several, or none is known."""
    found = {_owner_of(process, sources) for process in processes}
    only = found.pop() if len(found) == 1 else None
    return None if only is None else changed(only, is_estimated=True)


def _owner_of(process: Process, sources: Sequence[Source]) -> Owner | None:
    seen = GpuProcess("", process.pid, local_pid=process.pid, started_seconds=process.started_seconds)
    owners = [owner for owner in _owners(seen, sources) if owner.kind != "process"]
    return merged(owners) if owners else None
