"""Kernelspecs: how they are found, and the command and environment of a kernel."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from rocmlab.base import confidential
from rocmlab.packages import overlays

OURS = ("local-provisioner", "rocmlab-provisioner")  # ours takes a lease, which a job has already
ONE = 1  # GPU, where there is one; else the CPU: what a kernelspec requests that names no number
WITHOUT_HISTORY = "--HistoryManager.hist_file=:memory:"  # a shared history file locks out others
EXTENSIONS = (  # of IPython
    "--InteractiveShellApp.extra_extensions=rocmlab.packages.in_kernel",  # what `%pip install` adds can be imported
    "--InteractiveShellApp.extra_extensions=rocmlab.telemetry.in_kernel",  # `%%gpu` and `%gpu`
)

Specification = dict[str, Any]


@dataclass(frozen=True)
class Kernelspec:
    """A kernelspec, found once and passed on to whatever starts its kernel."""

    name: str  # by which it was requested
    specification: Specification
    folder: str

    @property
    def language(self) -> str:
        """The language of its kernel."""
        return str(self.specification.get("language") or "python")

    @property
    def is_local(self) -> bool:
        """Whether its metadata allows its kernel to be started as a process here."""
        provisioner = (self.specification.get("metadata") or {}).get("kernel_provisioner") or {}
        return provisioner.get("provisioner_name", OURS[0]) in OURS


def absence(specification: Mapping[str, Any]) -> str | None:
    """Return why a kernelspec has no framework behind it, such as `this image has no TensorFlow`; None if it has."""
    ours = (specification.get("metadata") or {}).get("rocmlab")
    why = ours.get("absent") if isinstance(ours, Mapping) else None
    return why if isinstance(why, str) else None


def gpus(specification: Mapping[str, Any]) -> Any:  # noqa: ANN401  any JSON value
    """Return what a kernelspec requests of our provisioner: a number of GPUs, `all`, or the PCI address of one."""
    stanza = (specification.get("metadata") or {}).get("kernel_provisioner")
    if not isinstance(stanza, Mapping) or stanza.get("provisioner_name") != OURS[1]:
        return ONE
    config = stanza.get("config")
    return config.get("gpus", ONE) if isinstance(config, Mapping) else ONE


def preload(specification: Mapping[str, Any]) -> Any:  # noqa: ANN401  any JSON value
    """Return what a kernelspec names to be imported before the first cell; None if it names nothing."""
    ours = (specification.get("metadata") or {}).get("rocmlab")
    return ours.get("preload") if isinstance(ours, Mapping) else None


def find(name: str) -> Kernelspec:
    """Return a kernelspec.

    Raises:
        jupyter_client.kernelspec.NoSuchKernel: none has that name.
    """
    from jupyter_core.paths import jupyter_path

    own = "python3" if name == "python" else name  # as jupyter_client's KernelManager does
    for folder in jupyter_path("kernels"):
        path = Path(folder, own.lower(), "kernel.json")
        with contextlib.suppress(OSError, ValueError):
            return Kernelspec(name, json.loads(path.read_text(encoding="utf-8")), str(path.parent))
    from jupyter_client.kernelspec import KernelSpecManager  # the interpreter's own kernel, other spellings, the error

    found = KernelSpecManager().get_kernel_spec(own)
    return Kernelspec(name, found.to_dict(), found.resource_dir)


def command(specification: Specification, folder: str, file: str) -> list[str]:
    """Return the command of a kernelspec, as jupyter_client would start it (manager.py, `format_kernel_cmd`)."""
    argv = [interpreter(specification), *map(str, specification["argv"][1:])]
    places = {"connection_file": file, "prefix": sys.prefix, "resource_dir": folder}
    for name, value in places.items():
        argv = [word.replace(f"{{{name}}}", value) for word in argv]
    if any(word.startswith("ipykernel") for word in argv):
        argv += [WITHOUT_HISTORY, *extension_arguments(specification)]
    return [os.path.expanduser(word) for word in argv]


def extension_arguments(specification: Mapping[str, Any]) -> list[str]:
    """Return the arguments with which one of our IPython kernels loads our extensions; the interpreter has them."""
    return list(EXTENSIONS) if overlays.KERNEL in (specification.get("env") or {}) else []


def interpreter(specification: Mapping[str, Any]) -> str:
    """Return what a kernelspec's command runs; its Python is this one, for the one on PATH may be another."""
    name = str(specification["argv"][0])
    major, minor = sys.version_info[:2]
    return sys.executable if name in ("python", f"python{major}", f"python{major}.{minor}") else name


def environment(specification: Specification, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a kernel that inherits one, without our secrets: notebooks print it."""
    inherited = confidential.without(inherited)
    wanted = specification.get("env") or {}
    own = {name: Template(str(value)).safe_substitute(inherited) for name, value in wanted.items()}
    return {
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **{name: value for name, value in inherited.items() if name != "PYTHONEXECUTABLE"},
        **own,
        "JPY_PARENT_PID": str(os.getpid()),  # an idle kernel ends when its parent has
    }
