"""What administrators see of the hub: labs, GPUs, who waits, and what each user has taken. Unknown is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rocmlab.base import formatting
from rocmlab.devices import Device
from rocmlab.hub.notices import Notice
from rocmlab.hub.queue import label
from rocmlab.hub.usage import Used
from rocmlab.kernels.holders import Holder
from rocmlab.kernels.tickets import Waiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class Lab:
    """One lab that runs, starts or stops."""

    user: str
    state: str  # runs, starts, stops, waits for 2 GPUs
    choice: str | None  # cpu, kernels, or the number of its GPUs
    since: str | None  # UTC
    last_activity: str | None  # UTC


@dataclass(frozen=True)
class Gpu:
    """One GPU of this host, and who has it."""

    name: str
    simulated: bool
    user: str | None  # of the hub; None: it is free, or is leased to no user of the hub
    lease: str | None  # who has it and for what, as its holder says; None: it is free
    since: str | None  # UTC


@dataclass(frozen=True)
class User:
    """What one user has of the GPUs, and has taken since the hub counts."""

    name: str
    gpus: int  # leased now
    gpu_hours: float
    energy_joules: float | None
    is_energy_whole: bool  # False: it was more


@dataclass(frozen=True)
class Overview:
    """All of it at one moment."""

    labs: list[Lab]
    gpus: list[Gpu]
    waiting: list[str]  # in the order in which they are served
    users: list[User]
    counted_since: str | None  # UTC; None: nothing was counted yet
    drain: Notice | None
    message: Notice | None

    def as_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return asdict(self)


def gpus_of(devices: Sequence[Device], held: Mapping[Device, Holder], names: Mapping[int, str]) -> list[Gpu]:
    """Return who has each GPU; `names` are the hub's users by uid."""
    found = []
    for device in devices:
        holder = held.get(device)
        user = None if holder is None or holder.uid is None else names.get(holder.uid)
        lease = None if holder is None else str(holder)
        found.append(Gpu(label(device), device.simulated, user, lease, holder.started if holder else None))
    return found


def waiting_of(waiters: Sequence[Waiter]) -> list[str]:
    """Return who waits, a line each."""
    return [f"{formatting.plural(each.count, 'GPU')}: {each}" for each in waiters]


def users_of(used: Mapping[int, Used], held: Mapping[Device, Holder], names: Mapping[int, str]) -> list[User]:
    """Return what each user of the hub has taken, and each other account of this host that has leased a GPU."""
    now = [holder.uid for holder in held.values()]
    uids = {**dict.fromkeys(names), **dict.fromkeys(used)}
    rows = []
    for uid in uids:
        each = used.get(uid, Used())
        name = names.get(uid) or f"uid {uid}, not of the hub"
        hours = each.gpu_seconds / 3600
        rows.append(User(name, now.count(uid), hours, each.energy_joules, each.is_energy_whole))
    return sorted(rows, key=lambda row: (-row.gpu_hours, row.name))
