"""One project folder and the lab that its settings describe: what every command starts from."""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rocmlab.base import files, hosts, identity, signals
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover
from rocmlab.stack import choice as choosing
from rocmlab.stack import (
    cluster,
    envfile,
    gpus,
    image_kind,
    layout,
    live,
    podman_engine,
    project_folder,
    resolve,
    snapshot,
    sockets,
    tls,
    tokens,
)
from rocmlab.stack import engine as engines
from rocmlab.stack import settings as configuration
from rocmlab.stack.choice import CONTAINERS, Choice
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.engine import Engine
from rocmlab.stack.environment import Environment, backend_of
from rocmlab.stack.image import BaseImageUnreachable
from rocmlab.stack.image_kind import ImageKind
from rocmlab.stack.lab import Lab, Say
from rocmlab.stack.native import NativeLab
from rocmlab.stack.podman import PodmanLab
from rocmlab.stack.podman_engine import Podman
from rocmlab.stack.requirements import amd_wheels
from rocmlab.stack.settings import Settings


def find() -> Path:
    """Return the project folder, nearest upwards or of this source tree; an error if none is to be trusted."""
    if (found := project_folder.nearest()) is not None:
        return found
    raise RocmlabError(
        f"{Path.cwd()} is not in a rocmlab project",
        "no compose.yaml and docker/Dockerfile here or above",
        "cd to your project; where rocmlab was installed with pip, `rocmlab up` makes one",
    )


@dataclass
class Project:
    """A project folder with everything decided."""

    settings: Settings
    choice: Choice
    values: dict[str, str]  # what Compose and the native lab read
    lab: Lab
    previous: dict[str, str] = field(default_factory=dict)  # the content of `.env` before this command
    root: Path = Path("/")  # of the host, or of a simulated one
    passed: gpus.Passed = field(default_factory=gpus.Passed)  # what a container is given of the GPUs
    kind: ImageKind = field(default_factory=ImageKind)
    live_changes: list[str] = field(default_factory=list)  # settings that this command changed in the running lab

    @property
    def url(self) -> str:
        """The address to open in a browser, token included."""
        return f"{self.lab.url}lab?token={self.values['JUPYTER_TOKEN']}"

    def remote_lines(self) -> list[str]:
        """Return the address for other machines and its certificate's fingerprint, nothing without BIND.

        Raises:
            RocmlabError: this lab does not answer there.
        """
        if not tls.address(self.settings):
            return []
        proof, where = tls.served(self.settings), f"{tls.host(self.settings)}:{tls.server_port(self.settings)}"
        path = f"{self.lab.base_url}lab?token={self.values['JUPYTER_TOKEN']}"
        return [f"https://{where}{path}", f"certificate SHA-256 {proof}"]


def notes(project: Project) -> list[str]:
    """Return notes and warnings about this lab, a line each."""
    choice, lines = project.choice, [project.kind.note] if project.kind.note else []
    if choice.is_wsl:
        lines.append(
            "WSL2: GPUs work through /dev/dxg, but nothing lists them here: no metrics, no groups, no choice of single "
            "GPUs; make run-notebooks NOTEBOOKS=00_hello_gpu shows whether they compute"
        )
    is_masked = project.settings.get("GPUS") != "all" and choice.backend == "rocm" and not choice.is_wsl
    if choice.is_rootless and is_masked:
        lines.append(
            "rootless Podman passes every GPU you may open; HIP_VISIBLE_DEVICES hides those that GPUS does not name"
        )
    if choice.is_rootless and not _lingers(project.root):
        lines.append(
            "WARNING: when you log out, the system ends rootless Podman's labs; before: loginctl enable-linger"
        )
    earlier = None if project.settings.guest else _described(project.settings, project.previous)
    if earlier and (was := earlier.lab.share()) != (now := project.lab.share()):
        lines.append(f"the share is now {now}; what is in the earlier one stays there: {was}")
    if problem := project.lab.disk_problem():
        lines.append(f"WARNING: {problem}")
    own = tls.own_problems(project.settings, project.values.get(hosts.BOUND, ""))
    return lines + [f"WARNING: {each}" for each in own]


def _lingers(root: Path) -> bool:
    """Return whether this user's programs run on after a logout; True where no systemd ends them."""
    if not (root / "run/systemd/system").is_dir():
        return True
    try:
        return (root / "var/lib/systemd/linger" / pwd.getpwuid(os.getuid()).pw_name).exists()
    except (KeyError, OSError):
        return True


def _choose(
    settings: Settings, root: Path, runtime: str, before: str, *, builds: bool = False
) -> tuple[Choice, Engine, Podman]:
    """Ask the engines that may be used, and choose."""
    engine = engines.probe() if runtime in ("auto", "docker") else Engine(is_usable=False)
    is_fit = engine.is_usable and not engine.lab_problem() and not engine.device_problem()
    needs_podman = runtime == "podman" or (runtime == "auto" and (not is_fit or before == "podman"))
    podman = podman_engine.probe() if needs_podman else Podman(is_usable=False)
    found = choosing.inspect(engine, root, podman)
    away = builds and runtime in CONTAINERS
    away |= settings.get("GFX") != "" and settings.get("IMAGE") in (image_kind.SLIM, image_kind.DEBIAN)
    is_remembered = (settings.state / "written.json").exists()  # else `.env` may be a copy of another machine's
    had = settings.written.get("ROCMLAB_BACKEND", "") if is_remembered and not settings.guest else ""
    chosen = choosing.choose(
        found, settings.get("BACKEND"), runtime, before, backend_before=had, is_for_another_host=away
    )
    return chosen, engine, podman


def plan(folder: Path, settings: Settings | None = None, *, stays: bool = False, builds: bool = False) -> Project:
    """Look at the host and decide; nothing is written. Raise RocmlabError if what was requested is not available.

    With `stays` a native lab that is complete remains native although an engine is installed now; only `up` moves it.
    With `builds` an image for a RUNTIME and a BACKEND that were chosen may be for another host, which has the GPU.
    """
    settings = settings or configuration.load(folder)
    configuration.port_of(settings)
    cluster.check(settings)
    root = _use_root(settings)
    runtime = settings.get("RUNTIME")
    before = settings.read_env().get("ROCMLAB_RUNTIME", "")
    if stays and runtime == "auto" and before == "native" and backend_of(folder / ".venv"):
        try:
            choice, engine, podman = _choose(settings, root, before, before)
        except RocmlabError:
            pass  # such as a GPU that came later, which only a container can use
        else:
            kept = replace(choice, why=choice.why.replace("RUNTIME=native", "as the lab was set up"))
            return _assemble(settings, kept, engine, podman, root)
    choice, engine, podman = _choose(settings, root, runtime, before, builds=builds)
    project = _assemble(settings, choice, engine, podman, root)
    lab = project.lab
    if isinstance(lab, ContainerLab) and choice.backend == "cpu" and runtime == "auto":
        given_up = envfile.read(_unreachable(settings)).strip() == lab.values["BASE_IMAGE"]
        if given_up and not lab.has_base() and not lab.is_prepared():
            why = f"as before: no registry had the base image; make up RUNTIME={choice.runtime} retries"
            return _assemble(settings, replace(choice, runtime="native", why=why), engine, podman, root)
    return project


def plan_again(folder: Path) -> tuple[Project, list[str]]:
    """Plan with new tokens in place of those that another process may know, and a line for each; nothing is written."""
    settings = configuration.load(folder)
    earlier = _described(settings, settings.read_env())
    if earlier is not None and sockets.listeners(int(earlier.values["PORT"])):
        earlier.lab.holder()  # which remembers another process
    lines = tokens.renew(settings)
    return plan(folder, settings), lines


def _use_root(settings: Settings) -> Path:
    """Return `/`, or the simulated host that was chosen, and use it in this process and those that it starts."""
    chosen = settings.get("ROCMLAB_ROOT")
    root = Path(chosen or "/")
    if not (root / "sys").is_dir():
        raise RocmlabError(
            f"ROCMLAB_ROOT={chosen} is not a simulated host",
            f"{root}/sys is not there",
            f"scripts/rocmlab simulate {root} --gpus 4; or, for this machine: make up ROCMLAB_ROOT=",
        )
    os.environ.pop("ROCMLAB_ROOT", None)
    if root != Path("/"):
        os.environ["ROCMLAB_ROOT"] = str(root)
    return root


def _unreachable(settings: Settings) -> Path:
    """Return the file that remembers a base image which no registry could give, so that it is pulled only once."""
    return settings.state / "unreachable-base-image"


def _assemble(settings: Settings, choice: Choice, engine: Engine, podman: Podman, root: Path) -> Project:
    # A container does not inherit the masks of this terminal.
    devices = discover(root, {} if choice.runtime in CONTAINERS else None)
    gpus.check(settings, choice, engine, devices, root)
    kind = image_kind.decide(settings, choice, devices)
    values = resolve.resolve(settings, choice, devices, root, kind)
    passed = gpus.Passed()
    if choice.runtime in CONTAINERS:
        passed = gpus.passed(settings, choice, devices, root)
    elif choice.backend == "rocm":
        values["TENSORFLOW_INDEX"] = settings.get("TENSORFLOW_INDEX") or amd_wheels(root)
    lab = _lab(settings, choice, values, engine, podman, passed)
    if isinstance(lab, ContainerLab):
        lab.slim_targets = kind.possible
    return Project(settings, choice, values, lab, settings.read_env(), root, passed, kind)


def _lab(
    settings: Settings, choice: Choice, values: dict[str, str], engine: Engine, podman: Podman, passed: gpus.Passed
) -> Lab:
    if choice.runtime == "docker":
        return DockerLab(settings, values, engine)
    if choice.runtime == "podman":
        return PodmanLab(settings, values, podman, passed)
    environment = Environment(
        project=settings.project,
        backend=choice.backend,
        python=settings.get("PYTHON") or "python3",
        torch_index=values.get("TORCH_INDEX", ""),
        jax_packages=values.get("JAX_PACKAGES", ""),
        extras=values.get("EXTRAS", ""),
        tensorflow_index=values.get("TENSORFLOW_INDEX", ""),
        wheels=settings.get("WHEELS"),
        has_cluster=settings.is_in_cluster,
        variables=resolve.pip_variables(settings),
    )
    return NativeLab(settings, values, environment)


def check_user(project: Project) -> None:
    """Raise RocmlabError where a native lab would be root's in a folder of the user who called sudo."""
    folder = project.settings.project
    if project.choice.runtime != "native" or folder.stat().st_uid not in identity.own_uids() - {os.getuid()}:
        return
    raise RocmlabError(
        "a lab without a container is not started with sudo",
        f"its environment, its share and what its notebooks write would be root's in {folder}, which is not root's",
        "the same command without sudo\n"
        "if that may not open the GPU: sudo usermod -aG render,video $USER, then log in again",
    )


def prepare(
    project: Project,
    say: Say,
    *,
    persist: bool = True,
    always: bool = False,
    only_lab: bool = False,
    is_for_hub: bool = False,
) -> Project:
    """Write `.env`, and build or install what is missing; see `Lab.prepare`.

    With `persist` these settings stay chosen; not for a single run, which must not change those of a running lab.
    With `is_for_hub` root may make a native environment, from which the hub starts labs under the users' accounts.
    Return the project; another one, native, where no GPU is involved and the base image could not be pulled.
    """
    if not is_for_hub:
        check_user(project)
    persist = not project.settings.guest and (persist or not project.settings.env_path.exists())
    share = project.values["SHARE"]
    if "/" in share:  # else its container checks it
        layout.check(project.settings.path(share))
    if persist:
        tls.prepare(project.settings, project.values, is_rootless=project.choice.is_rootless)
    write(project, persist=persist)
    live.ensure_folder(project.settings)
    if persist or project.settings.guest:
        project.live_changes = live.write(project.settings)
    write_notify(project)
    try:
        project.lab.prepare(say, always=always, only_lab=only_lab)
    except BaseImageUnreachable as err:
        if project.choice.backend != "cpu" or project.settings.get("RUNTIME") in CONTAINERS:
            raise
        say(f"{err.problem.what}: {err.problem.why}")
        runtime = project.choice.runtime
        why = f"the base image could not be pulled, so without {runtime.capitalize()}"
        say(f"{why}; to retry: make up RUNTIME={runtime} BASE_IMAGE=…")
        envfile.write(_unreachable(project.settings), project.values["BASE_IMAGE"] + "\n")
        choice = replace(project.choice, runtime="native", why=why)
        absent = Engine(is_usable=False), Podman(is_usable=False)
        made = _assemble(project.settings, choice, *absent, project.root)
        project = replace(made, previous=project.previous)
        if not is_for_hub:
            check_user(project)
        write(project, persist=persist)
        project.lab.prepare(say, always=always, only_lab=only_lab)
    return project


def restarts(project: Project) -> bool:
    """Return whether `make up` would stop the lab that runs; what Compose needs for that is written and put back."""
    if not project.lab.is_known_to_run():
        return False
    written, put_back = dict(project.settings.written), snapshot.take(project.settings)
    with signals.interruptible():
        try:
            write(project)
            return not (project.lab.is_startable() and project.lab.is_current())
        finally:
            put_back()
            project.settings.written = written


@contextmanager
def settings_kept_on_failure(project: Project) -> Iterator[None]:
    """Put `.env` and the overlay back as they were if the block fails: they go on describing the lab that is there.

    SIGTERM and SIGHUP end it as Ctrl-C does.
    """
    put_back = snapshot.take(project.settings)
    with signals.interruptible():
        try:
            yield
        except BaseException:
            put_back()
            raise


@contextmanager
def locked(project: Project, say: Say) -> Iterator[None]:
    """Let one command at a time change a project; another one waits and reports it."""
    state = project.settings.state
    identity.make_folder(state)
    with open(state / "lock", "w", encoding="utf-8") as file:
        if not (state / "lock").is_symlink():
            identity.give_to_caller(file.fileno(), state)
        waits = "waiting for another rocmlab command in this folder to finish building or starting"
        files.lock(file.fileno(), lambda: say(waits))
        yield


def check_gpus_inside(project: Project, devices: Sequence[Mapping[str, Any]]) -> None:
    """Stop a lab for GPUs that has none, with an error: it would silently compute on the CPU."""
    backend = project.choice.backend
    if backend not in ("rocm", "cuda") or project.settings.get("GPUS") == "none" or project.choice.is_wsl:
        return
    gpus = [device for device in devices if device["backend"] == backend]
    if any(device["is_usable"] for device in gpus):
        return
    project.lab.stop(lambda _: None)
    reasons = "\n".join(f"{device['name']}: {device['why_not']}" for device in gpus)
    raise RocmlabError(
        f"the lab has no usable GPU for the backend {backend}, so it was stopped",
        reasons or "the driver lists none inside the lab",
        "make doctor, which shows why; to work on the CPU instead: make up BACKEND=cpu"
        if backend == "rocm"
        else "check that nvidia-smi works on the host; to work on the CPU instead: make up BACKEND=cpu",
    )


def write(project: Project, *, persist: bool = True) -> None:
    """Write the overlay that lists the chosen GPUs, and `.env` where the settings stay chosen."""
    files = project.values.get("COMPOSE_FILE", "")
    if gpus.OVERLAY in files.split(":"):
        text = gpus.overlay(project.passed)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]  # of a single run, which leaves the lab's as it is
        name = gpus.OVERLAY if persist else gpus.OVERLAY.replace(".yaml", f".{digest}.yaml")
        envfile.write(project.settings.project / name, text, mode=0o644)
        project.values["COMPOSE_FILE"] = files.replace(gpus.OVERLAY, name)
        if isinstance(project.lab, ContainerLab):
            project.lab.environment["COMPOSE_FILE"] = project.values["COMPOSE_FILE"]
    if persist:
        for path in project.settings.state.glob("compose.gpus.*.yaml"):  # of runs, which read it at their start
            path.unlink(missing_ok=True)
        configuration.save(project.settings, project.values)


def write_notify(project: Project, settings: Settings | None = None) -> None:
    """Have the project's lab report the ends of runs by these settings, its own by default."""
    is_inside = isinstance(project.lab, ContainerLab)
    owner = (project.values["NB_UID"], project.values["NB_GID"]) if is_inside else None
    live.write_notify(settings or project.settings, owner)


def reopen(folder: Path) -> Project:
    """Return the project as the last `make up` left it, for commands that stop or read; an error without one."""
    found = existing(folder)
    if found is None:
        raise RocmlabError("no lab found here", f"{folder / '.env'} does not describe one", "make up")
    return found


def existing(folder: Path) -> Project | None:
    """Return the project as the last `make up` left it, or None before the first one; nothing is started or written."""
    settings = configuration.load(folder, {})
    return _described(settings, settings.read_env())


def _described(settings: Settings, values: dict[str, str]) -> Project | None:
    """Return the project that a `.env` describes, or None if it describes none."""
    backend, runtime = values.get("ROCMLAB_BACKEND"), values.get("ROCMLAB_RUNTIME")
    needed = ["JUPYTER_TOKEN", "PORT", "SHARE"] + (["ROCMLAB_IMAGE"] if runtime in CONTAINERS else [])
    needed += ["COMPOSE_FILE"] if runtime == "docker" else []
    if not backend or not runtime or not all(name in values for name in needed):
        return None
    choice = Choice(backend, runtime, "as `make up` chose", is_simulated=bool(settings.get("ROCMLAB_ROOT")))
    lab = _lab(settings, choice, values, Engine(is_usable=True), Podman(is_usable=True), gpus.Passed())
    return Project(settings, choice, values, lab)


def holds_port(project: Project) -> bool:
    """Return whether the lab, or the one of an earlier `make up` in another runtime, listens on PORT."""
    labs = [project.lab]
    if project.previous.get("PORT") == project.values["PORT"]:
        earlier = _described(project.settings, project.previous)
        labs += [earlier.lab] if earlier and earlier.choice.runtime != project.choice.runtime else []
    return any(lab.holds_port() for lab in labs)


def before(project: Project) -> Project | None:
    """Return the project as the last `make up` left it, if its lab runs: its port and token may be other ones."""
    found = _described(project.settings, project.previous)
    return found if found is not None and found.lab.is_running() else None


def stop_other(project: Project, say: Say) -> None:
    """Stop a lab that an earlier `make up` started in another runtime, so that one project has one lab."""
    found = before(project)
    if found is not None and found.choice.runtime != project.choice.runtime:
        say(f"stopping the {found.choice.runtime} lab of an earlier `make up`")
        found.lab.stop(say)
