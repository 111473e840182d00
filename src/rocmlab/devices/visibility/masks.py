"""What each program makes of a visibility mask: the same text means different GPUs to HIP, ROCr, PyTorch, Ray and CUDA.

Sources, all read in the code that reads the variables: ROCr `amd_filter_device.cpp`, clr `rocdevice.cpp`, PyTorch 2.13
`torch/cuda/__init__.py`, Ray 2.60 `amd_gpu.py`, AMD's container toolkit 1.3 `gpu-tracker.go`. AMD's own runtime
is compared with what is said of HIP and ROCr: `tests/oracle/test_oracle_masks.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rocmlab.base.errors import RocmlabError
from rocmlab.devices.model import Device

HIP, ROCR, CUDA = "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
ORDINAL, CONTAINER, ORDER = "GPU_DEVICE_ORDINAL", "AMD_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
VARIABLES = (HIP, ROCR, CUDA, ORDINAL, CONTAINER)
NONE_WORDS = ("-1", "none", "void", "NoDevFiles")  # what people and schedulers write to hide every GPU on purpose
SPACE = " \t\n\r\f\v"
NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
C_NUMBER = re.compile(r"([+-]?)(0X[0-9A-F]+|0[0-7]*|[1-9][0-9]*)")  # what strtol with base 0 reads to the end
HEXADECIMAL = re.compile(r"0[xX].*|[0-9a-fA-F]{9,}", re.DOTALL)
EMPTY_ENTRY = "an empty entry stops ROCm for every GPU"
NO_UUID = "GPU-XX"  # what ROCm calls a GPU without a unique id


@dataclass(frozen=True)
class Mask:
    """What one reader makes of one value."""

    reader: str
    value: str | None  # None: the variable is not set
    gpus: tuple[Device, ...]  # what remains, in the order in which the reader numbers it
    count: int  # how many GPUs the reader reports; Ray and PyTorch count some that are not there
    odd: tuple[str, ...] = ()  # what a user would not expect
    error: str | None = None  # what the reader raises instead of an answer


class _Reading:
    """One reader on its way through the words of a mask."""

    def __init__(self, reader: str, value: str | None, gpus: Sequence[Device]) -> None:
        self.reader, self.value, self.gpus = reader, value, gpus
        self.kept: list[int] = []
        self.odd: list[str] = []

    def result(self, count: int | None = None) -> Mask:
        """Return what was kept."""
        gpus = tuple(self.gpus[position] for position in self.kept)
        return Mask(self.reader, self.value, gpus, len(gpus) if count is None else count, tuple(self.odd))

    def stop(self, entry: str, reason: str, *, empty: bool = False) -> Mask:
        """Return what was kept before a word that this reader cannot use."""
        if empty:
            self.kept = []
        note = "-1 hides all GPUs from there on" if entry.strip() == "-1" else f"{entry!r} {reason}"
        if self.value != "-1":
            self.odd.append(note if empty else f"{note}: it and all after it are ignored")
        return self.result()

    def fail(self, error: str) -> Mask:
        """Return that the reader gives up."""
        return Mask(self.reader, self.value, (), 0, (*self.odd, error), error)


def parse(value: str | None, reader: str, gpus: Sequence[Device]) -> Mask:
    """Return what one reader makes of one variable's value.

    Args:
        value: of the variable; None if it is not set.
        reader: `hip` (HIP and TensorFlow), `rocr`, `torch` (what PyTorch counts before it starts HIP), `ray`, `opencl`
            (GPU_DEVICE_ORDINAL), `cuda` (NVIDIA's driver) or `container` (AMD's container toolkit).
        gpus: what this reader could see without the mask, in its order: for `hip` what ROCr left, for `container` the
            host's GPUs by PCI address.
    """
    return READERS[reader](_Reading(reader, value, gpus))


def _all(reading: _Reading) -> Mask:
    reading.kept = list(range(len(reading.gpus)))
    return reading.result()


def _hip(reading: _Reading) -> Mask:
    """HIP: empty is none; the first entry that is not exactly an index or a known UUID ends the list."""
    if reading.value is None:
        return _all(reading)
    for entry in _split(reading.value) if reading.value else ():
        name = entry
        if "GPU-" in entry:
            found = (index for index, gpu in enumerate(reading.gpus) if entry in uuid(gpu))
            name = str(next(found, entry))
        if not NUMBER.fullmatch(name) or int(name) >= len(reading.gpus):
            return reading.stop(entry, _no_gpu(entry, len(reading.gpus)))
        if int(name) in reading.kept:
            reading.odd.append(f"{entry!r} is named twice and counts once")
        else:
            reading.kept.append(int(name))
    return reading.result()


def _rocr(reading: _Reading) -> Mask:
    """ROCr: empty is none; numbers as in C, UUIDs by unique prefix in any case; a repeated GPU ends the list."""
    if reading.value is None:
        return _all(reading)
    for entry in _split(reading.value)[: len(reading.gpus)] if reading.value else ():
        text = entry.strip(SPACE).upper()
        if not text:
            return reading.fail(EMPTY_ENTRY)
        position = _by_prefix(text, reading.gpus) if text.startswith("G") else _c_integer(text)
        if position is None or not 0 <= position < len(reading.gpus):
            return reading.stop(entry, _no_gpu(entry, len(reading.gpus)))
        if position in reading.kept:
            return reading.stop(entry, "is named twice")
        reading.kept.append(position)
    return reading.result()


def _torch(reading: _Reading) -> Mask:
    """PyTorch before it starts HIP: a number at the start of an entry is enough, anything twice means none."""
    return _like_cuda(reading, [(gpu.unique_id or "0" * 16).lower() for gpu in reading.gpus], prefix="GPU-")


def _cuda(reading: _Reading) -> Mask:
    """NVIDIA's driver: as PyTorch repeats it, with the whole UUID as NVML prints it."""
    if (reading.value or "").startswith("MIG-"):
        reading.odd.append("it names MIG slices, which are not listed here")
        return _all(reading)
    return _like_cuda(reading, [gpu.unique_id or "" for gpu in reading.gpus], prefix="")


def _like_cuda(reading: _Reading, uuids: list[str], prefix: str) -> Mask:
    """Read the entries first, as far as they are numbers or UUIDs, and look for their GPUs then."""
    if reading.value is None:
        return _all(reading)
    kind = reading.value[:4] if reading.value.startswith(("GPU-", "MIG-")) else ""
    read: dict[str | int, str] = {}
    for entry in reading.value.split(",") if reading.value else ():
        key = (entry if entry.startswith(kind) else None) if kind else _leading_integer(entry)
        if key == "+" and reading.reader == "torch":
            return reading.fail(f"PyTorch raises ValueError: {entry!r} is not a number")
        if key in read:
            return reading.stop(entry, "is named twice, which means no GPU at all", empty=True)
        if key is None or key == "+":
            reading.stop(entry, _no_gpu(entry, len(reading.gpus)))
            break
        read[key] = entry
    for key, entry in read.items():
        position = key if isinstance(key, int) else _by_uuid(key.removeprefix(prefix), uuids)
        if position in reading.kept:
            return reading.stop(entry, "is named twice, which means no GPU at all", empty=True)
        if not 0 <= position < len(reading.gpus):
            return reading.stop(entry, _no_gpu(entry, len(reading.gpus)))
        reading.kept.append(position)
    return reading.result()


def _leading_integer(entry: str) -> int | str | None:
    """Return the number an entry starts with, None for no number or a negative one, `+` for a sign alone."""
    text = entry.strip()
    digits = re.match(r"[+-]?[0-9]*", text)
    found = digits[0] if digits else ""
    if found in ("+", "-"):
        return "+"
    number = int(found[:12]) if found else -1
    return number if number >= 0 else None


def _by_uuid(text: str, uuids: list[str]) -> int:
    found = [index for index, known in enumerate(uuids) if known.startswith(text)]
    return found[0] if len(found) == 1 and not text.startswith("MIG-") else -1


def _ray(reading: _Reading) -> Mask:
    """Ray: the entries as they are, without reading the GPUs."""
    if reading.value is None:
        return _all(reading)
    entries = [] if reading.value in ("", "NoDevFiles") else reading.value.split(",")
    for entry in entries:
        is_gpu = NUMBER.fullmatch(entry) and int(entry) < len(reading.gpus)
        if is_gpu and int(entry) not in reading.kept:
            reading.kept.append(int(entry))
        else:
            reading.odd.append(f"{entry!r} is listed as a GPU")
    return reading.result(count=len(entries))


def _container(reading: _Reading) -> Mask:
    """AMD's container toolkit: ranges and hexadecimal ids, in ascending order; what it cannot read is ignored."""
    if reading.value in ("all", "All", "ALL"):
        return _all(reading)
    found: set[int] = set()
    for entry in (reading.value or "").split(","):
        positions = _toolkit_entry(entry, reading.gpus)
        if not positions and (reading.value or "") not in ("", *NONE_WORDS):
            reading.odd.append(f"{entry!r} is omitted")
        found.update(positions)
    reading.kept = sorted(found)
    return reading.result()


def _toolkit_entry(entry: str, gpus: Sequence[Device]) -> Sequence[int]:
    if HEXADECIMAL.fullmatch(entry):
        text = entry.lower().removeprefix("0x").lstrip("0")
        return [index for index, gpu in enumerate(gpus) if text and (gpu.unique_id or "").lower().lstrip("0") == text]
    span = re.fullmatch(r"(\+?[0-9]+)(?:-(\+?[0-9]+))?", entry)
    if not span:
        return ()
    first, last = _integer(span[1]), _integer(span[2] or span[1])
    return range(first, min(last + 1, len(gpus)))


READERS: dict[str, Callable[[_Reading], Mask]] = {
    "hip": _hip,
    "opencl": _hip,
    "rocr": _rocr,
    "torch": _torch,
    "ray": _ray,
    "cuda": _cuda,
    "container": _container,
}


def visible(environment: Mapping[str, str], devices: Sequence[Device], reader: str = "hip") -> Mask:
    """Return the GPUs that one reader sees in a process with this environment, all its variables together.

    ROCr filters first, and HIP counts within what is left; CUDA_VISIBLE_DEVICES counts for HIP only where
    HIP_VISIBLE_DEVICES is not set.

    Args:
        environment: of the process.
        devices: of the host, indices as before any mask.
        reader: see `parse`.
    """
    gpus = counted(devices, "cuda" if reader == "cuda" else "rocm")
    if reader == "cuda":
        return parse(environment.get(CUDA), "cuda", gpus)
    if reader == "container":
        return parse(environment.get(CONTAINER), "container", sorted(gpus, key=lambda gpu: gpu.smi_index or 0))
    filtered = parse(environment.get(ROCR), "rocr", gpus)
    if reader == "rocr" or (filtered.error and reader in ("hip", "opencl")):
        return filtered
    if reader == "torch":
        return _visible_to_torch(environment, gpus)
    if reader == "ray":
        return _visible_to_ray(environment, filtered.gpus)
    value = environment.get(ORDINAL) if reader == "opencl" else environment.get(hip_variable(environment))
    return parse(value, reader, filtered.gpus)


def _visible_to_torch(environment: Mapping[str, str], gpus: Sequence[Device]) -> Mask:
    hip, rocr = environment.get(HIP), environment.get(ROCR)
    if rocr is None:
        return parse(environment.get(CUDA) if hip is None else hip, "torch", gpus)
    entries = rocr.count(",") + 1
    if hip is None:  # it numbers from 0 as many as there are words
        count = min(entries, len(gpus))
        return Mask("torch", rocr, tuple(gpus[:count]), count, ("it counts the entries and does not read them",))
    if hip.count(",") + 1 > entries:
        return _Reading("torch", hip, gpus).fail(f"PyTorch raises RuntimeError: {HIP} has more entries than {ROCR}")
    return parse(hip, "torch", gpus)


def _visible_to_ray(environment: Mapping[str, str], gpus: Sequence[Device]) -> Mask:
    hip, cuda = environment.get(HIP), environment.get(CUDA)
    reading = _Reading("ray", hip, gpus)
    if ROCR in environment and hip is None:
        return reading.fail(f"Ray raises RuntimeError: Please use {HIP} instead of {ROCR}")
    if cuda and cuda != hip:
        return reading.fail(f"Ray raises AssertionError: {HIP} and {CUDA} differ")
    return parse(hip, "ray", gpus)


def counted(devices: Sequence[Device], backend: str) -> list[Device]:
    """Return the GPUs that a runtime counts, in its order; masks of this process are not looked at."""
    gpus = [device for device in devices if device.backend == backend and device.index is not None]
    return sorted(gpus, key=lambda gpu: gpu.index or 0)


def hip_variable(environment: Mapping[str, str]) -> str:
    """Return which variable HIP reads here."""
    return CUDA if HIP not in environment and CUDA in environment else HIP


def uuid(gpu: Device) -> str:
    """Return what ROCm calls a GPU: `GPU-` and 16 hexadecimal digits."""
    return f"GPU-{gpu.unique_id.lower()}" if gpu.unique_id else NO_UUID


def _split(value: str) -> list[str]:
    """Split at commas; an empty end is not an entry, as in C++."""
    entries = value.split(",")
    return entries[:-1] if entries[-1] == "" else entries


def _by_prefix(text: str, gpus: Sequence[Device]) -> int | None:
    """Return the one GPU whose UUID starts so; ROCr wants 5 to 20 characters."""
    found = [index for index, gpu in enumerate(gpus) if gpu.unique_id and uuid(gpu).upper().startswith(text)]
    return found[0] if len(found) == 1 and 5 <= len(text) <= 20 else None


def _c_integer(text: str) -> int | None:
    """Return what `int x = strtol(text, &end, 0)` gives, None where it does not read to the end."""
    found = C_NUMBER.fullmatch(text)
    if not found or len(text) > 30:
        return None
    digits = found[2]
    base = 16 if digits.startswith("0X") else 8 if digits.startswith("0") else 10
    number = int(digits, base) * (-1 if found[1] == "-" else 1)
    clamped = max(-(2**63), min(2**63 - 1, number))
    return (clamped + 2**31) % 2**32 - 2**31


def _integer(text: str) -> int:
    return int(text[:12])


def _no_gpu(entry: str, count: int) -> str:
    if NUMBER.fullmatch(entry.strip(SPACE)) and entry == entry.strip(SPACE):
        return f"is beyond the {count} GPU{'s' * (count != 1)} counted here"
    return "does not match any GPU"


def shown(name: str, value: str | None) -> str:
    """Return a variable as a user would write it, on one line and not too long."""
    text = value or ""
    if not text.isprintable() or text != text.strip():
        text = repr(text)
    return f"{name}={text if len(text) <= 60 else text[:57] + '…'}" + ("" if text else " (empty)")


def hides_all(environment: Mapping[str, str], backend: str) -> bool:
    """Return whether a mask hides every GPU of this backend on purpose: by `-1` or another value for none.

    An empty mask of HIP also hides them, and is mostly meant to be none: it is reported.
    """
    if backend == "cuda":
        return environment.get(CUDA) in ("", *NONE_WORDS)
    return environment.get(ROCR) in ("", *NONE_WORDS) or environment.get(hip_variable(environment)) in NONE_WORDS


def container_value(devices: Sequence[Device]) -> str:
    """Return the value of AMD_VISIBLE_DEVICES with which AMD's container toolkit gives a new container these GPUs.

    The toolkit counts as amd-smi does, by PCI address, and takes them in that order regardless of the list. It is for
    `docker run --runtime=amd`; a process that runs already needs `child_environment`.

    Raises:
        RocmlabError: one of them has no such number.
    """
    for device in devices:
        if device.backend != "rocm" or device.smi_index is None:
            raise RocmlabError(
                f"{device.name} ({device.pci_address}) cannot be named to AMD's container toolkit",
                "amd-smi does not list it",
                "choose one that `rocmlab devices` lists as usable",
            )
    return ",".join(str(number) for number in sorted(device.smi_index or 0 for device in devices)) or "none"
