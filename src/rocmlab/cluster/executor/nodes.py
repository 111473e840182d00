"""What a node of the cluster has, as the runner knows it and as the node itself says it."""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocmlab.base.errors import Problem
from rocmlab.devices import Device

ROCR = "ROCR_VISIBLE_DEVICES"


@dataclass(frozen=True)
class RemoteNode:
    """A machine of the cluster that may be given jobs, or why it may not."""

    id: str  # Ray's
    name: str  # its host name
    gpus: tuple[Device, ...]  # that Ray may give out
    cpu: Device
    problem: Problem | None = None

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> RemoteNode:
        """Return what a node has said of itself.

        Args:
            said: `describe` of that node, with its `id` and its `name`.
        """
        problem = Problem(*said["problem"]) if said.get("problem") else None
        gpus = tuple(map(read_device, said.get("gpus", ())))
        cpu = read_device(said["cpu"]) if said.get("cpu") else Device("cpu", 0, "a processor", True)
        return cls(said["id"], said["name"], gpus, cpu, problem)


def read_device(fields: Mapping[str, Any]) -> Device:
    """Return a device from its `as_dict`, of which some values are derived."""
    known = Device.__dataclass_fields__
    return Device(**{name: value for name, value in fields.items() if name in known})


def describe(version: str) -> dict[str, Any]:
    """Return, on a node, what it has: the GPUs that Ray may give out, its processor, and why it cannot be used.

    Args:
        version: of the runner's rocmlab.
    """
    from rocmlab import __version__
    from rocmlab.devices import discover, visibility

    problem: tuple[str, str, str] | None = None
    if __version__ != version:
        problem = (
            f"it has rocmlab {__version__}",
            f"the run is of rocmlab {version}, and what one sends the other may not understand",
            "bring both to one version: make cluster-join again on that machine",
        )
    elif why := masked(os.environ):
        problem = why
    devices = discover()
    left = visibility.remaining(devices, os.environ)
    return {
        "host": socket.gethostname(),
        "gpus": [device.as_dict() for device in left],
        "cpu": devices[-1].as_dict(),
        "problem": problem,
    }


def prepare(seconds: float) -> None:
    """Have a process of Ray ready on a node: it imports what a job needs, and stays busy until its fellows are started.

    Args:
        seconds: for which it is kept from doing the work of another.
    """
    importlib.import_module("rocmlab.cluster.executor.task")
    time.sleep(seconds)


def masked(environment: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return why a node's environment cannot be used: a mask that would number the GPUs a second time."""
    if ROCR not in environment:
        return None
    return (
        f"its Ray was started with {ROCR}={environment[ROCR]}",
        "ROCm applies that before HIP_VISIBLE_DEVICES and numbers the GPUs again: a job would get others than Ray gave",
        f"there: unset {ROCR}, make cluster-down, make cluster-join; GPUS=0,2 chooses GPUs",
    )


def missing(err: ModuleNotFoundError) -> tuple[str, str, str]:
    """Return why a node cannot be used whose Python lacks a module of ours."""
    why = f"Python there does not have it: {err}"
    return "it has no rocmlab of this version", why, "make cluster-join again on that machine"
