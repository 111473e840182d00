"""What a run gives to Ray: what its jobs have in common, and each job. A change needs a new `nodes.PROTOCOL`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rocmlab.cluster.executor.places import RemotePlace
from rocmlab.runs.jobs import Job
from rocmlab.runs.workers.forking import Group
from rocmlab.runs.workers.supervisor import Limits


@dataclass(frozen=True)
class RemoteRun:
    """What the jobs of a run have in common."""

    token: str  # that no other run has
    folder: str
    nonce: str  # by which a node recognises that it has the same folder
    exchange: str | None  # where files of nodes that do not have the run folder are left; None: Ray itself brings them
    warm: str  # `auto` or `off`
    groups: Mapping[Group, int]  # how many of its jobs can share a fork server
    user: str  # who started it, as leases name users


@dataclass(frozen=True)
class RemoteJob:
    """A job, and where it may run."""

    number: int  # by which it is known in its run
    job: Job
    limits: Limits
    place: RemotePlace
