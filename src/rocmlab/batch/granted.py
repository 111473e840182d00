"""The GPUs that a scheduler has given to this process: its masks, read as the runtime reads them, and no other."""

from __future__ import annotations

from collections.abc import Mapping

from rocmlab.devices.visibility.masks import CUDA, HIP, ORDINAL, ROCR


def environment(base: Mapping[str, str], backend: str) -> dict[str, str]:
    """Return the environment in which the devices of this job are looked for.

    Slurm writes the same numbers into ROCR_VISIBLE_DEVICES and, on sites whose gres.conf names no vendor, into
    CUDA_VISIBLE_DEVICES and GPU_DEVICE_ORDINAL, too. HIP would count the second within what the first has left: with
    GPU 1 alone it would find none. So only the first is believed on ROCm; the masks of the job's kernel are made from
    the devices that it leaves, as HIP_VISIBLE_DEVICES, by `rocmlab.devices.visibility`.

    Args:
        base: of this process.
        backend: of the site: rocm, cuda or cpu.
    """
    made = dict(base)
    if "SLURM_JOB_ID" in made and backend == "rocm" and made.get(ROCR):
        for variable in (CUDA, HIP, ORDINAL):
            if made.get(variable) == made[ROCR]:
                del made[variable]
    return made


def number(base: Mapping[str, str]) -> int | None:
    """Return the array index of this process; None without a scheduler."""
    for variable in ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"):
        text = base.get(variable, "")
        if text.isascii() and text.isdecimal():
            return int(text)
    return None
