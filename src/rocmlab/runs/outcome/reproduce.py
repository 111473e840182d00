"""The versions of an earlier run, for the kernels of a run that reproduces it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmlab.base import safe
from rocmlab.base.errors import RocmlabError
from rocmlab.kernels import kernelspec
from rocmlab.packages import installing, overlays, protection, recorded
from rocmlab.packages.overlays import Place
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.outcome import resume

log = logging.getLogger("rocmlab")

NOT_COMPARED = ("ipykernel",)  # the lab's own part of a kernel


def variables(folder: Path, share: Path, *, is_dry: bool = False) -> dict[str, str]:
    """Return the environment with which our kernels have the versions that a run recorded.

    Args:
        folder: of the run.
        share: where overlays are made.
        is_dry: whether nothing may be installed: what the lab lacks is reported all the same.

    Raises:
        RocmlabError: versions are not known or cannot be installed; each is named.
    """
    session = resume.read(RunFolder(folder))
    names = {each.result.environment for each in session.entries.values() if each.result and each.result.environment}
    if not names:
        raise RocmlabError(
            f"{folder.name} cannot be reproduced",
            "it does not have the versions of its packages: an older rocmlab made it, a cluster did, or nothing ran",
            "run its notebooks again without --reproduce",
        )
    found: dict[str, tuple[Place, dict[str, str]]] = {}
    problems: list[str] = []
    for name in sorted(names):
        then = _read(folder, name)
        try:
            own = kernelspec.find(then["kernel"]).specification
        except LookupError:  # NoSuchKernel is one
            problems.append(f"its kernel {then['kernel']} is not installed")
            continue
        python = kernelspec.interpreter(own)
        place = overlays.of_specification(own, str(share))
        lab = recorded.content(then["kernel"], place.python if place else python, None, None)
        differ = {each: text for each, text in then["packages"].items() if lab["packages"].get(each) != text}
        for each in NOT_COMPARED:
            differ.pop(each, None)
        problems += _problems(then, lab, differ, is_ours=place is not None)
        if place and found.setdefault(place.kernel, (place, differ))[1] != differ:
            problems.append(f"{then['kernel']}: its packages changed during that run, so it has two sets of versions")
    if problems:
        raise RocmlabError(
            f"{folder.name} cannot be reproduced with exactly its versions",
            "\n".join(dict.fromkeys(problems)),
            "start the lab with the image of that run (make rollback, or its version), or run it without --reproduce",
        )
    return {overlays.PINNED + name: _overlay(*each, is_dry=is_dry) for name, each in found.items()}


def _read(folder: Path, name: str) -> dict[str, Any]:
    """Return an environment of a run's folder, which anyone may have written."""
    try:
        if not recorded.NAME.fullmatch(name):
            raise ValueError(f"{safe.shown(name)} is not the name of such a file")
        with safe.reading(folder / name) as file:
            found = json.load(file)
        texts = [found["kernel"], *found["packages"], *found["packages"].values(), *found["own"]]
        texts += [found["python"] or "unknown"]
        if not isinstance(found["editable"], dict) or not all(
            isinstance(each, str) and recorded.PLAIN.fullmatch(each) for each in texts
        ):
            raise ValueError("a name or a version is not one")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as err:
        what = f"the versions of {folder.name} cannot be read"
        raise RocmlabError(what, str(err), "run its notebooks again without --reproduce") from err
    return dict(found)


def _problems(
    then: Mapping[str, Any], lab: Mapping[str, Any], differ: Mapping[str, str], *, is_ours: bool
) -> list[str]:
    """Return which versions the current kernel cannot have, a line each."""
    kernel, python = then["kernel"], str(then["python"] or "")
    here = str(lab["python"] or "")
    if python.split(".")[:2] != here.split(".")[:2]:
        return [f"{kernel}: it ran with Python {python or '(unknown)'}, and the kernel has {here or '(unknown)'}"]
    found = [
        f"{kernel}: the package in {safe.shown(name, 100)} is editable: its code then is not kept"
        for name in then["editable"]
    ]
    for name, version in differ.items():
        if is_ours and (name in then["own"] or not protection.is_protected(name)):
            continue
        own = lab["packages"].get(name)
        found.append(f"{kernel}: it ran with {name} {version}, and the lab has {own or 'none'}")
    return found


def _overlay(place: Place, versions: Mapping[str, str], *, is_dry: bool) -> str:
    if not versions or is_dry:
        return ""
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()[:12]
    own = Place(place.share, f"{place.kernel}@{digest}", place.python)
    return os.fspath(installing.exactly(own, versions, log.warning))
