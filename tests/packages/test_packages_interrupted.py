"""Installations that are killed, and several at the same time: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from own_packages import Add, has

from rocmlab.packages import installing, requested
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
    assert installing.state(place).is_synchronised
    with adding(place, "helper") as waiting:
        assert waiting.stdout is not None
        assert "waiting for another installation" in waiting.stdout.readline()
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert waiting.returncode == 0
    assert has(place) == {"harmless": "1.0", "helper": "1.0"}
    assert len([each for each in place.own.iterdir() if not each.is_symlink()]) == 2  # with the one before


def test_installations_at_the_same_time_are_one_after_the_other(place: Place) -> None:
    """None is lost."""
    names = ("harmless==1.0", "helper", "numpy==1.26.4")

    started = [adding(place, name) for name in names]
    codes = [(each.communicate(timeout=120), each.returncode)[1] for each in started]

    assert codes == [0, 0, 0]
    assert has(place) == {"harmless": "1.0", "helper": "1.0", "numpy": "1.26.4"}
    assert sorted(each.text for each in requested.read(place.share, "torch")) == sorted(names)
