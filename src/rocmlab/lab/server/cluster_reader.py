"""A process that queries the nodes of a cluster, for the panel: one line of JSON for each line that it gets.

It ends when its input does, so it never outlives the server. On each node a small task reads the GPUs and the leases.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError

ANSWER_SECONDS = 10.0  # for a look at all nodes; the server gives up later
FIRST_SECONDS = 45.0  # for the first one: each node starts a process for it
DEAD_KEPT = 8  # of the nodes that were lost, which Ray remembers for long
HEAD = "node:__internal_head__"  # Ray's resource of the head alone
LEFT = (1, 4)  # of NodeDeathInfo in Ray's gcs.proto: it was stopped, or drained; others died

Row = dict[str, Any]


def main() -> int:
    """Answer until the input ends."""
    told = os.dup(1)
    os.dup2(2, 1)  # whatever Ray prints is not the answer
    seconds = FIRST_SECONDS
    is_connected = False
    for _ in sys.stdin:
        try:
            if not is_connected:
                from rocmlab.cluster.node import session

                session.connect()
                is_connected = True
            found: Row = {"nodes": look(os.environ, seconds)}
            seconds = ANSWER_SECONDS
        except RocmlabError as err:
            found = {"problem": vars(err.problem)}
        except Exception as err:
            why = f"{type(err).__name__}: {err}"
            found = {"problem": {"what": "the cluster cannot be queried", "why": why, "fix": "make cluster-status"}}
        with os.fdopen(os.dup(told), "w") as out:
            out.write(f"{json.dumps(found)}\n")
    os._exit(0)  # Ray's client may take seconds to end, and is needed no more


def look(environment: Mapping[str, str], limit_seconds: float) -> list[Row]:
    """Return the living nodes with their GPUs, and those that were lost last."""
    import ray

    from rocmlab.cluster.node import probe

    listed = ray.nodes()
    here = ray.get_runtime_context().get_node_id()
    answers = probe.on_every_node(see, timeout_seconds=limit_seconds)
    free = ray._private.state.available_resources_per_node()
    return rows(listed, answers, free, here)


def see() -> Row:
    """Return what a node shows: its GPUs as they are now, with who leases them; runs on that node."""
    from rocmlab.devices import discover, is_simulated, sample, system_root
    from rocmlab.devices.rocm import rocm_version
    from rocmlab.lab.server import look as looking
    from rocmlab.lab.server.paths import Shown
    from rocmlab.telemetry.model import device_id
    from rocmlab.telemetry.smi_cells import memory_bytes

    root = system_root()
    devices = [device for device in discover(root) if device.backend != "cpu"]
    leases: Row | None = None
    try:
        held = looking.leases(devices, Shown(Path.home()))
        leases = {one["device"]: {name: one[name] for name in ("notebook", "owner", "host", "pid")} for one in held}
    except RocmlabError:
        pass  # its folder of leases cannot be read: who has the GPUs is unknown
    shown = []
    for device in devices:
        now = sample(device, root) if device.is_usable else None
        used, total = memory_bytes(vars(device), vars(now)) if now else (None, device.memory_bytes)
        shown.append(
            {
                "id": device_id(device),
                "index": device.index,
                "name": device.name,
                "gfx": device.gfx,
                "is_usable": device.is_usable,
                "why_not": device.why_not,
                "is_asleep": bool(now and now.is_asleep),
                "busy_percent": now.busy_percent if now else None,
                "memory_used_bytes": used,
                "memory_total_bytes": total,
                "lease": leases.get(device_id(device)) if leases else None,
                "is_lease_unknown": leases is None,
            }
        )
    return {"devices": shown, "simulated": is_simulated(root), "rocm": rocm_version(root)}


def rows(
    listed: list[Row], answers: Mapping[str, Any], free: Mapping[str, Mapping[str, float]], here: str
) -> list[Row]:
    """Return the nodes as the panel gets them: the head first, then by name; the lost that are not back at the end."""
    alive = [one for one in listed if one["Alive"]]
    places = {_place(one) for one in alive}
    dead = [
        one for one in listed if not one["Alive"] and _place(one) not in places and one.get("DeathReason") not in LEFT
    ]
    found = [
        row(one, answers.get(one["NodeID"]), free.get(one["NodeID"]), here) for one in [*alive, *dead[-DEAD_KEPT:]]
    ]
    return sorted(found, key=lambda each: (not each["is_alive"], not each["is_head"], each["hostname"], each["id"]))


def _place(one: Row) -> tuple[str, int]:
    """Return what a machine's node has again when it is back: its address, and its port by CLUSTER_PORT."""
    return one["NodeManagerAddress"], one["NodeManagerPort"]


def row(one: Row, answer: Any, free: Mapping[str, float] | None, here: str) -> Row:  # noqa: ANN401
    """Return one node."""
    facts = answer if isinstance(answer, dict) else {}
    labels, resources = one.get("Labels") or {}, one.get("Resources") or {}
    is_simulated = facts.get("simulated", labels.get("rocmlab.simulated") == "true")
    problem = vars(answer.problem) if isinstance(answer, RocmlabError) and one["Alive"] else None
    return {
        "id": one["NodeID"],
        "hostname": one["NodeManagerHostname"],
        "address": one["NodeManagerAddress"],
        "is_alive": bool(one["Alive"]),
        "is_head": HEAD in resources,
        "is_here": one["NodeID"] == here,
        "simulated": bool(is_simulated),
        "cpus": int(resources["CPU"]) if "CPU" in resources else None,
        "gpus": int(resources.get("GPU", 0)),
        "rocm": facts.get("rocm"),
        "devices": facts.get("devices"),
        "gpus_given": _given(resources, free, "GPU"),
        "jobs_without_gpu": _given(resources, free, "cpu_place"),
        "problem": problem,
    }


def _given(resources: Mapping[str, float], free: Mapping[str, float] | None, name: str) -> int | None:
    """Return how many of a resource Ray has given to tasks; Ray leaves out what is used up."""
    return None if free is None else round(resources.get(name, 0) - free.get(name, 0))


if __name__ == "__main__":
    sys.exit(main())
