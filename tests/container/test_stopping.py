"""A lab in a container is not stopped while something runs in it, and some settings need no other container."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest
from clients import Server
from clones import Clone
from containers import docker

pytestmark = [pytest.mark.container, pytest.mark.labs]
WAIT_SECONDS = 90.0
GOING_RUN = """
import fcntl, json, os, socket, sys, time
folder = "/home/jovyan/share/runs/2026-01-01T000000Z-one-off"
os.makedirs(folder, exist_ok=True)
journal = open(folder + "/journal.jsonl", "a")
fcntl.flock(journal, fcntl.LOCK_EX)
event = {"event": "run started", "pid": os.getpid(), "host": socket.gethostname(), "jobs": [{}, {}, {}]}
print(json.dumps(event), file=journal, flush=True)
print("going", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def lab(docker_lab: Clone) -> Iterator[Clone]:
    """The clone whose lab runs in a container."""
    docker_lab.make("up")
    yield docker_lab
    docker_lab.make("up", "FORCE=1", SHM_SIZE="")


def container(lab: Clone) -> str:
    """Return the running container and since when it runs."""
    found = compose(lab, "ps", "--quiet", "lab").stdout.strip()
    return docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", found)


def compose(lab: Clone, *words: str) -> subprocess.CompletedProcess[str]:
    """Run plain `docker compose`."""
    return subprocess.run(
        ["docker", "compose", *words], cwd=lab.folder, env=lab.environment, capture_output=True, text=True, check=False
    )


def test_a_kernel_keeps_a_changed_setting_from_making_another_container(lab: Clone) -> None:
    """It is named, container and `.env` are as they were, and plain `docker compose up` also leaves the lab alone."""
    Server(f"127.0.0.1:{lab.port}", lab.env["JUPYTER_TOKEN"]).execute("torch", "kept = 42", keep=True)
    before, env = container(lab), (lab.folder / ".env").read_text()

    done = lab.make("up", SHM_SIZE="1gb", succeeds=False)
    compose(lab, "up", "--detach", "--no-build")

    assert "error: make up restarts the lab, and 1 task runs in it" in done.stdout
    assert "a kernel torch without a notebook" in done.stdout
    assert (container(lab), (lab.folder / ".env").read_text()) == (before, env)


def test_live_settings_reach_the_container_that_runs(lab: Clone) -> None:
    """The same container, whose server reads the new value; plain Compose makes no other one of it."""
    before = container(lab)

    printed = lab.make("up", IDLE_GPU_WARNING_SECONDS="500").stdout
    compose(lab, "up", "--detach", "--no-build")
    seen = json.loads(docker("exec", before.split()[0], "cat", "/run/rocmlab/live/settings.json"))
    lab.make("up", IDLE_GPU_WARNING_SECONDS="600")

    assert "applied now, without a restart: IDLE_GPU_WARNING_SECONDS=500" in printed
    assert seen["IDLE_GPU_WARNING_SECONDS"] == "500"
    assert container(lab) == before


def test_a_run_in_a_container_of_its_own_keeps_down_from_removing_it(lab: Clone) -> None:
    """`docker compose down` removes such containers as well."""
    words = ["docker", "compose", "run", "--rm", "-T", "lab", "/opt/rocmlab/bin/python", "-c", GOING_RUN]
    run = subprocess.Popen(
        words, cwd=lab.folder, env=lab.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert run.stdout
        while "going" not in run.stdout.readline():
            assert run.poll() is None
        done = lab.make("down", succeeds=False)
        is_alive = run.poll() is None
        forced = lab.make("down", "FORCE=1").stdout
        deadline = time.monotonic() + WAIT_SECONDS
        while run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        run.kill()
        run.communicate()

    assert "error: make down stops the lab" in done.stdout
    assert "the headless run 2026-01-01T000000Z-one-off: under way since" in done.stdout
    assert "0 of 3 notebooks done" in done.stdout
    assert is_alive
    assert "2026-01-01T000000Z-one-off" in forced
    assert not lab.answers()
