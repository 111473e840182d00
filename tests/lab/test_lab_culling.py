"""Idle kernels that hold GPUs are shut down if someone asked for that; busy ones and others never."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clones import free_port
from kernel_hosts import WAIT_SECONDS, Host, Talk, until
from panel_servers import ALONE
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from rocmlab.base.errors import RocmlabError
from rocmlab.base.host_limits import HostLimits
from rocmlab.kernels.leases import Holder, Leases, Ticket
from rocmlab.lab import extension, install
from rocmlab.lab.holding import Holding
from rocmlab.lab.server import idle
from rocmlab.stack import live, settings

pytestmark = pytest.mark.slow

TOKEN = "t" * 32


class Server:
    """A real jupyter_server with our configuration."""

    def __init__(self, host: Host, limit: str) -> None:
        self.port = free_port()
        install.main(["--prefix", str(host.prefix)])
        self.log_path = host.prefix.parent / "server.log"
        environment = {**os.environ, "JUPYTER_TOKEN": TOKEN, "CULL_IDLE_GPU_KERNELS_SECONDS": limit}
        environment["JUPYTER_CONFIG_DIR"] = str(host.prefix / "etc/jupyter")
        command = [sys.executable, "-m", "jupyter_server", f"--ServerApp.port={self.port}", "--allow-root", ALONE]
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--ServerApp.ip=127.0.0.1"],
                env=environment,
                cwd=host.prefix.parent,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self.log_path.read_text()

    def ask(self, path: str, method: str = "GET", **body: object) -> object:
        """Call its API."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=json.dumps(body).encode() if body else None,
            headers={"Authorization": f"token {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    async def start(self, name: str) -> str:
        """Start a kernel."""
        return (await asyncio.to_thread(self.ask, "/api/kernels", "POST", name=name))["id"]

    def names(self) -> set[str]:
        """Return the kernels that run."""
        return {kernel["name"] for kernel in self.ask("/api/kernels")}

    async def say(self, kernel_id: str, code: str) -> WebSocketClientConnection:
        """Connect as a page does, execute code, and return the connection."""
        address = f"ws://127.0.0.1:{self.port}/api/kernels/{kernel_id}/channels"
        socket = await websocket_connect(HTTPRequest(address, headers={"Authorization": f"token {TOKEN}"}))
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
        await send(socket, "shell", "execute_request", content)
        return socket

    def stop(self) -> None:
        """Shut it down."""
        self.process.terminate()
        self.process.wait(WAIT_SECONDS)


async def send(page: WebSocketClientConnection, channel: str, kind: str, content: dict, **header: object) -> None:
    """Send a message to a page's kernel."""
    header |= {"msg_id": kind, "msg_type": kind, "username": "", "session": "s", "version": "5.3"}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": channel}
    await page.write_message(json.dumps(message))


async def use_widget(page: WebSocketClientConnection) -> None:
    """Do what a page does where a widget talks to its kernel: open a subshell, and send a message there."""
    await send(page, "control", "create_subshell_request", {})
    while (message := json.loads(await page.read_message()))["msg_type"] != "create_subshell_reply":
        pass
    subshell = message["content"]["subshell_id"]
    await send(page, "shell", "comm_info_request", {}, subshell_id=subshell)
    while json.loads(await page.read_message())["msg_type"] != "comm_info_reply":
        pass


async def warnings(page: WebSocketClientConnection) -> list[str]:
    """Return what a page hears until its kernel is shut down."""
    heard: list[str] = []
    while "shut down now" not in "".join(heard):
        text = await page.read_message()
        assert text is not None, heard
        message = json.loads(text)
        if message["msg_type"] == "stream":
            heard.append(message["content"]["text"])
    return heard


async def up(server: Server) -> None:
    """Wait until it answers."""

    def answers() -> bool:
        try:
            return bool(server.ask("/api/status"))
        except OSError:
            return False

    await until(answers, pause=0.2)


def test_an_idle_kernel_is_warned_and_shut_down_and_the_others_stay(host: Host) -> None:
    """Limit 6 s: the idle page hears of it first; a busy kernel whose widget is used, and one on the CPU, live on."""
    host.offer()
    server = Server(host, "6")

    async def scenario() -> list[str]:
        await up(server)
        idle = await server.start("torch-gpu0")
        busy = await server.start("torch-gpu1")
        await server.start("torch-cpu")
        page = await server.say(idle, "1")
        working = await server.say(busy, "import time; time.sleep(600)")
        await use_widget(working)
        heard = await asyncio.wait_for(warnings(page), WAIT_SECONDS)
        await until(lambda: "torch-gpu0" not in server.names(), pause=0.2)
        await until(lambda: host.holders()[0] is None)
        assert server.names() == {"torch-gpu1", "torch-cpu"}
        assert server.ask(f"/api/kernels/{busy}")["execution_state"] == "busy"
        for connection in (working, page):
            connection.close()
            while await connection.read_message() is not None:
                pass
            connection.tcp_client.close()
        return heard

    try:
        heard = asyncio.run(scenario())
    finally:
        server.stop()

    assert "unless a cell is run" in heard[0]
    assert len(heard) == 2
    assert "unless a cell is run" in server.log


@pytest.mark.long
def test_a_kernel_to_which_no_page_has_ever_connected_is_warned_and_shut_down(host: Host) -> None:
    """Jupyter calls it `starting` for as long as it is there."""
    host.offer()
    server = Server(host, "6")

    async def scenario() -> None:
        await up(server)
        kernel = await asyncio.to_thread(server.ask, "/api/kernels", "POST", name="torch-gpu0")
        assert kernel["execution_state"] == "starting"
        await until(lambda: not server.names(), pause=0.2)
        await until(lambda: host.holders() == [None, None])

    try:
        asyncio.run(scenario())
    finally:
        server.stop()

    assert "unless a cell is run" in server.log


@pytest.mark.long
def test_a_kernel_that_waited_for_its_gpu_is_idle_from_when_it_has_it(host: Host) -> None:
    """It did nothing before, because it could not; else it would be warned, and shut down, as soon as it is served."""
    host.offer()
    server = Server(host, "off")

    async def scenario() -> None:
        await up(server)
        first, second = await server.start("torch-all"), await server.start("torch-gpu0")
        freed = datetime.now(timezone.utc)

        def last_activity() -> datetime:
            return datetime.fromisoformat(server.ask(f"/api/kernels/{second}")["last_activity"].replace("Z", "+00:00"))

        assert last_activity() < freed
        await asyncio.to_thread(server.ask, f"/api/kernels/{first}", "DELETE")
        await until(lambda: last_activity() > freed, pause=0.2)

    try:
        asyncio.run(scenario())
    finally:
        server.stop()


def test_a_kernel_that_is_used_while_another_is_shut_down_stays(host: Host) -> None:
    """Two idle kernels are due at once; during the shutdown of the first a cell is run in the second."""
    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    host.offer()

    class Kernels(AsyncMappingKernelManager):
        """Shuts a kernel down only when its neighbour works."""

        async def shutdown_kernel(self, kernel_id: str, now: bool = False, restart: bool = False) -> None:
            for other, talk in talks.items():
                if other != kernel_id and other in self:
                    talk.client.execute("import time; time.sleep(600)")
                    await until(lambda other=other: self.get_kernel(other).execution_state == "busy")
            await super().shutdown_kernel(kernel_id, now=now, restart=restart)

    talks: dict[str, Talk] = {}

    async def scenario() -> None:
        kernels = Kernels(connection_dir=os.environ["JUPYTER_RUNTIME_DIR"])
        for name in ("torch-gpu0", "torch-gpu1"):
            kernel_id = await kernels.start_kernel(kernel_name=name)
            talks[kernel_id] = Talk(kernels.get_kernel(kernel_id))
            await talks[kernel_id].ready()
        for each, talk in talks.items():  # as a page does: a request may come before the server hears the kernel
            while kernels.get_kernel(each).execution_state != "idle":
                await talk.run("1")
        server = SimpleNamespace(kernel_manager=kernels, log=logging.getLogger("test"))
        culler = extension.Culler(server, 1.0)
        begin = time.monotonic()
        while len(kernels.list_kernel_ids()) == 2:
            assert time.monotonic() - begin < WAIT_SECONDS
            await asyncio.sleep(1.1)  # so that both are due at the same look
            await culler.look()
        (left,) = kernels.list_kernel_ids()
        assert kernels.get_kernel(left).execution_state == "busy"
        for talk in talks.values():
            talk.close()
        talks.clear()
        await kernels.shutdown_kernel(left, now=True)
        kernels.context.destroy()

    asyncio.run(scenario())


@pytest.mark.long
def test_a_limit_begins_and_ends_without_a_restart(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of a lab reads it from the file that `make up` writes."""
    chosen = {"CULL_IDLE_GPU_KERNELS_SECONDS": "0"}
    live.write(settings.load(tmp_path, chosen))
    monkeypatch.setenv(live.VARIABLE, str(live.path_of(settings.load(tmp_path, {}))))
    host.offer()
    server = Server(host, "0")

    async def scenario() -> None:
        await up(server)
        await server.start("torch-gpu0")
        live.write(settings.load(tmp_path, {"CULL_IDLE_GPU_KERNELS_SECONDS": "86400"}))
        await until(lambda: "after 86400 seconds without work" in server.log, pause=0.2)
        live.write(settings.load(tmp_path, {"CULL_IDLE_GPU_KERNELS_SECONDS": "soon"}))
        await until(lambda: "CULL_IDLE_GPU_KERNELS_SECONDS=soon is not a time" in server.log, pause=0.2)

    try:
        asyncio.run(scenario())
    finally:
        server.stop()


@pytest.mark.long
@pytest.mark.parametrize("limit", ["", "0"])
def test_off_is_the_default(host: Host, limit: str) -> None:
    """The extension is not even loaded."""
    server = Server(host, limit)
    try:
        asyncio.run(up(server))
    finally:
        server.stop()

    assert "rocmlab.lab.extension" not in server.log


@pytest.mark.long
def test_a_limit_that_is_none_is_an_error_and_the_server_starts(host: Host) -> None:
    """The log says what a limit looks like."""
    server = Server(host, "soon")
    try:
        asyncio.run(up(server))
    finally:
        server.stop()

    assert "CULL_IDLE_GPU_KERNELS_SECONDS=soon is not a time" in server.log


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "1h"])
def test_a_limit_is_a_number_of_seconds(text: str) -> None:
    """Nothing else is understood as something."""
    with pytest.raises(RocmlabError, match="is not a time"):
        idle.seconds(extension.SETTING, text)


def test_the_notice_is_a_tenth_of_the_limit_and_five_minutes_at_most() -> None:
    """A kernel with a limit of an hour is warned five minutes before."""

    class Nothing:
        kernel_manager = log = None

    assert extension.Culler(Nothing(), 3600).notice == 300
    assert extension.Culler(Nothing(), 60).notice == 6


class TestCuller:
    """Kernels of a server with a limit, at times of a test."""

    def test_a_clock_that_is_set_forward_shortens_no_notice(self, host: Host) -> None:
        """A machine that has slept since the warning does the same: its user gets the whole notice."""
        host.offer()
        times = Times()

        async def scenario() -> None:
            async with culled(times) as (kernels, culler):
                kernel_id = await kernels.start_kernel(kernel_name="torch-gpu0")
                times.pass_seconds(3400)
                await culler.look()
                assert "in 300 seconds it is shut down" in times.log.lines[-1]
                times.now += timedelta(hours=8)
                await culler.look()
                assert kernel_id in kernels
                times.pass_seconds(299)
                await culler.look()
                assert kernel_id in kernels
                times.pass_seconds(1)
                await culler.look()
                assert kernel_id not in kernels

        asyncio.run(scenario())

        assert host.holders() == [None, None]


class Times:
    """Two clocks that stand, and a log."""

    def __init__(self) -> None:
        self.now = datetime.now(timezone.utc)
        self.elapsed_seconds = 0.0
        self.log = Listing()

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)
        self.elapsed_seconds += seconds


@asynccontextmanager
async def culled(times: Times) -> AsyncIterator[tuple[Any, extension.Culler]]:
    """Kernels, and what shuts them down after an hour."""
    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    kernels = AsyncMappingKernelManager(connection_dir=os.environ["JUPYTER_RUNTIME_DIR"])
    server = SimpleNamespace(kernel_manager=kernels, log=times.log)
    try:
        yield kernels, extension.Culler(server, 3600.0, lambda: times.now, lambda: times.elapsed_seconds)
    finally:
        await kernels.shutdown_all(now=True)
        kernels.context.destroy()


class Listing:
    """A log that is a list."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, text: str, *values: object) -> None:
        """Add a line."""
        self.lines.append(text % values)


class Held:
    """Two kernels of a host with a limit, and what looks at them at times of a test."""

    def __init__(self, host: Host) -> None:
        from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

        limits = HostLimits(hold_seconds=100, notice_seconds=60, grace_seconds=1000)
        self.host = host
        self.leases = Leases(host.leases.folder, limits=lambda: limits)
        self.now = datetime.now(timezone.utc)
        self.elapsed_seconds = 0.0
        self.kernels = AsyncMappingKernelManager(connection_dir=os.environ["JUPYTER_RUNTIME_DIR"])
        self.log = Listing()
        server = SimpleNamespace(kernel_manager=self.kernels, log=self.log)
        self._holding = Holding(server, self.leases, lambda: self.now, lambda: self.elapsed_seconds)
        self._waiting: list[Ticket] = []

    async def start_idle(self) -> tuple[str, str]:
        """Start both."""
        first, second = [await self.kernels.start_kernel(kernel_name=name) for name in ("torch-gpu0", "torch-gpu1")]
        return first, second

    async def start(self) -> tuple[str, str]:
        """Start both, and return which is idle and which is busy."""
        idle, busy = await self.start_idle()
        talk = Talk(self.kernels.get_kernel(busy))
        await talk.ready()
        talk.client.execute("import time; time.sleep(600)")
        await until(lambda: self.kernels.get_kernel(busy).execution_state == "busy")
        talk.close()
        return idle, busy

    @contextmanager
    def waited_for(self, owner: str, count: int = 2) -> Iterator[None]:
        """Have a kernel of a user wait for both GPUs, or for any."""
        self._count = count
        ticket = self.leases.join(self.host.devices, count, replace(Holder.here("/nb/b.ipynb"), owner=owner))
        self._waiting = [ticket]
        try:
            yield
        finally:
            self._waiting = []
            ticket.close()

    async def after(self, seconds: float) -> tuple[list[str], list[str]]:
        """Let time pass; return what is reported then, and which kernels are left."""
        self.now += timedelta(seconds=seconds)
        self.elapsed_seconds += seconds
        self.log.lines.clear()
        for ticket in self._waiting:
            self.leases.renew(ticket, self.host.devices, self._count)
        await self._holding.look()
        return list(self.log.lines), self.kernels.list_kernel_ids()

    def ends(self) -> list[bool]:
        """Return for each GPU whether its lease is to end."""
        return [bool(holder.ends) for holder in self.leases.held(self.host.devices).values()]


def test_kernels_that_others_wait_for_are_warned_then_shut_down_and_a_cell_has_its_grace(host: Host) -> None:
    """Nothing happens when no one else waits; the idle one is shut down after the notice, the busy one later."""
    host.offer()
    held = Held(host)

    async def scenario() -> None:
        idle, busy = await held.start()
        with held.waited_for(Holder.here("").owner or ""):  # another kernel of the same user
            assert await held.after(200) == ([], [idle, busy])
        with held.waited_for("bob"):
            warned, _ = await held.after(0)
            assert held.ends() == [True, True]
            assert await held.after(59) == ([], [idle, busy])
        spared, left = await held.after(1)
        assert (held.ends(), left) == ([False, False], [idle, busy])
        with held.waited_for("bob"):
            again, _ = await held.after(10)
            held.now += timedelta(days=1)  # someone sets the clock
            assert await held.after(0) == ([], [idle, busy])
            ended, left = await held.after(60)
            assert left == [busy]
            assert await held.after(999) == ([], [busy])
            last, left = await held.after(1)
            assert left == []
        held.kernels.context.destroy()
        assert len(warned) == len(again) == len(spared) == 2
        assert "in 1:00 it is shut down if it is idle; a cell that runs then may continue for 16:40" in warned[0]
        assert "no other user waits" in spared[0]
        assert "it is shut down now" in ended[0]
        assert "when its cell ends, or in 16:40" in ended[1]
        assert "what it had in memory is lost" in last[0]

    asyncio.run(scenario())

    assert host.holders() == [None, None]


def test_no_more_kernels_are_shut_down_than_others_wait_for(host: Host) -> None:
    """Of two idle ones with the same notice one is enough; the other stays when that GPU is kept for who waits."""
    host.offer()
    held = Held(host)

    async def scenario() -> None:
        first, second = await held.start_idle()
        with held.waited_for("bob", 1):
            warned, _ = await held.after(200)
            ended, left = await held.after(60)
            assert left == [second]
            spared, left = await held.after(15)
            assert left == [second]
        await held.kernels.shutdown_kernel(second)
        held.kernels.context.destroy()
        assert len(warned) == 2
        assert len(ended) == 1
        assert first in ended[0]
        assert "no other user waits" in spared[0]

    asyncio.run(scenario())

    assert host.holders() == [None, None]
