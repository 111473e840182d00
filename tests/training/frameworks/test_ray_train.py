"""Real Ray Train on the CPU: the losses are those of one process, and a lost worker or node costs nothing of them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import listeners
import pytest
from clones import free_port


def is_installed(name):
    """Return whether a program that a test starts can import it; the path here also has what the tests need."""
    found = importlib.util.find_spec(name)
    return bool(found and found.origin and Path(found.origin).is_relative_to(sys.prefix))


pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND", "torch") != "torch", reason="run it with KERAS_BACKEND=torch"),
    pytest.mark.skipif(
        not all(is_installed(name) for name in ("torch", "ray", "pyarrow", "pandas", "psutil")),
        reason="needs Ray Train: pip install -r requirements/cluster-train.txt into this environment",
    ),
]

PROGRAM = Path(__file__).with_name("ray_program.py")
LIMIT_SECONDS = 600
NODE = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; sys.exit(main())"


@pytest.fixture
def environment(tmp_path):
    """Return the environment of the programs: no cluster, a token, one thread."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {
        **env,
        "OMP_NUM_THREADS": "1",
        "ROCMLAB_SHARE": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[3] / "src"), env.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def run(environment, folder, strategy, loss):
    """Run the program and return its result, what it printed, and where it listened outside the loopback."""
    value = secrets.token_hex(8)
    with listeners.Watch(variable=f"{listeners.VARIABLE}={value}") as watch:
        done = subprocess.run(
            [sys.executable, PROGRAM, folder, "2", strategy, loss],
            env={**environment, listeners.VARIABLE: value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:]
    return json.loads(Path(folder, "result.json").read_text()), done.stdout, watch.outside()


def check_same(result):
    """Make sure that the workers learned what one process learns, and that all have the same."""
    alone, together = result["alone"], result["together"]
    gaps = [abs(one - other) for one, other in zip(alone["losses"], together["losses"], strict=True)]
    assert max(gaps) < 1e-9
    assert together["losses"][-1] < together["losses"][0]
    assert len(set(together["digests"])) == 1
    assert {one["backend"] for one in together["devices"]} == {"cpu"}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_killed_worker_costs_nothing_of_what_was_learned(environment, tmp_path, strategy):
    """Two workers of an own Ray, which only this machine reaches; one is killed, both continue from the checkpoint."""
    result, printed, outside = run(environment, tmp_path, strategy, "worker")

    check_same(result)
    together = result["together"]
    assert together["attempts"][0] == [0, 2]
    assert [first for first, _workers in together["attempts"]] == [0, 1]
    if together["attempts"][-1][1] == 2:
        assert all(one["simulated"] for one in together["devices"])
    assert result["is_own"]
    assert outside == []
    assert result["same_interrupt"]
    assert printed == ""  # nothing of Ray's noise
    assert sorted(path.name for path in (tmp_path / "together").iterdir() if path.name.startswith("checkpoint_"))


def start_node(environment, folder, name, *words):
    """Start a node with one core on this machine and return its process, which leads a session of its own."""
    options = ["--block", "--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats"]
    options += ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}", *words]
    with Path(folder, name).open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", NODE, "start", *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def has_started(path, process):
    """Wait until a node's log shows that it runs; false if it gave up: Ray waits 30 seconds for itself."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while "Ray runtime started" not in (log := path.read_text()):
        if process.poll() is not None:
            assert "timed out during startup" in log, log[-3000:]
            return False
        assert time.monotonic() < deadline, log[-3000:]
        time.sleep(0.2)
    return True


def end(process):
    """Kill a node with all that it started."""
    import psutil

    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    for each in [*family, process]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    process.wait(30)


@pytest.fixture
def two_nodes(environment, tmp_path_factory):
    """Start a head and a second node, both with one core, and yield the environment of a program on them."""
    folder = tmp_path_factory.mktemp("n")
    environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
    }
    port = free_port()
    sessions = Path("/tmp") / f"rl-{secrets.token_hex(4)}"  # a socket's path may have 107 bytes
    head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sessions}"]
    head += ["--node-ip-address=127.0.0.1", f"--ray-client-server-port={free_port()}"]
    started = []
    try:
        for name, words in (("head", head), ("second", [f"--address=127.0.0.1:{port}"])):
            for _attempt in range(4):
                started.append(start_node({**environment, "RAY_PROGRAM_NODE": name}, folder, name, *words))
                if has_started(folder / name, started[-1]):
                    break
            assert started[-1].poll() is None, (folder / name).read_text()[-3000:]
        yield {**environment, "RAY_ADDRESS": f"127.0.0.1:{port}"}
    finally:
        for process in reversed(started):
            end(process)
        shutil.rmtree(sessions, ignore_errors=True)


@pytest.mark.skipif(sys.platform != "linux", reason="kills a node by its place in /proc")
def test_a_dead_node_costs_nothing_of_what_was_learned(two_nodes, tmp_path):
    """The second of two nodes dies in the second epoch; the training continues with the remaining core."""
    result, _printed, _outside = run(two_nodes, tmp_path, "ddp", "node")

    check_same(result)
    assert not result["is_own"]
    assert result["together"]["attempts"] == [[0, 2], [1, 1]]
