"""Any tree, however broken, gives a table with unknowns: never a traceback, never a number that cannot be.

Ten thousand trees, each a small host with up to three things broken, are read, sampled and printed. What was found in
this way, or could have been, is kept below as a named case.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Gpu, make_host, write, write_node, write_partition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocmlab.cli.devices import _as_json, _as_text, _found
from rocmlab.cli.table import device_lines, table_lines
from rocmlab.devices import Device, sample, system_root
from rocmlab.devices.metal import parse
from rocmlab.devices.rocm import Rocm

TREES = int(os.environ.get("BROKEN_TREES", "600"))  # `make test-long` reads 10,000
BATCH = 40  # trees of one hypothesis example
AT_ONCE = 3  # how many things are broken in one tree
WIDTHS = (50, 80, 120)  # of a terminal
VALUES = (
    b"",
    b"\n",
    b"-1\n",
    b"0\n",
    b"18446744073709551615\n",
    b"18446744073709551616\n",
    b"-9223372036854775809\n",
    b"1" + b"0" * 400,
    b"9" * 5000,
    b"NaN\n",
    b"inf\n",
    b"1e999\n",
    b"0x\n",
    b"0xffffffffffffffffff\n",
    "١٢".encode(),
    "²".encode(),
    b"\xff\xfe\x00\x80garbage",
    b"\xed\xa0\x80",
    b"\x1b[2J\x1b[31mred\x07",
    b"\0" * 4096,
    b"999999999.9 GT/s PCIe\n",
    b"-5 GT/s\n",
    b"=\n==\nPCI_ID=\nPCI_SLOT_NAME=../../../etc\n",
    b"PCI_ID=1002:1002:1002\nDRIVER=\x1b[31m\n",
    b"S: 19Mhz *\n0: *\n: :\n",
    b"a\n" * 20000,
    b"MemTotal: -1 kB\nMemAvailable: 99999999999999999999 kB\n",
)
KINDS = (
    "missing",
    "truncated",
    "huge",
    "loop",
    "dangling",
    "outside",
    "folder",
    "file",
    "fifo",
    "unreadable",
    "value",
    "property",
)
Mutation = tuple[int, str, int]


@pytest.fixture(scope="module")
def host() -> Iterator[Path]:
    """A host with a card, an APU, a divided card and a card without compute node, in memory where that is possible."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="rocmlab-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))
    folder.chmod(0o755)
    divided = Gpu(3, 0x0500, 130, 90402, 0x74A1, files={"current_compute_partition": "CPX\n"}, banks=((1, 1 << 34),))
    root = make_host(
        folder / "host",
        Gpu(1, 0x0300, 128, banks=((1, 1 << 34),), files=_sensors()),
        Gpu(2, 0xC500, 129, 110501, 0x1586, vram_bytes=1 << 29, files={"mem_info_gtt_total": "16441004032\n"}),
        divided,
        Gpu(None, 0x0700, 140, device_id=0x67DF),
    )
    write_node(root, 4, divided, location_id=0x10000500, drm_render_minor=131)
    write_partition(root, 1, 9, 131)
    write(root / "proc/cpuinfo", "processor : 0\nmodel name : Simulated\n")
    write(root / "sys/module/amdgpu/version", "6.12.12\n")
    for node in (root / "dev").rglob("*"):
        node.chmod(0o777)
    yield root
    shutil.rmtree(folder)


def _sensors() -> dict[str, str]:
    return {
        "current_link_speed": "8.0 GT/s PCIe\n",
        "max_link_speed": "16.0 GT/s PCIe\n",
        "current_link_width": "8\n",
        "max_link_width": "16\n",
        "revision": "0xc8\n",
        "numa_node": "0\n",
        "unique_id": "946d7e1ef9b172dd\n",
        "serial_number": "123\n",
        "gpu_busy_percent": "10\n",
        "mem_info_vram_used": "1000\n",
        "pp_dpm_sclk": "0: 500Mhz\n1: 2000Mhz *\n",
        "gpu_metrics": "x" * 120,
        "hwmon/hwmon3/name": "amdgpu\n",
        "hwmon/hwmon3/temp1_input": "45000\n",
        "hwmon/hwmon3/temp1_label": "edge\n",
        "hwmon/hwmon3/power1_average": "68000000\n",
        "hwmon/hwmon3/fan1_input": "900\n",
        "ras/umc_err_count": "ue: 0\nce: 0\n",
        "power/runtime_status": "active\n",
    }


class Broken:
    """Things broken in a tree, and repaired again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.aside = root.parent / "aside"
        self.aside.mkdir(exist_ok=True)
        self.paths = sorted(path for path in root.rglob("*") if path != root)
        self._undo: list[tuple[Path, Path]] = []

    def apply(self, mutation: Mutation) -> None:
        """Break one thing; what an earlier break has taken away is left alone."""
        position, kind, number = mutation
        path = self.paths[position % len(self.paths)]
        if not os.path.lexists(path) or not path.parent.resolve().is_relative_to(self.root):
            return
        content = b""
        if kind in ("truncated", "property") and path.is_file() and os.access(path, os.R_OK):
            with path.open("rb") as file:
                content = file.read(1 << 20)  # an earlier mutation may have made it huge
        kept = self.aside / str(len(self._undo))
        path.rename(kept)
        self._undo.append((kept, path))
        _replace(path, kind, content, VALUES[number % len(VALUES)], number)

    def repair(self) -> None:
        """Put everything back."""
        while self._undo:
            kept, path = self._undo.pop()
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif os.path.lexists(path):
                path.unlink()
            kept.rename(path)


def _replace(path: Path, kind: str, content: bytes, value: bytes, number: int) -> None:
    links = {"loop": path.name, "dangling": "nowhere/at/all", "outside": "/proc/self"}
    if kind in links:
        path.symlink_to(links[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "huge":
        with open(path, "wb") as file:
            file.truncate(1 << 33)
    elif kind == "truncated":
        path.write_bytes(content[: len(content) * (number % 7) // 7])
    elif kind == "property":
        lines = content.splitlines() or [b"simd_count 1"]
        lines[number % len(lines)] = lines[number % len(lines)].split(b" ")[0] + b" " + value
        path.write_bytes(b"\n".join(lines) + b"\n")
    elif kind != "missing":
        path.write_bytes(value)
    if kind == "unreadable":
        path.chmod(0)


def _check(width: int, *, with_sample: bool = True) -> None:
    """Read, sample and print the tree, and look at what comes out; the text has a table of the usual width as well."""
    root = system_root()
    rows, problems = _found(root)
    for row in rows if with_sample else ():
        row["sample"] = sample(Device(**row), root).as_dict()
    found: dict[str, Any] = json.loads(_as_json(root, rows, problems), parse_constant=_no_constant)
    text = _as_text(root, rows, problems)
    assert text.count("problem: ") >= len(problems)
    devices = found["devices"]
    assert devices[-1]["backend"] == "cpu"
    usable = sorted(device["index"] for device in devices if device["is_usable"] and device["backend"] == "rocm")
    assert usable == list(range(len(usable)))
    for device in devices:
        assert device["is_usable"] == (device["index"] is not None) == (device["why_not"] is None)
        _check_values(device)
    lines = [*text.splitlines(), *table_lines(devices, width), *device_lines(devices)]
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert all(problem["what"] and problem["why"] and problem["fix"] for problem in found["problems"])


def _no_constant(name: str) -> None:
    msg = f"{name} is no JSON"
    raise AssertionError(msg)


def _check_values(values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            _check_values(value)
        elif isinstance(value, int | float):
            assert 0 <= value < 2**64 or "celsius" in key, (key, value)


@pytest.mark.slow
def test_thousands_of_broken_trees(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read as an ordinary user would, whom permissions bind."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(host))
    _check(WIDTHS[0])  # also imports what another user might not be able to read
    broken = Broken(host)
    is_root = os.getuid() == 0
    done = 0

    @settings(
        max_examples=TREES // BATCH,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.lists(
            st.tuples(st.integers(0, 10**6), st.sampled_from(KINDS), st.integers(0, 10**4)),
            min_size=BATCH + AT_ONCE - 1,
            max_size=BATCH + AT_ONCE - 1,
        )
    )
    def trees(mutations: list[Mutation]) -> None:
        nonlocal done
        for number in range(BATCH):
            try:
                for mutation in mutations[number : number + 1 + number % AT_ONCE]:
                    broken.apply(mutation)
                if is_root:
                    os.seteuid(65534)
                _check(WIDTHS[done % len(WIDTHS)], with_sample=number % 2 == 0)
            finally:
                if is_root:
                    os.seteuid(0)
                broken.repair()
            done += 1

    trees()

    assert done >= TREES


class TestFound:
    """Broken trees that need a name."""

    def _node(self, root: Path, name: str, text: bytes) -> Path:
        make_host(root)
        node = root / f"sys/class/kfd/kfd/topology/nodes/{name}"
        node.mkdir()
        (node / "properties").write_bytes(text)
        return root

    @pytest.mark.parametrize(
        "text", [b"", b"\0" * 4096, b"simd_count", b"simd_count many\n", b"\xff\xfe garbage", b"cpu_cores_count 8\n"]
    )
    def test_a_node_without_content_is_no_gpu_and_a_problem(self, tmp_path: Path, text: bytes) -> None:
        """Whether it was a CPU or a GPU cannot be known."""
        devices, problems = Rocm().examine(self._node(tmp_path, "1", text))

        assert devices == []
        assert "node 1 of the KFD topology cannot be read" in problems[0].what

    def test_a_node_with_nothing_but_simds_is_an_unknown_gpu(self, tmp_path: Path) -> None:
        """It is listed, and what it lacks is named."""
        devices, problems = Rocm().examine(self._node(tmp_path, "1", b"simd_count 8\n"))

        assert [(gpu.name, gpu.pci_address, gpu.is_usable) for gpu in devices] == [("AMD GPU", None, False)]
        assert "lacks location_id, drm_render_minor, device_id, simd_per_cu" in problems[0].what

    @pytest.mark.parametrize("name", ["²", "٣", "-1", "1 ", "0x1", "1" * 200])
    def test_a_folder_that_only_looks_like_a_number_is_no_node(self, tmp_path: Path, name: str) -> None:
        """`str.isdigit` accepts superscripts, and `int` then fails on them."""
        assert Rocm().discover(self._node(tmp_path, name, b"simd_count 8\n")) == []

    @pytest.mark.parametrize("value", ["9" * 400, "18446744073709551616", "-5", "NaN"])
    @pytest.mark.parametrize(
        "key", ["location_id", "domain", "drm_render_minor", "unique_id", "simd_per_cu", "hive_id"]
    )
    def test_a_property_out_of_range_is_unknown(self, tmp_path: Path, key: str, value: str) -> None:
        """A number of more than 4300 digits cannot even be printed by Python."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128))
        path = root / "sys/class/kfd/kfd/topology/nodes/1/properties"
        lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} ")]
        path.write_text("\n".join([*lines, f"{key} {value}", ""]))

        device = Rocm().discover(root)[0]

        json.dumps(device.as_dict())
        assert device.pci_address in ("0000:03:00.0", None)
        assert device.unique_id in ("deadbeef12345678", None)

    def test_a_gfx_version_that_is_no_version_is_unknown(self, tmp_path: Path) -> None:
        """99 is not a hexadecimal digit; the table of products still knows the target."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, gfx_target_version=119999))

        assert Rocm().discover(root)[0].gfx == "gfx1100"

    def test_a_topology_that_is_a_file(self, tmp_path: Path) -> None:
        """The card is listed from DRM alone."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128))
        nodes = root / "sys/class/kfd/kfd/topology/nodes"
        shutil.rmtree(nodes)
        nodes.write_text("")

        assert [gpu.index for gpu in Rocm().discover(root)] == [None]

    def test_links_of_drm_that_form_a_loop(self, tmp_path: Path) -> None:
        """The GPU is listed from KFD alone."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128))
        for entry in (root / "sys/class/drm").iterdir():
            entry.unlink()
            entry.symlink_to(entry.name)

        assert [gpu.pci_address for gpu in Rocm().discover(root)] == ["0000:03:00.0"]

    def test_two_cards_whose_device_links_have_the_same_name(self, tmp_path: Path) -> None:
        """A name that is not a PCI address does not join two cards into one."""
        for number, address in ((0, "0000:03:00.0"), (1, "0000:04:00.0")):
            write(
                tmp_path / f"capture{number}/device/uevent",
                f"DRIVER=amdgpu\nPCI_ID=1002:744C\nPCI_SLOT_NAME={address}\n",
            )
            (tmp_path / f"sys/class/drm/card{number}").mkdir(parents=True)
            (tmp_path / f"sys/class/drm/card{number}/device").symlink_to(tmp_path / f"capture{number}/device")

        assert [gpu.pci_address for gpu in Rocm().discover(tmp_path)] == ["0000:03:00.0", "0000:04:00.0"]

    def test_no_topology_means_no_gpu(self, tmp_path: Path) -> None:
        """An empty folder is a host without GPUs."""
        assert Rocm().examine(tmp_path) == ([], [])

    @pytest.mark.parametrize(
        "report", ["not json", "[]", "null", '{"SPDisplaysDataType": {}}', "[" * 100000, '{"SPDisplaysDataType": [1]}']
    )
    def test_metal_survives_any_report(self, report: str) -> None:
        """A broken report means no GPU."""
        assert parse(report) == []
