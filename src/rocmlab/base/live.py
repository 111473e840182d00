"""Settings that change without a restart: `make up` writes them to a small file, and the lab reads it at each use.

The file is in a folder of its own, which a container sees read-only: Compose and Podman compare the mount and not the
content, so a change does not make them another container. Where the file has no value, the environment counts, for
example that of a plain `docker run -e`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

NAMES = (
    "CULL_IDLE_GPU_KERNELS_SECONDS",
    "GPU_METRICS_NAMES",
    "IDLE_GPU_WARNING_SECONDS",
    "MIN_FREE_DISK_GB",
    "PRICE_PER_GPU_HOUR",
    "PRICE_PER_KWH",
    "RECORD_GPUS",
    "RECORD_OUTPUTS",
    "WARM_KERNELS",
)
VARIABLE = "ROCMLAB_LIVE"  # in a lab: the path of the file
GIVEN = "ROCMLAB_GIVEN"  # of a single run: what was given with its command, as JSON, which counts more than the file
INSIDE = "/run/rocmlab/live"  # the folder, in a container
FILE = "settings.json"
CONTAINERS = ("docker", "podman")

_seen: tuple[Path, tuple[int, int, int], dict[str, str]] | None = None  # the file as it was read last


def values(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return these settings as they are now, in the lab; a name that is set nowhere is omitted.

    The file is read again only when it has changed: a look costs one `stat`.
    """
    global _seen
    environment = os.environ if environment is None else environment
    found = {name: environment[name] for name in NAMES if name in environment}
    given = _settings(environment[GIVEN]) if GIVEN in environment else {}
    path = path_of(environment)
    if path is None:
        return found | given
    try:
        state = path.stat()
    except OSError:
        return found | given
    version = (state.st_mtime_ns, state.st_ino, state.st_size)
    if _seen is None or _seen[:2] != (path, version):
        _seen = (path, version, read(path))
    return found | _seen[2] | given


def get(name: str) -> str:
    """Return one of these settings as it is now, in the lab; empty if it is set nowhere."""
    return values().get(name, "")


def path_of(environment: Mapping[str, str]) -> Path | None:
    """Return the file of the lab that this process is in; None outside of a lab."""
    if chosen := environment.get(VARIABLE):
        return Path(chosen)
    is_inside = environment.get("ROCMLAB_RUNTIME") in CONTAINERS
    return Path(INSIDE, FILE) if is_inside else None


def read(path: Path) -> dict[str, str]:
    """Return the settings in the file; nothing where it is missing or damaged."""
    try:
        return _settings(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _settings(text: str) -> dict[str, str]:
    """Return those of these settings that a JSON object has; nothing where it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name in NAMES if isinstance(value := found.get(name), str)}
