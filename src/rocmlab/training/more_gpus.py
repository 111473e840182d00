"""How a program gets more GPUs: a kernel of JupyterLab, a job, papermill's kernel and a program, each in its way."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal

from rocmlab.devices import Device, discover
from rocmlab.training import interpreters

Start = Literal["job", "lab", "kernel", "program"]
MASKS = {"rocm": "HIP_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}


def started_by(environment: Mapping[str, str] = os.environ) -> Start:
    """Return what started this process: a run of notebooks, JupyterLab, another client of Jupyter, or a user."""
    if environment.get("ROCMLAB_JOB_NAME"):
        return "job"
    if environment.get("JPY_SESSION_NAME"):
        return "lab"
    return "kernel" if "ipykernel.kernelapp" in sys.modules else "program"


def advice(framework: str, wanted: int = 2) -> str:
    """Return how this process gets that many GPUs of one kind for a framework; it names only what can be done here."""
    alike = _largest_kind(discover(environment={}))
    if len(alike) < wanted:
        has = f"{len(alike)} usable GPU{'s' * (len(alike) != 1)} of one kind" if alike else "no usable GPU"
        return f"this lab has {has}: `make up GPUS=all` gives it all of the machine, `make doctor` checks them"
    if len(_largest_kind(discover())) >= wanted:
        return f"the driver lists {len(alike)} GPUs and {framework} uses fewer: `make doctor` checks that"
    return f"this lab has {len(alike)} GPUs of one kind: {_way(framework, alike)}"


def _way(framework: str, gpus: list[Device]) -> str:
    start = started_by()
    if start == "job":
        return "run the notebook with `--gpus all --job-gpus all`, or without these options if it requests all GPUs"
    name = f"{interpreters.KERNELS.get(framework, framework)}-all"
    title = interpreters.title(name)
    if start == "lab":
        if title is None:
            return "`make down` and `make up` add a kernel for all GPUs; then Kernel > Change Kernel…"
        return f"Kernel > Change Kernel… > {title}"
    if start == "kernel":
        own = "`rocmlab run NOTEBOOK`"
        return f"`papermill --kernel {name} IN OUT`, or {own}" if title else f"{own}, which assigns GPUs"
    mask = MASKS[gpus[0].backend]
    return f"start the program with {mask}={','.join(str(gpu.index) for gpu in gpus)}"


def _largest_kind(devices: list[Device]) -> list[Device]:
    kinds: dict[tuple[str, str | None], list[Device]] = {}
    for device in devices:
        if device.backend in MASKS and device.is_usable:
            kinds.setdefault((device.name, device.gfx), []).append(device)
    return max(kinds.values(), key=len, default=[])
