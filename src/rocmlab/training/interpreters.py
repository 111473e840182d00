"""The interpreters of the frameworks: in the container TensorFlow and PyTorch have an environment each.

The kernelspec of a framework names its interpreter and what that needs in its environment. Reading the few
folders where this lab puts kernelspecs spares notebooks from importing Jupyter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rocmlab.base.errors import RocmlabError

KERNELS = {"jax": "torch", "transformers": "torch", "pyopencl": "torch"}  # what is in another one's kernel
JUPYTER_FOLDERS = (Path(sys.prefix) / "share" / "jupyter", Path("/opt/rocmlab/share/jupyter"))


@dataclass(frozen=True)
class Interpreter:
    """One Python, and the variables its kernelspec sets."""

    python: str
    env: dict[str, str]

    def environment(self) -> dict[str, str]:
        """Return the whole environment for a child: this process's, changed by the kernelspec as in Jupyter."""
        own = {name: Template(value).safe_substitute(os.environ) for name, value in self.env.items()}
        return {**os.environ, **own}


def find(framework: str) -> Interpreter:
    """Return the interpreter of the kernel that has `framework`; else this one, or an error if it lacks that also."""
    for folder in _kernel_folders():
        path = folder / KERNELS.get(framework, framework) / "kernel.json"
        if not path.is_file():
            continue
        try:
            spec = json.loads(path.read_text(encoding="utf-8"))
            python = spec["argv"][0]
            env = {str(name): str(value) for name, value in spec.get("env", {}).items()}
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as err:
            raise RocmlabError(f"{path} is not a kernelspec", str(err), "run `make up`, which writes it again") from err
        # A bare `python` means the Python of the Jupyter that reads the kernelspec, as jupyter_client has it.
        return Interpreter(sys.executable if python in ("python", "python3") else python, env)
    if importlib.util.find_spec(framework) is not None:
        return Interpreter(sys.executable, {})
    raise RocmlabError(
        f"no interpreter with {framework} was found",
        f"the kernelspec `{KERNELS.get(framework, framework)}` was not found, and {sys.executable} cannot import it",
        "run `make up`, which installs both frameworks and their kernels",
    )


def run(framework: str, *arguments: str | Path, time_limit_seconds: float = 120) -> str:
    """Run a framework's interpreter and return what it printed; an error with its last lines if it fails."""
    interpreter = find(framework)
    what = f"{framework}: python {' '.join(map(str, arguments))}"
    try:
        done = subprocess.run(
            [interpreter.python, *map(str, arguments)],
            env=interpreter.environment(),
            capture_output=True,
            text=True,
            timeout=time_limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise RocmlabError(
            f"{what} did not finish within {time_limit_seconds:g} seconds",
            f"it ran in {interpreter.python}",
            "raise time_limit_seconds, or see whether a GPU hangs: make doctor",
            exit_code=1,
        ) from err
    if done.returncode != 0:
        raise RocmlabError(
            f"{what} exited with {done.returncode}",
            "\n".join(done.stderr.splitlines()[-15:]) or f"it ran in {interpreter.python}",
            "fix the script; `make devices` shows the devices, `make doctor` checks them",
            exit_code=1,
        )
    return done.stdout


def compile_error(device: str, time_limit_seconds: float = 300) -> str | None:
    """Return why `torch.compile` fails for a device, such as a missing linker; None if it works.

    It compiles a small function in a process of its own, in PyTorch's interpreter.

    Args:
        device: as PyTorch names it: `cpu`, `cuda:0`.
        time_limit_seconds: after which it counts as failed.
    """
    program = f"import torch; torch.compile(lambda x: (2 * x).relu().sum())(torch.ones(9, device={device!r}))"
    try:
        run("torch", "-c", program, time_limit_seconds=time_limit_seconds)
    except RocmlabError as err:
        errors = [line.strip() for line in err.problem.why.splitlines() if "error" in line.lower()]
        return (errors or [err.problem.what])[0][:200]
    return None


def title(name: str) -> str | None:
    """Return what JupyterLab calls a kernel; None where this lab does not have it."""
    own = [Path(os.environ["ROCMLAB_KERNELS"])] if os.environ.get("ROCMLAB_KERNELS") else []
    users = Path(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "jupyter/kernels")
    for folder in (*own, *_kernel_folders(), users):
        try:
            return str(json.loads((folder / name / "kernel.json").read_text(encoding="utf-8"))["display_name"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _kernel_folders() -> list[Path]:
    listed = [Path(part) for part in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if part]
    return [folder / "kernels" for folder in (*listed, *JUPYTER_FOLDERS)]
