"""A kernel is busy while a cell runs in it, whatever a widget asks it meanwhile.

jupyter_server takes the last state that a kernel has reported for the kernel's. Widgets and progress bars ask beside
the cells, in a subshell, and after the answer a kernel reports `idle`, in the middle of a cell. All who go by the state
would take the cell for ended: what shuts down idle kernels, a hub that stops idle labs, what waits until nothing runs.

A page's first cell may begin before the server hears the kernel. So soon after a page has opened a kernel, the kernel
is asked something, where cells are executed and beside them: while only the second is answered, a cell is executed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from jupyter_client.session import Session

from rocmlab.lab import streams

STATE = "execution_state"
SETTLED_SECONDS = 1.0  # after a page has opened the kernel, which asks much itself at first
ANSWER_SECONDS = 1.0  # after the other answer; a kernel that is wrongly taken for busy is so only until this one comes
UNHEARD = "unheard"  # in place of the request of a cell that began before the server heard the kernel


def install(kernels: Any) -> None:  # noqa: ANN401  jupyter_server's manager of kernels
    """Correct the state of each kernel that a server watches from now on; one that watches none is left alone."""
    streams.connect_soon(kernels)
    if all(hasattr(kernels, name) for name in Watch.REPLACED):  # a gateway's kernels are elsewhere
        Watch(kernels)


class Watch:
    """Follows the kernels that a server's manager watches, by methods in place of some of the manager's own."""

    REPLACED = ("start_watching_activity", "stop_watching_activity", "notify_connect", "restart_kernel")

    def __init__(self, kernels: Any) -> None:  # noqa: ANN401  jupyter_server's manager of kernels
        self._kernels = kernels
        self._found: dict[str, Executing] = {}
        self._own = {name: getattr(kernels, name) for name in self.REPLACED}
        for name in self.REPLACED:
            setattr(kernels, name, getattr(self, name))

    def start_watching_activity(self, kernel_id: str) -> None:
        """Follow a kernel."""
        self._own["start_watching_activity"](kernel_id)
        self._end(kernel_id)
        manager = self._kernels.get_kernel(kernel_id)
        if manager.has_trait(STATE):  # another class of managers may keep its state in another way
            self._found[kernel_id] = Executing(manager)

    def stop_watching_activity(self, kernel_id: str) -> None:
        """Follow a kernel no longer."""
        self._end(kernel_id)
        self._own["stop_watching_activity"](kernel_id)

    def notify_connect(self, kernel_id: str) -> None:
        """Have a kernel that a page has opened asked what it does."""
        self._own["notify_connect"](kernel_id)
        if followed := self._found.get(kernel_id):
            followed.ask_soon()

    async def restart_kernel(self, kernel_id: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  as it is given
        """Forget the cells of a kernel that is restarted."""
        if followed := self._found.get(kernel_id):
            followed.begin_again()
        return await self._own["restart_kernel"](kernel_id, *arguments, **options)

    def _end(self, kernel_id: str) -> None:
        if kernel_id in self._found:
            self._found.pop(kernel_id).close()


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
        self._stream = streams.subscribe(manager)
        self._loop = self._stream.io_loop
        self._timer: object | None = None
        self._channels: list[Any] = []  # on which the kernel was asked
        self._stream.on_recv(self._hear)
        manager.observe(self._keep_busy, STATE)
        manager.add_restart_callback(self.begin_again, "restart")
        manager.add_restart_callback(self._running.clear, "dead")

    def close(self) -> None:
        """Follow it no longer."""
        self._manager.remove_restart_callback(self.begin_again, "restart")
        self._manager.remove_restart_callback(self._running.clear, "dead")
        self._manager.unobserve(self._keep_busy, STATE)
        self._wait_no_more()
        streams.close(self._stream)

    def ask_soon(self) -> None:
        """Find out, soon, whether the kernel executes a cell whose beginning was not heard."""
        if self._running.get(None) == UNHEARD:  # it is, and will answer
            return
        self._wait_no_more()
        self._timer = self._loop.call_later(SETTLED_SECONDS, self._ask)

    def _ask(self) -> None:
        """Ask on both channels; ipykernel answers on `control` while it executes a cell, on none while it starts."""
        self._timer = None
        if None in self._running:
            return
        for name in ("shell", "control"):
            channel = getattr(self._manager, f"connect_{name}")()
            channel.on_recv(partial(self._take_answer, name))
            self._session.send(channel, "kernel_info_request", {})
            self._channels.append(channel)

    def _take_answer(self, name: str, _: list[bytes]) -> None:
        if name == "control":
            self._timer = self._loop.call_later(ANSWER_SECONDS, self._miss)
            return
        self._wait_no_more()
        if self._running.get(None) == UNHEARD:
            self._end(None)

    def _miss(self) -> None:
        self._timer = None
        if None not in self._running:
            self._running[None] = UNHEARD
            self._manager.execution_state = "busy"

    def _wait_no_more(self) -> None:
        """Ask nothing, and wait for no answer."""
        if self._timer:
            self._loop.remove_timeout(self._timer)
        for channel in self._channels:
            streams.close(channel)
        self._timer, self._channels = None, []

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
            self._end(shell)

    def _end(self, shell: str | None) -> None:
        del self._running[shell]
        if not self._running and self._manager.execution_state == "busy":
            self._manager.execution_state = "idle"

    def begin_again(self) -> None:
        """Take a kernel that is started again for one that starts: its last state was of its cell."""
        self._wait_no_more()
        self._running.clear()
        self._manager.execution_state = "starting"

    def _keep_busy(self, change: dict[str, Any]) -> None:
        if change["new"] == "idle" and self._running:
            self._manager.execution_state = "busy"
