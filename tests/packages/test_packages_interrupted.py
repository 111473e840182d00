"""Installations that are killed, and several at the same time: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from own_packages import Add, has, offer

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import installing, inventory, requested
from rocmlab.packages.overlays import Place

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", ["uv"], indirect=True)]
ADDS = """
import sys
from pathlib import Path
from rocmlab.packages import installing
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement
place = Place(Path(sys.argv[1]), "torch", sys.argv[2])
installing.add(place, [Requirement(sys.argv[3])], lambda line: print(line, flush=True))
"""
HANGS = """#!/bin/sh
case "$2" in
  install) echo $$ >{pid}; exec sleep 600 ;;
esac
"""


def adding(place: Place, name: str, **variables: str) -> subprocess.Popen[str]:
    """Install a package in a process of its own."""
    command = [sys.executable, "-c", ADDS, str(place.share), place.python, name]
    return subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)


def test_a_killed_installation_leaves_what_was_there(place: Place, add: Add, tmp_path: Path) -> None:
    """Its uv still has the lock; when that has ended, the next installation works and removes what is left of it."""
    add("harmless==1.0")
    prefix, uv, pid = place.current(), tmp_path / "hangs", tmp_path / "pid"
    (uv / "bin").mkdir(parents=True)
    (uv / "bin/uv").write_text(HANGS.format(pid=pid))
    (uv / "bin/uv").chmod(0o755)
    with adding(place, "trains", **{installing.UV: str(uv)}) as killed:
        deadline = time.monotonic() + 60
        while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.02)
        killed.kill()

    assert place.current() == prefix
    assert has(place) == {"harmless": "1.0"}
    assert inventory.state(place).is_synchronised
    with adding(place, "helper") as waiting:
        assert waiting.stdout is not None
        assert "waiting for another installation" in waiting.stdout.readline()
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert waiting.returncode == 0
    assert has(place) == {"harmless": "1.0", "helper": "1.0"}
    assert len([each for each in place.own.iterdir() if not each.is_symlink()]) == 2  # with the one before


@pytest.mark.long
def test_installations_at_the_same_time_are_one_after_the_other(place: Place) -> None:
    """None is lost."""
    names = ("harmless==1.0", "helper", "numpy==1.26.4")

    started = [adding(place, name) for name in names]
    codes = [(each.communicate(timeout=120), each.returncode)[1] for each in started]

    assert codes == [0, 0, 0]
    assert has(place) == {"harmless": "1.0", "helper": "1.0", "numpy": "1.26.4"}
    assert sorted(each.text for each in requested.read(place.share, "torch")) == sorted(names)


def overlays_of(place: Place) -> list[str]:
    """Return all that is in the folder of the overlays, but the link to the one in use."""
    return sorted(each.name for each in place.own.iterdir() if each.name != "current")


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a file system that is full")
@pytest.mark.parametrize("free_kib", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (40, 300)), 120, 600])
def test_a_full_disk_is_an_error_that_changes_nothing(
    place: Place, add: Add, tmp_path: Path, wheels: Path, free_kib: int
) -> None:
    """Wherever the space ends: the packages before stay in use, nothing is left behind, and with space it works."""
    offer(wheels, "large", "1.0", text="x" * 900_000)
    place.share.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place.share)], check=True)
    try:
        add("harmless==1.0")
        prefix, before = place.current(), overlays_of(place)
        room = os.statvfs(place.share)
        filler = place.share / "filler"
        filler.write_bytes(b"x" * max(0, room.f_bavail * room.f_frsize - free_kib * 1024))

        with pytest.raises(RocmlabError) as err:
            add("large")

        assert "space" in err.value.problem.why
        assert place.current() == prefix
        assert has(place) == {"harmless": "1.0"}
        assert inventory.state(place).is_synchronised
        assert overlays_of(place) == before
        filler.unlink()
        add("large")
        assert has(place) == {"harmless": "1.0", "large": "1.0"}
    finally:
        subprocess.run(["umount", "-l", str(place.share)], check=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "why"), [("check", "timed out"), ("install", "signal 9")], ids=["a check hangs", "pip is killed"]
)
def test_what_does_not_come_back_is_an_error_that_changes_nothing(
    place: Place, add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, why: str
) -> None:
    """It says what happened, and leaves no folder behind."""
    add("harmless==1.0")
    prefix, before = place.current(), overlays_of(place)
    uv = tmp_path / "odd/bin/uv"
    uv.parent.mkdir(parents=True)
    act = "exec sleep 600" if command == "check" else "kill -9 $PPID"
    uv.write_text(f'#!/bin/sh\n[ "$2" = {command} ] && {act}\nexit 0\n')
    uv.chmod(0o755)
    monkeypatch.setenv(installing.UV, str(tmp_path / "odd"))
    monkeypatch.setattr(installing, "CHECK_SECONDS", 1)

    with pytest.raises(RocmlabError) as err:
        add("trains")

    assert why in err.value.problem.why
    assert place.current() == prefix
    assert overlays_of(place) == before
    assert inventory.state(place).is_synchronised
