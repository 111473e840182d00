"""The processor that PoCL's wheel compiles for."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from rocmlab.training import opencl, pocl

VERSION = "OpenCL 3.0 PoCL 3.0-rc2  Linux, Release, RELOC, LLVM 14.0.6, SLEEF, DISTRO, POCL_DEBUG"
AVX2 = "fpu sse2 ssse3 fma cx16 movbe popcnt avx f16c abm bmi1 avx2 bmi2"
ZEN5 = f"{AVX2} avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512_bf16 avx512_vp2intersect"
ARROW_LAKE = f"{AVX2} avx_vnni sha_ni gfni vaes"


class Record:
    """A device as PoCL keeps it in memory, with the name of its processor at the place of the wheel's build."""

    type, extensions, driver_version, vendor = 2, "", "3.0", "AuthenticAMD"
    name = "pthread-new"

    def __init__(self, text=b"generic"):
        self.text = ctypes.create_string_buffer(text, 24)
        self.record = ctypes.create_string_buffer(1024)
        self.set_address(ctypes.addressof(self.text))
        self.int_ptr = ctypes.addressof(self.record)
        self.platform = SimpleNamespace(version=VERSION)

    def set_address(self, address):
        """Point to another text."""
        ctypes.c_uint64.from_buffer(self.record, pocl.NAME_OFFSET_BYTES).value = address


linux = pytest.mark.skipif(sys.platform != "linux", reason="PoCL's wheel is for Linux")


@pytest.mark.parametrize(
    ("flags", "name"),
    [(ZEN5, "haswell"), (ARROW_LAKE, "haswell"), (AVX2.replace(" fma", ""), "x86-64"), ("fp asimd", "x86-64")],
    ids=["zen 5", "without avx-512", "old", "no flags"],
)
def test_a_processor_counts_as_one_without_instructions_that_it_lacks(tmp_path, flags, name):
    """It is one that LLVM 14 knows, chosen by the instructions that Linux lists."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nmodel name\t: AMD Something\nflags\t\t: {flags}\nbogomips\t: 1\n")

    assert pocl.processor(cpuinfo) == name


def test_unknown_instructions_mean_the_oldest_processor(tmp_path):
    """Where nothing lists them, every x86-64 processor has those of the name."""
    assert pocl.processor(tmp_path / "missing") == "x86-64"


@linux
def test_only_the_name_of_the_processor_is_changed():
    """The text that the record points to becomes the name, and the record itself stays as it was."""
    device = Record()
    before = device.record.raw

    assert pocl.rename(device, VERSION, "haswell") == "generic"

    assert device.text.value == b"haswell"
    assert device.record.raw == before


@linux
@pytest.mark.parametrize("address", [0, 8, 2**63, 2**64 - 1])
def test_a_record_that_points_nowhere_is_left_alone(address):
    """Another build of PoCL has something else at that place: nothing is changed, and nothing crashes."""
    device = Record()
    device.set_address(address)

    assert pocl.rename(device, VERSION, "haswell") is None


@linux
def test_what_is_no_name_is_left_alone():
    """Bytes that are not a name, another version's record and names that do not fit are not written."""
    odd, other, long = Record(b"\xff\x01"), Record(), Record()

    assert pocl.rename(odd, VERSION, "haswell") is None
    assert pocl.rename(other, VERSION.replace("3.0-rc2", "3.1+debian"), "haswell") is None
    assert pocl.rename(long, VERSION, "skylake-avx512") is None

    assert [each.text.value for each in (odd, other, long)] == [b"\xff\x01", b"generic", b"generic"]


class Program:
    """A program of a compiler that knows every processor but "generic"."""

    def __init__(self, context, _source):
        self.device = context[0]

    def build(self):
        """Compile it."""
        if self.device.text.value == b"generic":
            raise ValueError("clBuildProgram failed\n\nerror: unknown target CPU 'generic'\n")


def offer(monkeypatch, *devices, lacking=""):
    """Make these all that OpenCL has."""
    platform = SimpleNamespace(name="Portable Computing Language", version=VERSION, get_devices=lambda: list(devices))
    fake = SimpleNamespace(
        get_platforms=lambda: [platform],
        device_type=SimpleNamespace(CPU=2, GPU=4),
        Error=ValueError,
        Context=lambda devices: devices,
        Program=Program,
    )
    monkeypatch.setitem(sys.modules, "pyopencl", fake)
    monkeypatch.setenv("POCL_CACHE_DIR", "/nonexistent")
    monkeypatch.setattr(pocl, "link_error", lambda: lacking)


@linux
def test_a_processor_that_the_compiler_does_not_know_gets_an_older_name(monkeypatch):
    """The compiler rejects the name, gets another one, and the device is chosen."""
    device = Record()
    offer(monkeypatch, device)

    assert opencl.choose()[0] is device
    assert device.text.value.decode() == pocl.processor()


@linux
def test_nothing_is_renamed_where_another_platform_compiles(monkeypatch):
    """A system's newer PoCL is taken, and the wheel's memory is not touched."""
    old, new = Record(), Record(b"znver5")
    offer(monkeypatch, old, new)

    assert opencl.choose()[0] is new
    assert old.text.value == b"generic"


def test_without_a_linker_the_wheel_is_not_chosen(monkeypatch):
    """It would end the process; the error says what is missing and how to get it, in a container and without one."""
    offer(monkeypatch, Record(b"znver5"), lacking="ld: cannot find -lc")

    with pytest.raises(opencl.CannotLink, match="ld: cannot find -lc") as caught:
        opencl.choose()

    assert "apt.txt" in caught.value.problem.fix
    assert "sudo apt-get install gcc libc6-dev" in caught.value.problem.fix


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("pass", ""),
        ("raise ValueError('error: of another kind')", ""),
        ("os.abort()", "it ended its process with SIGABRT"),
        (
            "print('/usr/bin/ld: cannot find -lc', 'error: linker command failed', 'end', sep='\\n', file=sys.stderr,"
            " flush=True); os.abort()",
            "/usr/bin/ld: cannot find -lc",
        ),
    ],
)
def test_what_the_linker_says_is_the_reason(program, error):
    """Only where the process was aborted, as PoCL does; another failure is not the linker's."""
    assert (
        pocl.link_error(f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); {program}")
        == error
    )
