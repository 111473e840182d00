"""Which backend and which runtime a host gets: a function of what was requested and what was found."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.devices import cuda, nodes, products, topology
from rocmlab.devices.cards import Cards
from rocmlab.devices.model import BACKENDS
from rocmlab.devices.roots import is_simulated
from rocmlab.stack.engine import Engine
from rocmlab.stack.podman_engine import Podman

RUNTIMES = ("docker", "podman", "native")
CONTAINERS = ("docker", "podman")
GPUS_OF = {"rocm": "AMD GPUs", "cuda": "NVIDIA GPUs"}  # by backend
NO_PODMAN = Podman(is_usable=False)
INSTALL_DOCKER = "sudo apt install docker.io docker-buildx docker-compose-v2, on Debian 13 docker-compose"
INSTALL_PODMAN = "sudo apt install podman crun uidmap slirp4netns"


@dataclass(frozen=True)
class Host:
    """What decides: GPUs, their drivers, and the engines."""

    engine: Engine  # Docker's
    has_amd: bool = False  # /dev/kfd and a GPU in its topology
    has_nvidia: bool = False  # /dev/nvidia*
    has_nvidia_toolkit: bool = False  # the NVIDIA container toolkit
    has_rocm: bool = False  # ROCm's libraries on the host itself
    is_mac: bool = False
    amd_without_driver: str | None = None  # PCI address of an AMD display device that has no /dev/kfd
    amd_too_old: str | None = None  # what the AMD GPUs are, where ROCm has never supported any of them
    podman: Podman = NO_PODMAN
    has_wsl_gpu: bool = False  # WSL2's /dev/dxg without /dev/kfd, and nothing of NVIDIA's behind it
    simulated: str | None = None  # the folder of a simulated host; None on a real one


@dataclass(frozen=True)
class Choice:
    """What a host gets, and why, in one line."""

    backend: str
    runtime: str
    why: str
    is_wsl: bool = False  # the AMD GPU is reached through /dev/dxg
    is_simulated: bool = False  # GPUs are shown from a simulated host, and computing is the CPU's
    is_rootless: bool = False  # the engine belongs to the user, whose groups open the GPU's nodes


def inspect(engine: Engine, root: Path, podman: Podman | None = None) -> Host:
    """Look at the host below `root`."""
    has_kfd = nodes.kfd(root) is not None
    too_old = _too_old(root)
    of_windows = root / "usr/lib/wsl/lib"  # where its NVIDIA driver is: /dev/dxg serves the GPUs of every vendor
    has_other = any((of_windows / name).exists() for name in ("nvidia-smi", "libcuda.so.1"))
    return Host(
        engine=engine,
        has_amd=has_kfd and not too_old and bool(topology.read(root).gpus or nodes.render_nodes(root)),
        has_nvidia=cuda.has_device_nodes(root),
        has_nvidia_toolkit="nvidia" in engine.runtimes or shutil.which("nvidia-ctk") is not None,
        has_rocm=(root / "opt/rocm").exists(),
        is_mac=platform.system() == "Darwin",
        amd_without_driver=None if has_kfd or too_old else next(iter(sorted(Cards(root).by_address)), None),
        amd_too_old=too_old,
        podman=podman or NO_PODMAN,
        has_wsl_gpu=not has_kfd and (root / "dev/dxg").exists() and not has_other,
        simulated=str(root) if is_simulated(root) else None,
    )


def _too_old(root: Path) -> str | None:
    """Return what the AMD GPUs are if ROCm has never supported any of them: `0000:03:00.0 is GCN 1 (Tahiti)`."""
    found = [(address, products.never_supported(card.device)) for address, card in Cards(root).by_address.items()]
    return f"{found[0][0]} is {found[0][1]}" if found and all(generation for _, generation in found) else None


def choose(
    host: Host,
    backend: str = "auto",
    runtime: str = "auto",
    before: str = "",
    *,
    backend_before: str = "",
    is_for_another_host: bool = False,
) -> Choice:
    """Choose backend and runtime; raise RocmlabError if a value is unknown, or what was requested cannot be used.

    `before` is the runtime of the lab that is there: `auto` does not leave Docker because it happens to be down, nor
    Podman because Docker came. Nor does it go from `backend_before`, that lab's backend, to the CPU because a driver
    is missing today. An image for another host's GPUs needs none here.
    """
    check_value("BACKEND", backend, ("auto", *BACKENDS))
    check_value("RUNTIME", runtime, ("auto", *RUNTIMES))
    chosen = _choose_backend(host, runtime) if backend == "auto" else backend
    if backend == "auto" and chosen == "cpu" and backend_before in GPUS_OF and host.simulated is None:
        raise RocmlabError(
            f"this lab had {GPUS_OF[backend_before]}, and this host has none that can be used now",
            _missing(host, backend_before),
            f"make doctor BACKEND={backend_before}, which shows why\n"
            "or, to compute on the CPU from now on: make up BACKEND=cpu",
        )
    is_away = backend in ("rocm", "cuda") and is_for_another_host and host.simulated is None
    if backend != "auto" and not is_away:
        _check_present(host, chosen)
    where = _choose_runtime(host, chosen, runtime, before)
    _check_usable(host, chosen, where, is_away=is_away)
    return Choice(
        backend=chosen,
        runtime=where,
        why=_reason(host, chosen, where, backend, runtime),
        is_wsl=chosen == "rocm" and host.has_wsl_gpu and not host.has_amd,
        is_simulated=host.simulated is not None,
        is_rootless=where == "podman" and host.podman.is_rootless,
    )


def check_value(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise RocmlabError unless a setting is one of the known values."""
    if value not in known:
        raise RocmlabError(f"{name}={value} is unknown", "perhaps a typo", f"use one of: {', '.join(known)}")


def _choose_backend(host: Host, runtime: str) -> str:
    if host.simulated is not None:
        return "cpu"
    if host.has_amd or host.has_wsl_gpu:
        return "rocm"
    if host.has_nvidia:
        return "cuda"
    return "metal" if host.is_mac and runtime not in CONTAINERS else "cpu"


def _missing(host: Host, backend: str) -> str:
    """Return what this host lacks for GPUs of a backend."""
    if backend == "cuda":
        return "/dev/nvidia0 is missing, which NVIDIA's driver makes"
    if host.amd_without_driver:
        return f"the GPU at {host.amd_without_driver} has no driver: /dev/kfd is missing"
    return "/dev/kfd is missing, which the amdgpu driver makes"


def _check_present(host: Host, backend: str) -> None:
    without = "use the available backend: make up BACKEND=auto"
    if backend == "rocm" and host.amd_too_old and not host.has_amd:
        raise RocmlabError(
            "BACKEND=rocm was requested, and this host has no usable AMD GPU",
            f"the GPU at {host.amd_too_old}, which ROCm has never supported",
            without,
        )
    if host.simulated is not None and backend != "cpu":
        raise RocmlabError(
            f"BACKEND={backend} was requested, and the host is simulated",
            f"the GPUs of {host.simulated} can be inspected, and none of them computes",
            "make up BACKEND=cpu; or, to leave the simulated host: make up ROCMLAB_ROOT=",
        )
    if backend == "rocm" and not host.has_amd and not host.has_wsl_gpu:
        raise RocmlabError(
            "BACKEND=rocm was requested, and this host has no usable AMD GPU",
            _missing(host, backend),
            f"make doctor, which shows why (mostly: sudo modprobe amdgpu); or {without}",
        )
    if backend == "cuda" and not host.has_nvidia:
        raise RocmlabError(
            "BACKEND=cuda was requested, and this host has no NVIDIA GPU",
            _missing(host, backend),
            f"install NVIDIA's driver and see that nvidia-smi works; or {without}",
        )
    if backend == "metal" and not host.is_mac:
        raise RocmlabError("BACKEND=metal was requested, and this is not a Mac", "only macOS has Metal", without)


def _choose_runtime(host: Host, backend: str, runtime: str, before: str) -> str:
    engines: dict[str, Engine | Podman] = {"docker": host.engine, "podman": host.podman}
    if runtime in CONTAINERS and not engines[runtime].is_usable:
        problem = engines[runtime].problem
        if problem:
            raise RocmlabError.of(problem)
        name, install = {"docker": ("the Docker engine", INSTALL_DOCKER), "podman": ("Podman", INSTALL_PODMAN)}[runtime]
        raise RocmlabError(
            f"RUNTIME={runtime} was requested, and {name} was not found",
            "no engine is running or installed" if runtime == "docker" else "`podman` is not in PATH",
            f"install {runtime.capitalize()} ({install}), or: make up RUNTIME=native",
        )
    if runtime != "auto":
        return runtime
    if backend == "metal":
        return "native"
    if before == "docker" and host.engine.problem:
        raise RocmlabError.of(host.engine.problem)
    podman_can = host.podman.is_usable and host.podman.gpu_problem(backend) is None
    if host.engine.is_usable:
        fits = before == "docker" or (before != "podman" and _engine_problem(host, backend, "docker") is None)
        return "docker" if fits or not podman_can else "podman"
    if host.podman.is_usable and backend != "cuda":
        return "podman"
    for engine in engines.values():
        if engine.problem:
            raise RocmlabError.of(engine.problem)
    return "native"


def _check_usable(host: Host, backend: str, runtime: str, *, is_away: bool = False) -> None:
    on_cpu = "to work on the CPU instead: make up BACKEND=cpu"
    problem = _engine_problem(host, "cpu" if is_away else backend, runtime)  # nothing is passed to it here
    if problem:
        has_gpu = backend in ("rocm", "cuda")
        raise RocmlabError(problem.what, problem.why, f"{problem.fix}\n{on_cpu}" if has_gpu else problem.fix)
    if backend == "rocm" and runtime == "native" and not host.has_rocm:
        raise RocmlabError(
            "this host has an AMD GPU, and neither Docker nor ROCm to use it",
            "the native lab needs ROCm's libraries on the host (/opt/rocm)",
            f"{INSTALL_DOCKER} (the easier way), or install ROCm\n{on_cpu}",
        )
    if backend == "metal" and runtime in CONTAINERS:
        raise RocmlabError(
            "Metal cannot be used from a container",
            f"{runtime.capitalize()} on a Mac runs Linux, which has no Metal",
            "make up RUNTIME=native",
        )


def _engine_problem(host: Host, backend: str, runtime: str) -> Problem | None:
    """Return what keeps an engine that answers from running this lab."""
    if runtime == "podman":
        return host.podman.gpu_problem(backend)
    if runtime != "docker":
        return None
    problem = host.engine.lab_problem()
    if problem is None and backend in ("rocm", "cuda"):
        problem = host.engine.device_problem()
    if problem is None and backend == "cuda" and not host.has_nvidia_toolkit:
        problem = Problem(
            "the NVIDIA GPU cannot be passed to a container",
            "the NVIDIA Container Toolkit is not installed in this engine",
            "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure; sudo systemctl restart docker",
        )
    return problem


def _reason(host: Host, backend: str, runtime: str, requested_backend: str, requested_runtime: str) -> str:
    device = _device_reason(host, backend) if requested_backend == "auto" else f"BACKEND={requested_backend}"
    if host.simulated is not None:
        device = f"SIMULATED host {host.simulated}, computing on the CPU"
    if requested_runtime != "auto":
        return f"{device}, RUNTIME={requested_runtime}"
    if runtime == "docker":
        return f"{device}, Docker engine {host.engine.version}"
    if runtime == "podman":
        kind = f"{'rootless ' if host.podman.is_rootless else ''}Podman {host.podman.version}"
        reason = host.engine.problem or (_engine_problem(host, backend, "docker") if host.engine.is_usable else None)
        return f"{device}, {kind}" + (f", because {reason.what}" if reason else "")
    return f"{device}, {'macOS' if host.is_mac else 'no Docker engine'}"


def _device_reason(host: Host, backend: str) -> str:
    if backend == "cpu":
        if host.amd_too_old:
            return f"the AMD GPU at {host.amd_too_old}, which ROCm has never supported"
        without_driver = f"the AMD GPU at {host.amd_without_driver} has no driver (no /dev/kfd)"
        return without_driver if host.amd_without_driver else "no GPU found"
    if backend == "rocm" and not host.has_amd:
        return "WSL2's /dev/dxg found"
    return {"rocm": "AMD GPU", "cuda": "NVIDIA GPU", "metal": "Apple GPU"}[backend] + " found"
