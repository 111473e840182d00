"""The files from which a server reads its tokens, where no engine writes them into a container: `.rocmlab/*-token`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from rocmlab.stack import envfile
from rocmlab.stack.settings import Settings

NAMES = ("JUPYTER_TOKEN", "METRICS_TOKEN")


def path(settings: Settings, name: str) -> Path:
    """Return the file of a token, which is for its owner alone."""
    return settings.state.resolve() / name.lower().replace("_", "-")


def write(settings: Settings, values: Mapping[str, str]) -> None:
    """Write the token files (mode 0400).

    Raises:
        RocmlabError: the folder cannot be written.
    """
    for name in NAMES:
        envfile.write(path(settings, name), values.get(name, ""), mode=0o400)  # no newline: it would be part of it


def digest(values: Mapping[str, str]) -> str:
    """Return what differs when a token does, and reveals nothing about it."""
    return hashlib.sha256("\n".join(values.get(name, "") for name in NAMES).encode()).hexdigest()
