"""Upgrade and rollback of a lab in a container: the previous image is kept, and runs again where the new one fails."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import Clone
from containers import docker

pytestmark = [pytest.mark.container, pytest.mark.labs]


def git(folder: Path, *words: str) -> str:
    """Run git as some person."""
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def lab(docker_lab: Clone) -> Iterator[Clone]:
    """The clone whose lab runs, as a git repository for the time of the test."""
    folder = docker_lab.folder
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    docker_lab.make("up", "FORCE=1")
    yield docker_lab
    git(folder, "checkout", "--quiet", "--force", "main")
    git(folder, "reset", "--quiet", "--hard", git(folder, "rev-list", "--max-parents=0", "HEAD"))
    shutil.rmtree(folder / ".git")


def image(lab: Clone, suffix: str = "") -> str:
    """Return the id of the lab's image."""
    return docker("image", "inspect", "--format", "{{.Id}}", f"{lab.env['ROCMLAB_IMAGE']}{suffix}").strip()


@pytest.mark.long
def test_a_broken_version_is_left_and_a_good_one_can_be_rolled_back(lab: Clone) -> None:
    """The image of the lab that works is never the one that is lost."""
    first, commit, env = image(lab), git(lab.folder, "rev-parse", "HEAD"), lab.env
    app = lab.folder / "src/rocmlab/lab/server/app.py"
    working = app.read_text()
    app.write_text("raise ImportError('broken on purpose')\n" + working)
    git(lab.folder, "commit", "--quiet", "--all", "--message", "broken")
    checked_out = git(lab.folder, "rev-parse", "HEAD")

    broken = lab.make("upgrade", succeeds=False)

    assert broken.returncode == 2
    assert "the GPU panel's server extension does not answer" in broken.stdout
    assert "the previous version is restored" in broken.stdout
    assert git(lab.folder, "rev-parse", "HEAD") == checked_out  # which the upgrade did not move
    assert (image(lab), lab.env) == (first, env)
    assert lab.answers()

    app.write_text(working + "# another version\n")
    git(lab.folder, "commit", "--quiet", "--all", "--message", "good")
    upgraded = lab.make("upgrade")
    second = image(lab)
    kept = image(lab, "-previous")
    back = lab.make("rollback")

    assert "the new version works" in upgraded.stdout
    assert second != first
    assert kept == first
    assert f"commit {commit[:12]}" in back.stdout
    assert (image(lab), image(lab, "-previous")) == (first, second)
    assert git(lab.folder, "rev-parse", "HEAD") == commit
    assert lab.answers()
