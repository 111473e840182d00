"""What the users of this host have taken of its GPUs while the hub ran: hours and energy of their leases.

A process of its own, which the hub starts, reads every ten seconds who has which GPU, and those GPUs alone: it wakes
none that sleeps. It counts by the uid of a lease, which the file system knows, and not by what its holder writes. The
sums are in a file of the hub's, so they outlive it. Energy is that of a GPU while it is leased, idle draw included.

Run as `python -m rocmlab.hub.usage`, with the hub's decisions in ROCMLAB_HUB_FILE.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.hub import kept
from rocmlab.hub.configuration import Configuration
from rocmlab.hub.devices import devices_of
from rocmlab.kernels.holders import Holder
from rocmlab.kernels.leases import Leases, key
from rocmlab.stack import envfile
from rocmlab.telemetry import ticks
from rocmlab.telemetry.model import device_id
from rocmlab.telemetry.sampler import Sampler

log = logging.getLogger("rocmlab")

FILE = "usage.json"
LATE_SECONDS = 20.0  # after the start of a lease; where the first reading is later, its energy is more than was read


@dataclass
class Used:
    """What one user has taken."""

    gpu_seconds: float = 0.0
    energy_joules: float | None = None  # None: no GPU has told
    is_energy_whole: bool = True  # False: it used more, a part is unknown


@dataclass(frozen=True)
class _Lease:
    """One GPU that a user has, as it was seen last."""

    uid: int
    pid: int | None
    started: str | None


class Usage:
    """The sums of all users, by uid."""

    def __init__(
        self, state: Path, root: Path, held: Callable[[], Mapping[Device, Holder]], now: Callable[[], float] = time.time
    ) -> None:
        """Continue with what the hub's folder has.

        Args:
            state: the hub's folder.
            root: of the host.
            held: returns who has which GPU.
            now: returns the Unix time.
        """
        self._path = state / FILE
        self._held, self._now = held, now
        self._sampler = Sampler((), root, errors_seconds=math.inf)
        found = self._kept()
        self.since_seconds: float = found.get("since_seconds", now())
        self.users = _users(found)
        self._seen_seconds: float = found.get("seen_seconds", now())
        self._leases = {name: _Lease(**lease) for name, lease in found.get("leases", {}).items()}
        self._joules: dict[str, float] = {}  # by lock, what the sampler had counted at the last reading

    def read(self) -> None:
        """Bring the sums up to date, and write them."""
        now = self._now()
        held = {device: holder for device, holder in self._held().items() if holder.uid is not None}
        leases = {key(device): _Lease(holder.uid or 0, holder.pid, holder.started) for device, holder in held.items()}
        joules = self._read_energy(list(held))
        for name, lease in leases.items():
            used = self.users.setdefault(lease.uid, Used())
            before = self._leases.get(name)
            begun = self._seen_seconds if before == lease else _begun(lease, self._seen_seconds, now)
            used.gpu_seconds += max(0.0, now - begun)
            self._add_energy(used, joules[name], self._joules.get(name), is_new=before != lease, late=now - begun)
        is_news = bool(leases or self._leases) or not self._path.exists()
        self._leases, self._seen_seconds = leases, now
        self._joules = {name: each[0] or 0.0 for name, each in joules.items()}  # a first reading has counted nothing
        if is_news:
            self._write()

    def close(self) -> None:
        """Close the GPUs' files."""
        self._sampler.close()

    def _read_energy(self, devices: Sequence[Device]) -> dict[str, tuple[float | None, bool]]:
        """Return by lock what the sampler has counted, and whether that is all since it began to."""
        if list(self._sampler.devices) != list(devices):
            self._sampler.devices = devices
        found = self._sampler.read().energy_joules if devices else {}
        names = {key(device): device_id(device) for device in devices}
        return {lock: (found.get(name), self._sampler.is_whole(name)) for lock, name in names.items()}

    def _add_energy(
        self, used: Used, now: tuple[float | None, bool], before: float | None, *, is_new: bool, late: float
    ) -> None:
        if is_new or before is None:  # the first reading of this lease, or of this process: energy counts from here
            used.is_energy_whole = used.is_energy_whole and late < LATE_SECONDS
            return
        joules, is_whole = now
        if joules is not None:
            used.energy_joules = (used.energy_joules or 0.0) + max(0.0, joules - before)
        used.is_energy_whole = used.is_energy_whole and is_whole and joules is not None

    def _kept(self) -> dict[str, Any]:
        """Return what the file has; one that is damaged is put aside, for what it had must not be lost silently."""
        found = envfile.read_json(self._path)
        if not found and self._path.exists():
            aside = self._path.with_name(f"{FILE}.damaged-{int(self._now())}")
            os.replace(self._path, aside)
            log.warning("%s was damaged: what users took before is not counted; it is kept as %s", FILE, aside.name)
        return found

    def _write(self) -> None:
        found: dict[str, Any] = {"since_seconds": self.since_seconds, "seen_seconds": self._seen_seconds}
        found["users"] = {str(uid): asdict(used) for uid, used in self.users.items()}
        found["leases"] = {name: asdict(lease) for name, lease in self._leases.items()}
        kept.write(self._path, json.dumps(found) + "\n")


def _begun(lease: _Lease, earliest: float, now: float) -> float:
    """Return when a lease began, as its holder says; not before the last reading, when it was not there."""
    try:
        text = (lease.started or "").replace("Z", "+00:00")
        begun = datetime.fromisoformat(text).timestamp()
    except ValueError:
        return earliest
    return min(max(begun, earliest), now)


def read(state: Path) -> tuple[float | None, dict[int, Used]]:
    """Return since when the hub counts, and what it has counted by uid; None and nothing where it has not begun."""
    found = envfile.read_json(state / FILE)
    return found.get("since_seconds"), _users(found)


def _users(found: Mapping[str, Any]) -> dict[int, Used]:
    return {int(uid): Used(**used) for uid, used in found.get("users", {}).items()}


def main() -> int:
    """Count as long as the hub lives, which has started this."""
    found = Configuration.read(Path(os.environ["ROCMLAB_HUB_FILE"]))
    hub, leases = os.getppid(), Leases(Path(found.leases))
    usage = Usage(Path(found.state), Path(found.root), lambda: leases.held(devices_of(found)))
    while os.getppid() == hub:
        try:
            usage.read()
        except (RocmlabError, OSError) as err:
            log.warning("what users take of GPUs is not counted: %s", err)
        time.sleep(ticks.pause(time.time()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
