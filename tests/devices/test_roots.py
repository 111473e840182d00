"""Reading a host's files: whatever they are, nothing is raised and nothing hangs."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from rocmlab.devices import roots


class TestReading:
    """The four readers."""

    def test_padding_is_cut_from_text_and_kept_in_bytes(self, tmp_path: Path) -> None:
        """Captures are padded with NUL bytes to a page; binary files may contain them."""
        (tmp_path / "file").write_bytes(b"16.0 GT/s PCIe\n" + b"\0" * 4081)

        assert roots.read_text(tmp_path / "file") == "16.0 GT/s PCIe"
        assert len(roots.read_bytes(tmp_path / "file") or b"") == 4096

    def test_only_the_first_64_kib_of_a_huge_file_are_read(self, tmp_path: Path) -> None:
        """A sparse file of a terabyte costs no more than a small one."""
        with open(tmp_path / "huge", "wb") as file:
            file.truncate(1 << 40)

        assert len(roots.read_bytes(tmp_path / "huge") or b"") == roots.LIMIT_BYTES

    @pytest.mark.parametrize(
        ("text", "number"),
        [
            ("42\n", 42),
            ("-1\n", -1),
            ("", None),
            ("nan", None),
            ("1e3", None),
            ("0x10", None),
            ("9" * 400, None),
            (str(2**64), None),
            (str(2**64 - 1), 2**64 - 1),
            ("--1", None),
            ("²", None),
            ("١٢", None),
            ("1_000", None),
        ],
    )
    def test_integers_are_decimal_and_of_64_bits(self, tmp_path: Path, text: str, number: int | None) -> None:
        """Python reads more as a number than a kernel writes; such a file is damaged."""
        (tmp_path / "file").write_text(text)

        assert number == roots.read_integer(tmp_path / "file")

    def test_what_is_no_ordinary_file_is_none(self, tmp_path: Path) -> None:
        """Folders, FIFOs, devices, link loops, dangling links, overlong and impossible names."""
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "folder").mkdir()
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "nowhere").symlink_to("missing")
        (tmp_path / "device").symlink_to("/dev/zero")
        names = ("fifo", "folder", "loop", "nowhere", "device", "missing", "x" * 300, "nul\0byte")

        assert {None} == {roots.read_bytes(f"{tmp_path}/{name}") for name in names}
        assert {None} == {roots.read_text(f"{tmp_path}/{name}") for name in names}

    def test_listing_what_is_no_folder_is_empty(self, tmp_path: Path) -> None:
        """Files, missing folders and link loops have no names in them."""
        (tmp_path / "file").touch()
        (tmp_path / "loop").symlink_to("loop")

        assert [roots.list_names(f"{tmp_path}/{name}") for name in ("file", "missing", "loop", "nul\0byte")] == [[]] * 4

    def test_names_are_sorted(self, tmp_path: Path) -> None:
        """The order does not depend on the file system."""
        for name in ("b", "a", "c"):
            (tmp_path / name).touch()

        assert roots.list_names(tmp_path) == ["a", "b", "c"]


class TestRoot:
    """Which host is read."""

    def test_a_relative_root_becomes_absolute(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """So that a later change of folder does not matter."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ROCMLAB_ROOT", "host")

        assert tmp_path / "host" == roots.system_root()

    def test_only_the_real_root_is_not_simulated(self, tmp_path: Path) -> None:
        """A link to `/` is this machine as well."""
        (tmp_path / "link").symlink_to("/")

        assert roots.is_simulated(tmp_path)
        assert not roots.is_simulated(tmp_path / "link")
        assert not roots.is_simulated(Path("/"))


class TestFaults:
    """Files of a simulated host that fail on demand."""

    def _host(self, root: Path, faults: object) -> Path:
        (root / "sys/devices/gpu").mkdir(parents=True)
        (root / "sys/devices/gpu/busy").write_text("7\n")
        (root / "sys/class").mkdir()
        (root / "sys/class/card0").symlink_to("../devices/gpu")
        (root / roots.FAULTS_FILE).write_text(json.dumps(faults))
        return root

    @pytest.mark.parametrize("word", ["EIO", "EBUSY", "no errno"])
    def test_a_faulty_file_cannot_be_read_by_any_path(self, tmp_path: Path, word: str) -> None:
        """The fault names the real path; a path through links meets it as well."""
        root = self._host(tmp_path, {"sys/devices/gpu/busy": word})

        assert roots.read_text(root / "sys/class/card0/busy") is None
        assert roots.read_integer(root / "sys/devices/gpu/busy") is None

    def test_a_fault_that_is_taken_back_ends(self, tmp_path: Path) -> None:
        """The file is read again when it changes."""
        root = self._host(tmp_path, {"sys/devices/gpu/busy": "EIO"})
        before = roots.read_integer(root / "sys/devices/gpu/busy")
        (root / roots.FAULTS_FILE).unlink()

        assert (before, roots.read_integer(root / "sys/devices/gpu/busy")) == (None, 7)

    def test_a_hanging_read_waits_until_the_fault_is_taken_back(self, tmp_path: Path) -> None:
        """As a read does that waits for a hung GPU."""
        root = self._host(tmp_path, {"sys/devices/gpu/busy": "hang"})
        found: list[int | None] = []
        reader = threading.Thread(target=lambda: found.append(roots.read_integer(root / "sys/devices/gpu/busy")))
        reader.start()
        reader.join(0.3)
        is_hanging = reader.is_alive()
        (root / roots.FAULTS_FILE).unlink()
        reader.join(5)

        assert is_hanging
        assert found == [7]

    @pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100000])
    def test_a_broken_fault_file_means_no_faults(self, tmp_path: Path, text: str) -> None:
        """It is read like any other file of a simulated host: without trust."""
        root = self._host(tmp_path, {})
        (root / roots.FAULTS_FILE).write_text(text)

        assert roots.read_integer(root / "sys/devices/gpu/busy") == 7
