"""The user's packages of this lab's kernels: where they are, and whether this image has them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rocmlab.base import installation
from rocmlab.base.errors import RocmlabError
from rocmlab.kernels import kernelspec
from rocmlab.lab import offers
from rocmlab.packages import base_packages, installing, overlays, requested
from rocmlab.packages.overlays import Place


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


def states(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return of each kernel what the user wants, what of it is there, and the command where that differs."""
    return [_state(each) for each in places(environment).values()]


def _state(found: Place) -> dict[str, Any]:
    listed, prefix = requested.read(found.share, found.kernel), found.current()
    state = installing.state_of(found.kernel, prefix, listed)
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
            }
            for each in listed
        ],
        "missing": list(state.missing),
        "hides": [f"{name} {version} hides the lab's {lab}" for name, (lab, version) in hides],
        "is_synchronised": state.is_synchronised,
        "fix": "" if state.is_synchronised else f"rocmlab packages sync --kernel {found.kernel}",
    }
