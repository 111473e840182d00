"""Backup and restore of a lab whose share is a Docker volume."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from clones import Clone
from containers import docker

pytestmark = pytest.mark.container


def inside(lab: Clone, program: str) -> str:
    """Run a shell program as root in the share's volume, lab or no lab."""
    volume = f"{lab.env['COMPOSE_PROJECT_NAME']}_share"
    mount = ["--volume", f"{volume}:/share", "--entrypoint", "sh"]
    return docker("run", "--rm", "--network=none", *mount, lab.env["ROCMLAB_IMAGE"], "-c", program)


def test_a_volume_is_backed_up_while_the_lab_runs_and_restored_after_its_loss(
    docker_lab: Clone, tmp_path: Path
) -> None:
    """The backup is the user's; after the volume is gone everything is back and belongs to the lab's user."""
    docker_lab.make("up")
    uid = docker_lab.env.get("NB_UID", "1000")
    write = "mkdir -p /share/mine && echo saved >/share/mine/a && chmod 600 /share/mine/a && ln -s a /share/mine/b"
    inside(docker_lab, f"{write} && chown -Rh {uid}:100 /share/mine")
    (docker_lab.folder / "notebooks/mine.ipynb").write_text("mine")

    done = docker_lab.make("backup", TO=str(tmp_path / "backups"))

    assert "is complete" in done.stdout
    (backup,) = (tmp_path / "backups").iterdir()
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=backup, check=True)
    docker_lab.make("down", FORCE="1")
    docker("volume", "rm", f"{docker_lab.env['COMPOSE_PROJECT_NAME']}_share")
    (docker_lab.folder / "notebooks/mine.ipynb").unlink()

    restored = docker_lab.make("restore", FROM=str(tmp_path / "backups"))

    assert "restored" in restored.stdout
    assert (docker_lab.folder / "notebooks/mine.ipynb").read_text() == "mine"
    seen = inside(docker_lab, "cat /share/mine/a; readlink /share/mine/b; stat -c '%u %a' /share/mine/a /share/mine/b")
    assert seen.split() == ["saved", "a", uid, "600", uid, "777"]
    assert "already exists but was not created" not in docker_lab.make("up").stdout
