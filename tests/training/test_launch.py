"""Several PyTorch processes from one notebook, and the interpreter they run in."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import listeners
import pytest

from rocmlab.base import job_tokens
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.training import children, interpreters, launch, network
from rocmlab.training.collectives import Collectives

FOUND = Collectives("nccl", {"NCCL_P2P_DISABLE": "1"}, 12.5, ("nccl: hangs",))
SRC = str(Path(launch.__file__).parents[2])


def write_kernel(folder, name, python, env):
    """Write a kernelspec below a Jupyter data folder."""
    path = folder / "kernels" / name / "kernel.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"argv": [python, "-m", "ipykernel_launcher"], "env": env}))


@pytest.fixture
def torch(tmp_path, monkeypatch):
    """Make a kernelspec `torch`; its ranks do without PyTorch."""
    write_kernel(tmp_path / "jupyter", "torch", sys.executable, {"MARK": "1"})
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))


@pytest.fixture
def script(tmp_path):
    """Return a function that writes the program the ranks run."""

    def write(text):
        path = tmp_path / "train.py"
        path.write_text("import os, sys, time\nrank = os.environ['RANK']\n" + text)
        return path

    return write


def is_running(pid):
    """Return whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("torch")
def test_cpu_ranks_share_the_cores_and_see_no_gpu(script, capfd, monkeypatch):
    """Each CPU process gets its share of the cores, no GPU, the kernelspec's environment and the arguments."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    names = ("OMP_NUM_THREADS", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "MARK")
    program = script(f"print(rank, *(os.environ.get(name) for name in {names}), *sys.argv[1:])\n")

    launch.run(program, "--epochs=2", "x", processes=2)

    out = sorted(capfd.readouterr().out.splitlines())
    assert out == [f"[rank {rank}] {rank} 4 -1 -1 None 1 --epochs=2 x" for rank in (0, 1)]


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("mask", "gpus", "seen"),
    [(None, [0, 2], "0,2"), ("2,3,5", [0, 2], "2,5"), ("GPU-ab,GPU-cd", [0, 1], "GPU-ab,GPU-cd")],
    ids=["no mask", "numbers within the mask", "whole mask kept"],
)
def test_gpus_are_counted_within_the_mask_of_this_process(script, capfd, monkeypatch, mask, gpus, seen):
    """The ranks see exactly the chosen GPUs, by the numbers HIP gives them on the host."""
    if mask is not None:
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", mask)

    program = script("print(os.environ['HIP_VISIBLE_DEVICES'], os.environ['WORLD_SIZE'])\n")
    launch.run(program, gpus=gpus, collectives=FOUND)

    lines = set(capfd.readouterr().out.splitlines()) - set(FOUND.sentence().splitlines())
    assert lines == {f"[rank {rank}] {seen} {len(gpus)}" for rank in range(len(gpus))}


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("mask", "gpus"),
    [("0,1", [0, 2]), ("GPU-ab,GPU-cd,GPU-ef", [0, 2]), ("-1", [0]), ("0, 1", [0, 1]), ("", [0])],
    ids=["too few", "no numbers", "all hidden", "a space", "empty"],
)
def test_gpus_that_the_mask_does_not_have_are_an_error(script, monkeypatch, mask, gpus):
    """Picking beyond the mask, or from one that is not a plain list, is rejected: the job would run on the CPU."""
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", mask)

    with pytest.raises(RocmlabError, match="cannot be picked"):
        launch.run(script(""), gpus=gpus, collectives=FOUND)


@pytest.mark.usefixtures("torch")
def test_ranks_talk_the_way_that_the_probe_found(script, capfd, monkeypatch):
    """Before GPUs train together it is tested how they can communicate; the ranks get that way and its remedies."""
    probed = []

    def probe(**where):
        probed.append(where)
        return FOUND

    monkeypatch.setattr(launch.probes, "probe", probe)
    names = ("ROCMLAB_COLLECTIVES", "NCCL_P2P_DISABLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    program = script(f"print(*(os.environ.get(name) for name in {names}))\n")

    launch.run(program, gpus=[0, 1])
    launch.run(program, gpus=[0])
    launch.run(program, processes=2)

    assert probed == [{"gpus": [0, 1]}]
    lines = sorted(capfd.readouterr().out.splitlines())
    ranks = [f"[rank {rank}] {way}" for rank, way in ((0, "gloo None 3"), (0, "nccl 1 3"), (0, "nccl None 3"))]
    assert lines == sorted([*FOUND.sentence().splitlines(), *ranks, "[rank 1] gloo None 3", "[rank 1] nccl 1 3"])


@pytest.mark.usefixtures("torch")
def test_after_a_failure_on_gpus_the_way_is_probed_again(script, monkeypatch):
    """What was remembered may be what failed."""
    forgotten = []
    monkeypatch.setattr(launch.probes, "forget", lambda gpus: forgotten.append(list(gpus)))

    with pytest.raises(RocmlabError, match="failed") as caught:
        launch.run(script("sys.exit(1)"), gpus=[0, 1], collectives=FOUND)

    assert forgotten == [[0, 1]]
    assert "NCCL_DEBUG=WARN" in caught.value.problem.fix


XTX = Device("rocm", 0, "Radeon RX 7900 XTX", is_usable=True, gfx="gfx1100", pci_address="0000:03:00.0", is_apu=False)
GRAPHICS = Device("rocm", 1, "Radeon Graphics", is_usable=True, gfx="gfx1036", pci_address="0000:0d:00.0", is_apu=True)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("other", "named"),
    [
        (GRAPHICS, "Radeon Graphics (gfx1036, APU, 0000:0d:00.0)"),
        (replace(XTX, index=1, gfx="gfx1030"), "gfx1030"),
        (replace(XTX, index=1, name="Radeon RX 7900 XT"), "Radeon RX 7900 XT (gfx1100"),
    ],
    ids=["a processor's graphics", "another gfx", "another name"],
)
def test_gpus_of_different_kinds_are_rejected(script, monkeypatch, other, named):
    """The job would hang; the error names both kinds, why, and the mask that works."""
    monkeypatch.setattr(launch.probes, "discover", lambda: [other, XTX, replace(XTX, index=2)])

    with pytest.raises(RocmlabError, match="different kinds") as caught:
        launch.run(script(""), gpus=[0, 1, 2], collectives=FOUND)

    problem = caught.value.problem
    assert named in problem.what
    assert problem.fix.endswith("HIP_VISIBLE_DEVICES=0,2")
    launch.reject_mixed([XTX, replace(XTX, index=2)])


@pytest.mark.parametrize(
    ("failed", "notes", "first"),
    [
        ({0: 1, 1: -9}, {0: 5}, (1, -9)),
        ({0: 1, 1: 1}, {0: 8, 1: 5}, (1, 1)),
        ({0: 1, 1: 7}, {0: 5}, (1, 7)),
        ({0: -6, 1: 1}, {1: 5}, (1, 1)),
        ({0: -6}, {}, (0, -6)),
        ({0: -15, 1: -9}, {}, (1, -9)),
    ],
    ids=[
        "killed",
        "raised earlier",
        "left at once",
        "abort after it",
        "abort alone",
        "ended by the launcher",
    ],
)
def test_rank_to_blame_is_the_one_that_failed_first(tmp_path, failed, notes, first):
    """Those that only lost their partner are not blamed, whichever exited first."""
    for rank, when in notes.items():
        (tmp_path / f"rank{rank}").write_text(str(when))

    assert launch._culprit(failed, tmp_path) == first


@pytest.mark.usefixtures("torch")
def test_failing_rank_is_named_with_its_last_lines(script):
    """The error says which rank failed and shows its last lines."""
    program = script("print('fine', rank)\nif rank == '1': raise ValueError('no such layer')\n")

    with pytest.raises(RocmlabError, match=r"rank 1 of .*train\.py failed") as caught:
        launch.run(program, processes=2)

    problem = caught.value.problem
    assert problem.why.endswith("ValueError: no such layer")
    assert "fine 0" not in problem.why
    assert caught.value.exit_code == 1


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_failed_ranks_start_again_as_often_as_requested(script, tmp_path, capfd):
    """All ranks start again, with a new place to meet, and know how often; the last failure is the error."""
    program = script(
        "again = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        f"open({str(tmp_path / 'places')!r}, 'a').write(os.environ['ROCMLAB_RANK_STORE'] + chr(10))\n"
        "print('start', again)\n"
        "if rank == '1' and int(again) < int(sys.argv[1]): sys.exit(7)\n"
        "if int(again) < int(sys.argv[1]): time.sleep(60)\n"
    )

    launch.run(program, "2", processes=2, restarts=2)

    printed = capfd.readouterr().out.splitlines()
    assert f"rank 1 of {program} failed (exit code 7); restart 2 of 2" in printed
    assert {line for line in printed if line.startswith("[rank 1]")} == {f"[rank 1] start {n}" for n in range(3)}
    assert len(set((tmp_path / "places").read_text().split())) == 3
    with pytest.raises(RocmlabError, match=r"rank 1 of .*train\.py failed \(exit code 7\)"):
        launch.run(program, "2", processes=2, restarts=1)


@pytest.mark.usefixtures("torch")
def test_ranks_are_told_of_no_server_and_use_the_loopback(script, capfd, monkeypatch):
    """An address in the lab's environment must not make a rank, or what it starts, open a port to other machines."""
    names = (
        "MASTER_ADDR",
        "MASTER_PORT",
        "NCCL_COMM_ID",
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "NCCL_RAS_ENABLE",
    )
    for name in names:
        monkeypatch.setenv(name, "192.0.2.1")
    monkeypatch.setattr(network, "loopback", lambda: "lo0")
    program = script(f"print(*(os.environ.get(name) for name in {names}))\n")

    launch.run(program, processes=1)

    assert capfd.readouterr().out == "[rank 0] None None None lo0 =lo0 0\n"


@pytest.mark.usefixtures("torch")
@pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="tries as another user: run it as root, on Linux"
)
def test_another_user_cannot_reach_the_place_where_ranks_meet(script, tmp_path):
    """Neither list, read, replace nor add a file there while the ranks run; nor is there any socket."""
    program = script(
        "store = os.environ['ROCMLAB_RANK_STORE']\n"
        f"open({str(tmp_path / 'place')!r} + rank, 'w').write(store)\n"
        "if rank == '0': open(os.path.join(store, 'store1'), 'w').write('ours')\n"
        f"while not os.path.exists({str(tmp_path / 'tried')!r}): time.sleep(0.02)\n"
        "assert open(os.path.join(store, 'store1')).read() == 'ours'\n"
        "assert os.listdir(store) == ['store1']\n"
    )
    attack = (
        "import os, sys\n"
        "os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
        "place, outcome = sys.argv[1], []\n"
        "for act in (lambda: os.listdir(place), lambda: open(place + '/store1').read(),\n"
        "            lambda: open(place + '/store1', 'w').write('theirs'), lambda: open(place + '/store2', 'w'),\n"
        "            lambda: os.rename(place, place + '-2'), lambda: os.rmdir(place), lambda: os.chmod(place, 0o777),\n"
        "            lambda: os.symlink('/etc/passwd', place + '/store1')):\n"
        "    try: act(); outcome.append('succeeded')\n"
        "    except OSError: outcome.append('failed')\n"
        "print(*outcome)\n"
    )
    outcomes = []

    def attacker():
        while not all((tmp_path / f"place{rank}").exists() for rank in (0, 1)):
            time.sleep(0.02)
        place = (tmp_path / "place0").read_text()
        try:
            command = [sys.executable, "-c", attack, place]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            outcomes.append(done.stdout.split() or [done.stderr])
        finally:
            (tmp_path / "tried").touch()

    thread = threading.Thread(target=attacker)
    thread.start()
    with listeners.Watch(os.getpid(), everywhere=True) as watch:
        launch.run(program, processes=2, time_limit_seconds=60)
    thread.join()

    assert outcomes == [["failed"] * 8]
    assert [str(one) for one in watch.found.values() if one.pid != os.getpid()] == []


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_time_limit_ends_every_rank(script, tmp_path, monkeypatch):
    """When the time is up, the error comes and no process is left."""
    monkeypatch.chdir(tmp_path)
    program = script("open(f'pid{rank}', 'w').write(str(os.getpid()))\nprint('waiting')\ntime.sleep(60)\n")

    with pytest.raises(RocmlabError, match="did not finish within 2 seconds") as caught:
        launch.run(program, processes=2, time_limit_seconds=2)

    assert "[rank 0] waiting" in caught.value.problem.why
    pids = [int((tmp_path / f"pid{rank}").read_text()) for rank in (0, 1)]
    end = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(is_running, pids))


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_a_training_has_no_limit_that_nobody_chose(script, monkeypatch):
    """One that has run for an hour is not ended: without `time_limit_seconds` it takes as long as it needs."""
    program = script("time.sleep(0.2)\n")
    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: time.monotonic() - 3600))  # when it began

    launch.run(program, processes=2)

    with pytest.raises(RocmlabError, match="did not finish within 600 seconds"):
        launch.run(program, processes=2, time_limit_seconds=600)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kernel killed"])
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and PR_SET_PDEATHSIG; run it on Linux")
def test_no_rank_outlives_the_notebook(script, tmp_path, sent):
    """An interrupted cell, and a kernel that is killed, end all ranks."""
    program = script(f"open('{tmp_path}/pid' + rank, 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    code = f"from rocmlab.training import launch; launch.run({str(program)!r}, processes=2)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([SRC, *sys.path])}
    notebook = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.DEVNULL)
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    end = time.monotonic() + 20
    try:
        while not all(path.exists() and path.read_text() for path in files):
            assert time.monotonic() < end, "the ranks did not start"
            time.sleep(0.02)
        notebook.send_signal(sent)
    finally:
        if notebook.poll() is None and time.monotonic() > end:
            notebook.kill()
        notebook.wait(30)

    while any(is_running(int(path.read_text())) for path in files):
        assert time.monotonic() < end, "a rank is still running"
        time.sleep(0.02)


def test_devices_must_be_said_once(script):
    """Neither and both of processes and gpus are rejected."""
    for wrong in ({}, {"processes": 2, "gpus": [0]}):
        with pytest.raises(RocmlabError, match="either processes or gpus"):
            launch.run(script(""), **wrong)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("wrong", [{"processes": -2}, {"processes": 1, "restarts": -1}], ids=["processes", "restarts"])
def test_a_negative_number_is_an_error(script, wrong):
    """It would start nothing, which is no success."""
    with pytest.raises(RocmlabError, match="negative"):
        launch.run(script(""), **wrong)


def test_interpreter_comes_from_the_kernelspec(tmp_path, monkeypatch):
    """The first kernelspec on JUPYTER_PATH gives interpreter and environment."""
    write_kernel(tmp_path / "a", "torch", "/opt/torch/bin/python", {"KERAS_BACKEND": "torch"})
    write_kernel(tmp_path / "b", "torch", "/other/python", {})
    monkeypatch.setenv("JUPYTER_PATH", os.pathsep.join(str(tmp_path / name) for name in ("none", "a", "b")))

    found = interpreters.find("torch")

    assert found.python == "/opt/torch/bin/python"
    assert found.environment()["KERAS_BACKEND"] == "torch"


def test_variables_of_a_kernelspec_are_expanded_as_jupyter_does(tmp_path, monkeypatch):
    """A kernelspec extends PATH, so programs of the system, such as a linker, are found by what it starts."""
    write_kernel(tmp_path, "torch", "python", {"PATH": "/opt/torch/bin:${PATH}", "PRICE": "5 $ ${UNKNOWN}"})
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    environment = interpreters.find("torch").environment()

    assert environment["PATH"] == "/opt/torch/bin:/usr/bin:/bin"
    assert environment["PRICE"] == "5 $ ${UNKNOWN}"


def test_interpreter_falls_back_to_this_one(tmp_path, monkeypatch):
    """Without a kernelspec, this interpreter is used if it can import the framework, and else there is an error."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    assert interpreters.find("json").python == sys.executable
    with pytest.raises(RocmlabError, match="no interpreter with absent_framework"):
        interpreters.find("absent_framework")


def test_broken_kernelspec_is_named(tmp_path, monkeypatch):
    """A kernel.json that is none is an error with its path."""
    write_kernel(tmp_path, "torch", "python", {})
    (tmp_path / "kernels/torch/kernel.json").write_text('{"argv": []}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))

    with pytest.raises(RocmlabError, match=r"kernel\.json is not a kernelspec"):
        interpreters.find("torch")


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_program_of_another_interpreter_is_run_and_its_output_returned(script, monkeypatch):
    """Output comes back; a failure or a lost program is an error with its last lines."""
    monkeypatch.setenv("RANK", "0")

    assert interpreters.run("torch", script("print(os.environ['MARK'], sys.argv[1])\n"), "x") == "1 x\n"
    with pytest.raises(RocmlabError, match="exited with 3"):
        interpreters.run("torch", "-c", "import sys; sys.exit(3)")
    with pytest.raises(RocmlabError, match=r"did not finish within 0\.5 seconds"):
        interpreters.run("torch", "-c", "import time; time.sleep(60)", time_limit_seconds=0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_what_torch_compile_lacks_is_reported(script, tmp_path, monkeypatch):
    """The first error that compiling a small function printed is the reason; where it works there is none."""
    linker = "collect2: fatal error: cannot find 'ld'"
    package = tmp_path / "site/torch.py"
    package.parent.mkdir()
    package.write_text(
        "import os, sys\n"
        "def ones(count, device): return device\n"
        "def compile(function):\n"
        "    if 'LD' in os.environ: return print\n"
        f'    sys.exit("{linker}\\ncompilation terminated.")\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    assert interpreters.compile_error("cuda:1") == linker
    monkeypatch.setenv("LD", "found")
    assert interpreters.compile_error("cuda:1") is None


def test_ranks_keep_the_mark_of_the_job_that_started_them():
    """By it the runner ends them after their kernel was killed; what the launcher ends them by is another one."""
    first, second = (children.rank_environment({"ROCMLAB_JOB": "0123456789abcdef"}, 2, []) for _ in range(2))

    assert first["ROCMLAB_JOB"] == "0123456789abcdef"
    assert first[children.TOKEN] != second[children.TOKEN]


def test_a_process_that_exits_meanwhile_hides_no_other(monkeypatch):
    """Between listing and reading, as on a busy machine: the rest of a job still has to be found and ended."""
    look = os.stat

    def stat(path, *arguments, **named):
        if str(path) == f"/proc/{os.getpid()}/environ":
            raise ProcessLookupError
        return look(path, *arguments, **named)

    token = secrets.token_hex(8)  # another test run may be under way on this machine
    monkeypatch.setattr(os, "stat", stat)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, children.TOKEN: token}) as left:
        try:
            assert job_tokens.find(token, children.TOKEN) == [left.pid]
            children.end([], token)
            assert left.wait(10) == -signal.SIGKILL
        finally:
            left.kill()
