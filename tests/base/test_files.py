"""Replacing a file so that a power cut leaves the old one or the new one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rocmlab.base import files


def test_a_durable_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is written before the rename, which the disk has as well when `replacing` is done."""
    steps = []

    def fsync(descriptor: int, real=os.fsync) -> None:
        found = os.fstat(descriptor)
        steps.append("folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes")
        real(descriptor)

    def replace(source: Path, target: Path, real=os.replace) -> None:
        steps.append("rename")
        real(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)

    with files.replacing(tmp_path / "a.json", 0o600, is_durable=True) as file:
        file.write(b"new")

    assert steps == ["3 bytes", "rename", "folder"]
    assert (tmp_path / "a.json").read_text() == "new"
