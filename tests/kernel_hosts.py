"""A simulated host with kernels of ours whose frameworks are this interpreter, and what talks to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.multikernelmanager import AsyncMultiKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory

from rocmlab.devices import Device, discover
from rocmlab.kernels import gpus
from rocmlab.kernels.leases import Holder, Leases
from rocmlab.lab import kernels, offers
from rocmlab.simulation import write_host

WAIT_SECONDS = 60.0
REPOSITORY = Path(__file__).parents[1]


class Host:
    """What the fixture `host` has made."""

    def __init__(self, folder: Path) -> None:
        self.share = folder / "share"
        self.prefix = folder / "prefix"
        self.specs = folder / "data/kernels"
        self.leases = Leases.of_host()

    @property
    def devices(self) -> list[Device]:
        """The simulated GPUs, as anybody sees them."""
        return [device for device in discover() if device.backend == "rocm"]

    def offer(self) -> list[str]:
        """Write the kernelspecs for the current GPUs, and return their names."""
        kernels.install(self.prefix, {"tensorflow": sys.executable, "torch": sys.executable})
        base = offers.plain(self.prefix / "share/jupyter/kernels")
        return offers.install(self.specs, base, gpus.look(os.environ)).written

    def holders(self) -> list[str | None]:
        """Return which notebook has each GPU."""
        found = [self.leases.holder(device) for device in self.devices]
        return [holder.notebook if holder else None for holder in found]

    def can_be_taken(self) -> bool:
        """Try to take any GPU, as someone else would."""
        for device in self.devices:
            if lease := self.leases.take([device], Holder.here("a competitor")):
                lease.release()
                return True
        return False


def register(folder: Path) -> Path:
    """Write what makes this repository an installed package, with the entry points of its pyproject.toml."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    found = re.findall(r'^\[project\.entry-points\."([\w.]+)"\]\n((?:[\w-]+ = .+\n)+)', text, re.M)
    entries = "\n".join(f"[{group}]\n" + lines.replace('"', "") for group, lines in found)
    info = folder / "rocmlab-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rocmlab\nVersion: 0\n")
    (info / "entry_points.txt").write_text(entries)
    return folder


@contextlib.contextmanager
def simulated_host(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A simulated host with two GPUs, rocmlab installed, and a Jupyter that finds only what a test offers."""
    installed = register(folder / "installed")
    patch.syspath_prepend(str(installed))
    KernelProvisionerFactory.clear_instance()  # it looks for provisioners once, perhaps before this one was there
    path = os.pathsep.join(filter(None, (str(installed), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="rocmlab-test-", dir="/tmp") as short:  # sockets need a short path
        values = {
            "PYTHONPATH": path,
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_RUNTIME_DIR": short,
            "IPYTHONDIR": str(folder / "ipython"),
            "ROCMLAB_ROOT": str(write_host(folder / "host", gpus=2)),
            "ROCMLAB_SHARE": str(folder / "share"),
            "WARM_KERNELS": "off",  # but in the tests of just that
        }
        for name, value in values.items():
            patch.setenv(name, value)
        for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "JUPYTER_PATH"):
            patch.delenv(name, raising=False)
        yield Host(folder)


class Talk:
    """A kernel that a manager has started."""

    def __init__(self, manager: AsyncKernelManager) -> None:
        self.manager = manager
        self.client = manager.client()
        self.client.start_channels()

    async def ready(self) -> None:
        """Wait until it answers, and until what it publishes arrives here.

        jupyter_client takes any published message for that, after a restart also one of the kernel before.
        """
        await self.client.wait_for_ready(timeout=WAIT_SECONDS)
        end = time.monotonic() + WAIT_SECONDS
        while not await self._hears(self.client.kernel_info()):
            assert time.monotonic() < end, "nothing arrives that the kernel publishes"

    async def _hears(self, request: str) -> bool:
        """Return whether the end of a request is published here within a second of anything else."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = await self.client.get_iopub_msg(timeout=1)
                if (
                    message["parent_header"].get("msg_id") == request
                    and message["content"].get("execution_state") == "idle"
                ):
                    return True
        return False

    async def run(self, code: str, texts: list[str] | None = None) -> str:
        """Execute code and return what it printed, or its error as a reader gets it; `texts` has that so far."""
        texts = [] if texts is None else texts

        def keep(message: dict) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                texts.append(content["text"])
            elif message["msg_type"] == "error":
                texts.append("\n".join(content["traceback"]))

        await self.client.execute_interactive(code, timeout=WAIT_SECONDS, output_hook=keep, allow_stdin=False)
        return "".join(texts).strip()

    def close(self) -> None:
        """Let go of the sockets."""
        self.client.stop_channels()


@contextlib.asynccontextmanager
async def started(name: str, notebook: str = "", **environment: str) -> AsyncIterator[Talk]:
    """A kernel of this kernelspec, started as jupyter_client does, ready, and shut down at the end."""
    manager = AsyncKernelManager(kernel_name=name, parent=AsyncMultiKernelManager())  # as a server has it
    given = {**os.environ, **({"JPY_SESSION_NAME": notebook} if notebook else {}), **environment}
    await manager.start_kernel(env=given)
    talk = Talk(manager)
    try:
        await talk.ready()
        yield talk
    finally:
        talk.close()
        await manager.shutdown_kernel(now=True)


async def until(is_true: Callable[[], object], seconds: float = WAIT_SECONDS, pause: float = 0.02) -> float:
    """Wait until something is true, and return how long that took."""
    begin = time.monotonic()
    while not is_true():
        assert time.monotonic() - begin < seconds, "it never became true"
        await asyncio.sleep(pause)
    return time.monotonic() - begin


MASKS = """
import os
print(*(os.environ.get(name) for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")))
"""
