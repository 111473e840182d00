"""The fork servers that a process has started: a server of JupyterLab, a run, or a run's agent on a node."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rocmlab.kernels import forked
from rocmlab.kernels.fork_server import ForkServer
from rocmlab.kernels.recipes import Recipe

log = logging.getLogger("rocmlab")


class ForkServers:
    """Fork servers, one for all kernels that can share it. They end with this process, and their kernels with them."""

    def __init__(self, max_restarts: int | None = None) -> None:
        """Begin with none.

        Args:
            max_restarts: how often each is replaced after it was killed; None: each time if it had forked a kernel.
        """
        self._max_restarts = max_restarts
        self._restarts: Counter[str] = Counter()
        self._served: set[str] = set()  # keys of those that have forked a kernel
        self._servers: dict[str, ForkServer] = {}  # by the key of their recipe
        self._keys: dict[str, str] = {}  # by kernelspec
        self._retired: list[ForkServer] = []  # something that is fixed at import has changed since
        self._lock = threading.Lock()  # JupyterLab starts kernels in threads

    def all(self) -> list[ForkServer]:
        """Return those that were started and not ended."""
        return [*self._servers.values(), *self._retired]

    def find(self, key: str) -> ForkServer | None:
        """Return the one with this key; None if there is none."""
        return self._servers.get(key)

    def get(self, recipe: Recipe, folder: Path) -> ForkServer:
        """Return the one for a recipe, which may still import: a new one if there is none, or if it was killed.

        One whose import failed is not started again: it would fail for each kernel.

        Args:
            recipe: what it is started with.
            folder: where it has its own folder.
        """
        with self._lock:
            found = self._servers.get(recipe.key)
            restarts, most = self._restarts[recipe.key], self._max_restarts
            may_restart = recipe.key in self._served if most is None else restarts < most
            if found and found.why and found.seconds is not None and may_restart:
                self._restarts[recipe.key] += 1
                self._served.discard(recipe.key)
                log.info("%s: the fork server is replaced: %s", recipe.name, found.why)
                found.close()
                found = None
            if found is None:
                found = ForkServer(recipe.python, recipe.modules, recipe.environment, folder)
                self._servers[recipe.key] = found
            return found

    def fork(
        self,
        recipe: Recipe,
        *,
        cwd: str,
        connection_file: str,
        descriptors: Sequence[int],
        arguments: Sequence[str],
        answer_seconds: float,
    ) -> forked.ForkedProcess | None:
        """Return a forked kernel that prints where this process does; None if it has to start cold, which is logged.

        The first kernel starts cold, while the fork server for the next ones imports. For the arguments see
        `rocmlab.kernels.forked.fork`.
        """
        folder = Path(connection_file).parent
        self._retire_unlike(recipe)
        server = self.get(recipe, folder)
        reason = None if server.ready(0) else server.why or "its fork server still imports"
        if not reason:
            try:
                process = forked.fork(
                    server.address,
                    cwd=cwd,
                    environment=recipe.environment,
                    descriptors=descriptors,
                    output=2,
                    connection_file=connection_file,
                    arguments=arguments,
                    answer_seconds=answer_seconds,
                )
            except forked.Refused as err:
                reason = str(err)
                self.get(recipe, folder)  # another, for the next kernel, if it was killed
            else:
                self._served.add(recipe.key)
                return process
        log.info("%s: cold start: %s", recipe.name, reason)
        return None

    def _retire_unlike(self, recipe: Recipe) -> None:
        """Retire the fork server that this kernelspec had before something changed that is fixed at import."""
        with self._lock:
            before, self._keys[recipe.name] = self._keys.get(recipe.name), recipe.key
            for server in [each for each in self._retired if each.why]:
                self._retired.remove(server)
                server.close()
            if before in self._servers and before not in self._keys.values():
                server = self._servers.pop(before)
                server.retire()
                self._retired.append(server)

    def end(self, key: str) -> None:
        """End one and all of its kernels."""
        self._servers.pop(key).close()

    def close(self) -> None:
        """End all of them and their kernels."""
        with self._lock:
            servers = self.all()
            self._servers, self._retired = {}, []
        for server in servers:
            with contextlib.suppress(OSError):
                server.close()
