"""The kernels that JupyterLab offers in any case: `tensorflow` and `torch`, each with its own interpreter.

`rocmlab.lab.offers` derives from them those of the GPUs that the lab has when it starts.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rocmlab.base.errors import Problem
from rocmlab.lab import icons
from rocmlab.packages import overlays

TITLES = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
PROVISIONER = "rocmlab-provisioner"  # as pyproject.toml registers `rocmlab.lab.provisioner`
ABSENT = Problem(  # where an image is made without TensorFlow
    "this image has no TensorFlow",
    "a slim image has PyTorch alone, for exactly this host's GPUs; Keras computes with PyTorch or JAX in it",
    "for a Keras notebook: Kernel > Change Kernel… > PyTorch\nfor TensorFlow itself, on the host: make up IMAGE=full",
)
PROVISIONERS = "jupyter_client.kernel_provisioners"


def specification(name: str, python: str, constraints: str | None = None) -> dict[str, Any]:
    """Return the kernel.json of `tensorflow` or `torch`, which is also Keras' backend in it.

    Args:
        name: of the kernel.
        python: the interpreter that has the framework.
        constraints: a pip constraints file that keeps `%pip install` from replacing the framework.
    """
    environment = {
        "PATH": f"{PurePosixPath(python).parent}:${{PATH}}",  # `!pip` is the pip of this interpreter
        "KERAS_BACKEND": name,
        "TF_CPP_MIN_LOG_LEVEL": "2",  # errors only: TensorFlow's information is not the reader's concern
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # a notebook takes the memory it needs, not the whole GPU
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the same for JAX
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # no warning about frozen modules in every log
    }
    if hook := overlays.hook_of(sys.executable):  # pip in this kernel installs into the user's overlay
        environment |= {overlays.KERNEL: name, overlays.PYTHON: python, "PIP_PYTHON": str(hook)}
    if constraints:
        environment["PIP_CONSTRAINT"] = constraints
    metadata: dict[str, Any] = {"debugger": True, "rocmlab": {"framework": name}}
    if is_registered():
        metadata["kernel_provisioner"] = {"provisioner_name": PROVISIONER, "config": {"gpus": 1}}
    return {
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": TITLES[name],
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": metadata,
        "env": environment,
    }


def absent(name: str, problem: Problem) -> dict[str, Any]:
    """Return the kernel.json of a framework that this environment is made without: each cell is answered by why."""
    return {
        "argv": [sys.executable, "-m", "rocmlab.lab.refusal", "-f", "{connection_file}"],
        "display_name": f"{TITLES[name]} (not in this image)",
        "language": "python",
        "env": {"ROCMLAB_REFUSAL": json.dumps({"name": "NotInThisImage", **vars(problem)})},
        "metadata": {"rocmlab": {"framework": name, "absent": problem.what}},
    }


def install(
    prefix: Path, pythons: dict[str, str], constraints: str | None = None, without: Mapping[str, Problem] | None = None
) -> list[Path]:
    """Write the kernelspecs below `prefix` and remove ipykernel's own `python3`, which has no framework to offer.

    Args:
        prefix: of JupyterLab's environment.
        pythons: the interpreter of each framework.
        constraints: for `tensorflow`, whose interpreter may be the base image's; see `specification`.
        without: frameworks that are explained instead, by name.
    """
    folder = prefix / "share/jupyter/kernels"
    shutil.rmtree(folder / "python3", ignore_errors=True)
    written: list[Path] = []
    specs = {
        name: specification(name, python, constraints if name == "tensorflow" else None)
        for name, python in pythons.items()
    }
    specs |= {name: absent(name, problem) for name, problem in (without or {}).items()}
    for name, spec in specs.items():
        path = folder / name / "kernel.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        path.with_name(icons.FILE).write_text(icons.svg(name), encoding="utf-8")
        written.append(path)
    return written


def is_registered() -> bool:
    """Return whether Jupyter finds our provisioner, as where rocmlab is installed: else it offers no kernelspec of it.

    The entry points are read here, because `importlib.metadata` takes longer to import than all the rest takes.
    """
    for folder in sys.path:
        for path in Path(folder or ".").glob("rocmlab-*.dist-info/entry_points.txt"):
            text = path.read_text(encoding="utf-8")
            if f"[{PROVISIONERS}]" in text and f"{PROVISIONER} =" in text:
                return True
    return False


def framework_title(metadata: Mapping[str, Any]) -> str:
    """Return what a kernelspec's framework is called."""
    ours = metadata.get("rocmlab")
    found = ours if isinstance(ours, dict) else {}
    return TITLES.get(str(found.get("framework")), str(found.get("called", "the kernel")))
