"""Podman on this host: whether it can run the lab, rootful or rootless, and what is missing."""

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
from rocmlab.stack.engine import PROBE_SECONDS

OLDEST = (4, 3)  # first with --userns=keep-id:uid=…
WITHOUT_PODMAN = "or, without Podman: make up RUNTIME=native"


@dataclass(frozen=True)
class Podman:
    """What is known of Podman."""

    is_usable: bool
    problem: Problem | None = None  # why it is not usable; None if it is, or if there is no Podman at all
    version: str = ""
    is_rootless: bool = False  # it runs as this user, in a user namespace
    oci_runtime: str = ""  # crun or runc
    root: str = ""  # where it keeps images
    has_selinux: bool = False
    controllers: frozenset[str] = frozenset()  # of control groups that it may use: pids, memory, …

    def gpu_problem(self, backend: str) -> Problem | None:
        """Return why a lab with this backend cannot run in it, or None if it can."""
        if backend == "cuda":
            return Problem(
                "NVIDIA GPUs are not passed to Podman",
                "rocmlab knows only Docker's way of doing so",
                "make up RUNTIME=docker, or RUNTIME=native",
            )
        if backend == "rocm" and self.is_rootless and self.oci_runtime != "crun":
            return Problem(
                f"rootless Podman with {self.oci_runtime or 'its OCI runtime'} cannot open the GPU's device nodes",
                "only crun keeps this user's groups (render, video) inside the container (--group-add keep-groups)",
                "sudo apt install crun (dnf install crun), and in ~/.config/containers/containers.conf: [engine] "
                'runtime = "crun"',
            )
        return None


def environment_for(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for `podman`: it takes DOCKER_CONFIG as its own and fails if that folder has no file."""
    kept = dict(environment)
    folder = kept.get("DOCKER_CONFIG")
    if folder and not Path(folder, "config.json").exists():
        del kept["DOCKER_CONFIG"]
    return kept


def probe(environment: Mapping[str, str] | None = None) -> Podman:
    """Ask Podman, in one short command; one that does not answer within 20 s counts as broken."""
    environment = environment_for(os.environ if environment is None else environment)
    client = shutil.which("podman", path=environment.get("PATH"))
    if client is None:
        return Podman(is_usable=False)
    command = [client, "info", "--format", "json"]
    code, output, error = process.outputs(command, env=environment, timeout_seconds=PROBE_SECONDS)
    facts = envfile.json_object(output) if code == 0 else {}
    if not facts:
        return Podman(is_usable=False, problem=_why_broken(error))
    return _describe(facts, error)


def _at(facts: Mapping[str, object], *names: str) -> object:
    """Return a value some levels down, or None where a level is missing."""
    found: object = facts
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _describe(facts: Mapping[str, Any], message: str) -> Podman:
    version = str(_at(facts, "version", "Version") or "")
    is_rootless = bool(_at(facts, "host", "security", "rootless"))
    problem = _problem(facts, version, message, is_rootless=is_rootless)
    controllers = _at(facts, "host", "cgroupControllers")
    if is_rootless and _at(facts, "host", "cgroupVersion") != "v2":
        controllers = None  # in version 1 Podman ignores the limits of a container that is not root's, with a warning
    return Podman(
        is_usable=problem is None,
        problem=problem,
        version=version,
        is_rootless=is_rootless,
        oci_runtime=str(_at(facts, "host", "ociRuntime", "name") or ""),
        root=str(_at(facts, "store", "graphRoot") or ""),
        controllers=frozenset(map(str, controllers)) if isinstance(controllers, list) else frozenset(),
        has_selinux=bool(_at(facts, "host", "security", "selinuxEnabled")),
    )


def _problem(facts: Mapping[str, Any], version: str, message: str, *, is_rootless: bool) -> Problem | None:
    """Return what keeps this Podman from running the lab."""
    if _at(facts, "host", "serviceIsRemote"):
        return Problem(
            "Podman is on another machine, or in a virtual one (CONTAINER_HOST, `podman system connection`)",
            "the notebooks folder, the port on 127.0.0.1 and the GPU looked for are this machine's",
            "unset CONTAINER_HOST CONTAINER_CONNECTION, or clone rocmlab on that machine and run `make up` there\n"
            f"{WITHOUT_PODMAN}",
        )
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        return Problem(
            f"Podman {version} is too old",
            "the lab needs 4.3: Debian 12 has 4.3, Debian 13 has 5.4, Ubuntu 24.04 has 4.9",
            f"install a newer Podman, or Docker; {WITHOUT_PODMAN}",
        )
    if not is_rootless:
        return None
    mapped = _at(facts, "host", "idMappings", "uidmap")
    ranges = [entry for entry in mapped if isinstance(entry, dict)] if isinstance(mapped, list) else []
    if sum(int(entry.get("size") or 0) for entry in ranges) < 65536:
        return _no_ids(message)
    helpers = (_at(facts, "host", "slirp4netns", "executable"), _at(facts, "host", "pasta", "executable"))
    if not any(helpers):
        return Problem(
            "rootless Podman has no network",
            "neither slirp4netns nor pasta is installed, so JupyterLab's port could not be reached",
            f"sudo apt install slirp4netns (Podman 5: passt); {WITHOUT_PODMAN}",
        )
    return None


def _no_ids(message: str) -> Problem:
    last = message.strip().splitlines()[-1] if message.strip() else "this user has no range of ids in /etc/subuid"
    return Problem(
        "rootless Podman cannot give the lab user ids of its own",
        last,
        "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER && podman system migrate\n"
        f"{WITHOUT_PODMAN}",
    )


def _why_broken(error: str) -> Problem:
    message = error.strip().splitlines()[-1] if error.strip() else "no output"
    if "newuidmap" in error or "newgidmap" in error:
        return Problem("rootless Podman lacks newuidmap", message, f"sudo apt install uidmap; {WITHOUT_PODMAN}")
    if "subuid" in error or "subgid" in error:
        return _no_ids(error)
    return Problem(
        "Podman is installed but does not answer", message, f"podman info, and fix the error it shows; {WITHOUT_PODMAN}"
    )
