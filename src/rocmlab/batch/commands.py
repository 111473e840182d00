"""What an element runs, and in which environment: the lab's own interpreter, or the one of an image."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

KEPT = ("JUPYTER_PATH", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH", "KERAS_HOME", "HF_HOME")
NOT_KEPT = (  # of what begins with ROCMLAB_
    "ROCMLAB_ROOT",
    "ROCMLAB_HOME",
    "ROCMLAB_KERNELS",
    "ROCMLAB_LEASED",
    "ROCMLAB_NOTEBOOK",
    "ROCMLAB_RUN",
    "ROCMLAB_JOB_NAME",
    "ROCMLAB_MARK",
    "ROCMLAB_BACKEND",
)
IN_THE_IMAGE = "/opt/rocmlab/bin/rocmlab"


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job needs of the lab's environment: where its kernels, its notebooks and its caches are.

    Everything else stays out: others can read the scripts, and a variable may hold a secret.
    """
    ours = {name for name in environment if name.startswith("ROCMLAB_") and name not in NOT_KEPT}
    return {name: environment[name] for name in sorted({*ours, *KEPT}) if name in environment}


def line(arguments: Sequence[str], image: str | None, engine: str | None, share: Path, backend: str) -> str:
    """Return a command as a shell reads it, with `rocmlab` before the arguments.

    Args:
        arguments: the command and its arguments, quoted for a shell where they need it.
        image: to run in; None: the environment of this process, which the nodes must see at the same path.
        engine: `apptainer` or `podman`.
        share: which the image must see.
        backend: whose devices it must see.
    """
    if image is None:
        return " ".join([shlex.quote(sys.executable), "-m", "rocmlab", *arguments])
    inside = [shlex.quote(image), IN_THE_IMAGE, *arguments]
    where = shlex.quote(f"{share}:{share}")
    if engine == "podman":
        devices = {"rocm": ["--device=/dev/kfd", "--device=/dev/dri"], "cuda": ["--device=nvidia.com/gpu=all"]}
        masks = ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_JOB_ID")
        # Rootless, the groups of this user are kept, or /dev/kfd could not be opened.
        start = ["podman", "run", "--rm", "--init", "--userns=keep-id", "--group-add=keep-groups", "--ipc=host"]
        start += [f"--env={name}" for name in masks]
        return " ".join([*start, *devices.get(backend, []), f"--volume={where}", "--entrypoint=", *inside])
    devices = {"rocm": ["--rocm"], "cuda": ["--nv"]}
    return " ".join(["apptainer", "exec", *devices.get(backend, []), "--bind", where, *inside])
