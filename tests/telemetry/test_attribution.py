"""Processes with their owners where this container does not share the host's process ids, and where it does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hosts
import pytest
from pretenders import gpus, reader, until

from rocmlab.devices import Device
from rocmlab.devices.processes import INITIAL_NAMESPACE, is_isolated, namespace
from rocmlab.kernels.leases import key
from rocmlab.simulation import GpuUse, write_host
from rocmlab.telemetry.attribution import attribute
from rocmlab.telemetry.isolated import Candidate, Unseen, matched
from rocmlab.telemetry.model import GpuProcess, Owner
from rocmlab.telemetry.owners import ProcSource, Source
from rocmlab.telemetry.proc import Process

GIB = 1 << 30
FREE = 2**22 + 7  # beyond every process id of Linux
A, B = (hosts.device(index, f"0000:0{index + 3}:00.0") for index in range(2))


def process(pid: int, started: int | None = None) -> Process:
    """A process of which only number and start are known."""
    found = Process(f"/nowhere/{pid}", pid)
    found.started_ticks = pid if started is None else started
    return found


def pairs(unseen: list[Unseen], candidates: list[Candidate]) -> dict[int, tuple[int, bool]]:
    """Return what is matched, as numbers."""
    return {pid: (pair.process.pid, pair.is_estimated) for pid, pair in matched(unseen, candidates).items()}


# -- Matching


def test_the_address_space_id_is_exact() -> None:
    """Whatever the order, and on several GPUs."""
    unseen = [Unseen(900, 32770, {A: GIB}), Unseen(901, 32771, {A: GIB, B: GIB})]
    candidates = [Candidate(process(5), {32771}), Candidate(process(6), {32770}), Candidate(process(7), {9})]

    assert pairs(unseen, candidates) == {900: (6, False), 901: (5, False)}


def test_memory_tells_apart_what_differs_enough() -> None:
    """An estimate; two that have about as much are left to the next method."""
    unseen = [Unseen(900, None, {A: 20 * GIB}), Unseen(901, None, {A: 5 * GIB})]
    apart = [
        Candidate(process(6), vram_bytes={"0000:03:00.0": 5 * GIB - 1000}),
        Candidate(process(5), vram_bytes={"0000:03:00.0": 20 * GIB + 1000}),
        Candidate(process(4)),
    ]
    alike = [Candidate(process(pid), vram_bytes={"0000:03:00.0": 5 * GIB}) for pid in (5, 6, 7)]

    assert pairs(unseen, apart) == {900: (5, True), 901: (6, True)}
    assert pairs(unseen, alike) == {}


def test_one_on_a_gpu_in_both_lists_is_the_same() -> None:
    """Masks say which GPU a process here may be on."""
    unseen = [Unseen(900, None, {A: GIB}), Unseen(901, None, {B: GIB})]
    candidates = [Candidate(process(5), devices=frozenset({B})), Candidate(process(6), devices=frozenset({A}))]

    assert pairs(unseen, candidates) == {900: (6, True), 901: (5, True)}


def test_as_many_in_both_lists_are_matched_by_the_order_of_their_start() -> None:
    """Numbers of the host grow; those here may have begun again."""
    unseen = [Unseen(901, None, {A: GIB}), Unseen(900, None, {A: GIB})]
    candidates = [Candidate(process(5, started=70)), Candidate(process(6, started=60))]

    assert pairs(unseen, candidates) == {900: (6, True), 901: (5, True)}


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_processes_is_not_guessed_at(count: int) -> None:
    """One may be another container's."""
    unseen = [Unseen(900, None, {A: GIB}), Unseen(901, None, {A: GIB})]

    assert pairs(unseen, [Candidate(process(pid)) for pid in range(5, 5 + count)]) == {}


# -- A simulated container: its numbers are in its own `/proc`, those of the list are the host's


class Container:
    """A simulated host whose list of processes counts otherwise than its `/proc`."""

    def __init__(self, root: Path, *uses: GpuUse) -> None:
        self.root = write_host(root, gpus=2, processes=uses)
        mark = root / "rocmlab-simulated.json"
        mark.write_text(json.dumps({**json.loads(mark.read_text()), "pid_namespace": 1}))
        self.devices = gpus(self.root)

    def add(self, pid: int, command: bytes = b"python\0x.py\0", environment: bytes = b"", parent: int = 1) -> Path:
        """Add a process that has opened the driver, and return its folder."""
        folder = self.root / f"proc/{pid}"
        hosts.write(folder / "status", f"Name:\tpython\nPPid:\t{parent}\nNSpid:\t{pid}\n")
        hosts.write(folder / "stat", f"{pid} (python) S 1 {pid} {pid} 0 -1 0 {'0 ' * 12}{pid} 0\n")
        (folder / "cmdline").write_bytes(command)
        (folder / "environ").write_bytes(environment)
        (folder / "fd").mkdir()
        (folder / "fd/5").symlink_to("/dev/kfd")
        (folder / "fd/6").symlink_to("/dev/dri/renderD128")
        return folder

    def attributed(self, *sources: Source) -> list[GpuProcess]:
        """Return the processes with their owners."""
        return attribute(self.devices, self.root, sources or [ProcSource(self.root)])


def notebook(path: str) -> bytes:
    """An environment of a kernel."""
    return f"JPY_SESSION_NAME={path}\0".encode()


KERNEL = b"python\0-m\0ipykernel_launcher\0-f\0/run/kernel-01234567-89ab-cdef-0123-456789abcdef.json\0"


def test_a_known_address_space_leads_to_the_notebook(tmp_path: Path) -> None:
    """Exact, and nothing of it is called an estimate."""
    container = Container(tmp_path, GpuUse(FREE, 0), GpuUse(FREE + 1, 0))
    for pid, pasid, path in ((41, 32771, "/nb/second.ipynb"), (42, 32770, "/nb/first.ipynb")):
        hosts.write(container.add(pid, KERNEL, notebook(path)) / "fdinfo/6", f"pos:\t0\npasid:\t{pasid}\n")

    found = container.attributed()

    assert [(each.pid - FREE, each.name, each.owner.notebook, each.is_estimated) for each in found] == [
        (0, "python", "/nb/first.ipynb", False),
        (1, "python", "/nb/second.ipynb", False),
    ]
    assert not any(each.owner.is_estimated for each in found)


FDINFO = """pos:\t0
flags:\t02100002
mnt_id:\t25
ino:\t1057
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t{address}
pasid:\t{pasid}
drm-total-vram:\t{kibibytes} KiB
drm-memory-vram:\t{kibibytes} KiB
drm-memory-gtt:\t4096 KiB
"""


@pytest.mark.parametrize("is_exact", [True, False], ids=["address space id", "memory, as since Linux 6.15"])
def test_two_labs_at_once_name_their_own_kernels_and_none_of_the_others(tmp_path: Path, is_exact: bool) -> None:
    """Each sees all four processes of the driver's list, and its own two kernels, under the same numbers."""
    uses = [GpuUse(FREE + turn, turn % 2, vram_bytes=(2 + 3 * turn) * GIB) for turn in range(4)]
    labs = {"ann": (uses[0], uses[3]), "bob": (uses[1], uses[2])}
    found = {}
    for user, own in labs.items():
        container = Container(tmp_path / user, *uses)
        for pid, use in zip((41, 42), own, strict=True):
            text = FDINFO.format(
                client=100 + use.pid - FREE,
                address=container.devices[use.gpu].pci_address,
                pasid=32770 + use.pid - FREE if is_exact else 0,
                kibibytes=use.vram_bytes // 1024,
            )
            path = f"/home/{user}/{use.pid - FREE}.ipynb"
            hosts.write(container.add(pid, KERNEL, notebook(path)) / "fdinfo/6", text)
        found[user] = {each.pid - FREE: each.owner for each in container.attributed()}

    for user, own in labs.items():
        numbers = {use.pid - FREE for use in own}
        assert sorted(found[user]) == [0, 1, 2, 3]
        for number, owner in found[user].items():
            expected = f"/home/{user}/{number}.ipynb" if number in numbers else None
            assert (owner.notebook if owner else None) == expected
            assert number not in numbers or owner.is_estimated is not is_exact


def test_an_estimate_says_so(tmp_path: Path) -> None:
    """One kernel that has opened the driver, one process on the GPU; its fork is none of its own."""
    container = Container(tmp_path, GpuUse(FREE, 1))
    container.add(41, KERNEL, notebook("/nb/only.ipynb"))
    container.add(42, KERNEL, notebook("/nb/only.ipynb"), parent=41)

    (found,) = container.attributed()

    assert (found.is_estimated, found.owner.is_estimated, found.owner.notebook) == (True, True, "/nb/only.ipynb")


def test_leases_say_which_of_two_kernels_is_on_which_gpu(tmp_path: Path) -> None:
    """By the locks that they hold open, which name the GPU."""
    container = Container(tmp_path, GpuUse(FREE, 0), GpuUse(FREE + 1, 1))
    for pid, device, path in zip((41, 42), reversed(container.devices), ("/b.ipynb", "/a.ipynb"), strict=True):
        lock = f"/run/lock/rocmlab/{key(device)}.lock"
        (container.add(pid, KERNEL, notebook(path)) / "fd/9").symlink_to(lock)

    found = container.attributed()

    assert [(each.owner.notebook, each.owner.is_estimated) for each in found] == [
        ("/a.ipynb", True),
        ("/b.ipynb", True),
    ]


def test_the_only_owner_of_a_gpu_has_what_cannot_be_told_apart(tmp_path: Path) -> None:
    """Three processes of one notebook's, two in the list: whichever they are, they are its."""
    container = Container(tmp_path, GpuUse(FREE, 0), GpuUse(FREE + 1, 0))
    for pid in (41, 42, 43):
        container.add(pid, b"python\0rank.py\0%d\0" % pid, notebook("/nb/torchrun.ipynb"))

    first = container.attributed()
    container.add(44, KERNEL, notebook("/nb/another.ipynb"))
    second = Container(tmp_path / "again", GpuUse(FREE, 0), GpuUse(FREE + 1, 0))
    for pid, path in ((41, "/a.ipynb"), (42, "/b.ipynb"), (43, "/b.ipynb")):
        second.add(pid, b"python\0rank.py\0%d\0" % pid, notebook(path))

    assert [(each.local_pid, each.owner) for each in first] == [
        (None, Owner("kernel", notebook="/nb/torchrun.ipynb", is_estimated=True))
    ] * 2
    assert [each.owner for each in second.attributed()] == [Owner("process")] * 2


def test_the_only_owner_of_a_gpu_has_no_more_processes_than_there_are_here(tmp_path: Path) -> None:
    """One of the two in the list is another container's or the host's, and nothing says which."""
    container = Container(tmp_path, GpuUse(FREE, 0), GpuUse(FREE + 1, 0))
    container.add(41, KERNEL, notebook("/nb/mine.ipynb"))

    assert [each.owner for each in container.attributed()] == [Owner("process")] * 2


def test_a_lease_alone_counts_where_the_gpu_is_simulated(tmp_path: Path) -> None:
    """No process can open such a GPU. The server that keeps a kernel's lease is none, nor a lease of another host."""
    container = Container(tmp_path, GpuUse(FREE, 0), GpuUse(FREE + 1, 1))
    for pid, parent, number, host in ((41, 1, 0, tmp_path), (42, 41, 0, tmp_path), (43, 1, 1, Path("/"))):
        folder = container.add(pid, KERNEL, notebook(f"/{pid}.ipynb"), parent=parent)
        (folder / "fd/5").unlink()
        render = Path(container.devices[number].render_node or "").name
        (folder / "fd/9").symlink_to(host / f"run/lock/rocmlab/0a1b2c3d-simulated-rocm-{render}.lock")

    ours, other = container.attributed()

    assert (ours.owner.notebook, ours.owner.is_estimated) == ("/42.ipynb", True)
    assert other.owner == Owner("process")


def test_nothing_is_known_of_a_process_of_another_container(tmp_path: Path) -> None:
    """No process here has opened its driver; a number of this namespace that is the same is another process.

    Of the processes of this machine, one that has opened another simulated host's driver, or a real one, is not on it.
    """
    container = Container(tmp_path / "host", GpuUse(os.getpid(), 0, 3 * GIB))
    hosts.make_node(tmp_path / "other/dev/kfd")

    with (tmp_path / "other/dev/kfd").open():
        (found,) = container.attributed()

    assert (found.pid, found.vram_bytes, found.name, found.local_pid) == (os.getpid(), 3 * GIB, None, None)
    assert found.owner == Owner("process")


# -- A real one


@pytest.fixture
def container(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A shell in its own PID namespace, with its own `/proc`."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("a PID namespace needs root and `unshare` (util-linux)")
    command = ("unshare", "-pf", "--mount-proc", sys.executable, "-u", "-c", INSIDE, str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    with reader(*command, cwd=tmp_path, env=environment) as found:
        yield found


INSIDE = """
import json, subprocess, sys
from pathlib import Path
root, work = Path(sys.argv[1], "host"), Path(sys.argv[1])
opens = "import sys; file = open(sys.stdin.readline().strip()); print(flush=True); sys.stdin.read()"
command = [sys.executable, "-c", opens, "ipykernel_launcher"]
environment = {"JPY_SESSION_NAME": str(work / "inside.ipynb")}
kernel = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
print(kernel.pid, flush=True)
for line in sys.stdin:
    kernel.stdin.write(f"{line.strip()}\\n".encode())
    kernel.stdin.flush()
    kernel.stdout.readline()
    from rocmlab.devices import discover
    from rocmlab.devices.processes import is_isolated
    from rocmlab.telemetry.attribution import attribute
    from rocmlab.telemetry.owners import LabSource, ProcSource
    said = {"pid": kernel.pid, "notebook": "live.ipynb"}
    sources = [LabSource(lambda: [said], root), ProcSource(root)]
    found = attribute([device for device in discover(root, {}) if device.backend == "rocm"], root, sources)
    print(json.dumps([is_isolated(root), [each.as_dict() for each in found]]), flush=True)
"""


def test_a_real_container_is_seen_from_the_host_and_from_inside(
    tmp_path: Path, container: subprocess.Popen[bytes]
) -> None:
    """The host's number means nothing inside; there the process is found by what it has opened, as an estimate."""
    assert container.stdin and container.stdout  # noqa: PT018
    local = int(container.stdout.readline())
    pid = host_pid(container.pid, local)
    root = write_host(tmp_path / "host", gpus=1, processes=[GpuUse(pid)])

    (outside,) = attribute(gpus(root), root, [ProcSource(root)])
    container.stdin.write(f"{root}/dev/kfd\n".encode())
    container.stdin.flush()
    isolated, (inside,) = json.loads(container.stdout.readline())

    assert local != pid
    assert not is_isolated(root)
    assert (outside.pid, outside.local_pid, outside.owner) == (pid, pid, Owner("kernel", notebook="inside.ipynb"))
    assert isolated
    assert (inside["pid"], inside["local_pid"], inside["is_estimated"]) == (pid, local, True)
    assert (inside["owner"]["notebook"], inside["owner"]["is_estimated"]) == ("live.ipynb", True)


def host_pid(starter: int, local: int) -> int:
    """Return what a process is called here that its own namespace calls `local`."""
    found: list[int] = []

    def search() -> bool:
        for path in Path("/proc").glob("[0-9]*"):
            each = Process(str(path), int(path.name))
            lines = each.status.get("NSpid", "").split()
            if lines[1:] == [str(local)] and "ipykernel_launcher" in each.command:
                found.append(each.pid)
        return bool(found)

    until(search, f"no process {local} of a namespace that {starter} has made")
    return found[0]


def test_this_machine_says_itself_whether_its_numbers_are_the_hosts() -> None:
    """By the number of the initial namespace, the same on every kernel."""
    assert is_isolated(Path("/")) == (namespace() not in (None, INITIAL_NAMESPACE))


# -- Both together


def test_each_process_has_an_owner(tmp_path: Path) -> None:
    """A shell's process is a process; the same on two GPUs has one owner."""
    with reader("cat") as plain:
        root = write_host(tmp_path, gpus=2, processes=[GpuUse(plain.pid, 0), GpuUse(plain.pid, 1), GpuUse(FREE, 1)])
        devices: list[Device] = gpus(root)

        found = attribute(devices, root, [ProcSource(root)])

    assert [(each.pid, each.owner) for each in found] == [
        (plain.pid, Owner("process")),
        (plain.pid, Owner("process")),
        (FREE, Owner("process")),
    ]
    assert json.loads(json.dumps([each.as_dict() for each in found]))[0]["owner"]["kind"] == "process"
