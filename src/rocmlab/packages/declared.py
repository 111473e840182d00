"""Requirements that are declared next to the notebooks: `requirements.txt`, or the dependencies of `pyproject.toml`.

The places are repo2docker's: a folder `binder` or `.binder` has them all, if there is one. `sync` takes them into the
list of each kernel; until then they are reported as not installed.
"""

from __future__ import annotations

import hashlib
import importlib
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import base_packages, overlays, protection, requested
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement

FOLDERS = ("binder", ".binder")
REQUIREMENTS, PROJECT = "requirements.txt", "pyproject.toml"
MAX_BYTES = 4_000_000  # with hashes, hundreds of packages are a megabyte
TOML = "tomllib" if sys.version_info >= (3, 11) else "tomli"  # the lab's environment has the second for Python 3.10


@dataclass(frozen=True)
class Difference:
    """What a kernel's list and the declaration do not have in common."""

    new: tuple[Requirement, ...] = ()
    gone: tuple[Requirement, ...] = ()  # declared when the list was installed, and no longer

    @property
    def reasons(self) -> list[str]:
        """One line each."""
        texts = {"declared in {}, not installed": self.new, "no longer declared in {}": self.gone}
        return [
            f"{', '.join(each.text for each in found)} {text.format(found[0].file)}"
            for text, found in texts.items()
            if found
        ]


def folder_of(notebooks: Path) -> Path:
    """Return where declarations are."""
    return next((found for name in FOLDERS if (found := notebooks / name).is_dir()), notebooks)


def read(notebooks: Path) -> tuple[Requirement, ...]:
    """Return what is declared.

    Raises:
        RocmlabError: a file cannot be read.
    """
    folder = folder_of(notebooks)
    path = next((found for name in (REQUIREMENTS, PROJECT) if (found := folder / name).is_file()), None)
    if path is None:
        return ()
    try:
        text = content(path)
        if path.name == REQUIREMENTS:
            texts = requested.of_file(str(path), folder)
        else:
            texts = importlib.import_module(TOML).loads(text).get("project", {}).get("dependencies", [])
            if not isinstance(texts, list) or not all(isinstance(each, str) and each[:1].isalnum() for each in texts):
                raise ValueError("[project] dependencies is not a list of requirements")
    except (OSError, ValueError, AttributeError) as err:
        raise RocmlabError(f"{path} cannot be read", str(err), "correct or remove this file") from err
    # A file that is installed whole is its content: its name alone would not change
    digest = f"#{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return tuple(Requirement(each, declared_in=path.name + digest * each.startswith("-r ")) for each in texts)


def content(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file next to the notebooks; raise OSError, or ValueError if it is not a small text file."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > max_bytes:
        raise ValueError(f"it is not a file of at most {max_bytes // 1000} kB")
    return path.read_text(encoding="utf-8")


def by_kernel(places: Mapping[str, Place], notebooks: Path) -> dict[str, tuple[Requirement, ...]]:
    """Return what is declared for each kernel: all of it, but a framework for those that have it, if any has.

    Raises:
        RocmlabError: a file cannot be read.
    """
    found = read(notebooks)
    labs = {name: _names(place) for name, place in places.items()} if found else {}
    return {name: tuple(each for each in found if name in _kernels(each.name, labs)) for name in places}


def _names(place: Place) -> set[str]:
    return {name for site in overlays.sites(place.python) for name in base_packages.installed(site)}


def _kernels(name: str, labs: Mapping[str, set[str]]) -> set[str]:
    """Return for which kernels a package is."""
    framework = protection.COMPANIONS.get(name, name)
    have = {kernel for kernel, names in labs.items() if names & ({framework} | protection.twins(framework))}
    return have if have and protection.is_protected(framework) else set(labs)


def difference(listed: Iterable[Requirement], declared: Iterable[Requirement]) -> Difference:
    """Return what `sync` would add and remove; what the user added counts for a declaration of the same package."""
    own = {each.name for each in listed if not each.declared_in}
    safe = [requested.without_secrets(each) for each in declared]
    there = {(each.text, each.declared_in) for each in listed if each.declared_in}
    known = {(each.text, each.declared_in) for each in safe}
    new = tuple(each for each in safe if each.name not in own and (each.text, each.declared_in) not in there)
    return Difference(
        new, tuple(each for each in listed if each.declared_in and (each.text, each.declared_in) not in known)
    )


def merged(listed: Sequence[Requirement], declared: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """Return a list with what is declared now; what the user added stays as it is."""
    names = {(each.text, each.declared_in): each.package for each in listed}
    found = [replace(each, package=names.get((each.text, each.declared_in), "")) for each in declared]
    return requested.with_added(found, (each for each in listed if not each.declared_in))
