"""Absolute paths of notebooks as the server shows them: jobs of the runner have those of the file system.

All of it looks at the file system, and may block.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rocmlab.telemetry.model import GpuProcess


class Shown:
    """The folder that a server shows, and what the links in it lead to."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.abspath(folder)

    def name(self, path: str) -> str:
        """Return a notebook's path as JupyterLab shows it; as it is, if it is not below what the server shows."""
        if not os.path.isabs(path):
            return path
        places = list(self._places())
        for each in dict.fromkeys((os.path.normpath(path), os.path.realpath(path))):
            for place, name in places:
                if each.startswith(place.rstrip("/") + "/"):
                    return os.path.join(name, os.path.relpath(each, place))
        return path

    def of_processes(self, processes: Sequence[GpuProcess]) -> list[GpuProcess]:
        """Return processes whose owners have paths as the server shows them; another container has its own files."""
        return [
            replace(each, owner=replace(each.owner, notebook=self.name(each.owner.notebook)))
            if each.owner and each.owner.notebook and not each.owner.container
            else each
            for each in processes
        ]

    def of_lease(self, notebook: str | None, host: str | None) -> str | None:
        """Return a lease's notebook as the server shows it, where the lease was taken on this host."""
        return self.name(notebook) if notebook and host in (None, socket.gethostname()) else notebook

    def _places(self) -> Iterator[tuple[str, str]]:
        """Yield folders and what they are called; links first, because their targets may lie below the folder."""
        try:
            with os.scandir(self._folder) as entries:
                links = sorted(entry.name for entry in entries if entry.is_symlink() and entry.is_dir())
        except OSError:
            links = []
        targets = {os.path.realpath(os.path.join(self._folder, name)): name for name in reversed(links)}
        yield from sorted(targets.items(), key=lambda found: -len(found[0]))
        yield self._folder, ""
        yield os.path.realpath(self._folder), ""
