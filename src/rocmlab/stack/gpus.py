"""Which of the host's GPUs a lab is given, and how: device nodes, CDI names, reservations, or masks alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base import host_limits
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, cdi, nodes, visibility
from rocmlab.devices.rocm import Rocm
from rocmlab.stack.choice import Choice, check_value
from rocmlab.stack.engine import Engine
from rocmlab.stack.settings import Settings

OVERLAY = ".rocmlab/compose.gpus.yaml"  # of the lab; a single run has one of its own
LEASES_OVERLAY = "docker/compose.leases.yaml"
LIMITS_OVERLAY = "docker/compose.limits.yaml"
TLS_OVERLAY = "docker/compose.tls.yaml"
CLUSTER_OVERLAY = "docker/compose.cluster.yaml"
HEAD = "# Written by `make up`: exactly the GPUs that GPUS names.\nservices:\n  lab:\n"


def check(settings: Settings, choice: Choice, engine: Engine, devices: list[Device], root: Path) -> None:
    """Raise RocmlabError unless the requested GPUs exist and can be passed in the requested way."""
    if choice.runtime == "podman" and settings.is_in_cluster:
        raise RocmlabError(
            f"CLUSTER={settings.get('CLUSTER')} was requested, and this lab runs in Podman",
            "a lab that is a node of a cluster runs in Docker, with the host's own network, or natively",
            "make cluster-up RUNTIME=native (or RUNTIME=docker); or leave the cluster: make cluster-down",
        )
    _check_way(settings, choice, engine, root)
    if choice.is_rootless and choice.backend == "rocm" and not choice.is_wsl:
        _check_openable(root)
    wanted = settings.get("GPUS")
    if wanted in ("all", "none"):
        return
    if choice.is_wsl:
        raise RocmlabError(
            f"GPUS={wanted} was requested, and this is WSL2",
            "all GPUs are behind the one node /dev/dxg, and nothing here lists them",
            "make up GPUS=all, or GPUS=none; inside, HIP_VISIBLE_DEVICES chooses",
        )
    if choice.backend not in ("rocm", "cuda") and not choice.is_simulated:
        raise RocmlabError(
            f"GPUS={wanted} was requested, and the backend is {choice.backend}",
            choice.why,
            "omit GPUS, or choose a backend that has GPUs",
        )
    visibility.select(given_from(choice, devices, root), wanted)


def _check_openable(root: Path) -> None:
    """Make sure that this user may open GPUs: a rootless engine has only this user's permissions."""
    compute, renders = nodes.kfd(root), nodes.render_nodes(root)
    here = ([compute] if compute else []) + renders
    closed = [node for node in here if not node.is_accessible]
    if compute in closed or (renders and all(node in closed for node in renders)):
        groups = ", ".join(sorted({str(node.gid) for node in closed}))
        raise RocmlabError(
            f"rootless Podman cannot open {closed[0].path}, because you may not",
            f"the GPU's nodes belong to the groups {groups} (usually render and video), and you are not in them",
            "sudo usermod -aG render,video $USER, log in again, then: podman system migrate\n"
            "or, as root: sudo make up; or on the CPU: make up BACKEND=cpu",
        )


def _check_way(settings: Settings, choice: Choice, engine: Engine, root: Path) -> None:
    check_value("GPU_PASSTHROUGH", settings.get("GPU_PASSTHROUGH"), ("nodes", "cdi"))
    if not _asks_for_cdi(settings, choice):
        return
    if not _uses_cdi(settings, choice):
        raise RocmlabError(
            "GPU_PASSTHROUGH=cdi was requested, and only Docker's lab on Linux uses CDI names",
            "Podman and WSL2 are given the device nodes themselves",
            "make up GPU_PASSTHROUGH=nodes",
        )
    problem = engine.cdi_problem()
    if problem:
        raise RocmlabError.of(problem)
    folders = [Path(folder) for folder in engine.cdi_folders]
    if any(cdi.has_yaml(folder) for folder in folders):
        return  # which only the engine can read; it reports what it does not know
    known = {name for folder in folders for name in cdi.names_in(folder)}
    missing = [name for name in _cdi_names(settings, choice, root) if name not in known]
    if missing:
        raise RocmlabError(
            f"the engine does not know {', '.join(missing)}",
            f"no CDI specification in {', '.join(engine.cdi_folders)} names it",
            f"sudo scripts/rocmlab cdi --output {engine.cdi_folders[0]}/amd.json\n"
            "or, without CDI: make up GPU_PASSTHROUGH=nodes",
        )


def given_from(choice: Choice, devices: Sequence[Device], root: Path) -> list[Device]:
    """Return the backend's GPUs; a rootful container is given their nodes whatever this user may open."""
    if choice.is_simulated:
        return [device for device in devices if device.backend == "rocm"]
    if choice.backend == "rocm" and choice.runtime in ("docker", "podman") and not choice.is_rootless:
        return Rocm().discover(root, as_root=True)
    return [device for device in devices if device.backend == choice.backend]


def overlays(settings: Settings, choice: Choice, root: Path = Path("/")) -> list[str]:
    """Return the Compose files that make up this lab on the host below `root`, the base file first."""
    files = ["compose.yaml"] + ([f"docker/compose.{choice.backend}.yaml"] if choice.backend != "rocm" else [])
    if choice.is_wsl:
        files.append("docker/compose.wsl.yaml")
    if choice.is_simulated:
        files.append("docker/compose.simulated.yaml")
    elif takes_leases(choice):
        files += [LEASES_OVERLAY, *([LIMITS_OVERLAY] if limits_folder(choice, root) else [])]
    if settings.is_in_cluster:
        files.append(CLUSTER_OVERLAY)
    if settings.get("BIND"):
        files.append(TLS_OVERLAY)
    has_gpus = choice.backend in ("rocm", "cuda") or choice.is_simulated
    if has_gpus and (settings.get("GPUS") != "all" or _uses_cdi(settings, choice)):
        files.append(OVERLAY)
    return files


def takes_leases(choice: Choice) -> bool:
    """Return whether a lab's kernels lease GPUs. On WSL2 and a Mac nothing can reserve one, so nothing is leased."""
    return choice.is_simulated or (choice.backend in ("rocm", "cuda") and not choice.is_wsl)


def limits_folder(choice: Choice, root: Path) -> Path | None:
    """Return the folder of this host's limits for its users, where a container has to mount it; None: nothing to."""
    folder = host_limits.path(root).parent
    return folder if takes_leases(choice) and not choice.is_simulated and folder.is_dir() else None


def _asks_for_cdi(settings: Settings, choice: Choice) -> bool:
    return settings.get("GPU_PASSTHROUGH") == "cdi" and choice.backend == "rocm" and choice.runtime != "native"


def _uses_cdi(settings: Settings, choice: Choice) -> bool:
    return _asks_for_cdi(settings, choice) and choice.runtime == "docker" and not choice.is_wsl


def _cdi_names(settings: Settings, choice: Choice, root: Path) -> list[str]:
    """Return the CDI names of the chosen GPUs; by PCI address, which no other tool counts differently."""
    if settings.get("GPUS") in ("all", "none"):
        return [f"{cdi.KIND}={cdi.ALL}"]
    devices = given_from(choice, [], root)
    chosen = visibility.select(devices, settings.get("GPUS"))
    return [f"{cdi.KIND}={cdi.name_of(device, devices)}" for device in chosen]


@dataclass(frozen=True)
class Passed:
    """What a container is given of the GPUs; where nothing is named, the base file applies."""

    nodes: tuple[str, ...] = ()  # device files
    names: tuple[str, ...] = ()  # CDI names
    ids: tuple[str, ...] = ()  # of NVIDIA's GPUs
    environment: tuple[tuple[str, str | None], ...] = ()  # None: to be removed, wherever else it comes from


def passed(settings: Settings, choice: Choice, devices: Sequence[Device], root: Path) -> Passed:
    """Return what gives a container exactly the chosen GPUs, under either engine."""
    wanted = settings.get("GPUS")
    if choice.is_wsl:
        hidden = _masks([]) if wanted == "none" else ()
        return Passed(("/dev/dxg",), environment=(("HSA_ENABLE_DXG_DETECTION", "1"), *hidden))
    if choice.backend not in ("rocm", "cuda") and not choice.is_simulated:
        return Passed()
    chosen = visibility.select(given_from(choice, devices, root), wanted)
    if choice.is_simulated:
        return Passed(environment=_masks(chosen) if wanted != "all" else ())
    if _uses_cdi(settings, choice):
        names = tuple(_cdi_names(settings, choice, root))
        return Passed(names=names, environment=_masks([]) if wanted == "none" else ())
    if choice.is_rootless:  # a subset of nodes stops ROCm there (ROCm#3144): the mask alone chooses
        return Passed(_all_nodes(root, openable=True), environment=_masks(chosen) if wanted != "all" else ())
    if chosen or choice.runtime == "docker":
        return exactly(choice.backend, chosen)
    # The nodes stay: without /dev/kfd a lab for AMD GPUs refuses to start.
    return Passed(_all_nodes(root), environment=_masks([]) if wanted == "none" else ())


def exactly(backend: str, devices: Sequence[Device]) -> Passed:
    """Return these GPUs by their device nodes, or NVIDIA's by their ids; where there are none, a mask hides all."""
    if not devices:
        return Passed(environment=_masks([]))
    if backend == "rocm":  # one node for all of them, and one for each; no card nodes
        return Passed(("/dev/kfd", *dict.fromkeys(device.render_node for device in devices if device.render_node)))
    return Passed(ids=tuple(device.unique_id or str(device.index) for device in devices))


def _masks(devices: Sequence[Device]) -> tuple[tuple[str, str | None], ...]:
    return tuple(visibility.child_environment(devices).items())


def _all_nodes(root: Path, *, openable: bool = False) -> tuple[str, ...]:
    compute = nodes.kfd(root)
    found = ([compute] if compute else []) + nodes.render_nodes(root)
    return tuple(node.path for node in found if node.is_accessible or not openable)


def overlay(given: Passed) -> str:
    """Return what a container is given as a Compose overlay."""
    text = HEAD
    if given.environment:
        text += _environment(given.environment)
    if given.nodes:
        text += "    devices: !override\n" + "".join(f"      - {path}\n" for path in given.nodes)
    if given.names:
        text += "    devices: !reset []\n" + _reservation("cdi", given.names, "")
    if given.ids:
        text += _reservation("nvidia", given.ids, "!override")
    return text


def _environment(variables: Sequence[tuple[str, str | None]]) -> str:
    """Return these variables for Compose; one to be removed is set to nothing where the base file passes it."""
    lines = [f"      {name}: {json.dumps(value)}\n" for name, value in variables if value is not None]
    lines += [f"      {name}: !reset null\n" for name, value in variables if value is None]
    return "    environment:\n" + "".join(lines)


def _reservation(driver: str, ids: Sequence[str], tag: str) -> str:
    return (
        f"    deploy:\n      resources:\n        reservations:\n          devices:{f' {tag}' if tag else ''}\n"
        f"            - driver: {driver}\n              device_ids: {json.dumps(list(ids))}\n"
        "              capabilities: [gpu]\n"
    )
