"""Kernels of JupyterLab that are forked from a parent: real ones, which import a module of the standard library."""

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

from rocmlab.kernels import lab_warmth

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")
PRELOADED = "colorsys"  # which nothing else imports
IS_WARM = f"import sys, os; print({PRELOADED!r} in sys.modules, os.getpid())"


@pytest.fixture
def nests(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[lab_warmth.Nests]:
    """Parents of this test alone, for kernels that preload a module."""
    host.offer()
    for path in host.specs.glob("*/kernel.json"):
        spec = json.loads(path.read_text())
        spec["metadata"]["rocmlab"]["preload"] = [PRELOADED]
        path.write_text(json.dumps(spec))
    found = lab_warmth.Nests()
    monkeypatch.setattr(lab_warmth, "NESTS", found)
    monkeypatch.setenv(lab_warmth.SETTING, "on")
    yield found
    found.close()


async def warmed(nests: lab_warmth.Nests, name: str) -> None:
    """Start one kernel cold, which starts the parent, and wait for that."""
    async with started(name) as talk:
        assert (await talk.run(IS_WARM)).startswith("False")
        assert await asyncio.to_thread(nests._current[name].parent.ready, 60)


def test_the_second_kernel_is_warm_and_owns_its_gpu(host: Host, nests: lab_warmth.Nests) -> None:
    """It has the module before its first line, the mask, the banner and the lease; the shutdown frees the GPU."""

    async def scenario() -> None:
        await warmed(nests, "torch-gpu1")
        async with started("torch-gpu1", "/notebooks/a.ipynb") as talk:
            assert (await talk.run(IS_WARM)).startswith("True")
            assert await talk.run(MASKS) == "1 1 None"
            assert host.holders() == [None, "/notebooks/a.ipynb"]
            banner = (await talk.client.kernel_info(reply=True))["content"]["banner"]
            assert "leased to this kernel" in banner
            await talk.manager.shutdown_kernel()
            assert await until(lambda: host.holders() == [None, None]) < 1

    asyncio.run(scenario())


def test_a_warm_kernel_keeps_its_gpu_through_restarts_and_frees_it_when_it_dies(
    host: Host, nests: lab_warmth.Nests
) -> None:
    """Restarted by hand it is forked anew with the same lease; killed, its GPU is free within a second."""

    async def scenario() -> None:
        await warmed(nests, "torch-all")
        async with started("torch-all") as talk:
            for turn in range(4):
                await talk.manager.restart_kernel(now=turn % 2 == 0)
                await talk.ready()
                assert (await talk.run(IS_WARM)).startswith("True")
                assert not host.can_be_taken()
            os.kill(talk.manager.provisioner.pid, signal.SIGKILL)
            assert await until(host.can_be_taken, pause=0.01) < 1
            assert not await talk.manager.is_alive()

    asyncio.run(scenario())


def test_a_cell_is_interrupted(host: Host, nests: lab_warmth.Nests) -> None:
    """Kernel > Interrupt reaches a forked kernel."""

    async def scenario() -> None:
        await warmed(nests, "torch")
        async with started("torch") as talk:
            heard: list[str] = []
            code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
            running = asyncio.ensure_future(talk.run(code, heard))
            await until(lambda: heard)
            await talk.manager.interrupt_kernel()
            assert "KeyboardInterrupt" in await running
            assert (await talk.run(IS_WARM)).startswith("True")

    asyncio.run(scenario())


def test_a_module_that_cannot_be_imported_means_cold_and_is_not_tried_again(
    host: Host, nests: lab_warmth.Nests, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken framework fails in its notebook, not at each start of a kernel in the background, too."""
    path = host.specs / "torch/kernel.json"
    path.write_text(path.read_text().replace(PRELOADED, "no_such_module"))
    caplog.set_level("INFO", logger="rocmlab")

    async def scenario() -> None:
        parents = set()
        for _ in range(3):
            async with started("torch") as talk:
                assert (await talk.run("print(1)")) == "1"
                await until(lambda: nests._current["torch"].parent.why)
                parents.add(nests._current["torch"].parent)
        assert len(parents) == 1

    asyncio.run(scenario())

    assert "no_such_module" in caplog.text


def test_off_means_cold(host: Host, nests: lab_warmth.Nests, monkeypatch: pytest.MonkeyPatch) -> None:
    """`WARM_KERNELS=off` starts no parent."""
    monkeypatch.setenv(lab_warmth.SETTING, "off")

    async def scenario() -> None:
        for _ in range(2):
            async with started("torch") as talk:
                assert (await talk.run(IS_WARM)).startswith("False")

    asyncio.run(scenario())

    assert nests._current == {}


def test_a_dead_parent_means_cold(host: Host, nests: lab_warmth.Nests, caplog: pytest.LogCaptureFixture) -> None:
    """The next kernel starts all the same, the log says why it took longer, and the one after it is warm again."""
    caplog.set_level("INFO", logger="rocmlab")

    async def scenario() -> None:
        await warmed(nests, "torch")
        async with started("torch") as talk:
            assert (await talk.run(IS_WARM)).startswith("True")
        parent = nests._current["torch"].parent
        assert parent.pid
        os.kill(parent.pid, signal.SIGKILL)
        await until(lambda: parent.why)
        async with started("torch", "/notebooks/b.ipynb") as talk:
            assert (await talk.run(IS_WARM)).startswith("False")
            assert host.holders() == ["/notebooks/b.ipynb", None]
            assert await asyncio.to_thread(nests._current["torch"].parent.ready, 60)
        async with started("torch") as talk:
            assert (await talk.run(IS_WARM)).startswith("True")

    asyncio.run(scenario())

    assert "torch: cold start: the warm parent" in caplog.text


def test_a_parent_is_not_closed_while_it_forks_for_somebody(
    host: Host, nests: lab_warmth.Nests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel starts with a changed kernelspec in the middle of a fork: the old parent serves that one first."""
    real = lab_warmth.forkserver.fork
    spec = json.loads((host.specs / "torch/kernel.json").read_text())
    spec["metadata"]["rocmlab"]["preload"] = [PRELOADED, "wave"]

    def meanwhile(address: str, **options: Any) -> Any:
        monkeypatch.setattr(lab_warmth.forkserver, "fork", real)
        assert nests.fork("torch", spec, os.environ, "/", options["connection_file"], (), ()) is None
        return real(address, **options)

    async def scenario() -> None:
        await warmed(nests, "torch")
        monkeypatch.setattr(lab_warmth.forkserver, "fork", meanwhile)
        async with started("torch") as talk:
            assert (await talk.run(IS_WARM)).startswith("True")
            assert [len(nest.kernels) for nest in nests._retired] == [1]
        async with started("torch-cpu"):
            assert nests._retired == []

    asyncio.run(scenario())


def test_the_end_of_the_server_is_the_end_of_its_parents(host: Host, nests: lab_warmth.Nests) -> None:
    """One that hangs is ended, too, and its folder is gone."""
    source = """
import json, os, signal, sys
from rocmlab.kernels.lab_warmth import NESTS
from rocmlab.kernels.forkserver import parents
spec = json.load(open(sys.argv[1]))
assert NESTS.fork("torch", spec, os.environ, "/", sys.argv[2], (), ()) is None
parent = NESTS._current["torch"].parent
assert parent.ready(60)
parents.CLOSE_SECONDS = 0.2
os.kill(parent.pid, signal.SIGSTOP)
print(parent.pid, parent.address)
"""
    file = Path(os.environ["JUPYTER_RUNTIME_DIR"], "kernel-1.json")
    command = [sys.executable, "-c", source, str(host.specs / "torch/kernel.json"), str(file)]

    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)

    pid, address = ended.stdout.split()
    assert not Path("/proc", pid).exists()
    assert not Path(address).parent.exists()
