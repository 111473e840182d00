"""The object that stands where nvidia-ml-py keeps `libnvidia-ml.so.1`: its attributes are NVML's functions.

Source: nvml.h of CUDA 13. As a C library does, a function takes ctypes values, writes through pointers, returns one of
the codes below and never raises. One that NVML has and AMD has no answer to says NOT_SUPPORTED: a function that is
missing is an error to nvitop. Only those of ABSENT are missing, by which nvitop chooses among layouts.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rocmlab.devices import Device
from rocmlab.telemetry.seam import answers
from rocmlab.telemetry.seam.gpus import Gpus
from rocmlab.telemetry.seam.names import described, label

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 0, 1, 2, 3, 6
INSUFFICIENT_SIZE, GPU_IS_LOST, NO_DATA, UNKNOWN = 7, 15, 21, 999
TEXTS_OF_CODES = {
    SUCCESS: "Success",
    UNINITIALIZED: "Uninitialized",
    INVALID_ARGUMENT: "Invalid Argument",
    NOT_SUPPORTED: "Not Supported",
    NOT_FOUND: "Not Found",
    INSUFFICIENT_SIZE: "Insufficient Size",
    GPU_IS_LOST: "GPU is lost",
    NO_DATA: "No data",
    UNKNOWN: "Unknown Error",
}
ABSENT = (
    "nvmlDeviceGetConfComputeMemSizeInfo",
    "nvmlDeviceGetRunningProcessDetailList",
    "nvmlDeviceGetTemperatureV",
)
# nvitop takes a card that does not support this for one without memory of its own, and shows the host's.
UNKNOWN_IS_NO_DATA = ("nvmlDeviceGetMemoryInfo",)
NO_INSTANCE = 0xFFFFFFFF  # of a MIG device
UNKNOWN_BYTES = 2**64 - 1
HANDLES = 4096  # how many GPUs may come and go

Argument = Any  # what ctypes passes: a number, a pointer, an array, `byref` of something
Function = Callable[..., int]

log = logging.getLogger("rocmlab")


class Refused(Exception):
    """The answer is an error code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(TEXTS_OF_CODES[code])


class Library:
    """NVML with AMD GPUs behind it."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._lock = threading.Lock()
        self._users = 0  # how often it was initialised, and not yet shut down
        self._handles = (ctypes.c_char * HANDLES)()  # a handle is the address of one of these: never read, and valid
        self._first = ctypes.addressof(self._handles)
        self._own: Mapping[str, Function] = {
            "nvmlSystemGetDriverVersion": lambda *where: _write_text(where, self._gpus.driver_version),
            "nvmlSystemGetCudaDriverVersion": self._rocm_version,
            "nvmlSystemGetProcessName": self._process_name,
            "nvmlDeviceGetCount": lambda where: _write_number(where, len(self._gpus.devices)),
            "nvmlDeviceGetHandleByIndex": lambda number, where: self._give(_number(number), where),
            "nvmlDeviceGetHandleByUUID": self._finder(lambda device, text: answers.uuid(device) == text),
            "nvmlDeviceGetHandleBySerial": self._finder(lambda device, text: device.serial == text),
            "nvmlDeviceGetHandleByPciBusId": self._finder(_is_at),
            "nvmlDeviceGetIndex": lambda handle, where: _write_number(where, self._place(handle)),
            "nvmlDeviceGetComputeRunningProcesses": self._running,
            "nvmlDeviceGetProcessUtilization": self._process_use,
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a function of NVML, the same one each time."""
        if not name.startswith("nvml") or name in ABSENT:
            raise AttributeError(name)
        function = self._make(name)
        setattr(self, name, function)
        return function

    def _make(self, name: str) -> Callable[..., Any]:
        plain = re.sub(r"_v\d+$", "", name)
        if plain == "nvmlErrorString":
            return lambda code: TEXTS_OF_CODES.get(_number(code), "Unknown Error").encode()
        if plain in ("nvmlInit", "nvmlInitWithFlags"):
            return self._guarded(name, lambda *_: self._open())
        if plain == "nvmlShutdown":
            return self._guarded(name, self._shut)
        function = self._own.get(plain) or self._of_a_device(plain)

        def answer(*arguments: Argument) -> int:
            if not self._users:
                raise Refused(UNINITIALIZED)
            return function(*arguments)

        return self._guarded(name, answer)

    def _guarded(self, name: str, function: Function) -> Function:
        def call(*arguments: Argument) -> int:
            try:
                return function(*arguments)
            except Refused as err:
                return err.code
            except (AttributeError, IndexError, TypeError, ValueError, ctypes.ArgumentError) as err:
                log.debug("%s: %s", name, err)
                return INVALID_ARGUMENT
            except Exception:
                log.debug("%s", name, exc_info=True)
                return UNKNOWN

        return call

    # -- the library itself ------------------------------------------------------------------------------------------

    def _open(self) -> int:
        with self._lock:
            if not self._users:
                self._gpus.open()
            self._users += 1
        return SUCCESS

    def _shut(self) -> int:
        with self._lock:
            if not self._users:
                return UNINITIALIZED
            self._users -= 1
            if not self._users:
                self._gpus.close()
        return SUCCESS

    def _rocm_version(self, where: Argument) -> int:
        version = self._gpus.rocm_version
        return _write_number(where, None if version is None else version[0] * 1000 + version[1] * 10)

    # -- handles -----------------------------------------------------------------------------------------------------

    def _give(self, place: int, where: Argument) -> int:
        if not 0 <= place < min(len(self._gpus.devices), HANDLES):
            return INVALID_ARGUMENT
        if self._gpus.is_lost(self._gpus.devices[place]):
            return GPU_IS_LOST
        value = ctypes.c_void_p(self._first + place)
        ctypes.memmove(ctypes.addressof(_target(where)), ctypes.byref(value), ctypes.sizeof(value))
        return SUCCESS

    def _finder(self, fits: Callable[[Device, str], bool]) -> Function:
        """Return a function (text, where to write a handle) that gives the first GPU that fits the text."""

        def give_first(text: Argument, where: Argument) -> int:
            wanted = (text.value if hasattr(text, "value") else text).decode("utf-8", "replace").strip()
            for place, device in enumerate(self._gpus.devices):
                if fits(device, wanted):
                    return self._give(place, where)
            return NOT_FOUND

        return give_first

    def _place(self, handle: Argument) -> int:
        place = (ctypes.cast(handle, ctypes.c_void_p).value or 0) - self._first
        if not 0 <= place < len(self._gpus.devices):
            raise Refused(INVALID_ARGUMENT)
        return place

    def _device(self, handle: Argument) -> Device:
        device = self._gpus.devices[self._place(handle)]
        if self._gpus.is_lost(device):
            raise Refused(GPU_IS_LOST)
        return device

    # -- one GPU -----------------------------------------------------------------------------------------------------

    def _of_a_device(self, name: str) -> Function:
        if number := answers.NUMBERS.get(name):

            def give_number(handle: Argument, *more: Argument) -> int:
                device = self._device(handle)
                selectors = tuple(_number(argument) for argument in more[:-1])
                return _write_number(more[-1], number(device, self._gpus.sample(device), selectors))

            return give_number
        if text := answers.TEXTS.get(name):
            return lambda handle, *where: _write_text(where, text(self._device(handle)))
        if fields := answers.STRUCTURES.get(name):

            def give_structure(handle: Argument, where: Argument) -> int:
                device = self._device(handle)
                found = fields(device, self._gpus.sample(device))
                if found is None:
                    return NO_DATA if name in UNKNOWN_IS_NO_DATA else NOT_SUPPORTED
                _fill(_target(where), found)
                return SUCCESS

            return give_structure
        return lambda *_: NOT_SUPPORTED

    # -- processes ---------------------------------------------------------------------------------------------------

    def _running(self, handle: Argument, count: Argument, entries: Argument) -> int:
        found = self._gpus.processes(self._device(handle))
        rows = [
            {
                "pid": self._gpus.shown_pid(process),
                "usedGpuMemory": UNKNOWN_BYTES if process.vram_bytes is None else process.vram_bytes,
                "gpuInstanceId": NO_INSTANCE,
                "computeInstanceId": NO_INSTANCE,
            }
            for process in found
        ]
        return _write_rows(rows, count, entries)

    def _process_use(self, handle: Argument, entries: Argument, count: Argument, since: Argument) -> int:
        now = time.time_ns() // 1000
        found = self._gpus.processes(self._device(handle))
        rows = [
            {
                "pid": self._gpus.shown_pid(process),
                "timeStamp": now,
                "smUtil": round(process.compute_units_percent),
                "memUtil": 0,
                "encUtil": 0,
                "decUtil": 0,
            }
            for process in found
            if process.compute_units_percent is not None
        ]
        return _write_rows(rows, count, entries) if rows else NOT_FOUND

    def _process_name(self, pid: Argument, *where: Argument) -> int:
        process = self._gpus.process(_number(pid))
        return (
            NOT_FOUND
            if process is None
            else _write_text(where, " ".join([*label(process), *described(process)]) or None)
        )


def _is_at(device: Device, text: str) -> bool:
    found = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?", text)
    if found is None:
        return False
    return device.pci_address == f"{int(found[1] or '0', 16):04x}:{found[2]}:{found[3]}.{found[4] or 0}".lower()


def _target(argument: Argument) -> Any:  # noqa: ANN401
    """Return what a `byref` or a pointer points to."""
    found = getattr(argument, "_obj", None)
    return argument.contents if found is None else found


def _number(argument: Argument) -> int:
    return int(argument.value if hasattr(argument, "value") else argument)


def _write_number(where: Argument, number: int | None) -> int:
    if number is None:
        return NOT_SUPPORTED
    _target(where).value = number
    return SUCCESS


def _write_text(where: tuple[Argument, ...], text: str | None) -> int:
    buffer, size = where
    if text is None:
        return NOT_SUPPORTED
    content = text.encode()
    if len(content) >= _number(size):  # one byte ends it; a letter of several bytes is not cut
        content = content[: _number(size) - 1].decode("utf-8", "ignore").encode()
    buffer.value = content
    return SUCCESS


def _fill(structure: Any, fields: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Write those fields that this layout of a structure has."""
    for name, kind, *_ in structure._fields_:
        value = fields.get(name)
        if isinstance(value, str):
            content = value.encode()
            room = ctypes.sizeof(kind)
            setattr(structure, name, content if len(content) < room else content[-room + 1 :])
        elif value is not None:
            setattr(structure, name, value)


def _write_rows(rows: list[dict[str, int]], count: Argument, entries: Argument) -> int:
    room = _target(count)
    if len(rows) > (room.value if entries is not None else 0):
        room.value = len(rows)
        return INSUFFICIENT_SIZE
    for entry, row in zip(entries or (), rows, strict=False):
        _fill(entry, row)
    room.value = len(rows)
    return SUCCESS
