"""The commands that stop a lab, on a native lab that runs: `make` as a user types it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import clients
import pytest
from clients import Server
from clones import Clone, clone, free_port, furnish, without_docker

pytestmark = pytest.mark.slow

NOTEBOOK = "work/training.ipynb"
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """A clean clone without an engine, whose lab runs; nothing is installed for it."""
    found = clone(tmp_path_factory.mktemp("stopping") / "rocmlab")
    found.environment["PATH"] = without_docker(found.environment["PATH"])
    furnish(found)
    found.make("up")
    yield found
    found.make("down", "FORCE=1", succeeds=False)


def server(lab: Clone) -> Server:
    """Return the lab's server."""
    return Server(f"127.0.0.1:{lab.port}", lab.env["JUPYTER_TOKEN"])


@pytest.fixture
def kernel(lab: Clone) -> Iterator[str]:
    """A kernel with something in memory, idle; gone afterwards."""
    lab.make("up")
    printed = server(lab).execute("torch", "import os; kept = 42; print(os.getpid())", keep=True)
    yield printed.strip()
    lab.make("down", FORCE="1", succeeds=False)


def record(lab: Clone) -> str:
    """Return what identifies the server that runs."""
    return (lab.folder / ".rocmlab/jupyter.json").read_text()


def test_an_unchanged_up_stops_nothing(lab: Clone, kernel: str) -> None:
    """However often it is typed, and whatever runs."""
    before = record(lab)

    lab.make("up")

    assert record(lab) == before


def test_settings_without_a_restart_are_in_force_at_once(lab: Clone, kernel: str) -> None:
    """The kernel lives on, `.env` remembers the choice, and the server answers by the new setting."""
    before = record(lab)

    printed = lab.make("up", IDLE_GPU_WARNING_SECONDS="500", GPU_METRICS_NAMES="amd").stdout
    metrics = server(lab).request("/rocmlab/metrics", token=lab.env["JUPYTER_TOKEN"])[1]
    lab.make("up", IDLE_GPU_WARNING_SECONDS="600", GPU_METRICS_NAMES="rocmlab")

    assert record(lab) == before
    assert "without a restart: GPU_METRICS_NAMES=amd IDLE_GPU_WARNING_SECONDS=500" in printed
    assert "rocmlab_" not in metrics


def test_a_setting_that_restarts_is_refused_while_a_kernel_is_open(lab: Clone, kernel: str) -> None:
    """Nothing has changed: `.env`, the process, the port; the message names the kernel and the ways out."""
    before, env = record(lab), (lab.folder / ".env").read_text()

    done = lab.make("up", PORT=str(free_port()), RECORD_GPUS="on", succeeds=False)

    assert done.returncode == 2  # make's own code for a recipe that failed
    assert "error: make up restarts the lab, and 1 task runs in it" in done.stdout
    assert "a kernel torch without a notebook: idle" in done.stdout
    assert "the new ones are not applied" in done.stdout
    assert "make up WHEN=idle" in done.stdout
    assert "make up FORCE=1" in done.stdout
    assert (record(lab), (lab.folder / ".env").read_text()) == (before, env)
    assert "on" not in (lab.folder / ".rocmlab/live/settings.json").read_text().split('"RECORD_GPUS": ')[1][:4]
    assert lab.answers()


def test_down_and_clean_refuse_while_a_cell_runs(lab: Clone, kernel: str) -> None:
    """Both name it, and the lab continues; `down` with idle kernels names them and stops."""
    pid = server(lab).execute("torch", "import os; print(os.getpid(), flush=True)", keep=True).strip()
    computing = subprocess.Popen([sys.executable, "-c", COMPUTE, str(lab.port), lab.env["JUPYTER_TOKEN"]])
    try:
        busy(lab)
        refused = [lab.make(verb, succeeds=False) for verb in ("down", "clean")]
        status = lab.answers()
    finally:
        computing.kill()
        computing.wait()

    for done, verb in zip(refused, ("down", "clean"), strict=True):
        assert done.returncode == 2
        assert f"error: make {verb} stops" in done.stdout
        assert "torch without a notebook: busy" in done.stdout
    assert status
    assert (lab.folder / ".venv").exists()
    assert pid


def test_down_names_the_idle_kernels_that_it_stops(lab: Clone, kernel: str) -> None:
    """A user has requested it, and reads what is lost."""
    done = lab.make("down")

    assert "variables in memory are lost" in done.stdout
    assert "a kernel torch without a notebook: idle since" in done.stdout
    assert not lab.answers()


def test_when_idle_waits_and_ctrl_c_changes_nothing(lab: Clone, kernel: str) -> None:
    """It shows what it waits for; interrupted, `.env` and the server are as they were."""
    before, env = record(lab), (lab.folder / ".env").read_text()
    computing = subprocess.Popen([sys.executable, "-c", COMPUTE, str(lab.port), lab.env["JUPYTER_TOKEN"]])
    command = [sys.executable, "-m", "rocmlab", "up", "--when", "idle"]
    environment = {**lab.environment, "PYTHONPATH": "src", "PORT": str(free_port())}
    try:
        busy(lab)
        waiting = subprocess.Popen(command, cwd=lab.folder, env=environment, stdout=subprocess.PIPE, text=True)
        assert waiting.stdout
        said = ""
        while "torch without a notebook: busy" not in said:
            line = waiting.stdout.readline()
            assert line, said
            said += line
        waiting.send_signal(signal.SIGINT)
        waiting.communicate(timeout=WAIT_SECONDS)
    finally:
        computing.kill()
        computing.wait()

    assert "waiting until nothing computes" in said
    assert waiting.returncode == 1
    assert (record(lab), (lab.folder / ".env").read_text()) == (before, env)


COMPUTE = """
import json, sys, urllib.request, uuid, websocket
port, token = sys.argv[1:]
headers = {"Authorization": f"token {token}"}
with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/api/kernels", headers=headers)) as answer:
    kernel = json.load(answer)[0]["id"]
page = websocket.create_connection(f"ws://127.0.0.1:{port}/api/kernels/{kernel}/channels?token={token}", timeout=600)
header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s", "username": ""}
content = {"code": "import time; time.sleep(600)", "silent": False, "store_history": False, "user_expressions": {}}
page.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}))
while True:
    page.recv()
"""


def busy(lab: Clone) -> None:
    """Wait until a kernel computes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = server(lab).request("/api/kernels", token=lab.env["JUPYTER_TOKEN"])[1]
        if '"execution_state": "busy"' in found:
            return
        time.sleep(0.1)
    raise AssertionError("no kernel computes")


def test_a_lab_with_a_kernel_is_not_moved_to_another_path(lab: Clone, kernel: str) -> None:
    """By the flag or in `.env`: it is still found where it is, so its kernel is listed, and all commands reach it."""
    before, env = record(lab), (lab.folder / ".env").read_text()

    by_flag = lab.make("up", LAB_BASE_URL="/gpu1/", succeeds=False)
    (lab.folder / ".env").write_text(env + "LAB_BASE_URL=/gpu1/\n")
    by_file = lab.make("up", succeeds=False)
    url = lab.make("url").stdout
    (lab.folder / ".env").write_text(env)

    assert by_flag.returncode == by_file.returncode == 2
    assert all("a kernel torch" in done.stdout for done in (by_flag, by_file)), by_flag.stdout + by_file.stdout
    assert record(lab) == before
    assert url.startswith(f"http://127.0.0.1:{lab.port}/lab?token=")


@pytest.mark.long
def test_an_idle_lab_moves_to_another_path_and_back(lab: Clone) -> None:
    """It is stopped where it was, and started where it is wanted."""
    lab.make("up")
    token = lab.env["JUPYTER_TOKEN"]

    moved = lab.make("up", LAB_BASE_URL="/gpu1/").stdout
    answers = [clients.ask(lab.port, token, path)[0] for path in ("/gpu1/api/status", "/api/status")]
    back = lab.make("up", LAB_BASE_URL="").stdout

    assert f"http://127.0.0.1:{lab.port}/gpu1/lab?token=" in moved
    assert answers == [200, 404]
    assert f"http://127.0.0.1:{lab.port}/lab?token=" in back
    assert "LAB_BASE_URL" not in (lab.folder / ".env").read_text()
