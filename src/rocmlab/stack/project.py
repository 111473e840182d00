"""One project folder and the lab that its settings describe: what every verb of the command line starts from."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmlab.devices import Device, discover, system_root, visibility
from rocmlab.devices.rocm import Rocm
from rocmlab.errors import RocmlabError
from rocmlab.stack import choice as choosing
from rocmlab.stack import engine as engines
from rocmlab.stack import envfile, resolve, server
from rocmlab.stack import settings as configuration
from rocmlab.stack.choice import Choice
from rocmlab.stack.docker import BaseImageUnreachable, DockerLab
from rocmlab.stack.engine import Engine
from rocmlab.stack.environment import Environment, amd_wheels
from rocmlab.stack.lab import Lab, Say
from rocmlab.stack.native import NativeLab
from rocmlab.stack.settings import Settings


def find() -> Path:
    """Return the project folder: the nearest one upwards, or that of this source tree, which holds compose.yaml.

    Raises:
        RocmlabError: there is none.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
        if (folder / "compose.yaml").is_file() and (folder / "docker/Dockerfile").is_file():
            return folder
    raise RocmlabError(
        f"{here} is not in a rocmlab project",
        "no compose.yaml and docker/Dockerfile here or above",
        "cd to your clone of rocmlab",
    )


@dataclass
class Project:
    """A project folder with everything decided."""

    settings: Settings
    choice: Choice
    values: dict[str, str]  # what Compose and the native lab read
    lab: Lab

    @property
    def url(self) -> str:
        """The address to open in a browser, token included."""
        return server.url(int(self.values["PORT"]), self.values["JUPYTER_TOKEN"])


def plan(folder: Path) -> Project:
    """Look at the host and decide; nothing is written.

    Raises:
        RocmlabError: a setting is wrong, or what was asked for cannot be had.
    """
    settings = configuration.load(folder)
    configuration.port_of(settings)
    root = system_root()
    runtime = settings.get("RUNTIME")
    engine = Engine(is_usable=False) if runtime == "native" else engines.probe()
    choice = choosing.choose(choosing.inspect(engine, root), settings.get("BACKEND"), runtime)
    project = _assemble(settings, choice, engine, root)
    lab = project.lab
    if isinstance(lab, DockerLab) and choice.backend == "cpu" and runtime == "auto":
        given_up = envfile.read(_unreachable(settings)).strip() == lab.values["BASE_IMAGE"]
        if given_up and not lab.has_base() and not lab.is_prepared():
            why = "as before: no registry had the base image; make up RUNTIME=docker tries again"
            return _assemble(settings, Choice("cpu", "native", why), engine, root)
    return project


def _unreachable(settings: Settings) -> Path:
    """Return the file that remembers a base image which no registry could give, so that it is asked for only once."""
    return settings.state / "unreachable-base-image"


def _assemble(settings: Settings, choice: Choice, engine: Engine, root: Path) -> Project:
    devices = discover(root)
    _check_gpus(settings, choice, devices)
    values = resolve.resolve(settings, choice, devices, root)
    if choice.runtime == "docker":
        return Project(settings, choice, values, DockerLab(settings, values, engine))
    tensorflow = ""
    if choice.backend == "rocm":
        tensorflow = values["TENSORFLOW_INDEX"] = settings.get("TENSORFLOW_INDEX") or amd_wheels(root)
    environment = Environment(
        project=settings.project,
        backend=choice.backend,
        python=settings.get("PYTHON") or "python3",
        torch_index=values["TORCH_INDEX"],
        tensorflow_index=tensorflow,
        wheels=settings.get("WHEELS"),
    )
    return Project(settings, choice, values, NativeLab(settings, values, environment))


def _check_gpus(settings: Settings, choice: Choice, devices: list[Device]) -> None:
    asked = settings.get("GPUS")
    if asked in ("all", "none"):
        return
    if choice.backend not in ("rocm", "cuda"):
        raise RocmlabError(
            f"GPUS={asked} was asked for, and the backend is {choice.backend}",
            choice.why,
            "leave GPUS out, or choose a backend that has GPUs",
        )
    visibility.select(_gpus(choice, devices), asked)


def _gpus(choice: Choice, devices: list[Device]) -> list[Device]:
    """Return the backend's GPUs; a container is given their nodes with their groups, whatever this user may open."""
    if choice.backend == "rocm" and choice.runtime == "docker":
        return Rocm().discover(system_root(), as_root=True)
    return [device for device in devices if device.backend == choice.backend]


def prepare(project: Project, say: Say, *, persist: bool = True, always: bool = False) -> Project:
    """Write `.env`, and build or install what is missing.

    Args:
        project: what was decided.
        say: prints a line of progress.
        persist: whether these settings stay chosen; False for a single run, which must not speak for a running lab.
        always: build even if nothing seems to have changed.

    Returns:
        The project; another one, native, where no GPU is at stake and no base image can be had.

    Raises:
        RocmlabError: a file cannot be written, or building or installing failed.
    """
    persist = persist or not project.settings.env_path.exists()
    write(project, persist=persist)
    try:
        project.lab.prepare(say, always=always)
    except BaseImageUnreachable as err:
        if project.choice.backend != "cpu" or project.settings.get("RUNTIME") == "docker":
            raise
        say(f"{err.problem.what}: {err.problem.why}")
        why = "no base image can be had, so without Docker"
        say(f"{why}; to insist: make up RUNTIME=docker BASE_IMAGE=…")
        envfile.write(_unreachable(project.settings), project.values["BASE_IMAGE"] + "\n")
        project = _assemble(project.settings, Choice("cpu", "native", why), Engine(is_usable=False), system_root())
        write(project, persist=persist)
        project.lab.prepare(say, always=always)
    return project


@contextmanager
def settings_kept_on_failure(project: Project) -> Iterator[None]:
    """Put `.env` back as it was if the block fails, so that it goes on describing the lab that is there."""
    paths = (project.settings.env_path, project.settings.state / "written.json")
    before = {path: envfile.read(path) if path.exists() else None for path in paths}
    try:
        yield
    except BaseException:
        for path, text in before.items():
            if text is None:
                path.unlink(missing_ok=True)
            elif envfile.read(path) != text:
                envfile.write(path, text)
        raise


@contextmanager
def locked(project: Project, say: Say) -> Iterator[None]:
    """Let one command at a time change a project; another one waits and says so."""
    project.settings.state.mkdir(parents=True, exist_ok=True)
    with open(project.settings.state / "lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another rocmlab command in this folder to finish building or starting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_gpus_inside(project: Project, devices: Sequence[Mapping[str, Any]]) -> None:
    """Make sure that a lab for GPUs has one; a lab without is stopped, for it would compute on the CPU and not say so.

    Args:
        project: whose lab is running.
        devices: what that lab itself sees.

    Raises:
        RocmlabError: none of the backend's GPUs is usable inside.
    """
    backend = project.choice.backend
    if backend not in ("rocm", "cuda") or project.settings.get("GPUS") == "none":
        return
    gpus = [device for device in devices if device["backend"] == backend]
    if any(device["is_usable"] for device in gpus):
        return
    project.lab.stop(lambda _: None)
    reasons = "\n".join(f"{device['name']}: {device['why_not']}" for device in gpus)
    raise RocmlabError(
        f"the lab has no usable GPU for the backend {backend}, so it was stopped",
        reasons or "the driver lists none inside the lab",
        "ls -l /dev/kfd /dev/dri && sudo dmesg | grep -i amdgpu; to work on the CPU instead: make up BACKEND=cpu"
        if backend == "rocm"
        else "see that nvidia-smi works on the host; to work on the CPU instead: make up BACKEND=cpu",
    )


def write(project: Project, *, persist: bool = True) -> None:
    """Write the overlay that lists the chosen GPUs, and `.env` where the settings stay chosen."""
    if ".rocmlab/compose.gpus.yaml" in project.values.get("COMPOSE_FILE", ""):
        chosen = visibility.select(_gpus(project.choice, discover()), project.settings.get("GPUS"))
        text = gpu_overlay(project.choice.backend, chosen)
        envfile.write(project.settings.state / "compose.gpus.yaml", text, mode=0o644)
    if persist:
        configuration.save(project.settings, project.values)


def gpu_overlay(backend: str, devices: list[Device]) -> str:
    """Return a Compose overlay that passes exactly these GPUs."""
    head = "# Written by `make up GPUS=…`: exactly the chosen GPUs.\nservices:\n  lab:\n"
    if not devices:  # the nodes stay: without /dev/kfd a lab for AMD GPUs refuses to start
        return f'{head}    environment:\n      HIP_VISIBLE_DEVICES: "-1"\n      CUDA_VISIBLE_DEVICES: "-1"\n'
    if backend == "rocm":
        paths = ["/dev/kfd", *(device.render_node or "" for device in devices)]
        listed = "".join(f"\n      - {path}" for path in paths)
        return f"{head}    devices: !override{listed}\n"
    ids = ", ".join(f'"{device.unique_id or device.index}"' for device in devices)
    reservation = (
        f"\n            - driver: nvidia\n              device_ids: [{ids}]\n              capabilities: [gpu]"
    )
    return f"{head}    deploy:\n      resources:\n        reservations:\n          devices: !override{reservation}\n"


def reopen(folder: Path) -> Project:
    """Return the project as the last `make up` left it, for verbs that stop or look.

    Raises:
        RocmlabError: there was no `make up` yet, or the engine cannot be asked.
    """
    settings = configuration.load(folder, {})
    values = envfile.parse(envfile.read(settings.env_path))
    backend, runtime = values.get("ROCMLAB_BACKEND"), values.get("ROCMLAB_RUNTIME")
    needed = ("JUPYTER_TOKEN", "PORT", "SHARE", *(("ROCMLAB_IMAGE", "COMPOSE_FILE") if runtime == "docker" else ()))
    if not backend or not runtime or not all(name in values for name in needed):
        raise RocmlabError("there is no lab here yet", f"{settings.env_path} describes none", "make up")
    choice = Choice(backend, runtime, "as `make up` chose")
    if runtime == "docker":
        return Project(settings, choice, values, DockerLab(settings, values, Engine(is_usable=True)))
    environment = Environment(folder, backend, settings.get("PYTHON") or "python3", values.get("TORCH_INDEX", ""))
    return Project(settings, choice, values, NativeLab(settings, values, environment))


def stop_other(project: Project, say: Say) -> None:
    """Stop a lab that an earlier `make up` started in the other runtime, so that one project has one lab."""
    before = project.settings.written.get("ROCMLAB_RUNTIME")
    if before and before != project.choice.runtime:
        other = reopen(project.settings.project)
        if other.choice.runtime == before and other.lab.is_running():
            say(f"stopping the {before} lab of an earlier `make up`")
            other.lab.stop(say)
