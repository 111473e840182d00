"""What is read in addition to samples: who leases which GPU, and what the doctor finds. All of it may block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rocmlab.devices import Device
from rocmlab.lab.server.paths import Shown
from rocmlab.lab.server.wire import problem_json
from rocmlab.telemetry.model import device_id

NOT_CHEAP = ("gpu.answers",)  # starts a child process; the sampler notices a silent card by itself
IN_ITS_SECTION = "cluster."  # the panel queries the cluster itself, and shows its problems there
LEASED = ("rocm", "cuda")


def leases(seen: Sequence[Device], shown: Shown) -> list[dict[str, Any]]:
    """Return who holds which GPU: kernels of this server and of others, and jobs; an error if that is not known."""
    from rocmlab.kernels.leases import Leases

    held = Leases.of_host().held([device for device in seen if device.backend in LEASED])
    rows = []
    for device, holder in held.items():
        row = {"device": device_id(device), "index": device.index, "name": device.name, **asdict(holder)}
        rows.append({**row, "owner": holder.who(), "notebook": shown.of_lease(holder.notebook, holder.host)})
    return rows


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
