"""The user's packages of this lab's kernels: where they are, and whether this image has them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab.base import installation
from rocmlab.base.errors import RocmlabError
from rocmlab.kernels import kernelspec
from rocmlab.lab import offers
from rocmlab.packages import base_packages, declared, installing, inventory, overlays, requested
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement


def places(environment: Mapping[str, str]) -> dict[str, Place]:
    """Return where the packages of each of our kernels are, by kernel; empty without a share."""
    specs = offers.plain(offers.base_folder())
    found = {name: overlays.of_specification(spec, environment.get(overlays.SHARE)) for name, spec in specs.items()}
    return {name: place for name, place in found.items() if place}


def place(kernel: str, environment: Mapping[str, str], say: Callable[[str], None]) -> Place:
    """Return where the packages of a kernel are, once the kernel can start.

    Raises:
        RocmlabError: the lab has no such kernel, or no share.
    """
    installation.wait(Path(sys.prefix), say)
    if found := places(environment).get(kernel):
        return found
    spec = offers.plain(offers.base_folder()).get(kernel)
    why = (kernelspec.absence(spec) if spec else None) or "this environment has no share (ROCMLAB_SHARE)"
    raise RocmlabError(f"the kernel {kernel} cannot have packages of its own here", why, "make up; make kernels")


def ready(environment: Mapping[str, str], say: Callable[[str], None]) -> list[Place]:
    """Return where the packages of all kernels are, once these can start."""
    installation.wait(Path(sys.prefix), say)
    return list(places(environment).values())


def wanted(environment: Mapping[str, str]) -> dict[str, tuple[Requirement, ...]]:
    """Return what is declared next to the notebooks, by kernel.

    Raises:
        RocmlabError: it cannot be read.
    """
    notebooks = environment.get("ROCMLAB_NOTEBOOKS")
    return declared.by_kernel(places(environment), Path(notebooks)) if notebooks else {}


def states(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return of each kernel what the user wants, what of it is there, and the command where that differs."""
    try:
        by_kernel = wanted(environment)
    except RocmlabError as err:
        return [_state(each, None, str(err)) for each in places(environment).values()]
    return [_state(each, by_kernel.get(each.kernel, ())) for each in places(environment).values()]


def _state(found: Place, wanted: Sequence[Requirement] | None, problem: str = "") -> dict[str, Any]:
    try:
        listed, prefix = requested.read(found.share, found.kernel), found.current()
    except RocmlabError as err:
        none: dict[str, Any] = {"kernel": found.kernel, "packages": [], "missing": [], "hides": []}
        return none | {"reasons": [f"{err.problem.what} ({err.problem.fix})"], "is_synchronised": False, "fix": ""}
    known = [each for each in listed if each.declared_in] if wanted is None else wanted
    state = inventory.state_of(found.kernel, prefix, listed, known)
    own = base_packages.installed(overlays.site_of(prefix)) if prefix else {}
    labs: dict[str, str] = {}
    for site in overlays.sites(found.python):
        labs |= base_packages.installed(site)
    versions = {**labs, **own}
    hides = sorted(installing.hidden(own, labs).items())
    return {
        "kernel": found.kernel,
        "packages": [
            {
                "name": each.name,
                "requirement": each.text,
                "version": None if each.text in state.missing else versions.get(each.name),
                "declared_in": each.file or None,
            }
            for each in listed
        ],
        "missing": list(state.missing),
        "hides": [f"{name} {version} hides the lab's {lab}" for name, (lab, version) in hides],
        "reasons": [*state.reasons, *([problem.splitlines()[0]] if problem else [])],
        "is_synchronised": state.is_synchronised,
        "fix": "" if state.is_synchronised else f"rocmlab packages sync --kernel {found.kernel}",
    }
