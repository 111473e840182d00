"""Which kernels of a server have a lease or wait for one, as its provisioners know; this imports and costs nothing."""

from __future__ import annotations

from typing import Any


def lease_of(manager: Any) -> Any:  # noqa: ANN401  jupyter_client's manager, `leases.Lease`
    """Return the lease of a kernel; None where it has none, or is not a kernel of our provisioner."""
    owned = getattr(getattr(manager, "provisioner", None), "owned", None)
    return owned.lease if owned else None


def turn_of(manager: Any) -> Any:  # noqa: ANN401  jupyter_client's manager, `ownership.Turn`
    """Return the place of a kernel in the queue for GPUs; None where it does not wait."""
    return getattr(getattr(manager, "provisioner", None), "turn", None)


def has_any(kernels: Any) -> bool:  # noqa: ANN401  jupyter_server's manager
    """Return whether a kernel of this server has one."""
    managers = (kernels.get_kernel(each) for each in kernels.list_kernel_ids() if each in kernels)
    return any(lease_of(manager) for manager in managers)
