"""Kernels that hold GPU memory and do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.lab.server.wire import problem_json
from rocmlab.telemetry.model import GpuProcess

SETTING = "IDLE_GPU_WARNING_SECONDS"
CULLING = "CULL_IDLE_GPU_KERNELS_SECONDS"
DEFAULT_SECONDS = 600.0


@dataclass(frozen=True)
class Limits:
    """When a kernel that does nothing is warned of, and when it is shut down; None is never."""

    warned_seconds: float | None = DEFAULT_SECONDS
    culled_seconds: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Limits:
        """Return the limits from the settings; raise RocmlabError if one of them is no time."""
        warned = seconds(SETTING, environment.get(SETTING) or f"{DEFAULT_SECONDS:g}")
        return cls(warned or None, seconds(CULLING, environment.get(CULLING) or "0") or None)


def seconds(name: str, text: str) -> float:
    """Return a setting as a number, where 0 is off; raise RocmlabError if it is none."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if 0 <= number < float("inf"):
        return number
    raise RocmlabError(
        f"{name}={text} is not a time", "it is a number of seconds, and 0 is off", f"make up {name}=3600"
    )


def holders(
    kernels: Sequence[Mapping[str, Any]], processes: Sequence[GpuProcess] | None, limits: Limits
) -> list[dict[str, Any]]:
    """Return the kernels that have long done nothing and keep GPU memory; processes are None if not known."""
    if limits.warned_seconds is None:
        return []
    found = []
    for kernel in kernels:
        quiet = kernel["idle_seconds"]
        if quiet is None or quiet < limits.warned_seconds:
            continue
        own = [each for each in processes or () if each.owner and each.owner.kernel_id == kernel["kernel_id"]]
        known = [each.vram_bytes for each in own if each.vram_bytes is not None]
        if sum(known) or (not known and kernel["since"]):
            found.append(_holder(kernel, own, sum(known) if known else None, limits))
    return found


def _holder(
    kernel: Mapping[str, Any], own: Sequence[GpuProcess], vram_bytes: int | None, limits: Limits
) -> dict[str, Any]:
    """Return one of them. Its memory is None where it has a lease and what it uses is unknown."""
    who = kernel["notebook"] or f"the kernel {kernel['kernel_name']}"
    what = "holds a GPU" if vram_bytes is None else f"holds {vram_bytes / (1 << 30):.1f} GiB of GPU memory"
    minutes = f"{(limits.warned_seconds or 0) / 60:g} minutes"
    why = "what a kernel has allocated stays allocated until it is restarted or shut down"
    if limits.culled_seconds is None:
        fix = f"shut it down, if its variables are not needed; make up {CULLING}=3600 does that by itself after an hour"
    else:
        fix = f"shut it down now; by itself that happens after {limits.culled_seconds:g} idle seconds ({CULLING})"
    problem = Problem(f"{who} {what} and has been idle for more than {minutes}", why, fix)
    return {
        **{name: kernel[name] for name in ("kernel_id", "kernel_name", "notebook", "idle_seconds")},
        "idle_since_seconds": kernel["idle_since_seconds"],
        "devices": sorted({*kernel["devices"], *(each.device for each in own)}),
        "vram_bytes": vram_bytes,
        "is_estimated": any(each.is_estimated or (each.owner and each.owner.is_estimated) for each in own),
        "culled_seconds": limits.culled_seconds,
        **problem_json(problem, check="idle", status="warns"),
    }
