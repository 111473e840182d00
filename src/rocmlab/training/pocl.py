"""PoCL, OpenCL for CPUs: workarounds for two of its builds, and what one of them needs.

The wheel's LLVM 14 names a processor newer than 2022 "generic", which its clang rejects for every kernel; it gets the
name of an older one whose instructions it has. A system's PoCL uses the system's LLVM, whose functions are named as in
TensorFlow's libraries: loaded after TensorFlow it would call these and crash, so its own come first. The wheel links
each kernel with the system's `ld`, libgcc and libc, and ends the process where one is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

KNOWN = "PoCL 3.0-rc2"  # the wheel pocl-binary-distribution 3.0, for which the place of the name was found
REJECTED = "unknown target CPU"
NAME_OFFSET_BYTES = 640  # of `llvm_cpu`, a char *, in its `struct _cl_device_id`
MAX_NAME_LENGTH = 7  # of a processor; malloc's smallest block holds more
# Of 2013. With AVX-512 ("skx") the kernels of notebook 09 were not faster on a Zen 5.
NEWER = "haswell"
NEEDED = {"avx2", "bmi1", "bmi2", "fma", "f16c", "movbe", "abm"}  # what it has, by the names of /proc/cpuinfo
OLDER = "x86-64"  # every 64-bit processor of the kind
CPUINFO = Path("/proc/cpuinfo")
VENDORS = Path("/etc/OpenCL/vendors")
LINK = "from rocmlab.training import opencl; opencl.compute_with_wheel()"
LINK_SECONDS = 60.0
SHARES_LLVM = ("libpocl.", "libRusticlOpenCL.", "libMesaOpenCL.")


def processor(cpuinfo: Path = CPUINFO) -> str:
    """Return a processor that LLVM 14 knows and that has no instruction which this one lacks."""
    return NEWER if set(_flags(cpuinfo)) >= NEEDED else OLDER


def _flags(cpuinfo: Path) -> list[str]:
    """Return the processor's features; none where they are unknown. Source: `flags` in /proc/cpuinfo."""
    try:
        found = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return []
    return found[1].split() if found else []


def is_wheel(version: str) -> bool:
    """Return whether a platform of this version is PoCL's wheel."""
    return KNOWN in version.split(",")[0]


@functools.cache
def link_error(program: str = LINK) -> str:
    """Run a kernel with the wheel in another process; return why it cannot be linked, empty where it can.

    The system may keep the linker and its libraries anywhere, so it is tried; what cannot be tried counts as possible.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "POCL_KERNEL_CACHE": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LINK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode != -signal.SIGABRT:
        return ""
    said = [line.strip() for line in done.stderr.splitlines() if "error" in line or "cannot find" in line]
    return said[0] if said else "it ended its process with SIGABRT"


def rename(device: Any, version: str, name: str) -> str | None:  # noqa: ANN401  pyopencl.Device
    """Give a device of PoCL's wheel another processor's name to compile for; return the one it had.

    The process's memory is read and written through /proc/self/mem, where a wrong address is an error and not a crash.
    None: nothing was changed, because the platform has another version than the wheel's, or the name is too long.
    """
    if not is_wheel(version) or len(name) > MAX_NAME_LENGTH:
        return None
    try:
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(device.int_ptr + NAME_OFFSET_BYTES)
            address = int.from_bytes(memory.read(8), sys.byteorder)
            memory.seek(address)
            had, ended, _rest = memory.read(16).partition(b"\0")
            if not ended or not re.fullmatch(rb"[a-z0-9-]+", had):
                return None
            memory.seek(address)
            memory.write(name.encode() + b"\0")
    except (OSError, OverflowError, ValueError):
        return None
    return had.decode()


def prepare() -> None:
    """Set up the process for PoCL; it must run before OpenCL looks for platforms.

    Compiled kernels get a cache for each kind of processor: PoCL's key is the processor's name, which is "generic" for
    all that it does not know, and a home can be on a share of several machines. After TensorFlow, a system's drivers
    are loaded apart from it; one that is already loaded stays as it is.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kind = f"{zlib.crc32(' '.join(_flags(CPUINFO)).encode()):08x}"
    os.environ.setdefault("POCL_CACHE_DIR", str(caches / "pocl" / kind))
    if "tensorflow" in sys.modules and hasattr(os, "RTLD_DEEPBIND"):
        # The functions of the system's LLVM come before those of the same names.
        for driver in sorted(Path(os.environ.get("OCL_ICD_VENDORS") or VENDORS).glob("*.icd")):
            with contextlib.suppress(OSError):  # OpenCL's own loader skips what cannot be loaded
                library = driver.read_text(encoding="utf-8").strip()
                if Path(library).name.startswith(SHARES_LLVM):
                    ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
