"""Leases: one kernel at a time has a GPU, for exactly as long as it lives."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import hosts
import notebook_files
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from placing import take
from watching import Watcher, eventually, is_alive

from rocmlab.base import host_limits
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import main
from rocmlab.devices import Device, discover
from rocmlab.devices.nvml import Nvml
from rocmlab.devices.rocm import Rocm
from rocmlab.kernels import gpu_processes, leases
from rocmlab.kernels.forkserver import inheritance
from rocmlab.kernels.leases import Holder, Leases
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.run import Run, run
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.simulation import write_host

pytestmark = pytest.mark.slow

FREE_WITHIN_SECONDS = 20.0  # on a machine with much else to do
STEPS = int(os.environ.get("LEASE_STEPS", "6000"))  # of the random schedules; `make test-long` takes 50,000
ME = Holder.here("/notebooks/a.ipynb")


def kill(pid: int) -> None:
    """End a process as the out-of-memory killer would."""
    os.kill(pid, signal.SIGKILL)


# -- The locks themselves


def test_a_device_is_leased_once(tmp_path: Path, gpus: list[Device]) -> None:
    """A second lease of the same device fails, one of another succeeds, and a released one can be leased again."""
    first, second = Leases(tmp_path / "leases"), Leases(tmp_path / "leases")

    lease = first.take(gpus[:1], ME)
    again, other = second.take(gpus[:1], ME), second.take(gpus[1:], ME)
    lease.release()

    later = second.take(gpus[:1], ME)

    assert again is None
    assert other is not None
    assert later is not None
    other.release()
    later.release()


def test_several_devices_are_leased_all_or_none(tmp_path: Path, gpus: list[Device]) -> None:
    """Where one of two is leased, the other stays free, in whichever order they are named."""
    locks = Leases(tmp_path)
    held = locks.take(gpus[1:], ME)

    tried = [locks.take(gpus, ME), locks.take(gpus[::-1], ME), locks.pick(gpus, 2, ME)]
    was_free = locks.is_free(gpus[0])
    held.release()
    both = locks.pick(gpus[::-1], 2, ME)

    assert tried == [None, None, None]
    assert was_free
    assert both.devices == tuple(gpus[::-1])
    both.release()


def test_locks_are_taken_in_one_order(tmp_path: Path, gpus: list[Device]) -> None:
    """Whatever order two callers name the devices in, the first lock is the same: none can hold what another needs."""
    order: list[str] = []

    def noting(descriptor: int, kind: int) -> bool:
        order.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return leases.flock(descriptor, kind)

    for devices in (gpus, gpus[::-1]):
        Leases(tmp_path, noting).take(devices, ME).release()

    assert order[:2] == order[2:] == sorted(order[:2])


def test_each_device_has_a_lock_of_its_own(gpus: list[Device]) -> None:
    """Backend, render node, address, partition and simulation distinguish devices, other names for one do not."""
    one, two = replace(gpus[0], render_node="/dev/dri/renderD200"), gpus[0]
    others = [
        gpus[1],
        replace(one, partition=1, render_node="/dev/dri/renderD201"),
        two,
        replace(two, partition=0),
        replace(two, partition=1),
        replace(one, backend="cuda"),
        replace(one, simulated=False),
        replace(two, pci_address=None, unique_id="abc"),
        replace(two, pci_address=None, unique_id="../../etc/passwd"),
        replace(two, pci_address=None),
    ]

    names = [leases.key(device) for device in [one, *others]]

    assert len(set(names)) == len(names)
    assert leases.key(replace(one, index=7, name="another word", is_usable=False)) == names[0]
    assert not any("/" in name or ":" in name for name in names)


@pytest.mark.parametrize("is_older", [False, True])
def test_a_container_with_one_partition_means_the_lock_that_the_host_does(tmp_path: Path, is_older: bool) -> None:
    """SIMULATED MI300X in eight parts: a container that is given any one of them counts it as the first of its card.

    With older drivers each is a function of the PCI address, and no mode can be read.
    """
    root = write_host(tmp_path / "host", profile="instinct", gpus=2, partition="cpx")
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").resolve()
    if is_older:
        for mode in root.glob("sys/devices/**/current_compute_partition"):
            mode.unlink()
    seen = [gpu for gpu in Rocm().discover(root) if gpu.kfd_node is not None]
    faults = root / "rocmlab-faults.json"

    inside = []
    for number, given in enumerate(seen):
        denied = {f"{nodes.relative_to(root)}/{gpu.kfd_node}/properties": "EPERM" for gpu in seen if gpu != given}
        faults.write_text(json.dumps(denied))
        os.utime(faults, (number, number))  # faults are read again when their file is of another time
        (alone,) = (gpu for gpu in Rocm().discover(root) if gpu.kfd_node is not None)
        inside.append(alone)

    assert len(seen) == len({leases.key(gpu) for gpu in seen}) == 16
    assert [gpu.partition for gpu in seen] != [gpu.partition for gpu in inside]
    assert [leases.key(gpu) for gpu in seen] == [leases.key(gpu) for gpu in inside]


def test_a_lock_file_that_was_removed_excludes_nobody(tmp_path: Path, gpus: list[Device]) -> None:
    """Whoever opened the file before it was removed tries again with the one that is there now."""
    removed: list[Path] = []

    def remove_first(descriptor: int, kind: int) -> bool:
        if not removed:
            removed.extend(tmp_path.glob("*.lock"))
            removed[0].unlink()
        return leases.flock(descriptor, kind)

    locks = Leases(tmp_path, remove_first)
    lease = locks.take(gpus[:1], ME)

    assert removed
    assert not locks.is_free(gpus[0])
    lease.release()


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '"x"', '{"pid": "1", "owner": 3}', '{"pid": true}', "[" * 100_000, b"\xff\xfe"]
)
def test_only_the_lock_counts(tmp_path: Path, gpus: list[Device], text: str | bytes | None) -> None:
    """A text that is missing, truncated, of the wrong shape or stale changes nothing about who holds the device."""
    locks = Leases(tmp_path)
    lease = locks.take(gpus[:1], ME)
    written = locks.holder(gpus[0])
    path = next(tmp_path.glob("*.json"))
    path.unlink() if text is None else path.write_bytes(text if isinstance(text, bytes) else text.encode())

    damaged = locks.holder(gpus[0])
    lease.release()

    assert written == ME
    assert (damaged.notebook, damaged.started) == (None, None)
    assert "unknown" in str(damaged)
    assert locks.holder(gpus[0]) is None


def test_a_holder_cannot_command_the_terminal() -> None:
    """What another user has written is shown without control characters."""
    assert "\x1b" not in str(Holder(notebook="\x1b]0;title\x07.ipynb", owner="a\nb", pid=1))
    assert "\n" not in str(Holder(notebook="x", owner="a\nb"))


def test_a_text_that_cannot_be_written_does_not_cost_the_lease(
    tmp_path: Path, gpus: list[Device], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the lock holds, and it is said that no one can read by whom."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rocmlab.kernels.holders.write", full)
    lease = Leases(tmp_path).take(gpus[:1], ME)

    assert Leases(tmp_path).holder(gpus[0]).notebook is None
    assert "No space left on device" in caplog.text
    lease.release()


# -- Random schedules


class Schedules(RuleBasedStateMachine):
    """Several holders on the same files, each of which may be preempted before each of its locks.

    Every holder has descriptors of its own, so that the operating system distinguishes them as it does processes. A
    copy of a descriptor stands for a process that has inherited it.
    """

    folder: Path
    steps = taken = preempted = refused = 0

    def __init__(self) -> None:
        super().__init__()
        self.devices = [hosts.device(number) for number in range(4)]
        self.live: list[tuple[frozenset[int], list[list[int]]]] = []  # devices, and the copies of their descriptors
        self.depth = 0
        self.random = random.Random(0)

    def teardown(self) -> None:
        """When all have ended nothing is held: every device can be leased at once."""
        while self.live:
            self.end()
        lease = Leases(self.folder).take(self.devices, ME)
        assert lease is not None, "a lock is left"
        lease.release()

    def preempt(self, descriptor: int, kind: int) -> bool:
        """Let others run before a lock is tried."""
        if self.depth < 4 and self.random.random() < 0.4:
            self.depth += 1
            type(self).preempted += 1
            self.step()
            self.depth -= 1
        return leases.flock(descriptor, kind)

    @rule(seed=st.integers(0, 2**32), count=st.integers(50, 150))
    def schedule(self, seed: int, count: int) -> None:
        """Let a random sequence of things happen."""
        self.random.seed(seed)
        for _ in range(count):
            self.step()
        self.depth = 4  # no one comes between while it is looked
        held = {number for devices, _ in self.live for number in devices}
        free = {device.index for device in self.devices if Leases(self.folder).is_free(device)}
        self.depth = 0
        assert free == {0, 1, 2, 3} - held, "a failed attempt has left a lock, or a lease has lost one"

    def step(self) -> None:
        """Do one thing."""
        type(self).steps += 1
        action = self.random.random()
        if action < 0.55 or not self.live:
            self.take()
        elif action < 0.65:
            self.inherit()
        else:
            self.end()

    def take(self) -> None:
        """Someone wants some devices."""
        wanted = self.random.sample(self.devices, self.random.randint(1, 4))
        locks = Leases(self.folder, self.preempt)
        lease = locks.take(wanted, ME) if self.random.random() < 0.6 else locks.pick(wanted, (len(wanted) + 1) // 2, ME)
        if lease is None:
            type(self).refused += 1
            return
        numbers = frozenset(device.index for device in lease.devices)
        for others, _ in self.live:
            assert not numbers & others, f"leased twice: {numbers & others}"
        type(self).taken += 1
        self.live.append((numbers, [list(lease.descriptors)]))

    def inherit(self) -> None:
        """A process passes its descriptors on."""
        _, copies = self.random.choice(self.live)
        copies.append([os.dup(descriptor) for descriptor in copies[0]])

    def end(self) -> None:
        """A process ends; the lease ends with the last."""
        number = self.random.randrange(len(self.live))
        copies = self.live[number][1]
        for descriptor in copies.pop(self.random.randrange(len(copies))):
            os.close(descriptor)
        if not copies:
            del self.live[number]


def test_no_schedule_leads_to_a_double_lease(tmp_path: Path) -> None:
    """In thousands of steps of random holders, preempted between locks, a device never has two, and none is lost."""
    Schedules.folder = tmp_path
    Schedules.steps = Schedules.taken = Schedules.preempted = Schedules.refused = 0
    examples = max(1, STEPS // 2500)  # one has about so many steps
    quiet = settings(
        max_examples=examples,
        stateful_step_count=20,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

    while Schedules.steps < STEPS:
        run_state_machine_as_test(Schedules, settings=quiet)

    assert Schedules.steps >= STEPS
    assert min(Schedules.taken, Schedules.preempted, Schedules.refused) > STEPS / 20  # the schedules met each other


# -- Processes

RUNNER = """
import os, subprocess, sys, time
from pathlib import Path
from rocmlab.kernels.leases import Holder, Leases
import hosts
lease = Leases(Path(sys.argv[1])).take([hosts.device(0), hosts.device(1)], Holder.here("n.ipynb"))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         pass_fds=lease.descriptors, start_new_session=True)
lease.passed_to(child.pid)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_lease_ends_with_its_holder_and_not_with_who_started_it(tmp_path: Path) -> None:
    """A kill -9 of the starter frees nothing; kill -9 of the holder frees everything."""
    devices = [hosts.device(0), hosts.device(1)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RUNNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as runner:
        holder = int(runner.stdout.readline())
        kill(runner.pid)
        runner.wait()
    locks = Leases(tmp_path)

    time.sleep(0.2)
    still = [locks.holder(device).pid for device in devices]
    began = time.monotonic()
    kill(holder)
    is_free = eventually(lambda: all(map(locks.is_free, devices)), FREE_WITHIN_SECONDS)

    assert still == [holder, holder]
    assert is_free, f"not within {time.monotonic() - began:.1f} s"


DESCENDANTS = """
import os, subprocess, sys, time
from pathlib import Path
program = [sys.executable, "-c", "import time; time.sleep(600)"]
pids = {"popen": subprocess.Popen(program, close_fds=False, start_new_session=True).pid}
os.system(f"{sys.executable} -c 'import time; time.sleep(600)' & echo $! > shell.pid")
pids["shell"] = int(Path("shell.pid").read_text())
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    daemon = os.fork()
    if daemon == 0:
        time.sleep(600)
    os.write(write_end, str(daemon).encode())
    os._exit(0)
pids["daemon"] = int(os.read(read_end, 20))
os.wait()
pids["fork"] = os.fork()
if pids["fork"] == 0:
    time.sleep(600)
print(os.getpid(), *(pids[name] for name in ("popen", "shell", "daemon", "fork")))
"""


def test_what_outlives_a_kernel_does_not_keep_its_lease(tmp_path: Path, gpus: list[Device]) -> None:
    """A program, a shell's child and a daemon do not have it; the kernel's own fork does, for as long as it lives."""
    from jupyter_client import KernelManager
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    locks = Leases.of_host()
    lease = locks.take(gpus, ME)
    launcher = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]

    class Specs(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(argv=inheritance.keeping(launcher, lease.descriptors))

    manager = KernelManager(transport="ipc", ip=str(tmp_path / "k"), kernel_spec_manager=Specs())
    manager.start_kernel(pass_fds=lease.descriptors, cwd=str(tmp_path), env=dict(os.environ))
    lease.passed_to(manager.provisioner.pid)
    client = manager.client()
    said: list[str] = []
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        names = "print([name for name in globals() if name in ('os', 'kernel', 'leave', 'keep', 'descriptors')])"
        for code in (names, DESCENDANTS):
            client.execute_interactive(
                code, timeout=60, output_hook=lambda message: said.append(message["content"].get("text", ""))
            )
    finally:
        client.stop_channels()
    defined, pids = [line for line in "".join(said).splitlines() if line]
    kernel, *others = map(int, pids.split())
    fork = others[-1]

    kill(kernel)
    manager.provisioner.process.wait()
    was_free = locks.is_free(gpus[0])
    alive = [is_alive(pid) for pid in others]
    kill(fork)
    is_free = eventually(lambda: locks.is_free(gpus[0]), FREE_WITHIN_SECONDS)
    for pid in others[:-1]:
        kill(pid)
    manager.cleanup_resources()

    assert defined == "[]"  # the notebook's names are its own
    assert alive == [True] * 4
    assert not was_free
    assert is_free


def test_other_kernels_are_started_as_they_are() -> None:
    """Only an IPython kernel is told what to do first."""
    assert inheritance.keeping(["ir", "--slave", "x"], (5,)) == ["ir", "--slave", "x"]
    assert len(inheritance.keeping(["python", "-m", "ipykernel_launcher"], (5,))) == 4


# -- Runs


def execute(tmp_path: Path, devices: list[Device], cpu: Device, *cells: str, count: int = 1) -> Run:
    """Run the same notebook this many times at once; the leases are in `tmp_path/share`."""
    path = notebook_files.write(tmp_path / "notebooks/n.ipynb", *cells)
    jobs = notebook_files.jobs([path] * count)
    folder = RunFolder.create(tmp_path / "share", "test")
    return run(jobs, folder=folder, slots=Slots(devices, cpu), display=Watcher())


class WhenItWaits(logging.Handler):
    """Does something a second after a job has said that it waits."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action

    def __enter__(self) -> WhenItWaits:
        self.before = logging.getLogger("rocmlab").level
        logging.getLogger("rocmlab").setLevel(logging.INFO)
        logging.getLogger("rocmlab").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("rocmlab").removeHandler(self)
        logging.getLogger("rocmlab").setLevel(self.before)

    def emit(self, record: logging.LogRecord) -> None:
        """Start the clock."""
        if "waits for" in record.getMessage():
            threading.Timer(1, self.action).start()


HELD = """
import os, subprocess, sys
from pathlib import Path
held = [os.readlink(f"/proc/{process}/fd/{number}") for process in (os.getpid(), os.getppid())
        for number in os.listdir(f"/proc/{process}/fd") if os.path.exists(f"/proc/{process}/fd/{number}")]
print("locks", sum(name.endswith(".lock") for name in held), "mask", os.environ["HIP_VISIBLE_DEVICES"])
Path("kernel.pid").write_text(str(os.getpid()))
"""


def test_the_kernel_alone_holds_the_lease_of_a_job(tmp_path: Path, gpus: list[Device], cpu: Device) -> None:
    """Its worker has closed its copy, the text names the kernel's process, and afterwards the GPU is free."""
    folder = os.environ["LEASES_DIR"]
    seen = f"from pathlib import Path; print('text', *(p.read_text() for p in Path('{folder}').glob('*.json')))"

    done = execute(tmp_path, gpus[:1], cpu, HELD, seen)

    assert done.is_ok, done.results[0].error
    said = done.folder.file("n", "log").read_text()
    assert "locks 1 mask 0" in said
    holder = json.loads(said.partition("text ")[2].partition("}")[0] + "}")
    assert holder["pid"] == int((tmp_path / "notebooks/kernel.pid").read_text())
    assert holder["notebook"] == str(tmp_path / "notebooks/n.ipynb")
    assert Leases.of_host().is_free(gpus[0])


def test_jobs_go_around_a_leased_gpu(tmp_path: Path, gpus: list[Device], cpu: Device) -> None:
    """With GPU 0 leased by someone else, both notebooks run on GPU 1, one after the other, and it is said of both."""
    lease = Leases.of_host().take(gpus[:1], ME)

    done = execute(tmp_path, gpus, cpu, HELD, "import time; time.sleep(1.2)", count=2)

    lease.release()
    assert done.is_ok, [result.error for result in done.results]
    assert all("locks 1 mask 1" in done.folder.file(name, "log").read_text() for name in ("n", "n-2"))
    assert [result.devices[0]["index"] for result in done.results] == [1, 1]
    assert any("it waited" in warning for warning in done.results[1].warnings)


def test_a_job_waits_for_a_leased_gpu_and_says_who_has_it(
    tmp_path: Path, gpus: list[Device], cpu: Device, caplog: pytest.LogCaptureFixture
) -> None:
    """One line names the holder, whose end starts the job."""
    lease = Leases.of_host().take(gpus[:1], ME)

    with caplog.at_level(logging.INFO), WhenItWaits(lease.release):
        done = execute(tmp_path, gpus[:1], cpu, HELD)

    lines = [line for line in caplog.messages if "waits for 1 GPU" in line]
    assert done.is_ok, done.results[0].error
    assert len(lines) == 1
    assert f"GPU 0 is leased to /notebooks/a.ipynb (process {os.getpid()} of" in lines[0]
    events = [event for event in done.folder.journal() if event["event"].startswith("job ")]
    assert [event["event"] for event in events] == ["job started", "job waits", "job leased", "job finished"]
    assert events[2]["waited_seconds"] > 1


NOTES = """
import os
from pathlib import Path
print([path.read_text() for path in Path(os.environ["LEASES_DIR"]).glob("holder-*.json")])
"""


def test_a_job_that_waits_has_a_place_in_the_queue_of_the_host(tmp_path: Path, gpus: list[Device], cpu: Device) -> None:
    """Who comes later for one GPU does not get the first that becomes free; the lease shows how long it may last."""
    held = [Leases.of_host().take([gpu], ME) for gpu in gpus]
    queue: list[leases.Waiter] = []
    tried: list[object] = []

    def release() -> None:
        locks = Leases.of_host()
        queue.extend(locks.waiting())
        with closing(locks.join(gpus, 1, ME)) as later:
            held[0].release()
            tried.append(locks.pick(gpus, 1, ME, later))
        held[1].release()

    (job,) = notebook_files.jobs([notebook_files.write(tmp_path / "notebooks/n.ipynb", NOTES)])
    folder = RunFolder.create(tmp_path / "share", "test")
    with WhenItWaits(release):
        done = run(
            [replace(job, gpus=2)],
            folder=folder,
            slots=Slots(gpus, cpu),
            display=Watcher(),
            expected_seconds={job.name: 41.5},
        )

    assert done.is_ok, done.results[0].error
    assert [(waiter.count, len(waiter.locks), waiter.holder.expected_seconds) for waiter in queue] == [(2, 2, 42)]
    assert queue[0].holder.notebook == job.notebook
    assert tried == [None]
    assert '"expected_seconds": 42' in folder.file(job.name, "log").read_text()
    assert Leases.of_host().waiting() == []


def test_a_job_that_can_do_with_fewer_gpus_has_what_the_host_allows_a_user(
    tmp_path: Path, gpus: list[Device], cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another that needs more than is allowed fails, with the limit and its file."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(tmp_path))
    limits = host_limits.path(tmp_path)
    limits.parent.mkdir(parents=True)
    limits.write_text("MAX_GPUS_PER_USER=1\n")
    path = notebook_files.write(tmp_path / "notebooks/n.ipynb", "print(1)")
    fewer, both = (replace(job, name=name) for job, name in zip(notebook_files.jobs([path] * 2), "ab", strict=True))
    fewer, both = replace(fewer, gpus=2, min_gpus=1), replace(both, gpus=2)

    folder = RunFolder.create(tmp_path / "share", "test")
    done = run([fewer, both], folder=folder, slots=Slots(gpus, cpu), display=Watcher())

    results = {result.name: result for result in done.results}
    assert results["a"].is_ok, results["a"].error
    assert len(results["a"].devices) == 1
    assert f"MAX_GPUS_PER_USER=1 in {limits}" in "\n".join(results["a"].warnings)
    assert "2 GPUs are more than one user of this host may have" in results["b"].error["value"]


def test_a_run_can_be_ended_while_it_waits(tmp_path: Path, gpus: list[Device], cpu: Device) -> None:
    """A signal ends the wait; the lease stays with its holder."""
    lease = Leases.of_host().take(gpus, ME)

    with WhenItWaits(lambda: os.kill(os.getpid(), signal.SIGTERM)):
        done = execute(tmp_path, gpus, cpu, HELD)

    assert done.is_interrupted
    assert (done.results[0].status, done.results[0].exit_code) == ("not run", None)
    assert not Leases.of_host().is_free(gpus[0])
    lease.release()


def test_without_locks_a_job_does_not_run_and_says_why(tmp_path: Path, gpus: list[Device], cpu: Device) -> None:
    """Where no lease can be taken no GPU is given away, which another may have; the error names the fix."""
    Path(os.environ["LEASES_DIR"]).write_text("not a folder")

    done = execute(tmp_path, gpus[:1], cpu, "print(1)")

    assert done.results[0].status == "failed"
    assert "not a folder" in done.results[0].error["value"]
    assert f"sudo rm {os.environ['LEASES_DIR']}" in done.results[0].error["value"]


def test_a_run_whose_gpus_all_have_unusable_locks_ends_before_it_starts(tmp_path: Path, gpus: list[Device]) -> None:
    """It would wait until someone removes what is in the place of the locks; with one usable lock it can run."""
    locks = Leases(tmp_path)
    for gpu in gpus:
        (tmp_path / f"{leases.key(gpu)}.lock").mkdir()
    with pytest.raises(RocmlabError, match="cannot be leased"):
        locks.check(gpus)

    (tmp_path / f"{leases.key(gpus[1])}.lock").rmdir()
    locks.check(gpus)


KILLED = """
import sys
from pathlib import Path
from rocmlab.devices import Device
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.run import run
from watching import Watcher
import hosts, notebook_files
cpu = Device(backend="cpu", index=0, name="a processor", is_usable=True)
path = Path(sys.argv[1])
run(notebook_files.jobs([path]), folder=RunFolder.create(path.parent, "killed"),
    slots=Slots([hosts.device(0)], cpu), display=Watcher())
"""


@pytest.mark.long
@pytest.mark.parametrize("victims", [("runner",), ("runner", "worker"), ("worker",)])
def test_the_lease_of_a_run_lives_as_long_as_the_kernel(tmp_path: Path, victims: tuple[str, ...]) -> None:
    """After kill -9 of runner, worker or both, the GPU is never free while the kernel lives, and soon after it is."""
    wait = "import os, time\nfrom pathlib import Path\nPath('pids').write_text(f'{os.getppid()} {os.getpid()}')\n"
    path = notebook_files.write(tmp_path / "n.ipynb", wait + "time.sleep(600)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    locks, gpu = Leases.of_host(), hosts.device(0)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], env=environment) as runner:
        assert eventually(
            lambda: len((tmp_path / "pids").read_text().split()) == 2 if (tmp_path / "pids").exists() else False, 60
        )
        worker, kernel = map(int, (tmp_path / "pids").read_text().split())
        for victim in victims:
            kill({"runner": runner.pid, "worker": worker}[victim])

        too_early = eventually(lambda: locks.is_free(gpu) and is_alive(kernel), 1.5)
        if is_alive(kernel):
            kill(kernel)
        is_free = eventually(lambda: locks.is_free(gpu), FREE_WITHIN_SECONDS)
        if is_alive(worker):
            kill(worker)

    assert not too_early
    assert is_free


# -- Places


def job(name: str, gpus: int | None = None) -> Job:
    """Return a job that asks for this many GPUs."""
    return Job(name=name, notebook=f"/{name}.ipynb", gpus=gpus)


def test_claims_are_settled_in_their_order(cpu: Device) -> None:
    """The oldest chooses among all GPUs that no job has, and the others are moved to what remains."""
    gpus = [hosts.device(number) for number in range(4)]
    slots = Slots(gpus, cpu)
    places = [take(slots, [job(name, count)])[1] for name, count in (("a", 1), ("b", 2))]

    before = [place.options() for place in places]
    places[0].settle([gpus[2]])
    after = places[1].options()
    slots.release(places[0])
    widened = places[1].options()
    places[1].settle([gpus[3], gpus[1]])
    _, third = take(slots, [job("c", 2)])

    assert before == [tuple(gpus), ()]
    assert after == (gpus[0], gpus[1], gpus[3])
    assert widened == tuple(gpus)
    assert places[1].gpus == (gpus[1], gpus[3])
    assert third.gpus == (gpus[0], gpus[2])
    assert take(slots, [job("d")]) is None


# -- External processes


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Two GPUs; a process of someone else uses the first, and has a little memory on the other."""
    root = hosts.make_host(tmp_path / "host", hosts.Gpu(1, 0x300, 128), hosts.Gpu(2, 0x400, 129, unique_id=0x2))
    hosts.write(root / "sys/class/kfd/kfd/proc/4711/vram_40001", "2147483648\n")
    hosts.write(root / "sys/class/kfd/kfd/proc/4711/vram_40002", f"{4 * 2**20}\n")
    hosts.write(root / "proc/4711/status", "Name:\tblender\nNSpid:\t4711\t12\nNSsid:\t4000\t11\n")
    hosts.write(root / "proc/4711/comm", "blen\x1bder\n")
    return root


def test_processes_are_seen_with_what_they_use(host: Path) -> None:
    """One that has merely been started with a GPU in sight is not on it."""
    used, unused = discover(host, {})[:2]

    found = gpu_processes.on_devices([used, unused], host)

    assert [(each.pid, each.vram_bytes) for each in found[used]] == [(4711, 2**31)]
    assert str(found[used][0]) == "process 4711 (blen?der, 2.0 GiB)"
    assert found[unused] == []


@pytest.mark.parametrize(
    ("holder", "is_foreign"),
    [(None, True), (Holder(pid=4711), False), (Holder(pid=11), False), (Holder(pid=99), True), (Holder(), False)],
)
def test_a_kernel_and_what_it_started_are_not_foreign(host: Path, holder: Holder | None, is_foreign: bool) -> None:
    """Process and session are known in every namespace; without a lease any process is foreign."""
    gpu = discover(host, {})[0]

    found = gpu_processes.unmanaged(gpu_processes.on_devices([gpu], host)[gpu], holder)

    assert bool(found) == is_foreign


def test_a_gpu_with_a_foreign_process_is_used_last_and_not_silently(
    tmp_path: Path, host: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first notebook goes to the other GPU, the second to this one, with a warning in its result and on screen."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(host))
    both = [replace(gpu, is_usable=True) for gpu in discover(host, {})[:2]]

    done = execute(tmp_path, both, cpu, HELD, count=2)

    assert done.is_ok, [result.error for result in done.results]
    assert [result.devices[0]["index"] for result in done.results] == [1, 0]
    assert [len(result.warnings) for result in done.results] == [0, 1]
    assert "GPU 0 is also used by process 4711" in done.results[1].warnings[0]
    assert "GPU 0 is also used by process 4711" in caplog.text


class Library:
    """NVML with one GPU and two processes, whose memory it knows of the first alone."""

    def __init__(self, call: str) -> None:
        setattr(self, call, self.processes)

    def nvmlDeviceGetCount_v2(self, count: object) -> int:
        """Count."""
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, _index: object, _handle: object) -> int:
        """Give a handle."""
        return 0

    def nvmlDeviceGetUUID(self, _handle: object, buffer: object, _size: object) -> int:
        """Give the UUID."""
        buffer.value = b"GPU-1"
        return 0

    def processes(self, _handle: object, count: object, found: object) -> int:
        """List the processes."""
        found[0].pid, found[0].used_bytes = 4711, 5 * 2**30
        found[1].pid, found[1].used_bytes = 12, gpu_processes.UNKNOWN_BYTES
        count._obj.value = 2
        return 0


@pytest.mark.parametrize("version", ["_v3", "_v2"])
def test_nvml_lists_processes_by_uuid(host: Path, version: str) -> None:
    """New and older drivers; memory that the driver does not know is None."""
    gpu = hosts.device(0, backend="cuda", unique_id="GPU-1")
    other = hosts.device(1, backend="cuda", unique_id="GPU-2")
    library = Nvml(Library(f"nvmlDeviceGetComputeRunningProcesses{version}"))

    found = gpu_processes.of_nvml(library, [gpu, other], host)

    assert list(found) == [gpu]
    assert [(each.pid, each.vram_bytes, each.name) for each in found[gpu]] == [
        (4711, 5 * 2**30, "blen\x1bder"),
        (12, None, None),
    ]


# -- The verb


def test_the_verb_shows_who_has_what(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A leased GPU with its holder, the other with its external process; as text and as JSON."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(host))
    used, unused = discover(host, {})[:2]
    lease = Leases.of_host().take([unused], ME)

    with closing(Leases.of_host().join([unused], 1, replace(ME, notebook="/notebooks/b.ipynb"))):
        codes = [main(["leases"]), main(["leases", "--json"])]
    text, _, rest = capsys.readouterr().out.partition("{")
    limits = host_limits.path(host)
    limits.parent.mkdir(parents=True)
    limits.write_text("MAX_GPUS=1\n")
    wrong, shown = main(["leases"]), capsys.readouterr()
    limits.unlink()
    lease.release()
    found = json.loads("{" + rest)
    assert codes == [0, 0]
    assert text.splitlines()[0].startswith("SIMULATED")
    assert text.index(used.pci_address) < text.index("process 4711") < text.index(unused.pci_address)
    assert f"leased to /notebooks/a.ipynb (process {os.getpid()} of" in text
    assert found["simulated"] is True
    assert [gpu["pci_address"] for gpu in found["gpus"]] == [used.pci_address, unused.pci_address]
    assert [gpu["lease"] and gpu["lease"]["pid"] for gpu in found["gpus"]] == [None, os.getpid()]
    assert [[each["pid"] for each in gpu["foreign"]] for gpu in found["gpus"]] == [[4711], []]
    assert f"1. 1 GPU of HIP {unused.index}: /notebooks/b.ipynb (process" in text
    assert "begins: unknown when" in text
    assert [(each["notebook"], each["gpus"], each["start_seconds"]) for each in found["waiting"]] == [
        ("/notebooks/b.ipynb", [unused.pci_address], None)
    ]
    assert found["limits"]["MAX_GPUS_PER_USER"] is None
    assert wrong == 2
    assert f"{limits}, line 1: 'MAX_GPUS=1' is not a limit" in shown.err
    assert "leased to /notebooks/a.ipynb" in shown.out
