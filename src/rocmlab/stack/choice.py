"""Which backend and which runtime a host gets: a function of what was asked and what was found."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from rocmlab.devices import cuda, nodes, rocm
from rocmlab.devices.model import BACKENDS
from rocmlab.errors import Problem, RocmlabError
from rocmlab.stack.engine import Engine

RUNTIMES = ("docker", "native")
INSTALL_DOCKER = "sudo apt install docker.io docker-buildx docker-compose-v2, on Debian 13 docker-compose"


@dataclass(frozen=True)
class Host:
    """What decides: GPUs, their drivers, and the engine."""

    engine: Engine
    has_amd: bool = False  # /dev/kfd and a GPU in its topology
    has_nvidia: bool = False  # /dev/nvidia*
    has_nvidia_toolkit: bool = False  # the NVIDIA container toolkit
    has_rocm: bool = False  # ROCm's libraries on the host itself
    is_mac: bool = False
    amd_without_driver: str | None = None  # PCI address of an AMD display device that has no /dev/kfd


@dataclass(frozen=True)
class Choice:
    """What a host gets, and why, in one line."""

    backend: str
    runtime: str
    why: str


def inspect(engine: Engine, root: Path) -> Host:
    """Look at the host below `root`."""
    has_kfd = nodes.kfd(root) is not None
    return Host(
        engine=engine,
        has_amd=has_kfd and bool(rocm.kfd_gpus(root) or nodes.render_nodes(root)),
        has_nvidia=cuda.has_device_nodes(root),
        has_nvidia_toolkit="nvidia" in engine.runtimes or shutil.which("nvidia-ctk") is not None,
        has_rocm=(root / "opt/rocm").exists(),
        is_mac=platform.system() == "Darwin",
        amd_without_driver=None if has_kfd else _amd_display(root),
    )


def _amd_display(root: Path) -> str | None:
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == "0x1002" and kind.startswith(("0x03", "0x12")):
            return device.name
    return None


def choose(host: Host, backend: str = "auto", runtime: str = "auto") -> Choice:
    """Choose backend and runtime.

    Raises:
        RocmlabError: a word is unknown, or a GPU or an engine that was asked for cannot be used.
    """
    _check_word("BACKEND", backend, ("auto", *BACKENDS))
    _check_word("RUNTIME", runtime, ("auto", *RUNTIMES))
    chosen = _choose_backend(host, runtime) if backend == "auto" else backend
    if backend != "auto":
        _check_present(host, chosen)
    where = _choose_runtime(host, chosen, runtime)
    _check_usable(host, chosen, where)
    return Choice(chosen, where, _reason(host, chosen, where, backend, runtime))


def _check_word(name: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise RocmlabError(f"{name}={word} is unknown", "a typing error, perhaps", f"use one of: {', '.join(known)}")


def _choose_backend(host: Host, runtime: str) -> str:
    if host.has_amd:
        return "rocm"
    if host.has_nvidia:
        return "cuda"
    return "metal" if host.is_mac and runtime != "docker" else "cpu"


def _check_present(host: Host, backend: str) -> None:
    without = "take the backend that is there: make up BACKEND=auto"
    if backend == "rocm" and not host.has_amd:
        raise RocmlabError(
            "BACKEND=rocm was asked for, and this host has no AMD GPU ready for it",
            f"the GPU at {host.amd_without_driver} has no driver: /dev/kfd is missing"
            if host.amd_without_driver
            else "/dev/kfd is missing, which the amdgpu driver makes",
            f"sudo modprobe amdgpu && ls -l /dev/kfd /dev/dri; or {without}",
        )
    if backend == "cuda" and not host.has_nvidia:
        raise RocmlabError(
            "BACKEND=cuda was asked for, and this host has no NVIDIA GPU",
            "/dev/nvidia0 is missing, which NVIDIA's driver makes",
            f"install NVIDIA's driver and see that nvidia-smi works; or {without}",
        )
    if backend == "metal" and not host.is_mac:
        raise RocmlabError("BACKEND=metal was asked for, and this is no Mac", "Metal is macOS's own", without)


def _choose_runtime(host: Host, backend: str, runtime: str) -> str:
    if runtime == "docker" and not host.engine.is_usable:
        raise (
            _error(host.engine.problem)
            if host.engine.problem
            else RocmlabError(
                "RUNTIME=docker was asked for, and there is no Docker engine",
                "neither a running engine nor an installed one was found",
                f"install Docker ({INSTALL_DOCKER}), or: make up RUNTIME=native",
            )
        )
    if runtime != "auto":
        return runtime
    if backend == "metal":
        return "native"
    if host.engine.is_usable:
        return "docker"
    if host.engine.problem:
        raise _error(host.engine.problem)
    return "native"


def _check_usable(host: Host, backend: str, runtime: str) -> None:
    on_cpu = "to work on the CPU instead: make up BACKEND=cpu"
    if runtime == "docker" and host.engine.is_rootless:
        raise RocmlabError(
            "a rootless Docker engine cannot run the lab",
            "inside it you are root, so the lab's own user could neither open the GPU nor save your notebooks",
            "docker context use default (the engine of the system), or: make up RUNTIME=native",
        )
    if backend in ("rocm", "cuda") and runtime == "docker" and (problem := host.engine.device_problem()):
        raise RocmlabError(problem.what, problem.why, f"{problem.fix}\n{on_cpu}")
    if backend == "cuda" and runtime == "docker" and not host.has_nvidia_toolkit:
        raise RocmlabError(
            "the NVIDIA GPU cannot be passed to a container",
            "the NVIDIA Container Toolkit is not installed in this engine",
            "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure; sudo systemctl restart docker\n"
            f"{on_cpu}",
        )
    if backend == "rocm" and runtime == "native" and not host.has_rocm:
        raise RocmlabError(
            "there is an AMD GPU, and neither Docker nor ROCm to use it with",
            "the native lab needs ROCm's libraries on the host (/opt/rocm)",
            f"{INSTALL_DOCKER} (the easier way), or install ROCm\n{on_cpu}",
        )
    if backend == "metal" and runtime == "docker":
        raise RocmlabError(
            "Metal cannot be used from a container",
            "Docker on a Mac runs Linux, which has no Metal",
            "make up RUNTIME=native",
        )


def _error(problem: Problem) -> RocmlabError:
    return RocmlabError(problem.what, problem.why, problem.fix)


def _reason(host: Host, backend: str, runtime: str, asked_backend: str, asked_runtime: str) -> str:
    if asked_backend != "auto":
        device = f"BACKEND={asked_backend}"
    elif backend == "cpu":
        device = "no GPU found"
        if host.amd_without_driver:
            device = f"the AMD GPU at {host.amd_without_driver} has no driver (no /dev/kfd)"
    else:
        device = {"rocm": "AMD GPU", "cuda": "NVIDIA GPU", "metal": "Apple GPU"}[backend] + " found"
    if asked_runtime != "auto":
        return f"{device}, RUNTIME={asked_runtime}"
    if runtime == "docker":
        return f"{device}, Docker engine {host.engine.version}"
    return f"{device}, {'macOS' if host.is_mac else 'no Docker engine'}"
