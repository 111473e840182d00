"""What must be true before a process forks, and what is fixed once modules are imported.

A fork copies one thread only: what the others held, locks above all, stays held in the child for ever. A GPU runtime
does not survive a fork either. So a fork server that has a second thread, or has opened a GPU, never forks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

GPU_FILES = ("/dev/kfd", "/dev/dri/", "/dev/nvidia", "/dev/dxg")
# Read when Python starts or a library is loaded; the variables for visible GPUs are read later, and are not among them.
FROZEN_PREFIXES = (
    "AMD_",
    "BLIS_",
    "CUDA_",
    "GLIBC_",
    "GOMP_",
    "GOTO_",
    "HIP_",
    "HSA_",
    "JAX_",
    "KERAS_",
    "KMP_",
    "LC_",
    "LD_",
    "MALLOC_",
    "MIOPEN_",
    "MKL_",
    "NUMEXPR_",
    "NUMPY_",
    "NVIDIA_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH_",
    "ROCBLAS_",
    "ROCM_",
    "ROC_",
    "TF_",
    "TORCH_",
    "TRITON_",
    "XLA_",
)
FROZEN_NAMES = ("HOME", "LANG", "TZ", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


def obstacle() -> str | None:
    """Return why this process must not fork; None if it may."""
    tasks = os.listdir("/proc/self/task")
    if len(tasks) != 1:
        names = sorted(_first_line(f"/proc/self/task/{task}/comm") for task in tasks if task != str(os.getpid()))
        return f"the imports left {len(tasks) - 1} thread(s) running: {', '.join(names)}"
    for target in open_files().values():
        if target.startswith(GPU_FILES):
            return f"the imports opened a GPU: {target}"
    return None


def open_files() -> dict[int, str]:
    """Return the open descriptors of this process and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one that listed the folder
            continue
    return found


def frozen(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that cannot be changed once modules are imported."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if not name.endswith("VISIBLE_DEVICES") and (name.startswith(FROZEN_PREFIXES) or name in FROZEN_NAMES)
    }


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Return what is frozen and differs between two environments; None if nothing does."""
    mine, wanted = frozen(ours), frozen(theirs)
    names = sorted(name for name in {*mine, *wanted} if mine.get(name) != wanted.get(name))
    return f"fixed at import, and requested with another value: {', '.join(names)}" if names else None


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"
