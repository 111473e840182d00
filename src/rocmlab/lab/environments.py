"""Environments of the user's own that are kernels of the lab: which they are, and whether they can be.

Their list is on the share. Nothing is installed into them, and their frameworks are looked at without importing them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from rocmlab.base import confidential, files, safe
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.devices import visibility
from rocmlab.kernels.gpus import Gpus
from rocmlab.packages import base_packages, companions, overlays, requested

FILE = "packages/environments.json"  # on the share, and in a backup of it
NAME = re.compile(r"(?!(torch|tensorflow)\b)(?!.*-(all|cpu|gpu\d+)$)[a-z0-9][a-z0-9._-]{0,60}")
INSIDE = ("", ".venv", ".pixi/envs/default")  # of a folder: where its environment may be
ACTIVATE_SECONDS = 60
# A `.` reads each script in this shell, as `conda activate` does.
ACTIVATE = 'for file in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do [ ! -r "$file" ] || . "$file" >&2; done; env -0'
OF_A_SHELL = ("_", "PWD", "OLDPWD", "SHLVL", "PATH")
LIBRARIES = {"rocm": "libtorch_hip.so", "cuda": "libtorch_cuda.so"}
BUILDS = {"rocm": "ROCm", "cuda": "CUDA", "cpu": "the CPU"}


@dataclass(frozen=True)
class Environment:
    """One of them."""

    name: str  # of its kernelspec
    title: str
    prefix: str
    kind: str  # `uv`, `venv`, `conda` or `pixi`
    variables: dict[str, str] = field(default_factory=dict)  # that its activation sets

    @property
    def python(self) -> str:
        """Its interpreter."""
        return f"{self.prefix}/bin/python"

    def install(self, what: str) -> str:
        """Return the command that installs packages into it."""
        if self.kind == "pixi":
            project, _, name = self.prefix.partition("/.pixi/envs/")
            feature = "" if name == "default" else f" --feature {quote(name)}"
            return f"pixi add --manifest-path {quote(project)}{feature} {what}"
        if self.kind == "conda":
            program = next((each for each in ("micromamba", "mamba", "conda") if shutil.which(each)), "conda")
            return f"{program} install --prefix {quote(self.prefix)} {what}"
        return self.pip(what)

    def pip(self, what: str) -> str:
        """Return the command that installs with pip into it."""
        if self.kind == "uv":
            return f"uv pip install --python {quote(self.python)} {what}"
        return f"{quote(self.python)} -m pip install {what}"


def look(path: str, name: str | None = None) -> Environment:
    """Return the environment in a folder: the folder itself, a project's `.venv` or `.pixi`, or of an interpreter.

    Raises:
        RocmlabError: there is none, it cannot be started, or has no ipykernel.
    """
    given = Path(os.path.abspath(os.path.expanduser(path)))
    folder = given.parent.parent if given.parent.name == "bin" else given
    prefix = next((each for end in INSIDE if os.path.lexists((each := folder / end) / "bin/python")), None)
    if prefix is None:
        none = f"it has no bin/python, and neither has {' or '.join(filter(None, INSIDE))} in it"
        raise RocmlabError(
            f"{path} is not an environment",
            none if folder.exists() else "there is no such folder where the lab runs",
            "name the folder of an environment of uv, venv, conda, micromamba or pixi",
        )
    if os.pathsep in str(prefix):
        what = f"{prefix} cannot be on PATH, where {os.pathsep!r} separates folders"
        raise RocmlabError(what, "programs of other folders would be started", "make the environment in another folder")
    if not os.access(prefix / "bin/python", os.X_OK):
        raise RocmlabError(
            f"the interpreter of {prefix} is missing here",
            f"bin/python leads to {os.path.realpath(prefix / 'bin/python')}",
            "make the environment where the lab runs: in a terminal of JupyterLab, below work/ or share/",
        )
    named = folder if prefix.name in (".venv", "venv", "env", "default") else prefix
    named = named.parent if named.name in ("venv", "env") else named
    called = name or re.sub(r"[^a-z0-9._-]+", "-", named.name.lower()).strip("-._")
    if not NAME.fullmatch(called):
        why = "it has a-z, 0-9, - . and _, does not begin with torch or tensorflow, or end with -cpu, -all or -gpu0"
        raise RocmlabError(f"{called!r} cannot be the name of a kernel", why, "name another: --name my-env")
    kind = _kind(prefix)
    found = Environment(called, name or named.name, str(prefix), kind)
    base, sites = base_packages.read(found.python), overlays.sites(found.python)
    if sites and not {*sites} & {Path(site).resolve() for site in base.sites}:
        raise RocmlabError(
            f"the Python of {prefix} is another one than it was made with",
            f"bin/python leads to {os.path.realpath(found.python)}, which does not see the packages in {sites[0]}",
            "make the environment again where the lab runs",
        )
    if "ipykernel" not in base.packages:
        what = f"{prefix} has no ipykernel"
        raise RocmlabError(what, "Jupyter starts a kernel of Python by it", found.install("ipykernel"))
    return replace(found, variables=_activation(prefix)) if kind in ("conda", "pixi") else found


def _kind(prefix: Path) -> str:
    if (prefix / "conda-meta").is_dir():
        return "pixi" if prefix.parent.parent.name == ".pixi" else "conda"
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        text = ""
    return "uv" if re.search(r"^uv\s*=", text, re.MULTILINE) else "venv"


def _activation(prefix: Path) -> dict[str, str]:
    """Return what the activation of a conda environment sets: its scripts are run once, now."""
    before = {**confidential.without(os.environ), "CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": prefix.name}
    before["PATH"] = overlays.path_with(prefix, before.get("PATH", os.defpath))
    try:
        state = json.loads((prefix / "conda-meta/state").read_text(encoding="utf-8"))
        own = {str(name): str(value) for name, value in state.get("env_vars", {}).items()}
    except (OSError, ValueError, AttributeError):
        own = {}
    try:
        done = subprocess.run(
            ["bash", "-c", ACTIVATE],
            env={**before, **own},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ACTIVATE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as err:
        why = (getattr(err, "stderr", None) or str(err).encode()).decode(errors="replace").strip()[-300:]
        raise RocmlabError(f"{prefix} cannot be activated", why, f"correct {prefix}/etc/conda/activate.d") from err
    pairs = (each.partition("=") for each in done.stdout.decode("utf-8", "replace").split("\0") if "=" in each)
    after = {name: value for name, _, value in pairs if name not in OF_A_SHELL and not name.startswith("BASH_FUNC")}
    return {name: value for name, value in after.items() if name.startswith("CONDA_") or os.environ.get(name) != value}


def read(share: str | None) -> list[Environment]:
    """Return the list on the share.

    Raises:
        RocmlabError: it is not this user's own, or cannot be read: what is in there must not be replaced.
    """
    path = Path(share or "/nonexistent", FILE)
    try:
        with open(path, encoding="utf-8") as file:
            overlays.check_own(path, os.fstat(file.fileno()))
            return [_checked(**each) for each in json.load(file)["environments"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as err:
        what = f"the list of environments cannot be read: {path}"
        raise RocmlabError(what, f"{type(err).__name__}: {err}", "correct or remove this file") from err


def _checked(**each: Any) -> Environment:  # noqa: ANN401
    """Return one of the list; its name becomes the name of a folder, and must not be that of a kernel of the lab."""
    found = Environment(**each)
    texts = [found.name, found.title, found.prefix, found.kind, *found.variables, *found.variables.values()]
    if not all(isinstance(text, str) for text in texts) or not NAME.fullmatch(found.name):
        raise ValueError(f"{safe.shown(found.name)} is not an environment that was added")
    return found


def with_added(listed: Sequence[Environment], found: Environment) -> list[Environment]:
    """Return the list with one more, or with what is known about one now.

    Raises:
        RocmlabError: another one has its name: notebooks with that kernel would silently run in this one.
    """
    for each in listed:
        if each.name == found.name and each.prefix != found.prefix:
            raise RocmlabError(
                f"the kernel {found.name} is another environment: {each.prefix}",
                "notebooks that use it would run in this one",
                f"name it: --name {found.name}-2      # or, to replace that one: rocmlab kernels remove {found.name}",
            )
    return [*(each for each in listed if each.name != found.name), found]


def write(share: str, found: Iterable[Environment]) -> None:
    """Replace the list."""
    path = Path(share, FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, files.to_json({"environments": [asdict(each) for each in found]}) + "\n")


def specifications(found: Sequence[Environment]) -> dict[str, dict[str, Any]]:
    """Return a plain kernelspec for each, from which those for GPUs and the CPU are derived."""
    return {each.name: _specification(each) for each in found}


def _specification(found: Environment) -> dict[str, Any]:
    ours: dict[str, Any] = {"added": found.name, "called": found.title}
    argv = [found.python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    masks = visibility.child_environment(())  # those of a kernel are its lease's
    own = {name: value.replace("$", "$$") for name, value in found.variables.items() if name not in masks}
    prefix = found.prefix.replace("$", "$$")
    env = {**own, "PATH": f"{prefix}/bin:${{PATH}}", "PYTHONNOUSERSITE": "1"}
    env["VIRTUAL_ENV" if found.kind in ("uv", "venv") else "CONDA_PREFIX"] = prefix
    title = found.title
    if not os.access(found.python, os.X_OK):
        problem = Problem(
            f"the environment {found.prefix} is missing",
            f"its interpreter {found.python} cannot be started here",
            f"make it again, or: rocmlab kernels remove {found.name}",
        )
        argv = [sys.executable, "-m", "rocmlab.lab.refusal", "-f", "{connection_file}"]
        env = {"ROCMLAB_REFUSAL": json.dumps({"name": "NoEnvironment", **vars(problem)})}
        ours["absent"], title = problem.what, f"{found.title} (missing)"
    return {
        "argv": argv,
        "display_name": title,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True, "rocmlab": ours},
        "env": env,
    }


def wrong_build(found: Environment, gpus: Gpus, lab_python: str | None) -> Problem | None:
    """Return why its PyTorch cannot use the lab's GPUs; None if it can, has none, or there are no real GPUs.

    Args:
        found: the environment.
        gpus: of the lab.
        lab_python: of the lab's own PyTorch, whose index has builds for these GPUs.
    """
    backends = {device.backend for device in gpus.devices if not device.simulated}
    site = next((each for each in overlays.sites(found.python) if (each / "torch").is_dir()), None)
    if not backends or site is None:
        return None
    libraries = site / "torch/lib"
    build = next((name for name, file in LIBRARIES.items() if (libraries / file).exists()), "cpu")
    if build in backends:
        return None
    version = next(
        (text for name, text in base_packages.installed(site).items() if requested.normal(name) == "torch"), ""
    )
    wanted = "rocm" if "rocm" in backends else "cuda"
    index = companions.index_of(lab_python) if lab_python else None
    where = f"--index-url {index}" if index else f"--index-url URL      # of an index with builds for {BUILDS[wanted]}"
    again = "--reinstall" if found.kind == "uv" else "--force-reinstall"
    return Problem(
        f"the PyTorch {version} of {found.name} is built for {BUILDS[build]}",
        f"the lab's GPUs need a build for {BUILDS[wanted]}; with this one they are not used",
        found.pip(f"{again} torch {where}"),
    )
