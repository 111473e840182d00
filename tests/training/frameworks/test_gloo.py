"""Real ranks that talk by gloo: a dead one ends the job with its reason, and the probe finds the way that works."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import listeners
import pytest
from clones import free_port

from rocmlab.base.errors import RocmlabError
from rocmlab.training import collectives, launch
from rocmlab.training.collectives import Rung

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND", "torch") != "torch", reason="run it with KERAS_BACKEND=torch"),
]

# Ranks that add up for ever; what the second does after some steps is the test's own.
PROGRAM = """
import os, signal, subprocess, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group(os.environ["ROCMLAB_COLLECTIVES"])
rank, folder = dist.get_rank(), Path(sys.argv[1])
Path(folder, f"pid{rank}").write_text(str(os.getpid()))
print("rank", rank, "adds up", flush=True)
for step in range(1_000_000):
    dist.all_reduce(torch.ones(8))
    if rank == 1 and step == 20:
        wait = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(wait, start_new_session=True)  # as a loader of samples would be
        Path(folder, "child").write_text(str(child.pid))
        Path(folder, "died").write_text(str(time.time()))
        ENDING
"""
ENDINGS = {
    "kill -9": ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL", "rank 1 adds up"),
    "exception": ("raise ValueError('no such layer')", "exit code 1", "ValueError: no such layer"),
    "os._exit": ("os._exit(7)", "exit code 7", "rank 1 adds up"),
}
# What PyTorch's processes run first: a collective that never comes back, unless the remedy is there.
HANGS = """
import os, sys
if os.environ.get("NCCL_P2P_DISABLE") != "1" and os.environ.get("RANK") == "1":
    import torch.distributed, time
    torch.distributed.all_reduce = lambda *_, **__: time.sleep(600)
"""


def is_running(pid):
    """Return whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _no_share(monkeypatch):
    """Remember nothing of one test in the next."""
    monkeypatch.delenv("ROCMLAB_SHARE", raising=False)


@pytest.mark.long
@pytest.mark.parametrize("name", ENDINGS)
def test_dead_rank_ends_the_job_within_seconds_and_is_named(tmp_path, name):
    """The others end, and what it had started; the error names it, how it ended and its last lines."""
    act, how, last = ENDINGS[name]
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("ENDING", act))

    with pytest.raises(RocmlabError, match=r"rank 1 of .*train\.py failed") as caught:
        launch.run(program, str(tmp_path), processes=2)

    seconds = time.time() - float((tmp_path / "died").read_text())
    assert how in caught.value.problem.what
    assert caught.value.problem.why.splitlines()[-1] == last
    assert seconds < 30  # some seconds on a quiet machine
    end = time.monotonic() + 20
    for name in ("pid0", "pid1", "child"):
        while is_running((tmp_path / name).read_text()):
            assert time.monotonic() < end, f"{name} outlives the job"
            time.sleep(0.02)


@pytest.mark.long
def test_probe_climbs_over_what_fails_and_what_hangs(tmp_path, monkeypatch):
    """A way that raises and a way that never answers are left behind, with the reason; the next one is taken."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    ladder = (
        Rung("gloo", {"NCCL_P2P_DISABLE": "1", "GLOO_SOCKET_IFNAME": "none0"}),
        Rung("gloo"),
        Rung("gloo", {"NCCL_P2P_DISABLE": "1"}),
    )

    found = collectives.probe(processes=2, ladder=ladder, limit_seconds=8)

    assert found.environment == {"NCCL_P2P_DISABLE": "1"}
    assert found.gigabytes_per_second > 0
    fails, hangs = found.tried
    assert "none0" in fails.partition(": ")[2]
    assert "hangs: no answer from rank" in hangs


# Ranks that find each other as PyTorch's documentation says, wait for the attack, add up again, and meet a second time.
ATTACKED = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group(os.environ["ROCMLAB_COLLECTIVES"])
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
(folder / f"ready{rank}").write_text(os.environ["ROCMLAB_RANK_STORE"])
while not (folder / "tried").exists():
    time.sleep(0.02)
for again in range(2):
    beside = dist.new_group(backend="gloo")
    dist.monitored_barrier(beside)
    value = torch.full((8,), rank + 1.0)
    dist.all_reduce(value, group=beside)
    print("sum", value.tolist()[0])
    dist.destroy_process_group()
    if not again:
        dist.init_process_group(os.environ["ROCMLAB_COLLECTIVES"])
"""
# What another user of the machine can do: write into the store, and speak PyTorch's protocol with every open port.
ATTACK = """
import encodings.idna, os, pickle, socket, struct, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
place, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
for act in (os.listdir, lambda path: open(path + "/store1", "r+b"), lambda path: open(path + "/store9", "wb")):
    try:
        act(place)
        print("the store is open")
    except OSError:
        print("the store is closed")
text = lambda value: struct.pack("<Q", len(value)) + value
validate, ping, put, get = (bytes([number]) for number in (0, 1, 2, 4))  # VALIDATE, PING, SET, GET of TCPStore
for port in ports:
    with socket.create_connection(("127.0.0.1", port), 5) as one:
        one.settimeout(1)
        one.sendall(validate + struct.pack("<I", 0x3C85F7CE) + put + text(b"init/") + text(pickle.dumps(print)))
        one.sendall(get + text(b"init/"))
        try:
            got = one.recv(64); print(f"answered {got!r}" if got else "no answer")
        except OSError:
            print("no answer")
"""


@pytest.mark.long
@pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="tries as another user: run it as root, on Linux"
)
@pytest.mark.parametrize("libuv", ["0", "1"])
def test_another_user_finds_no_store_and_no_port_that_answers(tmp_path, monkeypatch, capfd, libuv):
    """Only data sockets on the loopback are open; they do not answer, and the ranks add up rightly afterwards."""
    monkeypatch.setenv("USE_LIBUV", libuv)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    program = tmp_path / "train.py"
    program.write_text(ATTACKED)
    outcomes = []

    def attack():
        ready = [tmp_path / f"ready{rank}" for rank in (0, 1)]
        while not all(path.exists() and path.read_text() for path in ready):
            time.sleep(0.02)
        ours = listeners.waiting(listeners.family(os.getpid()) - {os.getpid()})
        ports = {str(one.port) for one in ours if one.protocol == "tcp"}
        command = [sys.executable, "-c", ATTACK, ready[0].read_text(), *ports]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
            )
            outcomes.extend(done.stdout.splitlines())
        finally:
            (tmp_path / "tried").touch()

    thread = threading.Thread(target=attack)
    with listeners.Watch(os.getpid(), everywhere=True) as watch:
        thread.start()
        launch.run(program, str(tmp_path), processes=2, time_limit_seconds=120)
    thread.join()

    assert watch.outside() == []
    assert outcomes[:3] == ["the store is closed"] * 3
    assert set(outcomes[3:]) == {"no answer"}
    assert capfd.readouterr().out.count("sum 3.0") == 4
