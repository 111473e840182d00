"""What is wrong with the masks of a process, how each reader understands them, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rocmlab.base.errors import Problem
from rocmlab.devices.model import Device
from rocmlab.devices.visibility import overrides
from rocmlab.devices.visibility.masks import (
    CONTAINER,
    CUDA,
    EMPTY_ENTRY,
    HIP,
    NUMBER,
    ORDER,
    ORDINAL,
    ROCR,
    Mask,
    container_value,
    counted,
    hides_all,
    hip_variable,
    parse,
    shown,
    uuid,
    visible,
)

HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+")
LENIENT = re.compile(r"(?P<hex>0[xX][0-9a-fA-F]{1,8})|(?P<first>[0-9]{1,9})(?:\s*-\s*(?P<last>[0-9]{1,9}))?")


class MaskProblem(Problem):
    """A conflict about which GPUs a process sees."""


def find(environment: Mapping[str, str], devices: Sequence[Device]) -> list[Problem]:
    """Return every conflict, masks first."""
    found: list[Problem] = []
    if any(device.backend == "rocm" for device in devices):
        process = _Process(environment, devices)
        found += [problem for rule in RULES for problem in rule(process)]
        found += overrides.find(environment, devices)
    if any(device.backend == "cuda" for device in devices):
        found += _cuda(environment, devices)
    return found


class _Process:
    """The masks of one process, and the GPUs they are about."""

    def __init__(self, environment: Mapping[str, str], devices: Sequence[Device]) -> None:
        self.environment, self.devices = environment, devices
        self.gpus = counted(devices, "rocm")
        self.rocr = environment.get(ROCR)
        self.name = hip_variable(environment)  # the mask that HIP reads
        self.value = environment.get(self.name)
        self.left = visible(environment, devices, "rocr").gpus  # HIP counts within these
        self.entries = self.value.split(",") if self.value and self.value != "-1" else []
        self.rocr_entries = self.rocr.split(",") if self.rocr and self.rocr != "-1" else []

    def readings(self) -> str:
        """Say what each reader sees."""
        hip = self.reading("hip")
        seen = ", ".join(str(gpu.index) for gpu in hip.gpus)
        readings = [hip.error or ("HIP and TensorFlow see " + (f"GPU {seen}" if seen else "no GPU"))]
        for reader, name in (("torch", "PyTorch"), ("ray", "Ray")):
            mask = self.reading(reader)
            readings.append(mask.error or f"{name} counts {mask.count}")
        return ", ".join(readings)

    def reading(self, reader: str) -> Mask:
        return visible(self.environment, self.devices, reader)

    def fix(self) -> str:
        """Return the lines that set what these masks mean once, for all programs."""
        unset = f"unset {ROCR}; " if self.rocr is not None else ""
        meant = self._meant()
        if meant is None:
            names = " ".join(name for name in (HIP, CUDA, ROCR) if name in self.environment)
            return f"unset {names}  # all GPUs; for none: {unset}export {HIP}=-1 {CUDA}=-1"
        numbers = ",".join(str(gpu.index) for gpu in meant) or "-1"
        return f"{unset}export {HIP}={numbers} {CUDA}={numbers}"

    def _meant(self) -> list[Device] | None:
        """Return the GPUs a user meant; None if that is not clear, as with an empty mask of HIP."""
        masks = {name: value for name, value in self.environment.items() if value or name == ROCR}
        if hides_all(masks, "rocm"):
            return []
        value = masks.get(hip_variable(masks))
        left = self.gpus if self.rocr is None else meant(self.rocr, self.gpus)
        if value is None:
            return left if self.rocr is not None and left else None
        return meant(value, left) or meant(value, self.gpus) or None


def meant(value: str, gpus: Sequence[Device]) -> list[Device]:
    """Return the GPUs that a user means by a mask: spaces, ranges, hexadecimal and capital letters are understood."""
    found: dict[int, None] = {}
    for entry in (part.strip() for part in value.split(",")):
        number = LENIENT.fullmatch(entry)
        if number and number["hex"]:
            found[int(entry, 16)] = None
        elif number:
            last = min(int(number["last"] or number["first"]), len(gpus) - 1)
            found.update(dict.fromkeys(range(int(number["first"]), last + 1)))
        elif entry.lower() == "all":
            found.update(dict.fromkeys(range(len(gpus))))
        else:
            named = [index for index, gpu in enumerate(gpus) if gpu.unique_id and _starts(uuid(gpu), entry)]
            found.update(dict.fromkeys(named[:1]))
    return [gpus[position] for position in found if position < len(gpus)]


def _starts(identity: str, entry: str) -> bool:
    return len(entry) > len("gpu-") and identity.lower().startswith(entry.lower())


def _both(process: _Process) -> Iterator[MaskProblem]:
    if process.rocr is not None and process.value:
        yield MaskProblem(
            f"{shown(ROCR, process.rocr)} and {shown(process.name, process.value)} are both set",
            f"ROCr filters first, and HIP counts within {_gpus(len(process.left))} that it leaves"
            f"{''.join(f'; {name} {absent}' for name, absent, _ in _absent(process))}: {process.readings()}",
            process.fix(),
        )


def _gpus(count: int) -> str:
    return f"the {count} GPUs" if count > 1 else "the one GPU" if count else "no GPU"


def _rocr_alone(process: _Process) -> Iterator[MaskProblem]:
    if process.rocr is not None and process.value is None:
        yield MaskProblem(
            f"{shown(ROCR, process.rocr)} is set without {HIP}",
            f"Ray then does not start, and PyTorch counts its entries without reading the GPUs: {process.readings()}",
            process.fix(),
        )


def _empty(process: _Process) -> Iterator[MaskProblem]:
    if process.value == "":
        cuda = process.environment.get(CUDA)
        other = f", whatever {shown(CUDA, cuda)} names" if cuda and process.name == HIP else ""
        yield MaskProblem(
            f"{process.name} is set and empty",
            f"HIP, TensorFlow and PyTorch take that as no GPU{other}: {process.readings()}",
            process.fix(),
        )


def _empty_entry(process: _Process) -> Iterator[MaskProblem]:
    if EMPTY_ENTRY in process.reading("rocr").odd:
        why = (
            "ROCr, which reads it first, fails at an empty entry: a program ends with SIGABRT "
            "(`Unhandled exception` in hsa_ext_amd.cpp)"
        )
        yield _word(process, "has an empty entry", why, ROCR)


def _differ(process: _Process) -> Iterator[MaskProblem]:
    hip, cuda = process.environment.get(HIP), process.environment.get(CUDA)
    if hip and cuda and hip != cuda:
        yield MaskProblem(
            f"{shown(HIP, hip)} and {shown(CUDA, cuda)} differ",
            f"on AMD GPUs the first one counts and Ray stops at the difference: {process.readings()}",
            process.fix(),
        )


def _spaces(process: _Process) -> Iterator[MaskProblem]:
    if any(entry != entry.strip() for entry in process.entries):
        yield _word(process, "contains a space", "HIP does not accept an index with a space and ends the list there")


def _twice(process: _Process) -> Iterator[MaskProblem]:
    for name, entries in ((process.name, process.entries), (ROCR, process.rocr_entries)):
        plain = [entry.strip().lower() for entry in entries if entry.strip()]
        if len(set(plain)) < len(plain):
            why = "HIP counts it once, PyTorch then counts no GPU at all, and ROCr ends its list there"
            yield _word(process, "names a GPU twice", why, name)


def _beyond(process: _Process) -> Iterator[MaskProblem]:
    if process.rocr is not None and process.value:
        return  # `_both` reports it
    for name, absent, there in _absent(process):
        why = f"{there}, counted from 0; the list ends at the first that is not there"
        yield _word(process, absent, why, name)


def _absent(process: _Process) -> Iterator[tuple[str, str, str]]:
    """Yield each mask that names GPUs by too high a number, with what it does and how many there are."""
    for name, entries, gpus in (
        (process.name, process.entries, process.left),
        (ROCR, process.rocr_entries, process.gpus),
    ):
        wrong = [entry.strip() for entry in entries if _is_beyond(entry.strip(), len(gpus))]
        if wrong and gpus:
            there = "ROCr leaves" if name != ROCR and process.rocr is not None else "there are"
            yield name, f"names GPU {', '.join(wrong)}, which is not there", f"{there} {len(gpus)}"


def _is_beyond(entry: str, count: int) -> bool:
    return entry.isascii() and entry.isdecimal() and int(entry[:12]) >= count


def _hexadecimal(process: _Process) -> Iterator[MaskProblem]:
    if any(HEXADECIMAL.fullmatch(entry.strip()) for entry in process.entries):
        yield _word(process, "has a hexadecimal index", "HIP does not know it and ends the list there, PyTorch reads 0")


def _unreadable(process: _Process) -> Iterator[MaskProblem]:
    for name, entries in ((process.name, process.entries), (ROCR, process.rocr_entries)):
        plain = [entry.strip() for entry in entries]
        indices = {entry for entry in plain if NUMBER.fullmatch(entry) or HEXADECIMAL.fullmatch(entry)}
        wrong = [entry for entry in plain if entry not in indices and not entry.startswith("GPU-")]
        if name == ROCR:
            wrong = [] if EMPTY_ENTRY in process.reading("rocr").odd else wrong
            wrong = [entry for entry in wrong if not re.match(r"gpu-", entry.lower())]
        if wrong:
            why = f"{', '.join(map(repr, wrong[:4]))} is neither an index nor a UUID, and the list ends there"
            yield _word(process, "is not a list of indices", why, name)


def _uuids(process: _Process) -> Iterator[MaskProblem]:
    named = [entry.strip() for entry in process.entries if entry.strip().startswith("GPU-")]
    exact = [uuid(gpu) for gpu in process.left if gpu.unique_id]
    unknown = [entry for entry in named if not any(known.startswith(entry) for known in exact)]
    for entry in unknown:
        right = next((known for known in exact if known.lower().startswith(entry.lower())), None)
        if right:
            yield _word(process, f"has the UUID {entry} in capitals", f"HIP reads small letters only: {right}")
        else:
            yield _word(process, f"has the UUID {entry}, which does not match any GPU", _without_id(process.left))
    if named and not unknown:
        why = (
            "HIP knows UUIDs since ROCm 6.2, PyTorch finds them only through amd-smi and only if every entry is one, "
            "and Ray passes them on unchecked"
        )
        yield _word(process, "names GPUs by UUID", why)


def _rocr_uuids(process: _Process) -> Iterator[MaskProblem]:
    for entry in (entry.strip() for entry in process.rocr_entries):
        if entry.upper().startswith("G") and not parse(entry, "rocr", process.gpus).gpus:
            named = [gpu for gpu in process.gpus if gpu.unique_id and _starts(uuid(gpu), entry)]
            why = "it fits several GPUs" if len(named) > 1 else _without_id(process.gpus)
            yield _word(process, f"has the UUID {entry}, which does not match any GPU", why, ROCR)


def _without_id(gpus: Sequence[Device]) -> str:
    without = [f"GPU {gpu.index} ({gpu.name})" for gpu in gpus if not gpu.unique_id]
    known = ", ".join(uuid(gpu) for gpu in gpus if gpu.unique_id) or "none"
    have, them = ("has", "it") if len(without) == 1 else ("have", "them")
    lacking = f"; {', '.join(without)} {have} none, so no UUID can name {them}" if without else ""
    return f"the UUIDs here: {known}{lacking}"


def _ordinal(process: _Process) -> Iterator[MaskProblem]:
    ordinal = process.environment.get(ORDINAL)
    opencl = process.reading("opencl").gpus
    if ordinal is not None and opencl != process.reading("hip").gpus:
        seen = ", ".join(str(gpu.index) for gpu in opencl)
        yield MaskProblem(
            f"{shown(ORDINAL, ordinal)} differs from {HIP}",
            f"only OpenCL reads it, contrary to the documentation, and sees {f'GPU {seen}' if seen else 'no GPU'}: "
            f"{process.readings()}",
            f"unset {ORDINAL}",
        )


def _toolkit(process: _Process) -> Iterator[MaskProblem]:
    """Yield that AMD_VISIBLE_DEVICES hides nothing here, where it means other GPUs than those that are seen."""
    toolkit = process.reading("container")
    if toolkit.value is None or set(toolkit.gpus) == set(process.reading("hip").gpus):
        return
    is_told = any(process.environment.get(name) is not None for name in (HIP, CUDA, ROCR))
    wanted = ",".join(str(gpu.index) for gpu in toolkit.gpus) or "-1"
    command = ""
    if all(gpu.smi_index is not None for gpu in toolkit.gpus):
        command = f" (docker run --runtime=amd --env {CONTAINER}={container_value(toolkit.gpus)})"
    yield MaskProblem(
        f"{shown(CONTAINER, toolkit.value)} hides no GPU from this process",
        f"only AMD's container toolkit reads it, when a container is created{command}; here it does nothing: "
        f"{process.readings()}",
        f"unset {CONTAINER}" + ("" if is_told or toolkit.odd else f"; export {HIP}={wanted} {CUDA}={wanted}"),
    )


def _word(process: _Process, what: str, why: str, name: str | None = None) -> MaskProblem:
    name = name or process.name
    return MaskProblem(
        f"{shown(name, process.environment.get(name))} {what}", f"{why}: {process.readings()}", process.fix()
    )


RULES: tuple[Callable[[_Process], Iterable[MaskProblem]], ...] = (
    _both,
    _rocr_alone,
    _empty,
    _empty_entry,
    _differ,
    _spaces,
    _twice,
    _beyond,
    _hexadecimal,
    _unreadable,
    _uuids,
    _rocr_uuids,
    _ordinal,
    _toolkit,
)


def _cuda(environment: Mapping[str, str], devices: Sequence[Device]) -> Iterator[MaskProblem]:
    """Yield what is wrong with CUDA_VISIBLE_DEVICES on NVIDIA GPUs."""
    value = environment.get(CUDA)
    gpus = counted(devices, "cuda")
    mask = visible(environment, devices, "cuda")
    if not value or hides_all(environment, "cuda"):
        return
    numbers = ",".join(str(gpu.index) for gpu in meant(value, gpus)) or "-1"
    fix = f"export {CUDA}={numbers}"
    if mask.odd and gpus:
        seen = ", ".join(str(gpu.index) for gpu in mask.gpus)
        why = f"{'; '.join(mask.odd)}; CUDA sees " + (f"GPU {seen}" if seen else "no GPU")
        yield MaskProblem(f"{shown(CUDA, value)} is not what it seems", why, fix)
    by_number = not value.startswith(("GPU-", "MIG-"))
    if by_number and environment.get(ORDER) != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1:
        names = ", ".join(f"{gpu.index}={gpu.name}" for gpu in gpus)
        yield MaskProblem(
            f"{shown(CUDA, value)} may mean other GPUs than nvidia-smi numbers so",
            f"without {ORDER}=PCI_BUS_ID CUDA puts the fastest GPU first; nvidia-smi lists {names}",
            f"export {ORDER}=PCI_BUS_ID",
        )
