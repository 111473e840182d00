"""The Docker engine of this host: whether there is one, whether it answers, and what it can pass to a container."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmlab.base.errors import Problem
from rocmlab.stack import envfile, process

UNITS = (
    "/lib/systemd/system/docker.service",
    "/usr/lib/systemd/system/docker.service",
    "/etc/systemd/system/docker.service",
)
PROBE_SECONDS = 20.0  # an engine that has not answered by then counts as down
COMPOSE_OLDEST = (2, 24, 4)  # first with !override
ENGINE_OLDEST = (25, 0)  # first whose build knows named contexts and HEALTHCHECK --start-interval


class ComposeProblem(Problem):
    """What is wrong with the Compose of an engine that answers."""


@dataclass(frozen=True)
class Engine:
    """What is known of the engine behind the `docker` command."""

    is_usable: bool
    problem: Problem | None = None  # why it is not usable; None if it is, or if there is no engine at all
    version: str = ""
    operating_system: str = ""
    root: str = ""  # where it keeps images
    security: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    is_snap: bool = False
    is_remote: bool = False
    context: str = ""  # of the client: which of several engines is meant; empty where the client has none
    endpoint: str = ""  # where the client reaches it, as far as that is known: unix:///…, tcp://…, ssh://…
    cdi_folders: tuple[str, ...] = ()  # where it looks for CDI specifications; empty: the feature is off

    @property
    def is_desktop(self) -> bool:
        """Docker Desktop keeps its engine in a virtual machine, which has no GPU device nodes."""
        return "Docker Desktop" in self.operating_system or _is_desktop_socket(self.endpoint)

    @property
    def is_rootless(self) -> bool:
        """A rootless engine cannot use the groups of the host's device nodes."""
        return any("rootless" in option for option in self.security)

    def lab_problem(self) -> Problem | None:
        """Return why this engine cannot run the lab at all, GPU or not, or None if it can."""
        if self.is_remote:
            return Problem(
                f"the Docker engine is on another machine ({self.endpoint or 'DOCKER_HOST'})",
                "the notebooks folder, the port on 127.0.0.1 and the GPU looked for are this machine's",
                "docker context use default && unset DOCKER_HOST DOCKER_CONTEXT\n"
                "or clone rocmlab on that machine and run `make up` there",
            )
        if self.is_rootless:
            return Problem(
                "a rootless Docker engine cannot run the lab",
                "inside it you are root, so the lab's own user could neither open the GPU nor save your notebooks",
                "docker context use default (the engine of the system), or: make up RUNTIME=podman, RUNTIME=native",
            )
        return None

    def device_problem(self) -> Problem | None:
        """Return why this engine cannot pass GPU device nodes, or None if it can."""
        if self.is_desktop:
            return Problem(
                "Docker Desktop cannot pass the GPU to a container",
                "its engine runs in a virtual machine that has no /dev/kfd",
                "install the native engine (docker-ce or docker.io), then: docker context use default",
            )
        if self.is_snap:
            return Problem(
                "the snap package of Docker cannot pass the GPU to a container",
                "snap's confinement hides /dev/kfd and /dev/dri from the engine",
                "sudo snap remove docker, then install docker-ce or docker.io",
            )
        return None

    def cdi_problem(self) -> Problem | None:
        """Return why this engine takes no CDI names, or None if it does."""
        if self.cdi_folders:
            return None
        return Problem(
            f"Docker engine {self.version} does not take GPUs by their CDI names",
            "its CDI feature is off, as it is by default before engine 28.3",
            'add "features": {"cdi": true} to /etc/docker/daemon.json (keep what is there), then: '
            "sudo systemctl restart docker\nor, without CDI: make up GPU_PASSTHROUGH=nodes",
        )


def probe(environment: Mapping[str, str] | None = None) -> Engine:
    """Run one short command of the engine; an engine that does not answer within 20 s counts as down."""
    environment = os.environ if environment is None else environment
    client = shutil.which("docker", path=environment.get("PATH"))
    if client is None:
        return Engine(is_usable=False)
    command = [client, "info", "--format", "{{json .}}"]
    code, output, error = process.outputs(command, env=environment, timeout_seconds=PROBE_SECONDS)
    start = output.find("{")
    if code == 0 and start >= 0 and (facts := envfile.json_object(output[start:])).get("ServerVersion"):
        return _with_tools(client, facts, environment)
    is_podman = "emulate docker cli using podman" in (output + error).lower()  # of the package podman-docker
    is_podman = is_podman or Path(os.path.realpath(client)).name == "podman"
    if is_podman or not _is_installed(environment, error):
        return Engine(is_usable=False)
    return Engine(is_usable=False, problem=_why_down(error))


def _with_tools(client: str, facts: dict[str, Any], environment: Mapping[str, str]) -> Engine:
    code, output = 0, _compose_version(facts.get("ClientInfo"))
    if not output:
        command = [client, "compose", "version", "--short"]
        code, output, _ = process.outputs(command, env=environment, timeout_seconds=PROBE_SECONDS)
    version, root = str(facts["ServerVersion"]), str(facts.get("DockerRootDir") or "")
    security, runtimes, folders = (facts.get(name) for name in ("SecurityOptions", "Runtimes", "CDISpecDirs"))
    about_client = facts.get("ClientInfo")
    context = str(about_client.get("Context") or "") if isinstance(about_client, dict) else ""
    endpoint = _endpoint(client, context, environment)
    target = os.path.realpath(client)
    is_snap = any("/snap/" in path for path in (client, target, root)) or Path(target).name == "snap"
    return Engine(
        is_usable=(problem := _version_problem(version) or _compose_problem(code, output)) is None,
        problem=problem,
        version=version,
        operating_system=str(facts.get("OperatingSystem") or ""),
        root=root,
        security=tuple(map(str, security)) if isinstance(security, list) else (),
        runtimes=tuple(runtimes) if isinstance(runtimes, dict) else (),
        is_snap=is_snap,
        is_remote=endpoint.startswith(("tcp:", "ssh:", "http:", "https:")) and not _is_loopback(endpoint),
        context=context,
        endpoint=endpoint,
        cdi_folders=tuple(map(str, folders)) if isinstance(folders, list) else (),
    )


def _compose_version(client: object) -> str:
    """Return the version of the plugin that `docker info` lists, which saves a call; empty where it lists none."""
    plugins = client.get("Plugins") if isinstance(client, dict) else None
    listed = [each for each in plugins or () if isinstance(each, dict) and each.get("Name") == "compose"]
    return str(listed[0].get("Version") or "") if listed and not listed[0].get("Err") else ""


def _endpoint(client: str, context: str, environment: Mapping[str, str]) -> str:
    """Return where the client reaches its engine; runs the client only where a context was chosen (20 ms)."""
    if host := environment.get("DOCKER_HOST", ""):
        return host
    if context in ("", "default"):
        return ""
    command = [client, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}", context]
    code, output, _ = process.outputs(command, env=environment, timeout_seconds=PROBE_SECONDS)
    return output.strip() if code == 0 else ""


def _is_loopback(endpoint: str) -> bool:
    """Return whether an engine that is reached over TCP is on this very machine."""
    return re.match(r"(tcp|https?)://(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:|/|$)", endpoint) is not None


def _is_desktop_socket(endpoint: str) -> bool:
    return "/.docker/desktop/" in endpoint or "docker_engine_desktop" in endpoint


def _version_problem(version: str) -> Problem | None:
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= ENGINE_OLDEST:
        return None
    return Problem(
        f"Docker engine {version} is too old",
        "the image is built with features of engine 25 and newer",
        "install a newer engine (docker-ce, or docker.io of Debian 13 or Ubuntu 24.04);\n"
        "or, without Docker: make up RUNTIME=native",
    )


def _compose_problem(code: int, output: str) -> Problem | None:
    fix = (
        "install the plugin: docker-compose-plugin (Docker's packages), docker-compose-v2 (Ubuntu)\n"
        "or docker-compose (Debian 13); or, without Docker: make up RUNTIME=native"
    )
    if code:
        return ComposeProblem(
            "`docker compose` is missing", "the engine answers, but the Compose plugin is not installed", fix
        )
    found = tuple(map(int, re.findall(r"\d+", output)[:3]))
    if found < COMPOSE_OLDEST:
        oldest = ".".join(map(str, COMPOSE_OLDEST))
        return ComposeProblem(
            f"Docker Compose {output.strip()} is too old", f"the Compose files need {oldest} or newer", fix
        )
    return None


def _is_installed(environment: Mapping[str, str], error: str) -> bool:
    """Tell an engine that is down from a client without any engine, as it is left by some base systems."""
    if environment.get("DOCKER_HOST") or "permission denied" in error.lower():
        return True
    daemon = shutil.which("dockerd", path=environment.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")
    return daemon is not None or any(Path(path).exists() for path in UNITS)


def _why_down(error: str) -> Problem:
    message = error.strip().splitlines()[-1] if error.strip() else "no answer"
    if _is_desktop_socket(message):
        return Problem(
            "Docker Desktop is chosen, and it is not running",
            message,
            "docker context use default (the engine of the system, which an AMD GPU needs)\n"
            "or start Docker Desktop: systemctl --user start docker-desktop",
        )
    remote = re.search(r"(tcp|ssh)://\S+", message)
    if remote and not _is_loopback(remote[0]):
        return Problem(
            "the Docker engine, which is on another machine, does not answer",
            message,
            "docker context use default && unset DOCKER_HOST DOCKER_CONTEXT",
        )
    if "permission denied" in error.lower():
        return Problem(
            "the Docker engine may not be used by this user",
            message,
            "sudo usermod -aG docker $USER, then log in again (or, without Docker: make up RUNTIME=native)",
        )
    return Problem(
        "the Docker engine is installed but does not answer",
        message,
        "sudo systemctl start docker (or, without Docker: make up RUNTIME=native)",
    )
