"""The kernels that JupyterLab offers: `tensorflow` and `torch`, each with its own interpreter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath

TITLES = {"tensorflow": "TensorFlow", "torch": "PyTorch"}


def specification(name: str, python: str, constraints: str | None = None) -> dict[str, object]:
    """Return a kernel's kernel.json.

    Args:
        name: `tensorflow` or `torch`; Keras uses that backend in it.
        python: the interpreter that has the framework.
        constraints: a pip constraints file that keeps `%pip install` from replacing the framework.
    """
    environment = {
        "PATH": f"{PurePosixPath(python).parent}:${{PATH}}",  # `!pip` is the pip of this interpreter
        "KERAS_BACKEND": name,
        "TF_CPP_MIN_LOG_LEVEL": "2",  # errors only: TensorFlow's information is not the reader's concern
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # a notebook takes the memory it needs, not the whole GPU
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # no warning about frozen modules in every log
    }
    if constraints:
        environment["PIP_CONSTRAINT"] = constraints
    return {
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": TITLES[name],
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True},
        "env": environment,
    }


def install(prefix: Path, pythons: dict[str, str], constraints: str | None = None) -> list[Path]:
    """Write the kernelspecs below `prefix` and remove ipykernel's own `python3`, which has no framework to offer.

    Args:
        prefix: the environment of JupyterLab.
        pythons: interpreter by kernel name.
        constraints: see `specification`; applies to `tensorflow`, whose interpreter may be the base image's.
    """
    folder = prefix / "share/jupyter/kernels"
    shutil.rmtree(folder / "python3", ignore_errors=True)
    written: list[Path] = []
    for name, python in pythons.items():
        path = folder / name / "kernel.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        spec = specification(name, python, constraints if name == "tensorflow" else None)
        path.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        written.append(path)
    return written
