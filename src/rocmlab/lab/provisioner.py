"""Kernels that own their GPUs: how Jupyter starts each of our kernels.

A kernelspec names this provisioner and what it requests: `{"gpus": 1 | "all" | 0 | "<PCI address>"}`. The lease is
taken before the kernel's process is there, so before the framework can look at a GPU, and the process inherits it.

A kernel that finds no free GPU waits in the queue of the host (`rocmlab.kernels.tickets`), and one that reports this
answers in its place. When its turn comes it is restarted with its GPUs.

The server keeps a copy of the lease as long as the kernel is its: when a kernel is restarted, or crashes and is started
again, no other can take its GPUs in between. The copy is closed when the kernel is shut down, and when it ends and
no one starts it again. If the server dies, its copy dies with it, and the lease ends with the kernel.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import logging
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jupyter_client.multikernelmanager import MultiKernelManager
from jupyter_client.provisioning import LocalProvisioner
from jupyter_core.utils import ensure_async
from traitlets import Any as AnyTrait

from rocmlab.base import confidential, installation, live
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import visibility
from rocmlab.kernels import kernelspec, memory, ownership, recipes
from rocmlab.kernels.fork_servers import ForkServers
from rocmlab.kernels.forked import ForkedProcess
from rocmlab.kernels.forkserver import inheritance
from rocmlab.kernels.ownership import NotFree, Owned, Turn
from rocmlab.lab import kernels, notices
from rocmlab.packages import overlays

log = logging.getLogger("rocmlab")

REASON = "ROCMLAB_REFUSAL"  # what the kernel in place of a refused one shows
ANSWER_SECONDS = 20.0  # for a driver and a share
QUEUE_POLL_SECONDS = 1.0
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
    _turn: Turn | None = None  # while it waits for GPUs
    _waiting: asyncio.Task[None] | None = None
    _is_starting: bool = False

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401  Jupyter's own
        super().__init__(**kwargs)
        self._claiming = asyncio.Lock()

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401  Jupyter's own
        """Wait for the framework; take the lease, unless a runner has; add it, masks and banner to the start."""
        self._is_starting = True
        try:
            return await self._prepared(await super().pre_launch(**kwargs))
        except BaseException:
            self._is_starting = False
            raise

    async def _prepared(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        kwargs["env"] = environment = confidential.without(kwargs["env"])
        if environment.get("ROCMLAB_LEASED") == "1":
            return kwargs
        try:
            await installed(Path(sys.prefix))
            self._use_packages(kwargs)
            owned = await self._own(environment)
            kwargs["env"] = owned.environment(environment)
        except RocmlabError as err:
            turn = err.turn if isinstance(err, NotFree) else None
            if turn is None or turn is not self._turn:
                self.let_go()
            self._wait(turn)
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
        finally:
            self._is_starting = False
        memory.make_expendable(self.pid)  # where memory runs out, the server is to stay
        if self.owned and self.owned.lease:
            await asyncio.to_thread(self.owned.belongs_to, self.pid)
            self._watch()
        return found

    async def post_launch(self, **kwargs: Any) -> None:  # noqa: ANN401
        """Let go of the lease if the kernel crashes so often that it is not started again."""
        await super().post_launch(**kwargs)
        if self.parent is not None and self.parent.has_trait("last_activity"):
            # Of jupyter_server, which lists a kernel before it has set these, and answers 500 where they are unset.
            self.parent.last_activity = datetime.now(timezone.utc)
            self.parent.execution_state = self.parent.execution_state or "starting"
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
        """Close our copy of the lease, and leave the queue."""
        self._stop_watching()
        self._leave_queue()
        self.owned = None
        if self._release:
            self._release()

    # -- queue -----------------------------------------------------------------------------------------------------

    @property
    def turn(self) -> Turn | None:
        """The kernel's place in the queue of the host; None: it does not wait for GPUs."""
        return self._turn

    @property
    def _server_kernels(self) -> MultiKernelManager | None:
        """What can restart the kernel: the kernels of a server; None for a program that runs notebooks."""
        found = self.parent.parent if self.parent is not None else None
        return found if isinstance(found, MultiKernelManager) else None

    def _wait(self, turn: Turn | None) -> None:
        """Restart the kernel when its turn comes."""
        if turn is not None and turn is not self._turn:
            self._turn, self._waiting = turn, asyncio.ensure_future(self._await_turn(turn))

    def _leave_queue(self) -> None:
        turn, self._turn = self._turn, None
        waiting, self._waiting = self._waiting, None
        if turn:
            turn.leave()
        if waiting and waiting is not asyncio.current_task():
            waiting.cancel()

    async def _await_turn(self, turn: Turn) -> None:
        is_served, problem = False, ""
        while self._turn is turn and not is_served:
            await asyncio.sleep(QUEUE_POLL_SECONDS)
            if self._is_starting:
                continue
            try:
                async with self._claiming:
                    is_served = self._turn is turn and await self._attempt(turn)
            except Exception as err:  # such as limits of the host that are just being edited: it waits all the same
                if str(err) != problem:
                    self.log.warning(
                        "the kernel %s waits for a GPU, and now none can be leased: %s", self.kernel_id, err
                    )
                    notices.tell(
                        self.kernel_id, f"rocmlab: this kernel waits for a GPU, and now none can be leased: {err}"
                    )
                problem = str(err)
        if is_served:
            await self._restart_with_gpus()

    async def _attempt(self, turn: Turn) -> bool:
        """Take the GPUs if it is the kernel's turn."""
        attempt = asyncio.ensure_future(asyncio.to_thread(turn.attempt))
        try:
            owned = await asyncio.shield(attempt)
        except asyncio.CancelledError:
            attempt.add_done_callback(_release_late)
            raise
        if owned is None:
            return False
        if self._turn is not turn:  # it was shut down meanwhile
            owned.release()
            return False
        self._turn = None
        self._keep(owned)
        return True

    async def _restart_with_gpus(self) -> None:
        server, self._waiting = self._server_kernels, None
        if server is None or self.owned is None or self._is_starting or self.parent.shutting_down:
            return  # a restart under way uses them
        pending = server._pending_kernels  # what a Shut Down waits for: jupyter_client would mix it with a restart
        if (other := pending.get(self.kernel_id)) is not None and not other.done():
            return
        notices.tell(self.kernel_id, "rocmlab: this kernel has its GPU now, and is restarted with it: run your cells")
        self.log.info("the kernel %s has waited, and is restarted with its GPUs", self.kernel_id)
        restart = asyncio.ensure_future(self._restart(server))
        pending[self.kernel_id] = restart
        try:
            await restart
        finally:
            if pending.get(self.kernel_id) is restart:
                del pending[self.kernel_id]

    async def _restart(self, server: MultiKernelManager) -> None:
        try:
            restarted = (
                server.restart_kernel(self.kernel_id) if self.kernel_id in server else self.parent.restart_kernel()
            )
            await ensure_async(restarted)
            if hasattr(self.parent, "last_activity"):  # of jupyter_server: it waited, and was not idle
                self.parent.last_activity = datetime.now(timezone.utc)
        except Exception:
            self.log.exception("the kernel %s could not be restarted with its GPUs", self.kernel_id)
            self.let_go()

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
        title = kernels.framework_title(self.kernel_spec.metadata)
        if (before := self.owned) and before.lease:
            now = await _answer(functools.partial(ownership.renumbered, before, title), title, late=_ignore_late)
            if self.owned is before:  # else it was let go meanwhile
                self.owned = now
                return now
        async with self._claiming:  # it may be served just then
            if (turn := self._turn) is not None:
                await self._attempt(turn)
            if self.owned and self.owned.lease:
                return self.owned
            if turn is not None:
                raise await asyncio.to_thread(turn.not_free)
        arguments = (self.gpus, ownership.notebook_of(environment), dict(os.environ), title)
        claim = functools.partial(ownership.claim, *arguments, waits=self._server_kernels is not None)
        return self._keep(await _answer(claim, title, late=_release_late))

    def _keep(self, owned: Owned) -> Owned:
        self.owned = owned
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


async def _answer(question: Callable[[], Owned], title: str, late: Callable[[asyncio.Future[Owned]], None]) -> Owned:
    """Return what a question has as its answer, unless a driver or share hangs; `late` gets one that comes later."""
    asked = asyncio.ensure_future(asyncio.to_thread(question))
    try:
        done, _ = await asyncio.wait([asked], timeout=ANSWER_SECONDS)
    except BaseException:
        asked.add_done_callback(late)
        raise
    if not done:
        asked.add_done_callback(late)
        raise RocmlabError(
            f"the GPUs could not be read within {ANSWER_SECONDS:g} seconds",
            "a driver, or the folder of the leases, does not answer",
            f"on the host: make doctor; meanwhile: Kernel > Change Kernel… > {title} (CPU)",
        )
    return asked.result()


def _on_exit(reference: weakref.ref[RocmlabProvisioner], descriptor: int) -> None:
    """A kernel's process has ended."""
    provisioner = reference()
    if provisioner is not None and provisioner._watched == descriptor:
        provisioner._ended()
    else:
        asyncio.get_running_loop().remove_reader(descriptor)


def _release_late(claim: asyncio.Future[Any]) -> None:
    if claim.cancelled():
        return
    err = claim.exception()
    if isinstance(err, NotFree) and err.turn:
        err.turn.leave()
    elif err is None and claim.result() is not None:
        claim.result().release()


def _ignore_late(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()  # else asyncio reports that no one has seen it


def _banner(owned: Owned) -> str:
    return f"--InteractiveShell.banner2={owned.banner()}"
