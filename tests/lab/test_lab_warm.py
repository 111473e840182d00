"""Kernels of JupyterLab from a fork server: real ones, which import a module of the standard library."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel_hosts import MASKS, Host, started, until

from rocmlab.kernels import forked
from rocmlab.kernels.fork_server import ForkServer
from rocmlab.kernels.fork_servers import ForkServers
from rocmlab.kernels.recipes import recipe
from rocmlab.lab import provisioner

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")]
PRELOADED = "tabnanny"  # which nothing else imports, IPython included
IS_WARM = f"import sys, os; print({PRELOADED!r} in sys.modules, os.getpid())"


@pytest.fixture
def servers(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServers]:
    """Fork servers of this test alone, for kernels that preload a module."""
    host.offer()
    for path in host.specs.glob("*/kernel.json"):
        spec = json.loads(path.read_text())
        spec["metadata"]["rocmlab"]["preload"] = [PRELOADED]
        path.write_text(json.dumps(spec))
    found = ForkServers()
    monkeypatch.setattr(provisioner, "FORK_SERVERS", found)
    monkeypatch.setenv("WARM_KERNELS", "on")
    yield found
    found.close()


async def warmed(servers: ForkServers, name: str) -> ForkServer:
    """Start one kernel cold, which starts its fork server, wait for that, and return it."""
    async with started(name) as talk:
        assert (await talk.run(IS_WARM)).startswith("False")
        (server,) = servers.all()
        assert await asyncio.to_thread(server.ready, 60)
    return server


def test_the_second_kernel_is_warm_and_owns_its_gpu(host: Host, servers: ForkServers) -> None:
    """It has the module before its first line, the mask, the banner and the lease; the shutdown frees the GPU."""

    async def scenario() -> None:
        await warmed(servers, "torch-gpu1")
        async with started("torch-gpu1", "/notebooks/a.ipynb") as talk:
            assert (await talk.run(IS_WARM)).startswith("True")
            assert await talk.run(MASKS) == "1 1 None"
            assert host.holders() == [None, "/notebooks/a.ipynb"]
            banner = (await talk.client.kernel_info(reply=True))["content"]["banner"]
            assert "leased to this kernel" in banner
            await talk.manager.shutdown_kernel()
            await until(lambda: host.holders() == [None, None])

    asyncio.run(scenario())


def test_a_warm_kernel_keeps_its_gpu_through_restarts_and_frees_it_when_it_dies(
    host: Host, servers: ForkServers
) -> None:
    """Restarted manually it is forked again with the same lease; killed, its GPU is free soon."""

    async def scenario() -> None:
        await warmed(servers, "torch-all")
        async with started("torch-all") as talk:
            for turn in range(4):
                await talk.manager.restart_kernel(now=turn % 2 == 0)
                await talk.ready()
                assert (await talk.run(IS_WARM)).startswith("True")
                assert not host.can_be_taken()
            os.kill(talk.manager.provisioner.pid, signal.SIGKILL)
            await until(host.can_be_taken, pause=0.01)
            assert not await talk.manager.is_alive()

    asyncio.run(scenario())


def test_a_cell_is_interrupted(host: Host, servers: ForkServers) -> None:
    """Kernel > Interrupt reaches a forked kernel."""

    async def scenario() -> None:
        await warmed(servers, "torch")
        async with started("torch") as talk:
            heard: list[str] = []
            code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
            running = asyncio.ensure_future(talk.run(code, heard))
            await until(lambda: heard)
            await talk.manager.interrupt_kernel()
            assert "KeyboardInterrupt" in await running
            assert (await talk.run(IS_WARM)).startswith("True")

    asyncio.run(scenario())


@pytest.mark.long
def test_a_module_that_cannot_be_imported_means_cold_and_is_not_tried_again(
    host: Host, servers: ForkServers, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken framework fails in its notebook, not at each start of a kernel in the background as well."""
    path = host.specs / "torch/kernel.json"
    path.write_text(path.read_text().replace(PRELOADED, "no_such_module"))
    caplog.set_level("INFO", logger="rocmlab")

    async def scenario() -> None:
        seen = set()
        for _ in range(3):
            async with started("torch") as talk:
                assert (await talk.run("print(1)")) == "1"
                (server,) = servers.all()
                await until(lambda server=server: server.why)
                seen.add(server)
        assert len(seen) == 1

    asyncio.run(scenario())

    assert "no_such_module" in caplog.text


@pytest.mark.long
def test_off_means_cold(host: Host, servers: ForkServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """`WARM_KERNELS=off` starts no fork server."""
    monkeypatch.setenv("WARM_KERNELS", "off")

    async def scenario() -> None:
        for _ in range(2):
            async with started("torch") as talk:
                assert (await talk.run(IS_WARM)).startswith("False")

    asyncio.run(scenario())

    assert servers.all() == []


@pytest.mark.long
def test_a_dead_fork_server_means_cold(host: Host, servers: ForkServers, caplog: pytest.LogCaptureFixture) -> None:
    """The next kernel starts all the same, the log says why it took longer, and the one after it is warm again."""
    caplog.set_level("INFO", logger="rocmlab")

    async def scenario() -> None:
        server = await warmed(servers, "torch")
        async with started("torch") as talk:
            assert (await talk.run(IS_WARM)).startswith("True")
        assert server.pid
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: server.why)
        async with started("torch", "/notebooks/b.ipynb") as talk:
            assert (await talk.run(IS_WARM)).startswith("False")
            assert host.holders() == ["/notebooks/b.ipynb", None]
            assert await asyncio.to_thread(servers.all()[0].ready, 60)
        async with started("torch") as talk:
            assert (await talk.run(IS_WARM)).startswith("True")

    asyncio.run(scenario())

    assert "torch: the fork server is replaced: the fork server exited with code -9" in caplog.text
    assert "torch: cold start: its fork server still imports" in caplog.text


def test_an_error_while_forking_costs_no_kernel(
    host: Host, servers: ForkServers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forking is a way to be faster: whatever goes wrong there, the kernel starts cold, with its lease."""

    def fork(*_: object, **__: object) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(servers, "fork", fork)

    async def scenario() -> None:
        async with started("torch", "/notebooks/b.ipynb") as talk:
            assert (await talk.run(IS_WARM)).startswith("False")
            assert host.holders() == ["/notebooks/b.ipynb", None]

    asyncio.run(scenario())

    assert "torch: cold start: its fork server could not be used" in caplog.text


def test_a_fork_server_is_not_closed_while_it_forks(
    host: Host, servers: ForkServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel starts with a changed kernelspec in the middle of a fork: the old fork server serves both."""
    real = forked.fork
    spec = json.loads((host.specs / "torch/kernel.json").read_text())
    spec["metadata"]["rocmlab"]["preload"] = [PRELOADED, "wave"]

    def meanwhile(address: str, **options: Any) -> Any:
        monkeypatch.setattr(forked, "fork", real)
        changed = recipe("torch", spec, os.environ)
        assert changed
        more = {"cwd": "/", "descriptors": (), "arguments": (), "answer_seconds": 15.0}
        assert servers.fork(changed, connection_file=options["connection_file"], **more) is None
        return real(address, **options)

    async def scenario() -> None:
        old = await warmed(servers, "torch")
        monkeypatch.setattr(forked, "fork", meanwhile)
        async with started("torch") as talk:
            assert (await talk.run(IS_WARM)).startswith("True")
            assert servers._retired == [old]
            assert await talk.run("print(1)") == "1"

    asyncio.run(scenario())


@pytest.mark.long
def test_kernelspecs_that_differ_in_their_gpus_share_a_fork_server(host: Host, servers: ForkServers) -> None:
    """The first kernel of one is warm if another has been used."""

    async def scenario() -> None:
        await warmed(servers, "torch")
        async with started("torch-gpu1") as talk:
            assert (await talk.run(IS_WARM)).startswith("True")
            assert await talk.run(MASKS) == "1 1 None"

    asyncio.run(scenario())

    assert len(servers.all()) == 1


def test_the_end_of_the_server_is_the_end_of_its_fork_servers(host: Host, servers: ForkServers) -> None:
    """One that hangs is ended as well, and its folder is removed."""
    source = """
import json, os, signal, sys
from rocmlab.kernels import fork_server
from rocmlab.kernels.recipes import recipe
from rocmlab.lab.provisioner import FORK_SERVERS
wanted = recipe("torch", json.load(open(sys.argv[1])), os.environ)
options = {"cwd": "/", "descriptors": (), "arguments": (), "answer_seconds": 60.0}
assert FORK_SERVERS.fork(wanted, connection_file=sys.argv[2], **options) is None
(server,) = FORK_SERVERS.all()
assert server.ready(60)
fork_server.CLOSE_SECONDS = 0.2
os.kill(server.pid, signal.SIGSTOP)
print(server.pid, server.address)
"""
    file = Path(os.environ["JUPYTER_RUNTIME_DIR"], "kernel-1.json")
    command = [sys.executable, "-c", source, str(host.specs / "torch/kernel.json"), str(file)]

    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)

    pid, address = ended.stdout.split()
    assert not Path("/proc", pid).exists()
    assert not Path(address).parent.exists()
