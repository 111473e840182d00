"""The kernels of a server that hold GPUs, for what warns and ends them: the culler, and the host's limit."""

from __future__ import annotations

import asyncio
from typing import Any

from rocmlab.kernels.leases import Lease
from rocmlab.lab import notices
from rocmlab.lab.provisioner import RocmlabProvisioner

IDLE = ("idle", "starting")  # a kernel is `starting` until a page has sent it a message


class LeasedKernels:
    """Those of jupyter_server's kernel manager."""

    def __init__(self, server: Any) -> None:  # noqa: ANN401  jupyter_server's ServerApp
        self._kernels = server.kernel_manager
        self._log = server.log

    def lease(self, kernel_id: str) -> Lease | None:
        """Return the lease of a kernel; None if it has none, or is gone."""
        if kernel_id not in self._kernels:
            return None
        provisioner = getattr(self._kernels.get_kernel(kernel_id), "provisioner", None)  # a gateway's has none
        if not isinstance(provisioner, RocmlabProvisioner) or provisioner.owned is None:
            return None
        return provisioner.owned.lease

    def tell(self, kernel_id: str, what: str) -> None:
        """Say it in the log and to every page that has the kernel open."""
        self._log.warning("kernel %s: rocmlab: %s", kernel_id, what)
        notices.tell(kernel_id, f"rocmlab: {what}")

    async def shut_down(self, kernel_id: str) -> None:
        """End a kernel, also where who asked for it is cancelled; an error is logged."""
        try:
            await asyncio.ensure_future(self._kernels.shutdown_kernel(kernel_id))
        except Exception as err:
            self._log.error("kernel %s could not be shut down: %s", kernel_id, err)
