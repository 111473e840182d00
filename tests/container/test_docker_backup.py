"""Backup and restore of a lab whose share is a Docker volume."""

from __future__ import annotations

import subprocess
from pathlib import Path

import clients
import pytest
from clones import Clone
from containers import docker

pytestmark = [pytest.mark.container, pytest.mark.labs]


def inside(lab: Clone, program: str) -> str:
    """Run a shell program as root in the share's volume, lab or no lab."""
    volume = f"{lab.env['COMPOSE_PROJECT_NAME']}_share"
    mount = ["--volume", f"{volume}:/share", "--entrypoint", "sh"]
    return docker("run", "--rm", "--network=none", *mount, lab.env["ROCMLAB_IMAGE"], "-c", program)


def running(lab: Clone) -> str:
    """Return which container the lab is."""
    name = f"label=com.docker.compose.project={lab.env['COMPOSE_PROJECT_NAME']}"
    return docker("ps", "--quiet", "--no-trunc", "--filter", name)


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


@pytest.mark.long
def test_old_runs_in_a_volume_are_pruned(docker_lab: Clone) -> None:
    """Listed first, removed with FORCE=1; a run that was not finished stays, and so does the lab."""
    docker_lab.make("up")
    event = '{"event": "run finished", "status": "ok", "time": "2026-01-01T00:00:00Z"}'
    make = f"mkdir -p $d && echo '{event}' >$d/journal.jsonl && touch -d 2026-01-01 $d/journal.jsonl $d"
    runs = ("20260101T000000Z-old", "my-own")
    inside(docker_lab, "".join(f"d=/share/runs/{name}; {make}; " for name in runs))

    listed = docker_lab.make("clean", RUNS="30d", succeeds=False)
    removed = docker_lab.make("clean", RUNS="30d", FORCE="1")

    assert "20260101T000000Z-old" in listed.stdout
    assert "FORCE=1" in listed.stdout
    assert "removed 1 runs" in removed.stdout
    assert inside(docker_lab, "ls /share/runs").split().count("my-own") == 1
    assert docker_lab.answers()


@pytest.mark.long
def test_a_disk_with_little_room_is_reported_and_no_run_starts(docker_lab: Clone) -> None:
    """`make up` and `status` warn, the panel shows it, `rocmlab run` is rejected; the lab is not restarted for it."""
    docker_lab.make("up")
    started = running(docker_lab)

    warned = docker_lab.make("up", MIN_FREE_DISK_GB="1000000").stdout
    status = docker_lab.make("status").stdout
    run = docker_lab.make("run-notebooks", NOTEBOOKS="00_hello_gpu", succeeds=False)
    shown = clients.ask(docker_lab.port, docker_lab.env["JUPYTER_TOKEN"], "/rocmlab/api/devices", timeout_seconds=60)[1]
    docker_lab.make("up", MIN_FREE_DISK_GB="5")

    assert "WARNING: the disk of" in warned
    assert "WARNING    the disk of" in status
    assert "the run does not start" in run.stdout
    assert run.returncode == 2
    assert "disk.low" in {problem["check"] for problem in shown["problems"]}
    assert started == running(docker_lab)
