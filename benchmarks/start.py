"""How long starting and rebuilding take, measured on this machine.

Each row is a whole command as a user would type it, so it holds the interpreter's start, all checks and the wait
for JupyterLab. Where there is something to compare with, the two are measured alternately, within one run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Results
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import process
from rocmlab.stack import project as projects
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.docker import SERVICE, DockerLab
from rocmlab.stack.native import NativeLab
from rocmlab.stack.project import Project
from rocmlab.stack.settings import PATHS
from rocmlab.stack.source import IMAGE_SOURCES

NAIVE_HEALTH = """\
# The usual way: start, and wait until a health check that runs every 2 seconds is content.
services:
  lab:
    healthcheck:
      test: ["CMD", "/opt/rocmlab/bin/python", "-S", "-E", "/usr/local/bin/healthcheck.py"]
      interval: 2s
      start_interval: 2s
      start_period: 60s
      timeout: 5s
      retries: 30
"""
COMPOSE_BUILD = ("docker", "compose", "--progress", "quiet", "build")
OWN_STEPS = "ROCMLAB_BENCH"
SIZE_UNITS = {"B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}
FRAMEWORK_STEPS = {  # by the command that each step runs
    "/build/environment /opt/torch": "environments",  # and what TensorFlow for the CPU needs
    "/build/torch": "torch",  # and TensorFlow for the CPU
    "/build/jax": "jax",
    "/build/cluster": "ray",
}


def measure(project: Project, runs: int) -> Results:
    """Measure what `make up` costs; the lab is running at the end.

    Raises:
        RocmlabError: the lab is not built, or a measured command failed.
    """
    check_built(project)
    projects.write(project)
    lab = project.lab
    command = [sys.executable, "-m", "rocmlab", "up"]
    results = Results()
    for _ in range(runs):
        lab.stop(_silent)
        results.add("up_warm", "s", _seconds(command, project.settings.project))
        results.add("up_again", "s", _seconds(command, project.settings.project))
        if isinstance(lab, DockerLab):
            lab.stop(_silent)
            results.extend("up_warm", "s", [], [_naive_start(lab)])
            lab.stop(_silent)
    lab.start(_silent)
    if isinstance(lab, DockerLab):
        results.extend("rebuild", "s", _rebuilds(lab, min(runs, 3)))
        for name, size in layer_sizes(lab).items():
            results.add(name, "MB", size)
    results.extend("lab_import", "s", [_import_seconds(lab) for _ in range(runs)])
    devices = lab.devices()
    results.device = devices[0]["name"] if devices else None
    results.simulated = any(device["simulated"] for device in devices)
    return results


def check_built(project: Project) -> None:
    """Refuse to measure a lab that is not there.

    Raises:
        RocmlabError: it is not built, or not current.
    """
    if not project.lab.is_prepared():
        raise RocmlabError(
            "the lab is not built",
            "this measures a lab that is",
            "make up, then the benchmark again",
        )


def _silent(_: str) -> None:
    return


def _seconds(command: Sequence[str], folder: Path, env: dict[str, str] | None = None) -> float:
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RocmlabError(f"{' '.join(command)} failed", done.stdout[-600:], "run it manually and fix what it reports")
    return time.monotonic() - started


def _naive_start(lab: DockerLab) -> float:
    with tempfile.TemporaryDirectory() as folder:
        overlay = Path(folder) / "naive.yaml"
        overlay.write_text(NAIVE_HEALTH, encoding="utf-8")
        files = f"{lab.values['COMPOSE_FILE']}:{overlay}"
        env = {**lab.environment, "COMPOSE_FILE": files}
        command = ["docker", "compose", "up", "--detach", "--no-build", "--wait", SERVICE]
        return _seconds(command, lab.settings.project, env)


def measure_cold(project: Project, runs: int, rows: Sequence[str]) -> Results:
    """Measure the first start on a bare machine with uv, and with pip in its place, in copies of the project.

    `cold_native` is `make up` until JupyterLab answers; `cold_image` is `make build`. Caches of packages are empty: all
    comes from the package index, so a distant index is measured as well.

    Raises:
        RocmlabError: a row of this name does not exist, or does not fit the project's runtime; a start failed.
    """
    known = {"cold_native": _cold_native, "cold_image": _cold_image}
    results = Results(simulated=False)
    for row in rows:
        if row not in known:
            raise RocmlabError(f"bench up has no row {row}", f"it has {' and '.join(known)}", "name one of these")
        for _ in range(runs):
            seconds = []
            for with_uv in (True, False):
                with tempfile.TemporaryDirectory() as folder:
                    copy = _copy(project.settings.project, Path(folder) / "rocmlab")
                    seconds.append(known[row](project, copy, Path(folder), with_uv=with_uv))
            results.add(row, "s", *seconds)
    return results


def _cold_native(_: Project, copy: Path, folder: Path, *, with_uv: bool) -> float:
    if not with_uv:
        (copy / "requirements/uv.txt").write_text("", encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": "src", "PIP_NO_CACHE_DIR": "1", "PORT": str(port), "BACKEND": "cpu"}
    command = [sys.executable, "-m", "rocmlab"]
    try:
        return _seconds([*command, "up"], copy, {**env, "RUNTIME": "native", "SHARE": str(folder / "share")})
    finally:
        subprocess.run([*command, "down"], env={**env, "FORCE": "1"}, cwd=copy, stdout=subprocess.DEVNULL, check=False)


def _cold_image(project: Project, copy: Path, _: Path, *, with_uv: bool) -> float:
    if not isinstance(project.lab, DockerLab):
        raise RocmlabError("cold_image needs Docker", f"the lab is a {type(project.lab).__name__}", "RUNTIME=docker")
    if not with_uv:
        (copy / "requirements/uv.txt").write_text("", encoding="utf-8")
    name = f"rocmlab-bench-{time.time_ns()}"
    dockerfile = copy / "docker/Dockerfile"
    dockerfile.write_text(as_for_the_first_time(dockerfile.read_text(encoding="utf-8"), name), encoding="utf-8")
    chosen = project.settings.chosen
    paths = {each: str(project.settings.path(chosen[each])) for each in PATHS if chosen.get(each)}
    settings = {**chosen, **paths, "RUNTIME": "docker", "PULL": "off", "COMPOSE_PROJECT_NAME": name}
    env = {**os.environ, **settings, "PYTHONPATH": "src", "FORCE": "1"}
    command = [sys.executable, "-m", "rocmlab"]
    try:
        return _seconds([*command, "build"], copy, env)
    finally:
        subprocess.run([*command, "clean"], env=env, cwd=copy, stdout=subprocess.DEVNULL, check=False)
        _remove_caches(name, project.lab.environment)


def as_for_the_first_time(dockerfile: str, name: str) -> str:
    """Return a Dockerfile that shares no cache of packages and no step with another build.

    Raises:
        RocmlabError: the stage that all others follow is not found.
    """
    own_caches = re.sub(r"(--mount=type=cache),(target=([^,\s]+))", rf"\1,id={name}\3,\2", dockerfile)
    # An argument is part of what identifies a step, and so of all that follow; the id of a cache is not.
    changed, found = re.subn(r"^(FROM \S+ AS base\n)", rf"\1ARG {OWN_STEPS}={name}\n", own_caches, flags=re.MULTILINE)
    if found != 1:
        raise RocmlabError(
            "the Dockerfile has no stage `base`",
            "steps of another build could be reused unnoticed",
            "change as_for_the_first_time in benchmarks/start.py with docker/Dockerfile",
        )
    return changed


def _remove_caches(name: str, env: dict[str, str]) -> None:
    """Remove the builder's caches whose id begins with a name; each has gigabytes."""
    code, listed = process.capture(["docker", "buildx", "du", "--verbose"], env=env)
    for entry in listed.split("\n\n") if code == 0 else ():
        if f'with id "/{name}' in entry and (found := re.search(r"^ID:\s+(\S+)", entry, re.MULTILINE)):
            process.capture(["docker", "buildx", "prune", "--force", "--filter", f"id={found[1]}"], env=env)


def _named_apart(lab: DockerLab) -> dict[str, str]:
    """Return Compose's environment for a copy of the project, whose image has a name of its own."""
    files = ":".join(part for part in lab.values["COMPOSE_FILE"].split(":") if not part.startswith(".rocmlab"))
    return {**lab.environment, "ROCMLAB_IMAGE": f"{lab.image}-bench", "COMPOSE_FILE": files}


def _copy(project: Path, target: Path) -> Path:
    """Copy what an image or an environment is made from, without what is hidden or compiled; return the copy."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for source in (*IMAGE_SOURCES, "notebooks", "scripts", "compose.yaml", ".dockerignore"):
        origin, copied = project / source, target / source
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(origin, copied, ignore=ignored) if origin.is_dir() else shutil.copy2(origin, copied)
    return target


def _rebuilds(lab: DockerLab, runs: int) -> list[float]:
    """Return the seconds to rebuild after a change in src/, in a copy of the project and under another image name."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        copy = _copy(lab.settings.project, Path(name) / "rocmlab")
        env, command = _named_apart(lab), [*COMPOSE_BUILD, SERVICE]
        try:
            _seconds(command, copy, env)  # the state before the change
            for number in range(runs):
                with open(copy / "src/rocmlab/base/errors.py", "a", encoding="utf-8") as file:
                    file.write(f"# change {number} of {time.time_ns()}\n")
                found.append(_seconds(command, copy, env))
        finally:
            process.capture(["docker", "image", "rm", "--force", env["ROCMLAB_IMAGE"]], env=lab.environment)
    return found


def layer_sizes(lab: DockerLab) -> dict[str, float]:
    """Return megabytes: `layers_mb` our layers without the frameworks, frameworks by name, the base. From its history.

    All rows together are the image on the disk, full or slim. A framework that was not requested has no row.
    """
    code, output = process.capture(
        ["docker", "history", "--no-trunc", "--format", "{{json .}}", lab.image], env=lab.environment
    )
    if code:
        raise RocmlabError(f"{lab.image} has no history", output.strip()[-200:], "make build")
    base = process.capture(
        ["docker", "history", "--quiet", "--format", "{{.ID}}", lab.values["BASE_IMAGE"]], env=lab.environment
    )[1]
    layers = [json.loads(line) for line in output.splitlines()]
    ours = layers[: len(layers) - len(base.split())] if base else layers
    sizes: defaultdict[str, float] = defaultdict(float, {"layers_mb": 0.0})
    for layer in ours:
        name = next((name for script, name in FRAMEWORK_STEPS.items() if f"{script} " in layer["CreatedBy"]), "")
        sizes[f"layers_{name}_mb" if name else "layers_mb"] += megabytes(layer["Size"])
    sizes["layers_base_mb"] += sum(megabytes(layer["Size"]) for layer in layers[len(ours) :])
    return {name: size for name, size in sizes.items() if size or name == "layers_mb"}


def megabytes(text: str) -> float:
    """Return Docker's `1.25GB` in megabytes."""
    found = re.fullmatch(r"([\d.]+)([a-zA-Z]+)", text)
    return float(found[1]) * SIZE_UNITS[found[2]] if found else 0.0


def _import_seconds(lab: ContainerLab | NativeLab | object) -> float:
    program = "import time; t = time.monotonic(); import jupyterlab.labapp; print(time.monotonic() - t)"
    if isinstance(lab, ContainerLab):
        container = lab.container() or ""
        command = [lab.program, "exec", container, "start.sh", "/opt/rocmlab/bin/python", "-c", program]
        env: dict[str, str] = lab.environment
    elif isinstance(lab, NativeLab):
        command, env = [str(lab.venv.interpreter), "-c", program], dict(os.environ)
    else:
        raise RocmlabError("this runtime has no benchmark", type(lab).__name__, "use docker or native")
    code, output = process.capture(command, env=env)
    if code:
        raise RocmlabError("JupyterLab cannot be imported", output.strip()[-400:], "make clean && make up")
    return float(output)
