"""What a job may request, in a notebook, a list or on the command line: GPUs, VRAM, mixed products, a time limit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.jobs import Resources

MIN_BYTES = 1_000_000
UNITS: dict[str, int] = {"": 1, "B": 1} | {
    f"{prefix}{end}": base ** (power + 1)
    for power, prefix in enumerate("KMGT")
    for end, base in (("B", 1000), ("IB", 1024), ("", 1000))
}
USE_GPUS = 'write "all" or a number; 0 is the CPU'


def of(notebook: Mapping[str, Any]) -> Resources:
    """Return what a notebook's metadata requests: `{"rocmlab": {"gpus": 2, "vram": "24GB", "mixed": true}}`.

    `{"gpus": "all", "min_gpus": 2}` are all GPUs, or the CPU where there are fewer than two; `"ray": true`: on a
    cluster the notebook has Ray give GPUs to its workers.

    Raises:
        RocmlabError: the metadata has a value that is not valid.
    """
    ours = notebook["metadata"].get("rocmlab", {})
    if not isinstance(ours, Mapping):
        ours = {"gpus": ours}
    count, size, is_mixed = (ours.get(name) for name in ("gpus", "vram", "mixed"))
    what = "its metadata asks for rocmlab"
    return Resources(
        gpus=None if count is None else gpus(count, f"{what}.gpus"),
        min_gpus=min_gpus(ours.get("min_gpus"), count, f"{what}.min_gpus"),
        vram_bytes=None if size is None else vram(size, f"{what}.vram"),
        is_mixed=False if is_mixed is None else mixed(is_mixed, f"{what}.mixed"),
        takes_gpus_from_ray=mixed(ours.get("ray", False), f"{what}.ray"),
    )


def gpus(value: object, what: str) -> int | Literal["all"]:
    """Return the number of requested GPUs: a number or `all`, as text or not; an error begins with `what`.

    Raises:
        RocmlabError: it is something else.
    """
    if isinstance(value, str):
        value = value.strip()
        if value.isascii() and value.isdecimal() and len(value) < 10:
            value = int(value)
    if value == "all":
        return "all"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise RocmlabError(f"{what} = {value!r}", "this is not a number of GPUs", USE_GPUS)


def min_gpus(value: object, gpus: object, what: str) -> int | None:
    """Return with how few GPUs a job that requests all of them still gets GPUs; with fewer it gets the CPU.

    Raises:
        RocmlabError: it is not a number above 0, or the job does not request all GPUs.
    """
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RocmlabError(f"{what} = {value!r}", "this is not a number of GPUs above 0", "write 2")
    if gpus != "all":
        why = "a minimum needs a request that can vary: a number of GPUs is met exactly"
        raise RocmlabError(f"{what} = {value!r} without gpus", why, 'write {"gpus": "all", "min_gpus": 2}')
    return value


def memory(value: object, what: str, kind: str = "memory") -> int:
    """Return how many bytes of memory are meant: of `24GB` (10^9), `24GiB` (2^30), `512 MB`, or a number of bytes.

    Raises:
        RocmlabError: it is something else, or less than a megabyte.
    """
    found: int | None = None
    if isinstance(value, str):
        parts = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})\s*", value, re.ASCII)
        unit = UNITS.get(parts[2].upper()) if parts else None
        found = round(float(parts[1]) * unit) if parts and unit else None
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value
    if found is not None and found >= MIN_BYTES:
        return found
    bare = str(value).strip()
    if re.fullmatch(r"\d{1,5}(\.\d+)?", bare, re.ASCII) and float(bare):  # `24` is no 24 bytes
        raise RocmlabError(f"{what} = {value!r}", f"this is {bare} bytes: the unit is missing", f'write "{bare} GB"')
    raise RocmlabError(
        f"{what} = {value!r}", f"this is no amount of {kind}", 'write "24 GB", "512 MB", or a number of bytes'
    )


def vram(value: object, what: str) -> int:
    """Return how many bytes of VRAM are requested; see `memory`."""
    return memory(value, what, "VRAM")


def mixed(value: object, what: str) -> bool:
    """Return whether the GPUs of a job may be of different products.

    Raises:
        RocmlabError: it is neither true nor false.
    """
    if isinstance(value, bool):
        return value
    raise RocmlabError(f"{what} = {value!r}", "this is neither true nor false", "use true or false")


def seconds(value: object, what: str) -> float:
    """Return a time limit.

    Raises:
        RocmlabError: it is no time in seconds.
    """
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if math.isfinite(found) and found > 0:
        return found
    raise RocmlabError(f"{what} = {value!r}", "this is no time in seconds", "use a number above 0")
