"""A real pip in a kernel's environment, which comes to the overlay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_packages import has

from rocmlab.packages import building, inventory, overlays, requested
from rocmlab.packages.overlays import Place

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", ["uv"], indirect=True)]
SOURCE = Path(building.__file__).parents[2]


def pip(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the pip of the lab's interpreter as a kernel does, and return what came of it."""
    hook = place.share.parent / overlays.HOOK
    hook.write_text(f'#!/bin/sh\nPYTHONPATH={SOURCE} exec {sys.executable} -m rocmlab.packages.pip "$@"\n')
    hook.chmod(0o755)
    kernel = {overlays.SHARE: str(place.share), overlays.KERNEL: "torch", overlays.PYTHON: place.python}
    environment = {**os.environ, **kernel, "PIP_PYTHON": str(hook)}
    command = [place.python, "-m", "pip", *arguments]
    return subprocess.run(command, env=environment, cwd=place.share.parent, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_options_before_the_command_count(place: Place) -> None:
    """As for pip: the package is in the list, and not installed around it."""
    done = pip(place, "--retries", "1", "-q", "install", "harmless")

    assert done.returncode == 0, done.stderr
    assert has(place) == {"harmless": "2.0"}
    assert [each.text for each in requested.read(place.share, "torch")] == ["harmless"]


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ("install", "--config-settings", "a=b", "torch==9.9"),
        pytest.param(("install", "--report", "report.json", "torch==9.9"), marks=pytest.mark.long),
        ("uninstall", "-y", "-r", "list.txt"),
    ],
)
def test_what_would_go_around_the_list_is_an_error(place: Place, arguments: tuple[str, ...]) -> None:
    """Otherwise pip would change the lab's packages, or those of the overlay that kernels run from."""
    pip(place, "install", "harmless==1.0")
    (place.share.parent / "list.txt").write_text("harmless\n")
    before = place.current()

    done = pip(place, *arguments)

    assert done.returncode == 2
    assert "fix:" in done.stderr
    assert place.current() == before
    assert has(place) == {"harmless": "1.0"}
    assert inventory.state(place).is_synchronised


@pytest.mark.long
def test_other_commands_are_pips_own(place: Place, wheels: Path) -> None:
    """A question, and another folder."""
    assert "torch" in pip(place, "list").stdout
    assert "Would install harmless-2.0" in pip(place, "install", "--dry-run", "harmless").stdout
    assert pip(place, "download", "-d", "here", "harmless").returncode == 0
    assert pip(place, "install", "--target", "there", "harmless").returncode == 0

    assert (place.share.parent / "there/harmless").is_dir()
    assert has(place) == {}
