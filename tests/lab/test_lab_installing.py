"""A kernel whose framework is being installed in the background: it waits, or reports why it cannot start."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_hosts import Host, started

from rocmlab.base import installation
from rocmlab.base.errors import RocmlabError
from rocmlab.lab import marks, provisioner


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """An environment that has what JupyterLab needs, and into which nothing installs."""
    folder = tmp_path / "project/.venv"
    folder.mkdir(parents=True)
    (folder / installation.PART).write_text(json.dumps({"project": str(folder.parent)}))
    return folder


@pytest.fixture
def installing(prefix: Path) -> Iterator[Path]:
    """The same, and something installs into it."""
    lock = installation.take(prefix.parent, None)
    assert lock is not None
    yield prefix
    os.close(lock)


@pytest.mark.slow
def test_a_kernel_starts_when_its_framework_is_there(installing: Path) -> None:
    """It waits meanwhile, and the server does other things."""

    async def scenario() -> bool:
        waiting = asyncio.ensure_future(provisioner.installed(installing))
        await asyncio.sleep(0.2)
        was_waiting = not waiting.done()
        (installing / installation.WHOLE).touch()
        await asyncio.wait_for(waiting, 10)
        return was_waiting

    assert asyncio.run(scenario())


def test_it_waits_no_longer_than_a_browser(installing: Path) -> None:
    """Then it reports that the installation continues, and how to see its end."""
    with pytest.raises(RocmlabError, match="still being installed") as caught:
        asyncio.run(provisioner.installed(installing, seconds=0.0))

    assert "Restart Kernel" in caught.value.problem.fix
    assert provisioner.INSTALL_SECONDS < 300


@pytest.mark.slow
def test_a_kernel_of_an_interrupted_installation_shows_what_continues_it(
    host: Host, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In JupyterLab, in the place of the kernel; nothing of the cell is executed."""
    host.offer()
    monkeypatch.setattr(sys, "prefix", str(prefix))

    async def scenario() -> str:
        async with started("torch") as talk:
            return await talk.run("print('a' + 'n answer')")

    shown = asyncio.run(scenario())

    assert "TensorFlow and PyTorch are not installed" in shown
    assert "make up" in shown
    assert "an answer" not in shown


def test_the_reason_of_a_failed_installation_is_reported(prefix: Path) -> None:
    """As the process that installed left it."""
    problem = {"what": "no disk space", "why": "the disk is full", "fix": "free some"}
    (prefix / installation.FAILURE).write_text(json.dumps(problem))

    with pytest.raises(RocmlabError) as caught:
        asyncio.run(provisioner.installed(prefix))

    assert caught.value.problem.as_dict() == problem


def test_an_environment_that_was_made_as_a_whole_is_not_waited_for(tmp_path: Path) -> None:
    """An image's, for example, which has neither file."""
    asyncio.run(provisioner.installed(tmp_path, seconds=0.0))


def test_a_run_in_a_terminal_of_the_lab_waits_as_well(prefix: Path, installing: Path) -> None:
    """It prints why, once; and fails where the installation has ended before its end."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        (prefix / installation.WHOLE).touch()

    installation.wait(prefix, say)
    installation.wait(prefix, say)

    assert lines == ["waiting for TensorFlow and PyTorch, which are being installed in the background"]


@pytest.mark.parametrize(
    ("title", "shown"),
    [("PyTorch", "PyTorch (being installed)"), ("PyTorch (GPU)", "PyTorch (GPU, being installed)")],
)
def test_a_title_shows_the_state_and_loses_it_again(title: str, shown: str) -> None:
    """However often it is marked."""
    spec = {"display_name": title, "metadata": {"rocmlab": {"framework": "torch"}}}

    once = marks.marked(spec, installation.INSTALLING)

    assert once["display_name"] == shown
    assert marks.marked(once, installation.INSTALLING) == once
    assert marks.marked(marks.marked(once, installation.FAILED), installation.READY) == spec
