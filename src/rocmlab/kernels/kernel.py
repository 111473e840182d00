"""A kernel: started cold or forked, watched, and ended with everything in its process group."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rocmlab.base import confidential, job_tokens
from rocmlab.kernels import connection, kernelspec, memory
from rocmlab.kernels.cold import ColdProcess
from rocmlab.kernels.forked import ForkedProcess, fork
from rocmlab.kernels.kernelspec import Kernelspec
from rocmlab.packages import overlays

if TYPE_CHECKING:
    from rocmlab.kernels.leases import Lease


class Kernel(Protocol):
    """What the engine needs of a kernel."""

    connection: dict[str, Any]
    output: int | None  # a descriptor with what its process prints; None if it is not ours to read
    sentinel: int | None  # a descriptor that becomes readable when it exits; None where there is none

    def ended(self) -> bool:
        """Whether its process has exited."""

    def exit_code(self) -> int | None:
        """Return its exit code, below zero for a signal; None if it has not exited, or that is unknown."""

    def is_stopped(self) -> bool:
        """Whether its process is stopped (SIGSTOP)."""

    def is_out_of_memory(self) -> bool:
        """Whether the system has killed a process of this control group since the start because memory ran out."""

    def interrupt(self) -> bool:
        """Interrupt it; False if that takes a message."""

    def destroy(self) -> None:
        """Kill what is left of it."""


def start(
    spec: Kernelspec,
    cwd: str,
    inherited: Mapping[str, str],
    lease: Lease | None = None,
    fork_server: str | None = None,
    memory_bytes: int | None = None,
) -> Kernel:
    """Start a kernel; it is not ready yet.

    Args:
        spec: its kernelspec.
        cwd: where it runs.
        inherited: its environment, without what the kernelspec adds.
        lease: on its GPUs, which passes to the kernel's process. A kernel that is not started here, such as a remote
            one, leaves it with this process.
        fork_server: address of the fork server that forks it; None: it is started cold.
        memory_bytes: the most that it and each process that it starts may allocate; None: no limit. A kernel that is
            not started here has none.

    Raises:
        rocmlab.kernels.forked.Refused: the fork server forks none; the kernel can be started cold.
    """
    if not spec.is_local:
        return ProvisionedKernel(spec.name, cwd, inherited)
    started = LocalKernel(spec.specification, spec.folder, cwd, inherited, lease, fork_server)
    if lease:
        lease.passed_to(started.pid)
    memory.limit(started.pid, memory_bytes)
    return started


class LocalKernel:
    """A kernel of this machine, a child of this process or of a fork server."""

    def __init__(
        self,
        specification: kernelspec.Specification,
        folder: str,
        cwd: str,
        inherited: Mapping[str, str],
        lease: Lease | None = None,
        fork_server: str | None = None,
    ) -> None:
        specification = overlays.applied(specification, inherited)
        self._by_message = specification.get("interrupt_mode") == "message"
        self._scratch = connection.make_folder(inherited)
        self._out_of_memory = memory.oom_kills()
        self._environment = kernelspec.environment(specification, inherited)
        self.connection = connection.create(specification, self._scratch)
        locks = lease.descriptors if lease else ()
        read_end, write_end = os.pipe()
        try:
            file = connection.write(self.connection, self._scratch)
            self.process: ColdProcess | ForkedProcess
            if fork_server is None:
                command = kernelspec.command(specification, folder, file)
                self.process = ColdProcess(command, cwd, self._environment, locks, write_end)
            else:
                self.process = fork(
                    fork_server,
                    cwd=cwd,
                    environment=self._environment,
                    descriptors=locks,
                    output=write_end,
                    connection_file=file,
                    token=inherited.get(job_tokens.NAME),
                    arguments=[kernelspec.WITHOUT_HISTORY, *kernelspec.extension_arguments(specification)],
                )
        except BaseException:
            os.close(read_end)
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        self.output: int | None = read_end
        self.sentinel = self.process.sentinel
        self.pid = self.process.pid

    def environment(self) -> dict[str, str]:
        """Return the environment in which it began. Source: /proc/PID/environ; for a forked one, what was requested."""
        if isinstance(self.process, ColdProcess):
            with contextlib.suppress(OSError):
                raw = Path(f"/proc/{self.pid}/environ").read_bytes()
                pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
                return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs} or self._environment
        return self._environment

    def ended(self) -> bool:
        """Whether its process has exited; it is not reaped yet, so that its process group is still its own."""
        return self.process.ended()

    def exit_code(self) -> int | None:
        """Return its exit code, below zero for a signal; None if it has not exited, or its fork server has."""
        return self.process.exit_code()

    def is_stopped(self) -> bool:
        """Whether its process is stopped (SIGSTOP)."""
        if self.ended():
            return False
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
            return state.rpartition(")")[2].split()[0] in ("T", "t")
        import psutil

        with contextlib.suppress(psutil.Error):
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        return False

    def is_out_of_memory(self) -> bool:
        """Whether the system has killed a process of this control group since the start because memory ran out."""
        return memory.oom_kills() > self._out_of_memory

    def interrupt(self) -> bool:
        """Interrupt it, unless that takes a message."""
        if not self._by_message:
            self.process.signal(signal.SIGINT)
        return not self._by_message

    def destroy(self) -> None:
        """Kill its process group and, of a forked one, all that carries its token; remove its files."""
        self.process.close()
        if self.output is not None:
            os.close(self.output)
        self.output = self.sentinel = None
        shutil.rmtree(self._scratch, ignore_errors=True)


class ProvisionedKernel:
    """A kernel that something else starts: a kernelspec may name another provisioner, such as a remote one."""

    output: int | None = None
    sentinel: int | None = None

    def __init__(self, name: str, cwd: str, environment: Mapping[str, str]) -> None:
        from jupyter_client.manager import KernelManager

        self._manager = KernelManager(kernel_name=name)
        self._manager.start_kernel(cwd=cwd, env=confidential.without(environment))
        self.connection: dict[str, Any] = self._manager.get_connection_info()

    def ended(self) -> bool:
        """Whether the provisioner reports that it has exited."""
        return not self._manager.is_alive()

    def exit_code(self) -> int | None:
        """Return its exit code, where the provisioner has a process."""
        code = getattr(getattr(self._manager.provisioner, "process", None), "returncode", None)
        return code if isinstance(code, int) else None

    def is_stopped(self) -> bool:
        """Unknown; the heartbeat shows it."""
        return False

    def is_out_of_memory(self) -> bool:
        """Unknown."""
        return False

    def interrupt(self) -> bool:
        """Interrupt it, however the provisioner does that."""
        with contextlib.suppress(RuntimeError):
            self._manager.interrupt_kernel()
        return True

    def destroy(self) -> None:
        """Kill it."""
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
