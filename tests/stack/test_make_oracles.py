"""When scripts/make-oracles has work to do; what it makes is used in tests/oracle."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NEEDED = ("apt-get", "dpkg-deb", "unshare", "flock", "chroot")
pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not KEYRING.exists() or any(shutil.which(name) is None for name in NEEDED),
    reason="make-oracles needs root on a Debian machine (.ci/run has it)",
)


def fetches(script: Path, folder: Path) -> bool:
    """Run it with an apt-get that fails, and tell whether there was something of the tools to fetch."""
    programs = folder.parent / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "apt-get").write_text("#!/bin/sh\nexit 7\n")
    (programs / "apt-get").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run([script, folder], env=environment, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 1


def digest(script: Path) -> bytes:
    """Return what `ready` holds for this version of the script."""
    return subprocess.run(["sha256sum"], input=script.read_bytes(), capture_output=True, check=True).stdout


def test_they_are_made_anew_where_the_script_has_changed(repository: Path, tmp_path: Path) -> None:
    """`ready` holds a digest of the script that made them; one of an older script, or an empty one, does not count."""
    script = tmp_path / "make-oracles"
    shutil.copy2(repository / "scripts/make-oracles", script)
    folder = tmp_path / "oracles"
    (folder / "hip").mkdir(parents=True)
    for ready in ("ready", "hip/ready"):
        (folder / ready).write_bytes(digest(script))
    assert not fetches(script, folder)

    with open(script, "a", encoding="utf-8") as file:
        file.write("# a change\n")

    assert fetches(script, folder)
    assert not (folder / "ready").exists()
    (folder / "ready").touch()
    assert fetches(script, folder)


def test_without_the_runtime_the_tools_are_there_and_the_reason_is_written(repository: Path, tmp_path: Path) -> None:
    """Debian's experimental suite may be in pieces on a day; what is not fetched now is not retried immediately."""
    script = repository / "scripts/make-oracles"
    folder = tmp_path / "oracles"
    folder.mkdir()
    (folder / "ready").write_bytes(digest(script))

    assert not fetches(script, folder)
    assert not (folder / "hip/ready").exists()
    first = (folder / "hip/why-not").stat().st_mtime_ns
    assert not fetches(script, folder)
    assert (folder / "hip/why-not").stat().st_mtime_ns == first


def test_a_runtime_stays_until_a_new_one_is_there(repository: Path, tmp_path: Path) -> None:
    """One that an older version of the script unpacked is better than none."""
    script = repository / "scripts/make-oracles"
    folder = tmp_path / "oracles"
    (folder / "hip").mkdir(parents=True)
    (folder / "ready").write_bytes(digest(script))
    for name in ("ready", "start"):
        (folder / "hip" / name).write_text("of an older version\n")

    assert not fetches(script, folder)
    assert sorted(path.name for path in (folder / "hip").iterdir()) == ["ready", "start", "why-not"]
    assert (folder / "hip/ready").read_text() == "of an older version\n"
    assert sorted(path.name for path in folder.iterdir()) == ["hip", "lock", "ready"]
