"""How much a pull downloads, from the image's manifest in its registry."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from typing import Any

from rocmlab.stack import envfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # of this machine: as registries call it


def layers(read: Callable[[str], str], image: str) -> dict[str, int]:
    """Return the compressed bytes of each layer of an image, by digest, for this machine's platform.

    Empty if the registry does not tell. `read` returns the manifest of an image by its name, or an empty string.
    """
    manifest = envfile.json_object(read(image))
    listed = manifest.get("manifests")
    if isinstance(listed, list):
        wanted = ARCHITECTURES.get(platform.machine(), platform.machine())
        fitting = [each.get("digest") for each in listed if _is_for(each, wanted)]
        manifest = envfile.json_object(read(f"{repository(image)}@{fitting[0]}")) if fitting else {}
    found = manifest.get("layers")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        return {}
    return {str(each.get("digest")): size for each in found if isinstance(size := each.get("size"), int)}


def repository(image: str) -> str:
    """Return an image's name without tag and digest; a registry's port is no tag."""
    return re.sub(r":[^:/]+$", "", image.partition("@")[0])


def _is_for(entry: Any, architecture: str) -> bool:  # noqa: ANN401  any JSON value
    found = entry.get("platform") if isinstance(entry, Mapping) else None
    return isinstance(found, Mapping) and (found.get("os"), found.get("architecture")) == ("linux", architecture)
