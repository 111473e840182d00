"""What an element runs, and in which environment: the lab's own interpreter, or the one of an image."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

NOT_KEPT = (
    "JUPYTER_TOKEN",
    "JUPYTER_RUNTIME_DIR",
    "ROCMLAB_ROOT",
    "ROCMLAB_LEASED",
    "ROCMLAB_NOTEBOOK",
    "ROCMLAB_RUN",
    "ROCMLAB_JOB_NAME",
    "ROCMLAB_MARK",
    "ROCMLAB_BACKEND",
)
ALSO_KEPT = ("KERAS_HOME", "HF_HOME")
IN_THE_IMAGE = "/opt/rocmlab/bin/rocmlab"


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job needs of the lab's environment: where its kernels, its notebooks and its caches are."""
    found = {name: value for name, value in environment.items() if name.startswith(("JUPYTER_", "ROCMLAB_"))}
    found |= {name: environment[name] for name in ALSO_KEPT if name in environment}
    return {name: found[name] for name in sorted(found) if name not in NOT_KEPT}


def line(words: Sequence[str], image: str | None, engine: str | None, share: Path, backend: str) -> str:
    """Return a command as a shell reads it, with `rocmlab` before the words.

    Args:
        words: the verb and what stands behind it, quoted for a shell where they need it.
        image: to run in; None: the environment of this process, which the nodes must see at the same path.
        engine: `apptainer` or `podman`.
        share: the folder that the image must see.
        backend: whose devices it must see.
    """
    if image is None:
        return " ".join([shlex.quote(sys.executable), "-m", "rocmlab", *words])
    inside = [shlex.quote(image), IN_THE_IMAGE, *words]
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
