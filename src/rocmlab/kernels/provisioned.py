"""A kernel that somebody else starts: a kernelspec may name a provisioner of jupyter_client's, such as a remote one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from rocmlab.base import confidential


class ProvisionedKernel:
    """A kernel behind jupyter_client's `KernelManager`."""

    output: int | None = None
    sentinel: int | None = None

    def __init__(self, name: str, cwd: str, environment: Mapping[str, str]) -> None:
        from jupyter_client.manager import KernelManager

        self._manager = KernelManager(kernel_name=name)
        self._manager.start_kernel(cwd=cwd, env=confidential.without(environment))
        self.connection: dict[str, Any] = self._manager.get_connection_info()

    def ended(self) -> bool:
        """Whether the provisioner says that it is gone."""
        return not self._manager.is_alive()

    def exit_code(self) -> int | None:
        """Return how its process ended, where the provisioner has one."""
        code = getattr(getattr(self._manager.provisioner, "process", None), "returncode", None)
        return code if isinstance(code, int) else None

    def is_stopped(self) -> bool:
        """Nobody knows; the heartbeat tells."""
        return False

    def is_out_of_memory(self) -> bool:
        """Nobody knows."""
        return False

    def interrupt(self) -> bool:
        """Interrupt it, however the provisioner does that."""
        with contextlib.suppress(RuntimeError):
            self._manager.interrupt_kernel()
        return True

    def destroy(self) -> None:
        """End it at once."""
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
