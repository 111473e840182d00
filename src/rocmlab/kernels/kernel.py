"""The kernel's process: found by its kernelspec, started in a session of its own, watched, and ended with its group."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Protocol

from rocmlab.base import confidential, job_tokens
from rocmlab.kernels import handover
from rocmlab.kernels.lifeline import Lifeline

if TYPE_CHECKING:
    from rocmlab.kernels.leases import Lease

LONGEST_SOCKET_BYTES = 103  # sun_path less its end: 107 on Linux, 103 on macOS
PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
OOM_COUNTERS = (
    "/sys/fs/cgroup{group}/memory.events",
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory{memory}/memory.oom_control",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/vmstat",
)

OURS = ("local-provisioner", "rocmlab-provisioner")  # ours takes a lease, which a job has already

Specification = dict[str, Any]


class Kernel(Protocol):
    """What the engine needs of a kernel."""

    connection: dict[str, Any]
    output: int | None  # a descriptor with what its process prints; None if it is not ours to read
    sentinel: int | None  # a descriptor that becomes readable when it ends; None where there is none

    def ended(self) -> bool:
        """Whether its process is gone."""

    def exit_code(self) -> int | None:
        """Return how it ended, below zero for a signal; None if nobody knows."""

    def is_stopped(self) -> bool:
        """Whether its process is stopped (SIGSTOP)."""

    def is_out_of_memory(self) -> bool:
        """Whether the system has ended a process of this control group for want of memory since the start."""

    def interrupt(self) -> bool:
        """Interrupt it; False if that has to be asked for with a message."""

    def destroy(self) -> None:
        """End what is left of it, at once."""


def find(name: str) -> tuple[Specification, str]:
    """Return a kernelspec and its folder.

    Raises:
        jupyter_client.kernelspec.NoSuchKernel: there is none of that name.
    """
    from jupyter_core.paths import jupyter_path

    for folder in jupyter_path("kernels"):
        path = Path(folder, name.lower(), "kernel.json")
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text(encoding="utf-8")), str(path.parent)
    from jupyter_client.kernelspec import KernelSpecManager  # the interpreter's own kernel, other spellings, the error

    found = KernelSpecManager().get_kernel_spec(name)
    return found.to_dict(), found.resource_dir


def start(
    name: str,
    cwd: str,
    inherited: Mapping[str, str],
    lease: Lease | None = None,
    warm: str | None = None,
    memory_bytes: int | None = None,
) -> Kernel:
    """Start a kernel; it is not ready yet.

    Args:
        name: of its kernelspec.
        cwd: where it runs.
        inherited: its environment, less what the kernelspec adds.
        lease: on its GPUs, which passes to the kernel's process. A kernel that is not started here, such as a remote
            one, leaves it with this process.
        warm: address of a parent that is to fork it; None: it is started cold.
        memory_bytes: the most that it and each process that it starts may allocate; None: no limit. A kernel that is
            not started here has none.

    Raises:
        rocmlab.kernels.forkserver.Refused: the parent forks none; it can be started cold.
    """
    specification, folder = find(name)
    if not is_local(specification.get("metadata") or {}):
        from rocmlab.kernels.provisioned import ProvisionedKernel

        return ProvisionedKernel(name, cwd, inherited)
    if warm is None:
        started = LocalKernel(specification, folder, cwd, inherited, lease)
        limit_memory(started.process.pid, memory_bytes)
        return started
    from rocmlab.kernels.forked import start as fork

    locks = lease.descriptors if lease else ()
    forked = fork(warm, cwd, environment(specification, inherited), locks, inherited.get(job_tokens.NAME))
    if lease:
        lease.passed_to(forked.pid)
    limit_memory(forked.pid, memory_bytes)
    return forked


def limit_memory(pid: int, memory_bytes: int | None) -> None:
    """Let a process, and what it will start, allocate no more than this; where there is no `prlimit`, do nothing.

    The limit is RLIMIT_DATA: private memory that can be written, touched or not. A mapped file does not count.
    """
    if memory_bytes is not None and sys.platform == "linux":
        with contextlib.suppress(ProcessLookupError):  # it has ended already, which is found out later
            resource.prlimit(pid, resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def is_local(metadata: Mapping[str, Any]) -> bool:
    """Tell from a kernelspec's metadata whether its kernel is a process that can be started here."""
    provisioner = metadata.get("kernel_provisioner") or {}
    return provisioner.get("provisioner_name", OURS[0]) in OURS


class LocalKernel:
    """A kernel that is a child of this process."""

    def __init__(
        self,
        specification: Specification,
        folder: str,
        cwd: str,
        inherited: Mapping[str, str],
        lease: Lease | None = None,
    ) -> None:
        self._by_message = specification.get("interrupt_mode") == "message"
        self._scratch = _scratch(inherited)
        self._out_of_memory = _oom_kills()
        self.connection = _connection(specification, self._scratch)
        file = Path(self._scratch, "kernel.json")
        file.touch(mode=0o600)
        file.write_text(json.dumps(self.connection), encoding="utf-8")
        self.output: int | None = None
        self.sentinel: int | None = None
        self._lifeline = Lifeline()
        leased = lease.descriptors if lease else ()
        read_end, write_end = os.pipe()
        try:
            self.process = subprocess.Popen(
                handover.keeping(_command(specification, folder, str(file)), leased),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                cwd=cwd,
                env=environment(specification, inherited),
                pass_fds=(*leased, self._lifeline.descriptor),
                start_new_session=True,  # so that it can be interrupted, and ended, with all its processes
            )
        except BaseException:
            os.close(read_end)
            self._lifeline.close()
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        finally:
            os.close(write_end)
        self._lifeline.tie(self.process.pid)
        if lease:
            lease.passed_to(self.process.pid)
        os.set_blocking(read_end, False)
        self.output = read_end
        self.sentinel = _sentinel(self.process.pid)

    def ended(self) -> bool:
        """Whether its process is gone; it is not reaped yet, so that its process group is still its own."""
        if self.process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return self.process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def exit_code(self) -> int | None:
        """Return how it ended, below zero for a signal; None if it has not. It is not reaped."""
        if self.process.returncode is not None or not hasattr(os, "waitid"):
            return self.process.poll()
        found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def is_stopped(self) -> bool:
        """Whether its process is stopped (SIGSTOP)."""
        try:
            state = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8", errors="replace")
            return state.rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            pass
        import psutil

        with contextlib.suppress(psutil.Error):
            return bool(psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)
        return False

    def is_out_of_memory(self) -> bool:
        """Whether the system has ended a process of this control group for want of memory since the start."""
        return _oom_kills() > self._out_of_memory

    def interrupt(self) -> bool:
        """Interrupt it, unless it wants a message."""
        if not self._by_message:
            self._signal(signal.SIGINT)
        return not self._by_message

    def destroy(self) -> None:
        """End its process group at once, and forget its files."""
        if self.process.returncode is None:  # once it is reaped, its number may be another's
            self._destroy()

    def _destroy(self) -> None:
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)  # one that hangs in a driver cannot be ended; it must not hold us
        for descriptor in (self.output, self.sentinel):
            if descriptor is not None:
                os.close(descriptor)
        self.output = self.sentinel = None
        self._lifeline.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _sentinel(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # macOS, or a container that forbids it: the process is asked each time
        return None


def _scratch(environment: Mapping[str, str]) -> str:
    """Return a folder of this kernel's own with a path short enough for sockets."""
    for parent in (environment.get("JUPYTER_RUNTIME_DIR"), None, "/tmp"):
        if parent is None or os.path.isdir(parent):
            folder = tempfile.mkdtemp(prefix="kernel-", dir=parent)
            if len(os.fsencode(f"{folder}/s-5")) <= LONGEST_SOCKET_BYTES:
                return folder
            os.rmdir(folder)
    return tempfile.mkdtemp(prefix="kernel-")


def _connection(specification: Specification, scratch: str) -> dict[str, Any]:
    """Return where the kernel shall listen.

    For Python these are sockets in a folder that only this user can open. TCP ports are chosen before the kernel binds
    them, which fails now and then when notebooks start side by side; other kernels may not know anything else.
    """
    common = {"key": secrets.token_hex(32), "signature_scheme": "hmac-sha256", "kernel_name": ""}
    path = os.path.join(scratch, "s")
    if specification.get("language", "python") == "python" and len(os.fsencode(path)) + 2 <= LONGEST_SOCKET_BYTES:
        return {"transport": "ipc", "ip": path, **{port: number for number, port in enumerate(PORTS, 1)}, **common}
    return {"transport": "tcp", "ip": "127.0.0.1", **dict(zip(PORTS, _free_ports(len(PORTS)), strict=True)), **common}


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _command(specification: Specification, folder: str, file: str) -> list[str]:
    """Return the command of a kernelspec, as jupyter_client would start it (manager.py, `format_kernel_cmd`)."""
    argv = [interpreter(specification), *map(str, specification["argv"][1:])]
    places = {"connection_file": file, "prefix": sys.prefix, "resource_dir": folder}
    for name, value in places.items():
        argv = [word.replace(f"{{{name}}}", value) for word in argv]
    if any(word.startswith("ipykernel") for word in argv):
        argv.append("--HistoryManager.hist_file=:memory:")  # a shared history file locks out others
    return [os.path.expanduser(word) for word in argv]


def interpreter(specification: Specification) -> str:
    """Return what a kernelspec's command runs; its Python is this one, for the one on PATH may be another."""
    name = str(specification["argv"][0])
    major, minor = sys.version_info[:2]
    return sys.executable if name in ("python", f"python{major}", f"python{major}.{minor}") else name


def environment(specification: Specification, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a kernel that inherits one, without our secrets: notebooks print it."""
    inherited = confidential.without(inherited)
    wanted = specification.get("env") or {}
    own = {name: Template(str(value)).safe_substitute(inherited) for name, value in wanted.items()}
    return {
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **{name: value for name, value in inherited.items() if name != "PYTHONEXECUTABLE"},
        **own,
        "JPY_PARENT_PID": str(os.getpid()),  # an idle kernel ends when its parent has
    }


def _oom_kills() -> int:
    """Return how many processes of this control group the system has killed for want of memory.

    Source: `memory.events` (cgroup v2), `memory.oom_control` (v1); `/proc/vmstat` where the group keeps no account.
    """
    groups = {"": "", "memory": ""}  # by controller; v2 has one for all
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            groups |= {name: group.rstrip("/") for name in controllers.split(",")}
    for pattern in OOM_COUNTERS:
        with contextlib.suppress(OSError, ValueError):
            path = Path(pattern.format(group=groups[""], memory=groups["memory"]))
            counts = dict(line.split() for line in path.read_text(encoding="utf-8").splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return 0


def wait(kernel: Kernel, seconds: float) -> bool:
    """Wait until a kernel has ended; False if it has not."""
    end = time.monotonic() + seconds
    while not kernel.ended():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
