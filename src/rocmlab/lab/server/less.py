"""What clients get who may read the GPUs but not the kernels: everything except kernels, notebooks and owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rocmlab.telemetry.model import Snapshot

Row = dict[str, Any]


def of_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return it without whose the processes are; their commands name kernels and notebooks as well."""
    if not snapshot.processes:
        return snapshot
    return replace(snapshot, processes=tuple(replace(each, owner=None, command=None) for each in snapshot.processes))


def of_leases(leases: Sequence[Row]) -> list[Row]:
    """Return which GPUs are leased, and not by which notebook."""
    return [{**lease, "notebook": None, "kernel_id": None} for lease in leases]


def of_state(state: Row) -> Row:
    """Return the leases and problems of a state."""
    return {**state, "kernels": [], "idle_holders": [], "leases": of_leases(state["leases"])}
