"""The level above work/ and share/ in JupyterLab: nothing is saved there, because nothing there persists."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tornado.web import HTTPError

TOP = "/home/jovyan"  # of the image


def is_ours(environment: Mapping[str, str]) -> bool:
    """Return whether the top level only shows work/ and share/; a hub mounts a home that persists in its place."""
    runtime = environment.get("ROCMLAB_RUNTIME")
    return runtime == "native" or (runtime in ("docker", "podman") and not os.access(TOP, os.W_OK))


def reject(*, path: str, **_: object) -> None:
    """Reject a save at the top level with status 403, which JupyterLab shows; the folder's mode would not stop root."""
    name = path.strip("/")
    if "/" not in name:
        raise HTTPError(
            403,
            f"{name} was not saved: this level holds only work/ and share/, and anything else in it would be lost. "
            "Open the folder work (or share) and save it there; what you typed is still in the browser.",
        )
