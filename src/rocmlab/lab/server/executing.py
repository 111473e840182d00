"""A kernel is busy while a cell runs in it, whatever a widget asks it meanwhile.

jupyter_server takes the last state that a kernel has reported for the kernel's. Widgets and progress bars ask beside
the cells, in a subshell, and after the answer a kernel reports `idle`, in the middle of a cell. All who go by the state
would take the cell for ended: what shuts down idle kernels, a hub that stops idle labs, what waits until nothing runs.
"""

from __future__ import annotations

from typing import Any

from jupyter_client.session import Session

from rocmlab.lab import streams

STATE = "execution_state"


def install(kernels: Any) -> None:  # noqa: ANN401  jupyter_server's manager of kernels
    """Correct the state of each kernel that a server watches from now on; one that watches none is left alone."""
    start, stop = (getattr(kernels, f"{name}_watching_activity", None) for name in ("start", "stop"))
    if start is None or stop is None:  # a gateway's, whose kernels are elsewhere
        return
    found: dict[str, Executing] = {}

    def end(kernel_id: str) -> None:
        if kernel_id in found:
            found.pop(kernel_id).close()

    def start_watching(kernel_id: str) -> None:
        start(kernel_id)
        end(kernel_id)
        manager = kernels.get_kernel(kernel_id)
        if manager.has_trait(STATE):  # another class of managers may keep its state in another way
            found[kernel_id] = Executing(manager)

    def stop_watching(kernel_id: str) -> None:
        end(kernel_id)
        stop(kernel_id)

    kernels.start_watching_activity, kernels.stop_watching_activity = start_watching, stop_watching


class Executing:
    """The cells that run in one kernel."""

    def __init__(self, manager: Any) -> None:  # noqa: ANN401  jupyter_server's ServerKernelManager
        """Follow a kernel, on the event loop.

        Args:
            manager: of the kernel; its `execution_state` is corrected.
        """
        self._manager = manager
        self._running: dict[str | None, str] = {}  # the request that is executed, by its subshell; None: the main shell
        self._session = Session(config=manager.session.config, key=manager.session.key)
        self._stream = manager.connect_iopub()
        self._stream.on_recv(self._hear)
        manager.observe(self._keep_busy, STATE)
        manager.add_restart_callback(self._begin_again, "restart")
        manager.add_restart_callback(self._running.clear, "dead")

    def close(self) -> None:
        """Follow it no longer."""
        self._manager.remove_restart_callback(self._begin_again, "restart")
        self._manager.remove_restart_callback(self._running.clear, "dead")
        self._manager.unobserve(self._keep_busy, STATE)
        streams.close(self._stream)

    def _hear(self, parts: list[bytes]) -> None:
        _, frames = self._session.feed_identities(parts)
        if b'"status"' not in frames[1]:  # nearly all messages are output
            return
        message = self._session.deserialize(frames)
        request = message["parent_header"]
        if message["msg_type"] != "status" or request.get("msg_type") != "execute_request":
            return
        shell, state = request.get("subshell_id"), message["content"][STATE]
        if state == "busy":
            self._running[shell] = request["msg_id"]
            self._manager.execution_state = state
        elif state == "idle" and self._running.get(shell) == request["msg_id"]:
            del self._running[shell]
            if not self._running and self._manager.execution_state == "busy":
                self._manager.execution_state = state

    def _begin_again(self) -> None:
        """Take a kernel that has died, and is started again, for one that starts: its last state was of its cell."""
        self._running.clear()
        self._manager.execution_state = "starting"

    def _keep_busy(self, change: dict[str, Any]) -> None:
        if change["new"] == "idle" and self._running:
            self._manager.execution_state = "busy"
