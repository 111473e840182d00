"""An extension of IPython, in our kernels: what `%pip install` has added can be imported without a restart.

It runs in the kernel's own interpreter and imports the standard library alone. What is imported already stays as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import site
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from rocmlab.packages import overlays

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

_locks: list[int] = []  # of the overlays whose files this kernel may still read


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401  IPython has no types for mypy
    """Keep the overlay that this kernel runs from, and look for another one after each command and failed import."""
    if (prefix := Path(sys.prefix)).joinpath(overlays.RECORD).exists():
        _keep(prefix)
    place = overlays.of_environment(os.environ)
    if place is None:
        return
    follower = Follower(place, sys.path)
    shell.system = follower.after(shell.system)
    sys.meta_path.append(follower)


class Follower:
    """Follows the overlay in use: it is also the last finder, for modules that no one else finds."""

    def __init__(self, place: overlays.Place, path: list[str]) -> None:
        self._place = place
        self._path = path
        self._prefix = Path(sys.prefix)
        self._own: Path | None = None  # the key of the lab's packages, which stay as they are as long as this process

    def after(self, system: Callable[[str], Any]) -> Callable[[str], Any]:
        """Return what runs a command, and then looks."""

        def run(command: str) -> Any:  # noqa: ANN401
            try:
                return system(command)
            finally:
                self.look()

        return run

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a top-level module that was installed since the kernel started."""
        return PathFinder.find_spec(name, path, target) if path is None and self.look() else None

    def look(self) -> bool:
        """Use the overlay in use now; return whether it is another one than before."""
        if self._own is None and not self._place.is_there():
            return False
        self._own = self._own or self._place.own
        prefix = overlays.current_in(self._own)
        if prefix is None or prefix == self._prefix:
            return False
        _keep(prefix)
        added, before = str(overlays.site_of(prefix)), list(self._path)
        site.addsitedir(added)  # with its editable installations
        new = [each for each in self._path if each not in before]
        old = {str(each) for each in self._prefix.glob("lib/python3*/site-packages")} if self._is_overlay() else set()
        rest = [each for each in before if each not in old]
        bases = {str(each) for each in overlays.sites(self._place.python)}
        first = next((n for n, each in enumerate(rest) if os.path.realpath(each) in bases), len(rest))
        self._path[:] = [*rest[:first], *new, *rest[first:]]
        os.environ["PATH"] = overlays.path_with(prefix, os.environ.get("PATH", ""))
        self._prefix = prefix
        importlib.invalidate_caches()
        return True

    def _is_overlay(self) -> bool:
        return (self._prefix / overlays.RECORD).exists()


def _keep(prefix: Path) -> None:
    """Have an overlay stay as long as this process: modules that are imported later are in it."""
    try:
        descriptor = os.open(prefix / overlays.IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    except OSError:
        return  # a share that cannot be written has no installations either
    _locks.append(descriptor)
    with contextlib.suppress(OSError):  # a file system without locks, from which nothing is removed
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
