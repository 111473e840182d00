"""Which backend Keras computes with. It is chosen by `KERAS_BACKEND`, which Keras reads once: at its import."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.training import interpreters
from rocmlab.training.placement import Description

TITLES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
VARIABLE = "KERAS_BACKEND"
QUIET = {  # frameworks read these when they are imported; a value that is already set stays
    "TF_CPP_MIN_LOG_LEVEL": "2",  # TensorFlow: errors only
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # leave GPU memory to other processes
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the same for JAX
}


def use(backend: str = "auto") -> str:
    """Set `KERAS_BACKEND` and return its value; frameworks print errors only. Call it before `import keras`.

    A kernel may have imported Keras before its first cell: one that was forked from a fork server has. Then it
    keeps that backend, and requesting another is an error.

    Args:
        backend: `tensorflow`, `jax` or `torch`; `auto` takes what the kernel has: that of a Keras which is imported,
            else that of `KERAS_BACKEND`, else the first of the three that is installed.

    Raises:
        RocmlabError: `backend` is unknown, the backend is not installed here, or Keras has another one already.
    """
    if backend not in ("auto", *TITLES):
        raise RocmlabError(f"backend={backend!r} is unknown", "", f"use one of: auto, {', '.join(TITLES)}")
    keras: Any = sys.modules.get("keras")
    present = None if keras is None else str(keras.backend.backend())
    wanted = _of_kernel(present) if backend == "auto" else backend
    if present is not None and present != wanted:
        raise RocmlabError(
            f'backend="{wanted}", but Keras computes with {present} in this kernel and cannot change',
            "keras was imported already, by an earlier cell or by the fork server of this kernel (docs/warm.md)",
            f"restart the kernel and run from the top; if this error repeats, {_choose_kernel(wanted)}",
        )
    for module in ("keras", wanted):
        if not _is_installed(module):
            title = TITLES.get(module, "Keras")
            raise RocmlabError(
                f'backend="{wanted}", but {title} is not installed for this kernel',
                f"{sys.executable} cannot import {module}",
                _choose_kernel(wanted),
            )
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ[VARIABLE] = wanted
    return wanted


def versions() -> dict[str, str]:
    """Return the versions of Keras and of the framework it computes with, both as imported; it imports Keras."""
    import keras

    framework = keras.backend.backend()
    return {"keras": keras.__version__, framework: sys.modules[framework].__version__}


def facts(used: Description, framework: str | None = None) -> dict[str, Any]:
    """Return what every record contains about its environment: framework, versions, device, simulated.

    Args:
        used: the device, as `placement.choose` describes it.
        framework: `torch` or another one that was used directly; None for Keras and its backend.
    """
    found = versions() if framework is None else {framework: str(sys.modules[framework].__version__)}
    if transformers := sys.modules.get("transformers"):
        found["transformers"] = transformers.__version__
    if framework == "torch":
        found["hip"] = sys.modules["torch"].version.hip
    name = framework or sys.modules["keras"].backend.backend()
    return {"framework": name, "versions": found, "device": used, "simulated": used["simulated"]}


def _of_kernel(present: str | None) -> str:
    """Return the kernel's own backend; an error if it has none, or one without training (numpy, openvino)."""
    own = present or os.environ.get(VARIABLE) or next(filter(_is_installed, TITLES), None)
    if own is None:
        raise RocmlabError(
            "Keras has no backend here",
            f"{sys.executable} can import none of: {', '.join(TITLES)}",
            "choose the kernel `tensorflow` or `torch`: in JupyterLab Kernel > Change Kernel…, headless --kernel",
        )
    if own not in TITLES:
        raise RocmlabError(
            f"Keras' backend {own!r} cannot train",
            f"it is set by {VARIABLE}" if present is None else "keras was imported with it",
            f"set {VARIABLE} to one of: {', '.join(TITLES)}, and restart the kernel",
        )
    return own


def _choose_kernel(backend: str) -> str:
    kernel = interpreters.KERNELS.get(backend, backend)
    return (
        f"choose the kernel `{kernel}`, which has {TITLES[backend]}: in JupyterLab Kernel > Change Kernel…, "
        f"headless: rocmlab run NOTEBOOK --kernel {kernel} -p backend={backend}"
    )


def _is_installed(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None
