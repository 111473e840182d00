"""What a node of the cluster has, as the runner knows it and as the node itself reports it."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocmlab import __version__
from rocmlab.base.errors import Problem
from rocmlab.devices import Device

ROCR = "ROCR_VISIBLE_DEVICES"
# Of the messages between a run and its nodes: `remote_job`, what that holds, and what nodes answer. It is raised with
# every change of them, because clones of one version differ; tests/cluster/test_protocol.py compares it with their
# shape.
PROTOCOL = 5
SPOKEN = f"{__version__} (protocol {PROTOCOL})"


@dataclass(frozen=True)
class RemoteNode:
    """A machine of the cluster that may be given jobs, or why it may not."""

    id: str  # Ray's
    name: str  # its host name
    gpus: tuple[Device, ...]  # that Ray may give out
    problem: Problem | None = None

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> RemoteNode:
        """Return a node from its `asdict`."""
        gpus = tuple(Device(**gpu) for gpu in fields["gpus"])
        problem = Problem(**fields["problem"]) if fields["problem"] else None
        return cls(fields["id"], fields["name"], gpus, problem)


def describe(version: str, node_id: str, name: str) -> RemoteNode:
    """Return, on a node, what it has: the GPUs that Ray may give out, and why it cannot be used.

    The version is that of the runner's rocmlab and of its messages.
    """
    from rocmlab.devices import discover, visibility

    problem = masked(os.environ)
    if version != SPOKEN:
        problem = Problem(
            f"it has rocmlab {SPOKEN}",
            f"the run is of rocmlab {version}, and their messages may be incompatible",
            "use one version on both (git pull): make cluster-join again on that machine",
        )
    return RemoteNode(node_id, name, tuple(visibility.remaining(discover(), os.environ)), problem)


def prepare(seconds: float) -> None:
    """Have a process of Ray ready on a node: it imports what a job needs, and stays busy until the others started."""
    importlib.import_module("rocmlab.cluster.executor.task")
    time.sleep(seconds)


def masked(environment: Mapping[str, str]) -> Problem | None:
    """Return why a node's environment cannot be used: a mask that would number the GPUs a second time."""
    if ROCR not in environment:
        return None
    return Problem(
        f"its Ray was started with {ROCR}={environment[ROCR]}",
        "ROCm applies that before HIP_VISIBLE_DEVICES and renumbers the GPUs: a job would get others than Ray assigned",
        f"there: unset {ROCR}, make cluster-down, make cluster-join; GPUS=0,2 chooses GPUs",
    )


def missing(err: Exception) -> Problem:
    """Return why a node cannot be used whose Python has no rocmlab, or another version of it."""
    why = f"rocmlab there does not answer: {err}"
    return Problem("it does not have rocmlab of this version", why, "make cluster-join again on that machine")
