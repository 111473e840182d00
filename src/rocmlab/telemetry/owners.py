"""What a GPU process belongs to: a notebook's kernel, a job of a run, a container, or nothing of these.

From a process its parents are walked, the nearest first. The evidence in each case:

- Kernel of JupyterLab, started cold: its command names `kernel-<id>.json`, its environment has JPY_SESSION_NAME, the
  notebook's path when it was started.
- Kernel of JupyterLab, forked from a fork server: command and environment are its. It holds open the
  note that names the holder of its lease.
- Job of a run, started cold: its environment has ROCMLAB_NOTEBOOK, ROCMLAB_RUN and ROCMLAB_JOB_NAME.
- Job of a run, forked: it has written its own token over ROCMLAB_JOB, and the runner keeps a note of that name in its
  folder for temporary files as long as the job runs.
- What a kernel starts or forks (workers of a data loader, torchrun's processes): the kernel is among its parents. What
  has left its parents behind still has the kernel's environment.
- A kernel of papermill or nbclient: a parent's command names the notebook.
- A process in another container, seen from the host: the same through `/proc/<pid>/root`; else its control group names
  the container. Environment and descriptors are shown to the same user and to root alone; a kernel's command, and with
  it the id of the kernel, to everybody.
- A process of this container, which does not share the host's process ids: see `rocmlab.telemetry.isolated`, and
  `rocmlab.telemetry.attribution` for what that cannot distinguish.

The server of JupyterLab knows the kernels that it has started, warm and cold, and what their notebooks are called now,
which no environment does: `LabSource`.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from dataclasses import replace
from pathlib import Path

from rocmlab.base import lease_folder
from rocmlab.devices import system_root
from rocmlab.telemetry.isolated import FORK_SERVERS
from rocmlab.telemetry.model import GpuProcess, Owner
from rocmlab.telemetry.proc import Process, Table, names, own_container, read_file

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol
else:
    Protocol = object

TOKEN = re.compile(r"[0-9a-f]{16}")
CONNECTION = re.compile(r"kernel-(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json$")
NOTE_FOLDER = "rocmlab-job-"  # and the job token; the runner's
NOTE = "owner.json"
NOTE_BYTES = 65536
MAX_NOTES = 8  # of one token
TEXT_LENGTH = 4096  # of a path, for Linux
STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
AGAIN_SECONDS = 5.0  # at first; then twice as long each time

Key = tuple[int, "int | None", "float | None"]  # what identifies a process


class Source(Protocol):
    """One that knows owners."""

    def begin(self) -> None:
        """Begin a new round."""

    def owner(self, process: GpuProcess) -> Owner | None:
        """Return what a process belongs to, as far as this source knows; None if it does not."""


class ProcSource(Source):
    """Finds owners in `/proc`."""

    def __init__(self, root: Path) -> None:
        self._table = Table(root)
        self._owners: dict[Key, tuple[Owner | None, float, float]] = {}  # and when first and last looked for
        self._before: dict[Key, tuple[Owner | None, float, float]] = {}

    def begin(self) -> None:
        """Forget the processes that the last round did not use."""
        self._before, self._owners = self._owners, {}
        self._table.forget()

    def owner(self, process: GpuProcess) -> Owner | None:
        """Return what a process belongs to; None if it is not visible from here."""
        key = (process.pid, process.local_pid, process.started_seconds)
        found = self._owners.get(key) or self._before.get(key)
        if found is None or not _is_settled(found[0]):
            found = self._looked_for(process, found)
        self._owners[key] = found
        return found[0]

    def _owner_of(self, process: Process) -> Owner:
        kernel: Owner | None = None
        is_forked = False  # it was, from a fork server, and its notebook is not known yet
        for each in self._table.lineage(process):
            if job := _job(each):
                return job
            if is_forked and not _is_forked(each):
                break
            if kernel is None or is_forked:
                kernel, is_forked = _kernel(each) or kernel, _is_forked(each)
            elif notebook := _notebook_in(each):
                kernel = replace(kernel, notebook=notebook)
            if kernel and (kernel.notebook or kernel.kernel_id):
                break
        if kernel is None and not _is_forked(process) and (path := process.environment.get("JPY_SESSION_NAME")):
            kernel = Owner("kernel", notebook=harmless(path))
        container = _container(process)
        return replace(kernel or Owner("container" if container else "process"), container=container)

    def _looked_for(
        self, process: GpuProcess, before: tuple[Owner | None, float, float] | None
    ) -> tuple[Owner | None, float, float]:
        now = time.monotonic()
        if before and now - before[2] < max(AGAIN_SECONDS, before[2] - before[1]):
            return before
        table, pid = self._table, process.local_pid
        entry = table.by_driver(process.pid) if pid is None else table.here(pid)
        return self._owner_of(entry) if entry else None, before[1] if before else now, now


class LabSource(Source):
    """Knows the kernels of a Jupyter server; it must run in the server's own process."""

    def __init__(self, kernels: Callable[[], Sequence[Mapping[str, Any]]], root: Path | None = None) -> None:
        """Begin with no kernels.

        Args:
            kernels: returns the server's kernels, each with pid, kernel_id, notebook (its path now), kernel_name, state
                and idle_seconds; what is unknown is None or missing.
            root: of the host; None for the one that the environment names.
        """
        self._kernels = kernels
        self._table = Table(root or system_root())
        self._by_pid: dict[int, Mapping[str, Any]] = {}
        self._chains: dict[Key, tuple[int, ...]] = {}
        self._before: dict[Key, tuple[int, ...]] = {}
        self._is_told = False

    def begin(self) -> None:
        """Ask the server for its kernels."""
        self._by_pid = {kernel["pid"]: kernel for kernel in self._kernels() if kernel.get("pid")}
        self._before, self._chains = self._chains, {}
        self._table.forget()
        self._is_told = True

    def owner(self, process: GpuProcess) -> Owner | None:
        """Return the kernel that a process is, or that has started it; None if it is not a kernel of this server."""
        if not self._is_told:
            self.begin()
        if process.local_pid is None:
            return None
        key = (process.pid, process.local_pid, process.started_seconds)
        chain = self._chains.get(key, self._before.get(key))
        if chain is None:
            chain = self._chain(process.local_pid)
        self._chains[key] = chain
        kernel = next((self._by_pid[pid] for pid in chain if pid in self._by_pid), None)
        return None if kernel is None else _of_server(kernel)

    def _chain(self, pid: int) -> tuple[int, ...]:
        """Return a process and its parents up to a job, which is its own master wherever it was started."""
        first = self._table.here(pid)
        pids: list[int] = []
        for each in self._table.lineage(first) if first else ():
            if each.pid not in self._by_pid and _job(each):
                return tuple(pids)
            pids.append(each.pid)
        if first and first.session:
            pids.append(first.session)  # a kernel leads the session of what has left its parents
        return tuple(pids)


def merged(found: Sequence[Owner]) -> Owner:
    """Return what several sources know together; the first is believed, the others add what it does not know."""
    first = found[0] if found else Owner("process")
    for other in found[1:]:
        if other.kind == first.kind:
            unknown = {name: value for name, value in vars(other).items() if getattr(first, name) is None}
            first = replace(first, **unknown)
        elif first.container is None and other.container:
            first = replace(first, container=other.container)
    return first


def _is_settled(owner: Owner | None) -> bool:
    """Return whether this is final, and not read before a note was written."""
    return owner is not None and (owner.kind == "job" or owner.notebook is not None)


def _of_server(kernel: Mapping[str, Any]) -> Owner:
    return Owner(
        "kernel",
        notebook=kernel.get("notebook"),
        kernel_id=kernel.get("kernel_id"),
        kernel_name=kernel.get("kernel_name"),
        kernel_state=kernel.get("state"),
        idle_seconds=kernel.get("idle_seconds"),
    )


def _is_forked(process: Process) -> bool:
    """Return whether it is a fork server, or was forked from one and has its command and environment."""
    return any(word.endswith(FORK_SERVERS) for word in process.command[1:3])


def _job(process: Process) -> Owner | None:
    """Return the job in a process's environment."""
    environment = process.environment
    if _is_forked(process):
        token = environment.get("ROCMLAB_JOB", "")
        note = _runners_note(process, token) if TOKEN.fullmatch(token) else {}
    else:
        variables = {"notebook": "ROCMLAB_NOTEBOOK", "run": "ROCMLAB_RUN", "job": "ROCMLAB_JOB_NAME"}
        note = {name: harmless(environment[long]) for name, long in variables.items() if long in environment}
    if not note.get("run"):
        return None
    container = _container(process)
    return Owner("job", notebook=note.get("notebook"), run=note["run"], job=note.get("job"), container=container)


def _runners_note(process: Process, token: str) -> dict[str, str]:
    for folder in dict.fromkeys((process.environment.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp")):
        place = process.path(os.path.normpath(folder))  # no way up leads out of a container
        found = names(place, f"{NOTE_FOLDER}{token}") if folder.startswith("/") else []
        for name in found[:MAX_NOTES]:
            is_folder = stat.S_ISDIR(_mode(f"{place}/{name}"))
            if note := _texts(f"{place}/{name}/{NOTE}") if is_folder else {}:
                return note
    return {}


def _mode(path: str) -> int:
    """Return of what kind a file is, links not followed; 0 if it is not there."""
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError):
        return 0


def _kernel(process: Process) -> Owner | None:
    """Return the kernel that a process is, by its command or its job token."""
    if _is_forked(process):
        is_kernel = TOKEN.fullmatch(process.environment.get("ROCMLAB_JOB", ""))
        return Owner("kernel", notebook=_lease_note(process)) if is_kernel else None
    command = process.command
    identity = next((found["id"] for word in command if (found := CONNECTION.search(word))), None)
    if identity is None and not any(word.startswith("ipykernel") for word in command[1:6]):
        return None
    path = process.environment.get("JPY_SESSION_NAME")
    return Owner("kernel", notebook=path and harmless(_shown(path, process)), kernel_id=identity)


def _lease_note(process: Process) -> str | None:
    """Return the notebook whose lease this process holds."""
    note = next((name for name in process.files.values() if lease_folder.NOTE.search(name)), None)
    return _texts(process.path(note)).get("notebook") if note else None


def _texts(path: str) -> dict[str, str]:
    """Return the texts in a small file of JSON, which anybody may have written; none if there is no such file."""
    try:
        text = read_file(path, NOTE_BYTES + 1)
        found = json.loads(text) if len(text) <= NOTE_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: harmless(text) for name, text in found.items() if isinstance(text, str)}


def harmless(text: str) -> str:
    """Return a text of another user, cut, and with a mark for what steers a terminal or the direction of writing."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", text[:TEXT_LENGTH])


def _shown(path: str, kernel: Process) -> str:
    """Return a notebook's path as its server shows it: below the folder in which the server works."""
    server = kernel
    while server.command == kernel.command and server.parent_pid > 0:  # a fork of a kernel has its command
        server = Process(f"{os.path.dirname(kernel.folder)}/{server.parent_pid}", server.parent_pid)
    folder = server.working_folder
    return path.removeprefix(f"{folder}/") if folder else path


def _notebook_in(process: Process) -> str | None:
    """Return the first notebook that a command names, such as papermill's."""
    word = next((word for word in process.command[1:] if word.endswith(".ipynb")), None)
    return word and harmless(os.path.join(process.working_folder or "", word))


def _container(process: Process) -> str | None:
    """Return the container of a process, unless this process is in the same."""
    return None if process.container == own_container() else process.container
