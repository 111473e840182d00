"""Kernels that own their GPUs: how Jupyter starts each of our kernels.

A kernelspec names this provisioner and what it requests: `{"gpus": 1 | "all" | 0 | "<PCI address>"}`. The lease is
taken before the kernel's process is there, so before the framework can look at a GPU, and the process inherits it.

The server keeps a copy of the lease as long as the kernel is its: when a kernel is restarted, or crashes and is started
again, no other can take its GPUs in between. The copy is closed when the kernel is shut down, and when it ends and
no one starts it again. If the server dies, its copy dies with it, and the lease ends with the kernel.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import signal
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_client.multikernelmanager import MultiKernelManager
from jupyter_client.provisioning import LocalProvisioner
from traitlets import Any as AnyTrait

from rocmlab.base import confidential, installation, live
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import visibility
from rocmlab.kernels import kernelspec, memory, ownership, recipes
from rocmlab.kernels.fork_servers import ForkServers
from rocmlab.kernels.forked import ForkedProcess
from rocmlab.kernels.forkserver import inheritance
from rocmlab.kernels.ownership import Owned
from rocmlab.lab import kernels
from rocmlab.packages import overlays

log = logging.getLogger("rocmlab")

REASON = "ROCMLAB_REFUSAL"  # what the kernel in place of a refused one shows
ANSWER_SECONDS = 20.0  # for a driver and a share
INSTALL_SECONDS = 240.0  # for the frameworks: a browser gives a request up after 300
FORK_SECONDS = 15.0  # for a fork server that has imported
FORK_SERVERS = ForkServers()
atexit.register(FORK_SERVERS.close)  # the server ends its kernels before


class RocmlabProvisioner(LocalProvisioner):  # type: ignore[misc]  # jupyter_client has no types for mypy
    """Starts a kernel on this machine with the GPUs that its kernelspec requests."""

    gpus = AnyTrait(1, help="how many GPUs, `all`, 0 for the CPU, or the PCI address of one")

    owned: Owned | None = None
    _has_callback: bool = False  # for kernels that failed to restart
    _watched: int | None = None  # a descriptor of the kernel's process
    _release: weakref.finalize[..., Any] | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401  Jupyter's own
        """Wait for the framework; take the lease, unless a runner has; add it, masks and banner to the start."""
        kwargs = await super().pre_launch(**kwargs)
        kwargs["env"] = environment = confidential.without(kwargs["env"])
        if environment.get("ROCMLAB_LEASED") == "1":
            return kwargs
        try:
            await installed(Path(sys.prefix))
            self._use_packages(kwargs)
            owned = await self._own(environment)
            kwargs["env"] = owned.environment(environment)
        except RocmlabError as err:
            self.let_go()
            self.log.warning("the kernel %s was refused: %s", self.kernel_id, err)
            return self._refused(kwargs, err)
        if any("ipykernel" in word for word in kwargs["cmd"]):  # only IPython kernels accept a banner
            kwargs["cmd"] = [*kwargs["cmd"], *self._arguments(owned)]
        if owned.lease:
            kwargs["cmd"] = inheritance.keeping(kwargs["cmd"], owned.lease.descriptors)
            kwargs["pass_fds"] = (*kwargs.get("pass_fds", ()), *owned.lease.descriptors)
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
        """Start the kernel and name its process as the lease's holder."""
        try:
            found: dict[str, Any] = await self._fork(kwargs) or await super().launch_kernel(cmd, **kwargs)
        except BaseException:
            self.let_go()
            raise
        memory.make_expendable(self.pid)  # where memory runs out, the server is to stay
        if self.owned and self.owned.lease:
            await asyncio.to_thread(self.owned.belongs_to, self.pid)
            self._watch()
        return found

    async def post_launch(self, **kwargs: Any) -> None:  # noqa: ANN401
        """Let go of the lease if the kernel crashes so often that it is not started again."""
        await super().post_launch(**kwargs)
        if not self._has_callback and getattr(self.parent, "_restarter", None) is not None:
            self.parent.add_restart_callback(self.let_go, "dead")
            self._has_callback = True

    async def poll(self) -> int | None:
        """Return the exit code, None while the kernel runs, as `Popen.poll` does."""
        code: int | None = await super().poll()
        if code is not None and self.process is not None and self.owned is not None:
            self._ended()
        return code

    async def cleanup(self, restart: bool = False) -> None:
        """Return the lease, unless the kernel is only restarted."""
        self._stop_watching()
        if not restart:
            self.let_go()
        await super().cleanup(restart=restart)

    def let_go(self) -> None:
        """Close our copy of the lease."""
        self._stop_watching()
        self.owned = None
        if self._release:
            self._release()

    async def _fork(self, kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Fork the kernel from a process that has imported the framework; None if it has to start cold."""
        owned = self.owned  # it may be let go meanwhile
        if owned is None or not isinstance(self.parent.parent, MultiKernelManager):
            return None  # refused, or a runner's; and a fork server is for a server, which starts many kernels
        if live.get("WARM_KERNELS") == "off":
            return None
        self.cwd = str(kwargs.get("cwd") or os.getcwd())
        name, spec = self.parent.kernel_name, self._specification()
        recipe = await asyncio.to_thread(recipes.recipe, name, spec, kwargs["env"])
        if recipe is None:
            return None
        try:
            process = await asyncio.to_thread(
                FORK_SERVERS.fork,
                recipe,
                cwd=self.cwd,
                connection_file=os.path.realpath(self.parent.connection_file),
                descriptors=owned.lease.descriptors if owned.lease else (),
                arguments=self._arguments(owned),
                answer_seconds=FORK_SECONDS,
            )
        except Exception:  # forking is a way to be faster: a cold kernel is better than none
            log.warning("%s: cold start: its fork server could not be used", name, exc_info=True)
            return None
        if process is None:
            return None
        self.process, self.pid, self.pgid = process, process.pid, process.pid
        connection: dict[str, Any] = self.connection_info
        return connection

    # -- lease -----------------------------------------------------------------------------------------------------

    async def _own(self, environment: dict[str, str]) -> Owned:
        """Return what the kernel has already, when it is restarted; else take it, unless a driver or share hangs."""
        if self.owned and self.owned.lease:
            return self.owned
        title = kernels.framework_title(self.kernel_spec.metadata)
        arguments = (self.gpus, ownership.notebook_of(environment), dict(os.environ), title)
        claim = asyncio.ensure_future(asyncio.to_thread(ownership.claim, *arguments))
        try:
            done, _ = await asyncio.wait([claim], timeout=ANSWER_SECONDS)
        except BaseException:
            claim.add_done_callback(_release_late)
            raise
        if not done:
            claim.add_done_callback(_release_late)
            raise RocmlabError(
                f"the GPUs could not be read within {ANSWER_SECONDS:g} seconds",
                "a driver, or the folder of the leases, does not answer",
                f"on the host: make doctor; meanwhile: Kernel > Change Kernel… > {title} (CPU)",
            )
        self.owned = owned = claim.result()
        self._release = weakref.finalize(self, owned.release)
        return owned

    def _specification(self) -> dict[str, Any]:
        """Return the kernelspec, with the interpreter of the user's own packages where there are some."""
        return overlays.applied(self.kernel_spec.to_dict(), os.environ)

    def _use_packages(self, kwargs: dict[str, Any]) -> None:
        """Have that interpreter run the kernel, with its programs first on PATH."""
        python = self._specification()["argv"][0]
        if python != self.kernel_spec.argv[0]:
            kwargs["cmd"] = [python, *kwargs["cmd"][1:]]
            path = kwargs["env"].get("PATH", os.defpath)
            kwargs["env"]["PATH"] = overlays.path_with(Path(python).parent.parent, path)

    def _arguments(self, owned: Owned) -> list[str]:
        """Return more arguments for an IPython kernel."""
        return [_banner(owned), *kernelspec.extension_arguments(self.kernel_spec.to_dict())]

    def _refused(self, kwargs: dict[str, Any], err: RocmlabError) -> dict[str, Any]:
        """Start in the kernel's place one that reports why, in the interpreter of this server."""
        environment = {**kwargs["env"], REASON: json.dumps(vars(err.problem))}
        if path := os.environ.get("PYTHONPATH"):
            environment["PYTHONPATH"] = path
        else:
            environment.pop("PYTHONPATH", None)
        connection = os.path.realpath(self.parent.connection_file)
        command = [sys.executable, "-m", "rocmlab.lab.refusal", "-f", connection]
        # In the root folder: next to the notebook a file `ipykernel.py` would be imported in the library's place.
        return {**kwargs, "cmd": command, "env": visibility.apply(environment, ()), "cwd": "/"}

    def _watch(self) -> None:
        """Have `_on_exit` called when the kernel's process exits; outside Linux `poll` notices it."""
        self._stop_watching()
        if not hasattr(os, "pidfd_open"):
            return
        with contextlib.suppress(OSError, NotImplementedError):
            descriptor = os.pidfd_open(self.pid)
            self._watched = descriptor
            asyncio.get_running_loop().add_reader(descriptor, _on_exit, weakref.ref(self), descriptor)

    def _stop_watching(self) -> None:
        descriptor, self._watched = self._watched, None
        if descriptor is not None:
            with contextlib.suppress(RuntimeError):  # no loop runs here any more
                asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def _end_group(self) -> None:
        """End what the kernel forked, such as the workers of a data loader, which have its lease and may have memory.

        Until its process is reaped its number cannot be another's.
        """
        if isinstance(self.process, ForkedProcess):
            self.process.poll()
        elif self.process is not None and self.process.returncode is None and self.pgid:
            with contextlib.suppress(OSError):
                os.killpg(self.pgid, signal.SIGKILL)

    def _ended(self) -> None:
        """The process has ended: return the lease unless it is being shut down or restarted, manually or by itself."""
        self._end_group()
        is_in_hand = self.parent is not None and (
            self.parent.shutting_down or getattr(self.parent, "_restarter", None) is not None
        )
        self._stop_watching()
        if not is_in_hand:
            self.let_go()


async def installed(prefix: Path, seconds: float = INSTALL_SECONDS) -> None:
    """Wait until the frameworks of an environment are there; raise RocmlabError if they will not be, or not in time."""
    deadline = time.monotonic() + seconds
    while not installation.is_whole(prefix):
        if problem := installation.obstacle(prefix):
            raise RocmlabError.of(problem)
        if time.monotonic() > deadline:
            raise RocmlabError(
                f"{installation.FRAMEWORKS} are still being installed",
                f"a kernel waits {seconds:g} seconds for them at most",
                "Kernel > Restart Kernel… when they are there: make status, on the host, shows it",
            )
        await asyncio.sleep(installation.POLL_SECONDS)


def _on_exit(reference: weakref.ref[RocmlabProvisioner], descriptor: int) -> None:
    """A kernel's process has ended."""
    provisioner = reference()
    if provisioner is not None and provisioner._watched == descriptor:
        provisioner._ended()
    else:
        asyncio.get_running_loop().remove_reader(descriptor)


def _release_late(claim: asyncio.Future[Owned]) -> None:
    if not claim.cancelled() and claim.exception() is None:
        claim.result().release()


def _banner(owned: Owned) -> str:
    return f"--InteractiveShell.banner2={owned.banner()}"
