"""Where a kernel's own packages are: an overlay, a virtual environment on the share over the lab's packages.

Each start of a kernel looks here, so this imports little. Without an overlay that is one `stat`.

An overlay belongs to one interpreter with one set of packages, so after an upgrade there is none until `sync`. It is
never changed: an installation makes another one next to it, and then `current` leads there.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base.errors import RocmlabError

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any

CACHE = "cache/packages"  # on the share: overlays and wheels, which `sync` makes again
CURRENT = "current"
IN_USE = "in-use"  # in an overlay: kernels that run from it have its lock
RECORD = "rocmlab-overlay.json"  # in an overlay: what it was made from
SITES = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages")
INFORMATION = (".dist-info", ".egg-info")
NAME = "%Y-%m-%dT%H%M%S.%fZ"  # of an overlay: when it was made
OWN = "rocmlab-"  # its own version is no reason to install a user's packages again
HOOK = "rocmlab-pip"  # next to rocmlab's own interpreter, see `packages.pip`

SHARE = "ROCMLAB_SHARE"
PINNED = "ROCMLAB_OVERLAY_"  # and the kernel: in a run that reproduces another, the overlay; empty: none
KERNEL = "ROCMLAB_KERNEL"  # in a kernel: which of ours it is
PYTHON = "ROCMLAB_KERNEL_PYTHON"  # in a kernel: the lab's interpreter, below the overlay


@dataclass(frozen=True)
class Place:
    """Where one kernel's overlays are."""

    share: Path
    kernel: str  # `torch` or `tensorflow`
    python: str  # the lab's interpreter for it

    @property
    def folder(self) -> Path:
        """Of the overlays over any interpreter."""
        return self.share / CACHE / self.kernel

    @property
    def own(self) -> Path:
        """Of the overlays over this interpreter, as its packages are now."""
        return self.folder / key(self.python)

    def current(self) -> Path | None:
        """Return the overlay in use; None if there is none over this interpreter."""
        return current_in(self.own) if self.is_there() else None

    def is_there(self) -> bool:
        """Return whether there may be overlays; also no, without an error, where the share does not answer."""
        return os.path.isdir(self.folder)


def current_in(own: Path) -> Path | None:
    """Return the overlay in use among those over one interpreter; None if there is none."""
    try:
        name = os.readlink(own / CURRENT)
    except OSError:
        return None
    prefix = own / name
    return prefix if is_name(name) and _is_own(prefix) and os.path.exists(prefix / "bin/python") else None


def is_name(text: str) -> bool:
    """Return whether this is the name of an overlay, `2026-11-25T042801.281224Z`: no path, and nothing else's."""
    return "".join("0" if each in "0123456789" else each for each in text) == "0000-00-00T000000.000000Z"


def _is_own(prefix: Path) -> bool:
    try:
        found = os.lstat(prefix)
    except OSError:
        return False
    return is_own(found) and stat.S_ISDIR(found.st_mode)


def is_own(found: os.stat_result) -> bool:
    """Return whether a file is this user's, or root's: on a common share others could leave programs of theirs."""
    return found.st_uid in (os.geteuid(), 0) and not found.st_mode & stat.S_IWOTH


def check_own(path: Path, found: os.stat_result) -> None:
    """Raise RocmlabError if others decide what is in a file that names programs or packages of this user's kernels."""
    if not is_own(found):
        raise RocmlabError(
            f"{path} is not used: it belongs to uid {found.st_uid} and has the mode {found.st_mode & 0o7777:04o}",
            "another user could have programs started as this one",
            f"if it is yours: sudo chown {os.geteuid()} {path} && sudo chmod o-w {path}\n"
            "else use another share: make up SHARE=…",
        )


def of_environment(environment: Mapping[str, str]) -> Place | None:
    """Return the place of the kernel that has this environment; None if it is not one of ours, or has no share."""
    found = [environment.get(name) for name in (SHARE, KERNEL, PYTHON)]
    share, kernel, python = found
    return Place(Path(share), kernel, python) if share and kernel and python else None


def of_specification(specification: Mapping[str, Any], share: str | None) -> Place | None:
    """Return the place of our kernelspec; None if it is another, has no framework, or there is no share."""
    metadata, argv = specification.get("metadata"), specification.get("argv")
    ours = metadata.get("rocmlab") if isinstance(metadata, Mapping) else None
    kernel = ours.get("framework") if isinstance(ours, Mapping) and not ours.get("absent") else None
    return Place(Path(share), kernel, str(argv[0])) if share and argv and isinstance(kernel, str) else None


def in_use(place: Place, environment: Mapping[str, str]) -> Path | None:
    """Return the overlay of kernels with this environment: the current one, unless that names another."""
    pinned = environment.get(PINNED + place.kernel)
    return place.current() if pinned is None else Path(pinned) if pinned else None


def key(python: str) -> str:
    """Return what differs whenever the interpreter or one of its packages does; 0.3 ms."""
    path = os.path.abspath(python)
    parts = [path, os.path.realpath(path)]
    for site in sites(path):
        names = sorted(each for each in os.listdir(site) if each.endswith(INFORMATION) and not each.startswith(OWN))
        parts += [str(site), *names]
    text = "\n".join(parts).encode("utf-8", "surrogateescape")
    return f"{Path(parts[1]).name}-{hashlib.sha256(text).hexdigest()[:12]}"


def sites(python: str) -> list[Path]:
    """Return the folders with the packages of an interpreter, without starting it."""
    prefix = Path(os.path.abspath(python)).parent.parent
    prefixes = [prefix, *([Path("/usr/local")] if prefix == Path("/usr") else [])]
    found = {folder.resolve() for each in prefixes for pattern in SITES for folder in each.glob(pattern)}
    return sorted(each for each in found if each.is_dir())


def applied(specification: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a kernelspec with the overlay's interpreter in the place of the lab's, where there is an overlay.

    Args:
        specification: the kernelspec.
        environment: of its kernel, or what that inherits.
    """
    found = dict(specification)
    place = of_specification(specification, environment.get(SHARE))
    prefix = in_use(place, environment) if place else None
    if prefix is None:
        return found
    own = dict(found.get("env") or {})
    return {
        **found,
        "argv": [str(prefix / "bin/python"), *found["argv"][1:]],
        "env": {**own, "PATH": path_with(prefix, own.get("PATH", "${PATH}"))},
    }


def path_with(prefix: Path, path: str) -> str:
    """Return PATH with an overlay's programs first."""
    return f"{prefix / 'bin'}:{path}"


def hook_of(python: str) -> Path | None:
    """Return the program that pip starts in the place of an interpreter; None where rocmlab is not installed."""
    found = Path(python).parent / HOOK
    return found if found.exists() else None


def site_of(prefix: Path) -> Path:
    """Return the folder with an overlay's packages."""
    return next(iter(prefix.glob("lib/python3*/site-packages")))
