"""A kernel is busy while a cell runs, whatever else is asked meanwhile, and not for longer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from kernel_hosts import WAIT_SECONDS, until

from rocmlab.lab.server import executing

pytestmark = pytest.mark.slow
SILENT = "import time; time.sleep(600)"


def followed(scenario: Callable[[Any, Any, AsyncKernelClient], Awaitable[None]]) -> None:
    """Run a scenario with a server's manager of kernels, one of its kernels, and a client of that."""

    async def run() -> None:
        kernels = AsyncMappingKernelManager(
            kernel_manager_class="jupyter_server.services.kernels.kernelmanager.ServerKernelManager"
        )
        executing.install(kernels)
        kernel_id = await kernels.start_kernel(kernel_name="python3")
        manager = kernels.get_kernel(kernel_id)
        client = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=WAIT_SECONDS)
            while manager.execution_state != "idle":  # a request may come before the server hears the kernel
                await client.kernel_info(reply=True, timeout=WAIT_SECONDS)
            await scenario(kernels, manager, client)
        finally:
            client.stop_channels()
            await kernels.shutdown_kernel(kernel_id, now=True)
            kernels.context.destroy()

    asyncio.run(run())


async def ask_in_a_subshell(client: AsyncKernelClient) -> None:
    """Open a subshell and ask there, as a page does for its widgets; return when the kernel has answered."""
    client.control_channel.send(client.session.msg("create_subshell_request", {}))
    subshell = (await client.get_control_msg(timeout=WAIT_SECONDS))["content"]["subshell_id"]
    question = client.session.msg("comm_info_request", {})
    question["header"]["subshell_id"] = subshell
    client.shell_channel.send(question)
    while (await client.get_iopub_msg(timeout=WAIT_SECONDS))["parent_header"].get("msg_id") != question["msg_id"]:
        pass
    await client.get_shell_msg(timeout=WAIT_SECONDS)


def test_what_a_widget_asks_ends_no_cell() -> None:
    """The kernel stays busy until the cell has ended, and is idle then."""

    async def scenario(_: Any, manager: Any, client: AsyncKernelClient) -> None:
        client.execute(SILENT)
        await until(lambda: manager.execution_state == "busy")
        states: list[str] = []
        manager.observe(lambda change: states.append(change["new"]), "execution_state")
        await ask_in_a_subshell(client)
        await asyncio.sleep(0.3)  # the server hears the kernel in its own time
        assert manager.execution_state == "busy"
        await manager.interrupt_kernel()
        await until(lambda: manager.execution_state == "idle")
        assert states[-1] == "idle"

    followed(scenario)


def test_a_cell_that_began_before_the_server_heard_the_kernel_is_noticed() -> None:
    """A page's first cell may be faster than the server's subscription: soon after, the kernel is asked."""

    async def scenario(kernels: Any, manager: Any, client: AsyncKernelClient) -> None:
        kernels.stop_watching_activity(manager.kernel_id)
        client.execute(SILENT)
        while (await client.get_iopub_msg(timeout=WAIT_SECONDS))["content"].get("execution_state") != "busy":
            pass
        manager.execution_state = "idle"
        kernels.start_watching_activity(manager.kernel_id)
        kernels.notify_connect(manager.kernel_id)
        await until(lambda: manager.execution_state == "busy")
        await ask_in_a_subshell(client)
        await asyncio.sleep(0.3)
        assert manager.execution_state == "busy"
        await manager.interrupt_kernel()
        await until(lambda: manager.execution_state == "idle")

    followed(scenario)


def test_a_kernel_that_computes_nothing_is_idle_whoever_opens_it() -> None:
    """Also while it is asked."""

    async def scenario(kernels: Any, manager: Any, client: AsyncKernelClient) -> None:
        states: list[str] = []
        manager.observe(lambda change: states.append(change["new"]), "execution_state")
        heard: list[str] = []
        kernels.notify_connect(manager.kernel_id)
        while "kernel_info_request" not in heard:
            message = await client.get_iopub_msg(timeout=WAIT_SECONDS)
            heard.append(message["parent_header"].get("msg_type", ""))
        await asyncio.sleep(executing.ANSWER_SECONDS + 0.5)
        assert "busy" not in states

    followed(scenario)


def test_a_kernel_that_died_in_a_cell_is_not_busy_for_ever() -> None:
    """It is started again, and idle after the first answer."""

    async def scenario(_: Any, manager: Any, client: AsyncKernelClient) -> None:
        client.execute(SILENT)
        await until(lambda: manager.execution_state == "busy")
        restarted: list[bool] = []
        manager.add_restart_callback(lambda: restarted.append(True), "restart")
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        await until(lambda: restarted)
        await client.wait_for_ready(timeout=WAIT_SECONDS)
        await client.kernel_info(reply=True, timeout=WAIT_SECONDS)
        await until(lambda: manager.execution_state == "idle")

    followed(scenario)


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_kernel_that_is_restarted_in_a_cell_is_not_busy_for_ever(is_heard: bool) -> None:
    """As by a page; its connection stays the same."""

    async def scenario(kernels: Any, manager: Any, client: AsyncKernelClient) -> None:
        if not is_heard:
            kernels.stop_watching_activity(manager.kernel_id)
        client.execute(SILENT)
        while (await client.get_iopub_msg(timeout=WAIT_SECONDS))["content"].get("execution_state") != "busy":
            pass
        if not is_heard:
            kernels.start_watching_activity(manager.kernel_id)
            kernels.notify_connect(manager.kernel_id)
        await until(lambda: manager.execution_state == "busy")
        await kernels.restart_kernel(manager.kernel_id)
        await client.wait_for_ready(timeout=WAIT_SECONDS)
        await client.kernel_info(reply=True, timeout=WAIT_SECONDS)
        await until(lambda: manager.execution_state == "idle")

    followed(scenario)


def test_a_manager_that_watches_no_kernel_is_left_alone() -> None:
    """A gateway's kernels are on another machine."""
    manager = SimpleNamespace()

    executing.install(manager)

    assert vars(manager) == {}
