"""Kernels of JupyterLab that are forked from a parent which has imported the framework: see docs/warm.md.

The first kernel of a kind starts cold, and a parent for the next ones is started behind it. Whatever speaks against a
fork is logged as `cold start: <reason>`, and the kernel starts in the ordinary way.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmlab.base import live
from rocmlab.kernels import forkserver

log = logging.getLogger("rocmlab")

SETTING = "WARM_KERNELS"
ANSWER_SECONDS = 15.0
UNKNOWN_END = -int(signal.SIGKILL)  # of a kernel whose parent ended before it could tell


class WarmProcess:
    """A forked kernel, as far as jupyter_client uses a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, forked: forkserver.Forked) -> None:
        self.pid = forked.pid
        self.returncode: int | None = None
        self._forked = forked

    def poll(self) -> int | None:
        """Return how it ended, None as long as it lives; what it forked ends with it."""
        if self.returncode is None and self._forked.ended():
            code = self._forked.exit_code()
            self._forked.close()
            self.returncode = UNKNOWN_END if code is None else code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended.

        Raises:
            TimeoutExpired: it lives on.
        """
        self._forked.ended(86400.0 if timeout is None else timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"the kernel {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to it and what it forked."""
        if self.returncode is None:
            self._forked.signal(number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


@dataclass
class Nest:
    """A parent and the kernels that it has forked here."""

    key: str
    parent: forkserver.Parent
    has_served: bool = False
    forks_under_way: int = 0
    kernels: list[WarmProcess] = field(default_factory=list)

    def close_if_empty(self) -> bool:
        """End the parent, which would end its kernels too, unless one of them lives or is on its way."""
        self.kernels = [kernel for kernel in self.kernels if kernel.poll() is None]
        is_empty = not self.kernels and not self.forks_under_way
        if is_empty:
            self.parent.close()
        return is_empty


class Nests:
    """The parents of one server: one for each kernelspec that was used."""

    def __init__(self) -> None:
        self._current: dict[str, Nest] = {}
        self._retired: list[Nest] = []  # something that is fixed at import has changed since
        self._lock = threading.Lock()  # of all nests, too: kernels are started in threads

    def fork(
        self,
        name: str,
        spec: Mapping[str, Any],
        environment: Mapping[str, str],
        cwd: str,
        file: str,
        descriptors: Sequence[int],
        arguments: Sequence[str],
    ) -> WarmProcess | None:
        """Return a kernel that listens as its connection file says; None if it is to be started cold.

        Args:
            name: of its kernelspec.
            spec: that kernelspec.
            environment: all of its own.
            cwd: where it runs.
            file: its connection file.
            descriptors: of its leases.
            arguments: more words for ipykernel's command line.
        """
        modules = forkserver.modules_for(name, spec)
        if not modules or sys.platform != "linux" or live.get(SETTING) == "off":
            return None
        wanted = (name, str(spec["argv"][0]), modules, environment, Path(file).parent)
        with self._reserved(*wanted) as (nest, reason):
            if not reason and not nest.parent.ready(0):
                reason = nest.parent.why or "the warm parent still imports"
            if not reason:
                try:
                    forked = forkserver.fork(
                        nest.parent.address,
                        cwd=cwd,
                        environment=environment,
                        descriptors=descriptors,
                        output=2,
                        connection=json.loads(Path(file).read_text(encoding="utf-8")),
                        connection_file=file,
                        arguments=arguments,
                        answer_seconds=ANSWER_SECONDS,
                    )
                except forkserver.Refused as err:
                    reason = str(err)
                else:
                    return self._added(nest, forked)
        if nest.parent.why:
            with self._lock:
                self._nest(*wanted)  # another, for the next kernel
        log.info("%s: cold start: %s", name, reason)
        return None

    @contextlib.contextmanager
    def _reserved(
        self, name: str, python: str, modules: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> Iterator[tuple[Nest, str | None]]:
        """Keep the parent for a kernel open meanwhile, even if another thread puts a new one in its place."""
        with self._lock:
            nest, reason = self._nest(name, python, modules, environment, folder)
            nest.forks_under_way += 1
        try:
            yield nest, reason
        finally:
            with self._lock:
                nest.forks_under_way -= 1

    def _added(self, nest: Nest, forked: forkserver.Forked) -> WarmProcess:
        process = WarmProcess(forked)
        with self._lock:
            nest.kernels.append(process)
            nest.has_served = True
        return process

    def _nest(
        self, name: str, python: str, modules: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> tuple[Nest, str | None]:
        """Return the parent for a kernel, and why it cannot serve. It is started, and replaced, where needed.

        One that failed before it could serve is not tried again: it would fail at each start of a kernel. Whoever calls
        this has the lock.
        """
        key = forkserver.key(python, modules, environment)
        self._retired = [nest for nest in self._retired if not nest.close_if_empty()]
        nest = self._current.get(name)
        reason = nest.parent.why if nest else "it is the first of its kind"
        if nest and nest.key == key and not (reason and nest.has_served):
            return nest, reason
        old, nest = nest, Nest(key, forkserver.start(python, modules, environment, folder))
        if old and not old.close_if_empty():
            self._retired.append(old)
        self._current[name] = nest
        return nest, reason or "something that is fixed when the framework is imported has changed"

    def close(self) -> None:
        """End all parents and their kernels."""
        with self._lock:
            nests = (*self._current.values(), *self._retired)
            self._current, self._retired = {}, []
        for nest in nests:
            with contextlib.suppress(OSError):
                nest.parent.close()


NESTS = Nests()
atexit.register(NESTS.close)  # the server ends its kernels before
