"""What is read in addition to samples: who leases which GPU, and what the doctor finds. All of it may block."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmlab.base.errors import Problem
from rocmlab.base.formatting import clock, plural
from rocmlab.devices import Device
from rocmlab.lab.server.paths import Shown
from rocmlab.lab.server.wire import problem_json
from rocmlab.telemetry.model import device_id

if TYPE_CHECKING:
    from rocmlab.kernels.tickets import Waiter

NOT_CHEAP = ("gpu.answers",)  # starts a child process; the sampler notices a silent card by itself
IN_ITS_SECTION = "cluster."  # the panel queries the cluster itself, and shows its problems there
LEASED = ("rocm", "cuda")
MAX_SHOWN = 5  # of those who wait


def leases(seen: Sequence[Device], shown: Shown) -> list[dict[str, Any]]:
    """Return who holds which GPU: kernels of this server and of others, and jobs; an error if that is not known."""
    from rocmlab.kernels.leases import Leases

    held = Leases.of_host().held([device for device in seen if device.backend in LEASED])
    rows = []
    for device, holder in held.items():
        row = {"device": device_id(device), "index": device.index, "name": device.name, **asdict(holder)}
        rows.append({**row, "owner": holder.who(), "notebook": shown.of_lease(holder.notebook, holder.host)})
    return rows


def waiting() -> list[Waiter]:
    """Return who waits for GPUs of this host, in the order in which they are served."""
    from rocmlab.kernels.leases import Leases

    return Leases.of_host().waiting()


def queue(rows: Sequence[Mapping[str, Any]], waiters: Sequence[Waiter]) -> list[dict[str, Any]]:
    """Return a problem if anyone waits for GPUs of this host, and one if leases are to end for that; without names."""
    found = []
    if waiters:
        now_seconds = time.time()
        each = [
            f"{place}. {plural(waiter.count, 'GPU')}, for {clock(max(0.0, now_seconds - waiter.since_seconds))}"
            for place, waiter in enumerate(waiters[:MAX_SHOWN], 1)
        ]
        what = f"{plural(len(waiters), 'request')} {'waits' if len(waiters) == 1 else 'wait'} for GPUs of this host"
        fix = "shut down kernels that no longer need their GPUs; on the host, make leases shows who waits"
        found.append(Problem(what, "in this order: " + "; ".join(each), fix))
    if ends := sorted(str(row["ends"]) for row in rows if row.get("ends")):
        what = f"{plural(len(ends), 'GPU')} of this host: the lease is to end at {ends[0]}"
        why = "other users wait for it, and the kernel has it longer than this host allows"
        found.append(Problem(what, why, "in its notebook: save what you need, then Kernel > Shut Down Kernel"))
    return [problem_json(each, status="warns") for each in found]


def problems(root: Path) -> list[dict[str, Any]]:
    """Return what the doctor's checks of the inside of a lab find, but for those that start something."""
    from rocmlab import doctor
    from rocmlab.doctor.checks import ALL
    from rocmlab.doctor.examine import merged, run
    from rocmlab.doctor.model import CONTAINER

    situation = doctor.Situation(root=root, side=CONTAINER, with_frameworks=False)
    cheap = [check for check in ALL if not check.is_framework and not check.id.startswith((*NOT_CHEAP, IN_ITS_SECTION))]
    found = merged(run(cheap, situation))
    return [problem_json(each.problem, each.check, each.status) for each in found if each.problem]
