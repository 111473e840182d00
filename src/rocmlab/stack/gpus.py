"""Which of the host's GPUs a lab is given, and how: device nodes, CDI names, reservations, or masks alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmlab.devices import Device, cdi, nodes, visibility
from rocmlab.devices.rocm import Rocm
from rocmlab.errors import RocmlabError
from rocmlab.stack.choice import Choice
from rocmlab.stack.engine import Engine
from rocmlab.stack.settings import Settings

OVERLAY = ".rocmlab/compose.gpus.yaml"
WAYS = ("nodes", "cdi")
HEAD = "# Written by `make up`: exactly the GPUs that GPUS names.\nservices:\n  lab:\n"


def check(settings: Settings, choice: Choice, engine: Engine, devices: list[Device], root: Path) -> None:
    """Make sure that what was asked for can be given.

    Raises:
        RocmlabError: GPUS names GPUs that are not there, or GPU_PASSTHROUGH a way that does not work here.
    """
    _check_way(settings, choice, engine, root)
    if choice.is_rootless and choice.backend == "rocm" and not choice.is_wsl:
        _check_openable(root)
    asked = settings.get("GPUS")
    if asked in ("all", "none"):
        return
    if choice.is_wsl:
        raise RocmlabError(
            f"GPUS={asked} was asked for, and this is WSL2",
            "all GPUs are behind the one node /dev/dxg, and nothing here lists them",
            "make up GPUS=all, or GPUS=none; inside, HIP_VISIBLE_DEVICES chooses",
        )
    if choice.backend not in ("rocm", "cuda") and not choice.is_simulated:
        raise RocmlabError(
            f"GPUS={asked} was asked for, and the backend is {choice.backend}",
            choice.why,
            "leave GPUS out, or choose a backend that has GPUs",
        )
    visibility.select(given_from(choice, devices, root), asked)


def _check_openable(root: Path) -> None:
    """Make sure that this user may open GPUs: in a rootless engine nobody else opens them for the lab."""
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
    way = settings.get("GPU_PASSTHROUGH")
    if way not in WAYS:
        raise RocmlabError(f"GPU_PASSTHROUGH={way} is unknown", "a typing error, perhaps", "use one of: nodes, cdi")
    if way == "nodes" or choice.backend != "rocm" or choice.runtime == "native":
        return
    if choice.runtime != "docker" or choice.is_wsl:
        raise RocmlabError(
            "GPU_PASSTHROUGH=cdi was asked for, and only Docker's lab on Linux uses CDI names",
            "Podman and WSL2 are given the device nodes themselves",
            "make up GPU_PASSTHROUGH=nodes",
        )
    problem = engine.cdi_problem()
    if problem:
        raise RocmlabError(problem.what, problem.why, problem.fix)
    known = {name for folder in engine.cdi_folders for name in cdi.names_in(Path(folder))}
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


def overlays(settings: Settings, choice: Choice) -> list[str]:
    """Return the Compose files that make up this lab, the base file first."""
    files = ["compose.yaml"] + ([f"docker/compose.{choice.backend}.yaml"] if choice.backend != "rocm" else [])
    if choice.is_wsl:
        files.append("docker/compose.wsl.yaml")
    if choice.is_simulated:
        files.append("docker/compose.simulated.yaml")
    has_gpus = choice.backend in ("rocm", "cuda") or choice.is_simulated
    if has_gpus and (settings.get("GPUS") != "all" or _uses_cdi(settings, choice)):
        files.append(OVERLAY)
    return files


def _uses_cdi(settings: Settings, choice: Choice) -> bool:
    return settings.get("GPU_PASSTHROUGH") == "cdi" and choice.backend == "rocm" and choice.runtime == "docker"


def _cdi_names(settings: Settings, choice: Choice, root: Path) -> list[str]:
    """Return the CDI names of the chosen GPUs; by PCI address, which no other tool counts differently."""
    if settings.get("GPUS") in ("all", "none"):
        return [f"{cdi.KIND}=all"]
    chosen = visibility.select(given_from(choice, [], root), settings.get("GPUS"))
    return [f"{cdi.KIND}={cdi.name_of(device)}" for device in chosen]


def overlay(settings: Settings, choice: Choice, devices: Sequence[Device], root: Path) -> str:
    """Return the Compose overlay that gives the lab exactly the chosen GPUs."""
    asked = settings.get("GPUS")
    if _uses_cdi(settings, choice):
        mask = _environment(visibility.child_environment([])) if asked == "none" else ""
        return HEAD + mask + _cdi_devices(_cdi_names(settings, choice, root))
    chosen = visibility.select(given_from(choice, devices, root), asked)
    if choice.is_simulated:
        return HEAD + _environment(visibility.child_environment(chosen))
    return gpu_overlay(choice.backend, chosen)


def gpu_overlay(backend: str, devices: Sequence[Device]) -> str:
    """Return a Compose overlay that passes exactly these GPUs by their device nodes, or NVIDIA's by their ids."""
    if not devices:  # the nodes stay: without /dev/kfd a lab for AMD GPUs refuses to start
        return HEAD + _environment(visibility.child_environment([]))
    if backend == "rocm":
        listed = "".join(f"      - {path}\n" for path in node_paths(devices))
        return f"{HEAD}    devices: !override\n{listed}"
    ids = [device.unique_id or str(device.index) for device in devices]
    return HEAD + _reservation("nvidia", ids, "!override")


def node_paths(devices: Sequence[Device]) -> list[str]:
    """Return the nodes that computing on these GPUs needs: one for all of them, and one for each; no card nodes."""
    return ["/dev/kfd", *dict.fromkeys(device.render_node for device in devices if device.render_node)]


def _environment(variables: dict[str, str | None]) -> str:
    """Return these variables for Compose; one to be removed is set to nothing where the base file passes it."""
    lines = [f"      {name}: {json.dumps(value)}\n" for name, value in variables.items() if value is not None]
    removed = [name for name, value in variables.items() if value is None]
    lines += [f"      {name}: !reset null\n" for name in removed]
    return "    environment:\n" + "".join(lines)


def _cdi_devices(names: Sequence[str]) -> str:
    return "    devices: !reset []\n" + _reservation("cdi", names, "")


def _reservation(driver: str, ids: Sequence[str], tag: str) -> str:
    return (
        f"    deploy:\n      resources:\n        reservations:\n          devices:{f' {tag}' if tag else ''}\n"
        f"            - driver: {driver}\n              device_ids: {json.dumps(list(ids))}\n"
        "              capabilities: [gpu]\n"
    )


@dataclass(frozen=True)
class Passed:
    """What a container is given of the GPUs where no Compose file says it: for Podman."""

    nodes: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    is_masked: bool = False  # all GPUs are passed, and the mask alone chooses


def passed(settings: Settings, choice: Choice, devices: Sequence[Device], root: Path) -> Passed:
    """Return the nodes and variables that give a container of Podman's exactly the chosen GPUs."""
    asked = settings.get("GPUS")
    if choice.is_wsl:
        hidden = asked == "none"
        mask = _kept(visibility.child_environment([])) if hidden else ()
        return Passed(("/dev/dxg",), (("HSA_ENABLE_DXG_DETECTION", "1"), *mask), hidden)
    if choice.is_simulated and asked != "all":
        chosen = visibility.select(given_from(choice, devices, root), asked)
        return Passed((), _kept(visibility.child_environment(chosen)), is_masked=True)
    if choice.backend != "rocm":
        return Passed()
    chosen = visibility.select(given_from(choice, devices, root), asked)
    if not choice.is_rootless:
        if chosen:
            return Passed(tuple(node_paths(chosen)))
        return Passed(_all_nodes(root), _kept(visibility.child_environment([])), is_masked=True)
    mask = () if asked == "all" else _kept(visibility.child_environment(chosen))
    return Passed(_all_nodes(root, openable=True), mask, is_masked=bool(mask))


def _kept(variables: dict[str, str | None]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in variables.items() if value is not None)


def _all_nodes(root: Path, *, openable: bool = False) -> tuple[str, ...]:
    compute = nodes.kfd(root)
    found = ([compute] if compute else []) + nodes.render_nodes(root)
    return tuple(node.path for node in found if node.is_accessible or not openable)
