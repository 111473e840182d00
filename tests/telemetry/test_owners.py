"""What a GPU process belongs to: real kernels, cold and warm, what they start, and what `/proc` shows of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import hosts
import nbformat
import pytest
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import KernelProvisionerFactory
from kernel_hosts import Host, simulated_host, started
from pretenders import WAIT_SECONDS, attributed, gpus, reader

from rocmlab.devices import Device
from rocmlab.kernels.fork_servers import ForkServers
from rocmlab.lab import provisioner
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Request, name_uniquely
from rocmlab.runs.run import run
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.scheduling.plan import Rules
from rocmlab.runs.spec.preflight import jobs_of
from rocmlab.simulation import write_host
from rocmlab.telemetry.model import GpuProcess, Owner
from rocmlab.telemetry.owners import LabSource, ProcSource, merged

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
NO_PID = (1 << 22) + 1  # above the highest that Linux gives
FORKED = b"python\0/x/rocmlab/kernels/forkserver/server.py\0003\0004\0torch\0"
CHILDREN = """
import multiprocessing, os, subprocess, sys, warnings
warnings.simplefilter("ignore")
script = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
event = multiprocessing.get_context("fork").Event()
worker = multiprocessing.get_context("fork").Process(target=event.wait, daemon=True)
worker.start()
lost = subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True).stdout
print(os.getpid(), script.pid, worker.pid, int(lost))
"""  # the kernel, what it executes, what it forks as a data loader does, and what has lost its parent


@contextlib.contextmanager
def kernel(notebook: str, folder: Path, **more: object) -> Iterator[tuple[KernelManager, list[int]]]:
    """A kernel as a Jupyter server in `folder` starts one, and its process ids with those of `CHILDREN`."""
    manager = KernelManager(kernel_name="python3", connection_file=str(folder / f"kernel-{uuid.uuid4()}.json"))
    environment = {**os.environ, "JPY_SESSION_NAME": notebook, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    manager.start_kernel(env=environment, cwd=str(folder), **more)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=WAIT_SECONDS)
        texts: list[str] = []
        client.execute_interactive(
            CHILDREN, timeout=WAIT_SECONDS, output_hook=lambda message: texts.append(message["content"].get("text", ""))
        )
        pids = [int(word) for word in "".join(texts).split()]
        yield manager, pids
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[3], signal.SIGKILL)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Jupyter of this test alone."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


def identity(manager: KernelManager) -> str:
    """Return the id of a kernel."""
    return Path(manager.connection_file).stem.removeprefix("kernel-")


# -- Cold


def test_a_kernel_and_what_it_starts_belong_to_its_notebook(runtime: Path) -> None:
    """A program, a forked worker, and one that has lost its parents: the path is that below the server's folder."""
    with kernel(f"{os.getcwd()}/nb/a <b>.ipynb", runtime) as (manager, pids):
        found = attributed(runtime / "host", *pids)

        assert [each.owner.notebook for each in found] == [
            *["nb/a <b>.ipynb"] * 3,
            f"{os.getcwd()}/nb/a <b>.ipynb",
        ]
        assert {each.owner.kind for each in found} == {"kernel"}
        assert [each.owner.kernel_id for each in found] == [*[identity(manager)] * 3, None]
        assert not any(each.owner.is_estimated for each in found)


def test_the_server_knows_better_than_the_environment(runtime: Path) -> None:
    """The notebook was renamed since; its state is known, also of what the kernel has started and left behind."""
    with kernel(f"{os.getcwd()}/old.ipynb", runtime) as (manager, pids):
        said = {
            "kernel_id": identity(manager),
            "pid": pids[0],
            "notebook": "new.ipynb",
            "kernel_name": "torch",
            "state": "idle",
            "idle_seconds": 12.5,
        }
        sources = [LabSource(lambda: [said], runtime / "host"), ProcSource(runtime / "host")]

        first = attributed(runtime / "host", *pids, sources=sources)
        said["notebook"], said["state"], said["idle_seconds"] = "newer.ipynb", "busy", None
        second = attributed(runtime / "host", *pids, sources=sources)

        wanted = Owner("kernel", "new.ipynb", identity(manager), "torch", "idle", 12.5)
        assert [each.owner for each in first] == [wanted] * 4
        newer = replace(wanted, notebook="newer.ipynb", kernel_state="busy", idle_seconds=None)
        assert [each.owner for each in second] == [newer] * 4


def test_a_server_knows_its_own_kernels_only(runtime: Path) -> None:
    """Another server's kernel is what its environment says, and a shell is a process."""
    with kernel(f"{os.getcwd()}/other.ipynb", runtime) as (_, pids), reader("cat") as process:
        kernels = [{"pid": process.pid + 100000, "kernel_id": "x", "notebook": "mine.ipynb"}, {"pid": None}]
        sources = [LabSource(lambda: kernels, runtime / "host"), ProcSource(runtime / "host")]

        found = attributed(runtime / "host", pids[0], process.pid, sources=sources)

        assert [(each.owner.kind, each.owner.notebook) for each in found] == [
            ("kernel", "other.ipynb"),
            ("process", None),
        ]


def test_a_kernel_of_a_program_has_the_notebook_that_the_program_names(tmp_path: Path) -> None:
    """As papermill starts one: no session, a connection file of any name."""
    source = "import subprocess, sys; p = subprocess.Popen(sys.argv[2:], stdin=0); print(p.pid, flush=True); p.wait()"
    sleeper = ("sh", "-c", "read line", "ipykernel_launcher", "-f", "/tmp/tmpabc.json")

    with reader(sys.executable, "-c", source, "in.ipynb", *sleeper, cwd=tmp_path) as program:
        assert program.stdout
        (found,) = attributed(tmp_path / "host", int(program.stdout.readline()))

    assert found.owner == Owner("kernel", notebook=str(tmp_path / "in.ipynb"))


def test_a_lab_that_was_opened_with_a_notebook_does_not_give_its_name_to_all_kernels(tmp_path: Path) -> None:
    """A server's kernel without a session, such as a console's, has no notebook."""
    source = "import subprocess, sys; p = subprocess.Popen(sys.argv[2:], stdin=0); print(p.pid, flush=True); p.wait()"
    name = "kernel-01234567-89ab-cdef-0123-456789abcdef.json"
    sleeper = ("sh", "-c", "read line", "ipykernel_launcher", "-f", f"/run/{name}")

    with reader(sys.executable, "-c", source, "in.ipynb", *sleeper, cwd=tmp_path) as program:
        assert program.stdout
        (found,) = attributed(tmp_path / "host", int(program.stdout.readline()))

    assert found.owner == Owner("kernel", kernel_id="01234567-89ab-cdef-0123-456789abcdef")


# -- Warm


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A simulated host with two GPUs for the kernels of JupyterLab, which may be warm."""
    KernelProvisionerFactory.clear_instance()  # it looks for provisioners once
    with simulated_host(tmp_path, monkeypatch) as found:
        found.offer()
        for path in found.specs.glob("*/kernel.json"):
            spec = json.loads(path.read_text())
            spec["metadata"]["rocmlab"]["preload"] = ["colorsys"]
            path.write_text(json.dumps(spec))
        servers = ForkServers()
        monkeypatch.setattr(provisioner, "FORK_SERVERS", servers)
        monkeypatch.setenv("WARM_KERNELS", "on")
        yield found
        servers.close()
    KernelProvisionerFactory.clear_instance()


@pytest.mark.long
def test_warm_kernels_are_told_apart(host: Host, tmp_path: Path) -> None:
    """Each is forked from a parent that the first notebook has started: none has that notebook's name, but its own."""

    async def scenario() -> None:
        async with started("torch-gpu0", f"{os.getcwd()}/first.ipynb") as first:
            own = [int(word) for word in (await first.run(CHILDREN)).split()]
            (server,) = provisioner.FORK_SERVERS.all()
            assert await asyncio.to_thread(server.ready, 60)
            (cold,) = await asyncio.to_thread(attributed, tmp_path / "seen", own[0])
            assert cold.owner.notebook == "first.ipynb"
            await first.manager.shutdown_kernel()
            os.kill(own[3], signal.SIGKILL)
        async with started("torch-gpu0", f"{os.getcwd()}/sub/second.ipynb") as second:
            pids = [int(word) for word in (await second.run(CHILDREN)).split()]
            warm = await asyncio.to_thread(attributed, tmp_path / "seen", *pids)
            said = {"kernel_id": "k", "pid": pids[0], "notebook": "renamed.ipynb", "state": "busy"}
            sources = [LabSource(lambda: [said], tmp_path / "seen"), ProcSource(tmp_path / "seen")]
            live = await asyncio.to_thread(lambda: attributed(tmp_path / "seen", *pids, sources=sources))
            os.kill(pids[3], signal.SIGKILL)

        assert "server.py" in (warm[0].command or "")
        assert [each.owner.notebook for each in warm] == [
            *["sub/second.ipynb"] * 3,
            f"{os.getcwd()}/sub/second.ipynb",
        ]
        assert {each.owner.kind for each in warm} == {"kernel"}
        assert [(each.owner.notebook, each.owner.kernel_id) for each in live] == [("renamed.ipynb", "k")] * 4

    asyncio.run(scenario())


# -- Jobs


class Quiet:
    """A display that shows nothing."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        """Take whatever is to be shown."""
        return lambda *_arguments: None


CPU = Device(backend="cpu", index=0, name="a processor", is_usable=True)
JOB = """
import json, os
from pathlib import Path
from pretenders import attributed
from rocmlab.telemetry.owners import LabSource, ProcSource
root = Path("seen", str(os.getpid()))
lab = LabSource(lambda: [{"pid": ANCESTOR, "notebook": "not-mine.ipynb"}], root)
found = attributed(root, os.getpid(), script.pid, worker.pid, int(lost), sources=[lab, ProcSource(root)])
said = [each.owner.as_dict() for each in found]
Path(f"owners-{os.getpid()}.json").write_text(json.dumps([found[0].command, os.environ["ROCMLAB_JOB_NAME"], said]))
os.kill(int(lost), 9)
worker.kill()
"""


def project_state(here: Path) -> list[tuple[str, int]]:
    """Return what a lab that is prepared writes into the project, and when that was."""
    return [
        (name, (here / name).stat().st_mtime_ns) for name in (".env", ".rocmlab", ".venv") if (here / name).exists()
    ]


@pytest.mark.long
@pytest.mark.parametrize("warm", ["auto", "off"])
def test_jobs_of_a_run_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: str) -> None:
    """Cold and warm, two jobs of each notebook; a lab in whose terminal the run was started has none of them."""
    specs = tmp_path / "jupyter/kernels/test-kernel"
    specs.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Test", "language": "python"}
    (specs / "kernel.json").write_text(json.dumps({**spec, "metadata": {"rocmlab": {"preload": ["colorsys"]}}}))
    job = JOB.replace("ANCESTOR", str(os.getpid()))
    for name in ("a", "b"):
        cells = [nbformat.v4.new_code_cell("x: int = 1", metadata={"tags": ["parameters"]})]
        cells += [nbformat.v4.new_code_cell(source) for source in (CHILDREN, job)]
        head = {"kernelspec": {"name": "test-kernel", "display_name": "Test"}}
        (tmp_path / "nb").mkdir(exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(metadata=head, cells=cells), tmp_path / f"nb/{name}.ipynb")
    here = Path(__file__).parents[2]
    path = os.pathsep.join((str(here / "src"), str(here / "tests"), str(here / "tests/telemetry")))
    for variable, value in (
        ("PYTHONPATH", path),
        ("JUPYTER_PATH", str(tmp_path / "jupyter")),
        ("IPYTHONDIR", str(tmp_path / "ipython")),
        ("ROCMLAB_ROOT", str(write_host(tmp_path / "host", gpus=2))),
        ("ROCMLAB_RUNTIME", "native"),  # whatever is called from here is in a lab, and prepares none
    ):
        monkeypatch.setenv(variable, value)
    requests = [Request(str(each), str(each)) for each in sorted((tmp_path / "nb").iterdir()) for _ in range(2)]
    folder = RunFolder.create(tmp_path / "share", "test")
    before = project_state(here)
    slots = Slots([replace(gpu, is_usable=True) for gpu in gpus(tmp_path / "host")], CPU)

    done = run(name_uniquely(jobs_of(requests)), folder=folder, slots=slots, display=Quiet(), rules=Rules(warm=warm))

    assert project_state(here) == before
    assert [(result.status, result.error) for result in done.results] == [("ok", None)] * 4
    said = [json.loads(path.read_text()) for path in (tmp_path / "nb").glob("owners-*.json")]
    assert len({name for _, name, _ in said}) == 4
    assert {"server.py" in command for command, _, _ in said} == {warm == "auto"}
    for _, name, owners in said:
        notebook = str(tmp_path / f"nb/{name[0]}.ipynb")
        assert owners == [Owner("job", notebook=notebook, run=folder.path.name, job=name).as_dict()] * 4


# -- Others


def test_another_containers_process_is_its_containers(tmp_path: Path) -> None:
    """As the host sees it: the control group names the container; a kernel's command its id, whoever may read more."""
    name = "0123456789abcdef" * 4
    proc = tmp_path / "proc"
    for pid, parent, command in (
        (70, 69, b"python\0train.py\0"),
        (71, 69, b"python\0-m\0ipykernel_launcher\0-f\0/run/kernel-01234567-89ab-cdef-0123-456789abcdef.json\0"),
    ):
        hosts.write(proc / f"{pid}/status", f"Name:\tpython\nPPid:\t{parent}\nNSpid:\t{pid}\t7\n")
        (proc / f"{pid}/cmdline").write_bytes(command)
        hosts.write(proc / f"{pid}/cgroup", f"0::/system.slice/docker-{name}.scope\n")
    (tmp_path / "rocmlab-simulated.json").write_text("{}")
    source = ProcSource(tmp_path)

    assert source.owner(GpuProcess("gpu", 70)) == Owner("container", container="0123456789ab")
    assert source.owner(GpuProcess("gpu", 71)) == Owner(
        "kernel", kernel_id="01234567-89ab-cdef-0123-456789abcdef", container="0123456789ab"
    )
    assert source.owner(GpuProcess("gpu", NO_PID)) is None


def test_what_sources_know_is_put_together() -> None:
    """The first is believed; another of its kind fills in, one of another kind adds its container alone."""
    live = Owner("kernel", notebook="new.ipynb", kernel_id="k", kernel_state="idle")
    old = Owner("kernel", notebook="old.ipynb", kernel_name="torch", container="0123456789ab")
    job = Owner("job", notebook="job.ipynb", run="r", container="0123456789ab")

    assert merged([live, old]) == replace(live, kernel_name="torch", container="0123456789ab")
    assert merged([live, job]) == replace(live, container="0123456789ab")
    assert merged([live]) == live
    assert merged([]) == Owner("process")


LEASE = "run/lock/rocmlab/holder-0123456789abcdef"  # the note that names the holder


@pytest.mark.parametrize("program", [FORKED, FORKED.replace(b"kernels/forkserver/server", b"runner/warm/parent")])
def test_a_damaged_note_is_no_note(tmp_path: Path, program: bytes) -> None:
    """A forked kernel whose lease's text is truncated is a kernel still."""
    folder = tmp_path / "proc/70"
    hosts.write(folder / "status", "Name:\tpython\nPPid:\t0\nNSpid:\t70\n")
    (folder / "cmdline").write_bytes(program)
    (folder / "environ").write_bytes(b"ROCMLAB_JOB=0123456789abcdef\0JPY_SESSION_NAME=/wrong.ipynb\0")
    (folder / "fd").mkdir()
    (folder / "fd/9").symlink_to(f"/{LEASE}.json")
    (tmp_path / "rocmlab-simulated.json").write_text("{}")
    found = []
    for text in ('{"notebook": "right.ipynb"}', '{"notebook": 5}', "{", "[]", ""):
        hosts.write(folder / f"root/{LEASE}.json", text)
        found.append(ProcSource(tmp_path).owner(GpuProcess("gpu", 70)))

    assert found == [Owner("kernel", notebook="right.ipynb"), *[Owner("kernel")] * 4]


# -- Files that another user chose


JOB_TOKEN = "0123456789abcdef"


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    """The folder in `/proc` of a process, forked from a fork server, which holds a lease and has a token."""
    folder = tmp_path / "proc/70"
    hosts.write(folder / "status", "Name:\tpython\nPPid:\t0\nNSpid:\t70\n")
    (folder / "cmdline").write_bytes(FORKED)
    (folder / "environ").write_bytes(f"ROCMLAB_JOB={JOB_TOKEN}\0TMPDIR=/scratch\0".encode())
    (folder / "fd").mkdir()
    (folder / "fd/9").symlink_to(f"/{LEASE}.json")
    (tmp_path / "rocmlab-simulated.json").write_text("{}")
    return folder


def bounded(root: Path) -> dict[str, object]:
    """Return the owner of process 70, looked for by another process, which is not waited for without end."""
    source = (
        "import json, sys; from pathlib import Path; from rocmlab.telemetry.model import GpuProcess; "
        "from rocmlab.telemetry.owners import ProcSource; "
        "print(json.dumps(ProcSource(Path(sys.argv[1])).owner(GpuProcess('gpu', 70)).as_dict()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, str(root)], capture_output=True, text=True, timeout=WAIT_SECONDS, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", [f"{LEASE}.json", f"scratch/rocmlab-job-{JOB_TOKEN}-x/owner.json"])
@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "link", "folder", "socket", "large"])
def test_what_is_no_note_is_not_read(forked: Path, tmp_path: Path, place: str, kind: str) -> None:
    """Any user can put it there: it stops no one, and leads nowhere else."""
    note = forked / "root" / place
    note.parent.mkdir(parents=True)
    text = json.dumps({"notebook": "secret.ipynb", "run": "secret"})
    (tmp_path / "elsewhere.json").write_text(text)
    if kind == "fifo":
        os.mkfifo(note)
    elif kind == "link to a fifo":
        os.mkfifo(tmp_path / "pipe")
        note.symlink_to(tmp_path / "pipe")
    elif kind == "link":
        note.symlink_to(tmp_path / "elsewhere.json")
    elif kind == "folder":
        note.mkdir()
    elif kind == "socket":
        os.mknod(note, 0o600 | stat.S_IFSOCK)
    else:
        note.write_text(text + " " * 70000 + "x")

    assert bounded(tmp_path) == Owner("kernel").as_dict()


def test_a_link_to_a_folder_of_notes_is_not_followed(forked: Path, tmp_path: Path) -> None:
    """Nor is a temporary folder believed that has no absolute path; a note of the runner is read."""
    real = forked / f"root/scratch/rocmlab-job-{JOB_TOKEN}-x"
    hosts.write(tmp_path / "elsewhere/owner.json", json.dumps({"notebook": "a.ipynb", "run": "r", "job": "a"}))
    real.parent.mkdir(parents=True)
    real.symlink_to(tmp_path / "elsewhere")
    through_a_link = bounded(tmp_path)
    real.unlink()
    (tmp_path / "elsewhere").rename(real)

    assert through_a_link == Owner("kernel").as_dict()
    assert bounded(tmp_path) == Owner("job", notebook="a.ipynb", run="r", job="a").as_dict()
    (forked / "environ").write_bytes(f"ROCMLAB_JOB={JOB_TOKEN}\0TMPDIR=/../outside\0".encode())
    (forked / "root/scratch").rename(forked / "outside")
    assert bounded(tmp_path) == Owner("kernel").as_dict()
    (forked / "environ").write_bytes(f"ROCMLAB_JOB={JOB_TOKEN}\0TMPDIR=scratch\0".encode())
    (forked / "rootscratch").symlink_to(forked / "outside")
    assert bounded(tmp_path) == Owner("kernel").as_dict()


def test_texts_of_others_are_cut_and_steer_nothing(forked: Path, tmp_path: Path) -> None:
    """Controls of a terminal, marks of direction and half characters are replaced; letters of any kind stay."""
    nasty = "\x1b]0;owned\x07\n\x9b31m\u202e\u2066\ud800 ノート\u3000é.ipynb"
    plain = "\ufffd]0;owned\ufffd\ufffd\ufffd31m\ufffd\ufffd\ufffd ノート\u3000é.ipynb"
    note = forked / f"root/{LEASE}.json"
    hosts.write(note, json.dumps({"notebook": nasty}))
    from_a_note = bounded(tmp_path)
    hosts.write(note, json.dumps({"notebook": "x" * 60000}))
    long = bounded(tmp_path)
    (forked / "cmdline").write_bytes(b"python\0train.py\0")
    (forked / "environ").write_bytes(
        b"ROCMLAB_RUN=\x1b[2Jrun\0ROCMLAB_JOB_NAME=a\x07\0ROCMLAB_NOTEBOOK=" + b"y" * 9000 + b"\0"
    )

    assert from_a_note == Owner("kernel", notebook=plain).as_dict()
    assert long == Owner("kernel", notebook="x" * 4096).as_dict()
    assert bounded(tmp_path) == Owner("job", notebook="y" * 4096, run="\ufffd[2Jrun", job="a\ufffd").as_dict()
