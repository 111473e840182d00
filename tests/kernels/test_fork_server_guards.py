"""Warm kernels: when a server must not fork, whom it does not serve, and which kernels may share one."""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from second_user import open_to_others
from warm_kernels import ask, warm

from rocmlab.kernels import forked, recipes
from rocmlab.kernels.fork_server import ForkServer
from rocmlab.kernels.forked import Refused
from rocmlab.kernels.forkserver import messages

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")]

THREAD = """
import threading
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
"""
# No GPU is here, so another file is made to count as one.
OPENS = """
import sys
sys.modules["_rocmlab_forkserver_guards"].GPU_FILES += (__file__,)
file = open(__file__)
"""
WAITS = """
import os
import re
with open(os.path.join(os.path.dirname(__file__), "go")) as file:
    said = file.read()
"""
EMPTY: dict[str, Any] = {"cwd": "/", "descriptors": (), "output": 1, "connection_file": "/no/such/file"}
OTHER_USER = """
import os, sys
from rocmlab.kernels import forked
os.seteuid(65534)
try:
    forked.fork(sys.argv[1], cwd="/", environment={}, descriptors=(), output=1, connection_file="/x")
except forked.Refused as err:
    print(err)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module to preload and start a server with it; what it returns is closed at the end."""
    started = []
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"])))

    def start(source: str) -> ForkServer:
        (tmp_path / "stand_in_of_a_test.py").write_text(source)
        started.append(ForkServer(sys.executable, ["stand_in_of_a_test"], dict(os.environ), tmp_path / "warm"))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kernel: str) -> Iterator[ForkServer]:
    """A server with nothing heavy."""
    found = ForkServer(sys.executable, ["json"], dict(os.environ), tmp_path_factory.mktemp("warm"))
    yield found
    found.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "why"),
    [
        (THREAD, r"the imports left 1 thread\(s\) running: python"),
        (OPENS, "the imports opened a GPU: .*stand_in_of_a_test.py"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("raise SystemExit(4)", "import of ipykernel, stand_in_of_a_test failed: SystemExit: 4"),
    ],
    ids=["thread", "gpu", "missing", "exit"],
)
def test_a_parent_that_must_not_fork_says_why(module: Any, tmp_path: Path, source: str, why: str) -> None:
    """Its starter knows, each client hears it, and it stays so."""
    server = module(source)

    for _ in range(2):
        with pytest.raises(Refused, match=why), warm(server.address, tmp_path):
            pass

    assert not server.ready(30)
    assert server.seconds is None
    assert server.why is not None
    assert re.search(why, server.why)


def test_a_parent_that_crashes_says_how(module: Any, tmp_path: Path) -> None:
    """A library may end the process while it is loaded; its last lines are kept."""
    server = module("import os, sys\nsys.stderr.write('illegal instruction')\nsys.stderr.flush()\nos._exit(7)")

    assert not server.ready(30)

    assert server.why == "the fork server exited with code 7: illegal instruction"
    with pytest.raises(Refused, match="the fork server has exited"), warm(server.address, tmp_path):
        pass


def test_an_interpreter_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    """Starting returns, and does not raise."""
    server = ForkServer("/no/such/python", ["json"], dict(os.environ), tmp_path)

    assert not server.ready(5)
    assert server.why is not None
    assert "/no/such/python could not be started" in server.why
    server.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    """Nothing is started, and nothing of the caller's is removed."""
    (tmp_path / "file").write_text("mine")

    server = ForkServer(sys.executable, ["json"], dict(os.environ), tmp_path / "file")

    assert server.why is not None
    assert server.why.startswith("no folder for the fork server: ")
    with pytest.raises(Refused), warm(server.address, tmp_path):
        pass
    server.close()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_request_waits_for_the_import(module: Any, tmp_path: Path) -> None:
    """A client that comes too early gets its kernel when the server is ready."""
    os.mkfifo(tmp_path / "go")
    server = module(WAITS)
    answers: list[str] = []

    def client() -> None:
        with warm(server.address, tmp_path) as kernel:
            answers.append(ask(kernel.connection, "import stand_in_of_a_test", "stand_in_of_a_test.said"))

    thread = threading.Thread(target=client)
    thread.start()
    with open(tmp_path / "go", "w") as file:  # opens when the server reads
        assert not server.ready(0)
        assert server.why is None
        assert answers == []
        file.write("go")
    thread.join(60)

    assert answers == ["go"]
    assert server.ready(0)
    assert server.seconds is not None


def test_a_client_does_not_wait_for_ever(module: Any, tmp_path: Path) -> None:
    """An import that hangs is a reason to start cold."""
    os.mkfifo(tmp_path / "go")
    server = module(WAITS)

    with pytest.raises(Refused, match=r"did not answer within 0.2 seconds"):
        forked.fork(server.address, **EMPTY, environment=os.environ, answer_seconds=0.2)


def test_a_server_that_is_retired_while_it_imports_is_one_that_exited(module: Any, tmp_path: Path) -> None:
    """Its kernelspec changed meanwhile, such as by `%pip install`; it exits without having read why."""
    os.mkfifo(tmp_path / "go")
    server = module(WAITS)

    with open(tmp_path / "go", "w"):  # opens when the server reads
        server.retire()
        end = time.monotonic() + 10
        while server.why is None and time.monotonic() < end:
            time.sleep(0.01)

    assert server.why
    assert "the fork server exited" in server.why


def test_what_is_fixed_at_import_cannot_be_asked_for_otherwise(server: ForkServer, tmp_path: Path) -> None:
    """The names are said; which GPUs are visible is not among them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "7", "TF_ENABLE_ONEDNN_OPTS": "0", "HIP_VISIBLE_DEVICES": "5"}

    with pytest.raises(Refused, match=r"another value: OMP_NUM_THREADS, TF_ENABLE_ONEDNN_OPTS$"):
        forked.fork(server.address, **EMPTY, environment=environment)


def test_what_an_import_sets_is_what_a_kernel_gets(module: Any, tmp_path: Path) -> None:
    """scikit-learn sets variables of OpenMP: a kernel has them as well, and is not rejected for them."""
    server = module("import os\nos.environ.setdefault('KMP_INIT_AT_FORK', 'FALSE')")

    with warm(server.address, tmp_path) as kernel:
        assert ask(kernel.connection, "import os", "os.environ['KMP_INIT_AT_FORK']") == "FALSE"
    with pytest.raises(Refused, match=r"another value: KMP_INIT_AT_FORK$"):
        forked.fork(server.address, **EMPTY, environment={**os.environ, "KMP_INIT_AT_FORK": "TRUE"})


def test_libraries_start_no_thread_while_they_are_imported(module: Any, tmp_path: Path) -> None:
    """OpenBLAS and pyarrow's allocator read variables when they are loaded; a kernel does not inherit these."""
    seen = "seen = [os.environ.get(name) for name in ('OPENBLAS_NUM_THREADS', 'JE_ARROW_MALLOC_CONF')]"
    server = module(f"import os\n{seen}")

    with warm(server.address, tmp_path) as kernel:
        imported = ask(kernel.connection, "import stand_in_of_a_test as module", "module.seen")
        now = ask(kernel.connection, f"import os\n{seen}", "seen")

    assert imported == ["1", "background_thread:false"]
    assert now == [os.environ.get("OPENBLAS_NUM_THREADS"), None]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user; run it in a container")
def test_another_user_is_refused(server: ForkServer) -> None:
    """The folder keeps others out; if it did not, the socket would ask who they are."""

    def attempt() -> str:
        command = [sys.executable, "-c", OTHER_USER, server.address]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    folder = Path(server.address).parent
    open_to_others(folder.parent)
    assert "Permission denied" in attempt()
    folder.chmod(0o711)
    Path(server.address).chmod(0o666)
    try:
        assert "this fork server serves uid 0 and not 65534" in attempt()
    finally:
        folder.chmod(0o700)
        Path(server.address).chmod(0o600)


GOOD: dict[str, Any] = {
    "cwd": "/",
    "environment": {},
    "token": None,
    "arguments": [],
    "connection_file": "/no/such/file",
}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\0\0\0\2[]", "not a JSON object"),
        (b"\0\0\0\2{{", "not JSON"),
        (b"\0\0\x27\x10" + b"[" * 10_000, "not JSON"),
        (b"\xff\xff\xff\xff", "a message of 4294967295 bytes"),
        ({}, "malformed request: 'arguments'"),
        ({**GOOD, "environment": "x"}, "environment is not a dict"),
        ({**GOOD, "environment": {"a": 1}}, "invalid environment variable: 'a'"),
        ({**GOOD, "arguments": [None]}, "arguments are text"),
        ({**GOOD, "token": "../../etc/passwd"}, "a token has 16 hexadecimal digits"),
        ({**GOOD, "token": 7}, "token is not a str"),
        ({**GOOD, "cwd": None}, "cwd is not a str"),
        ({**GOOD, "cwd": "/no/such/folder"}, "no such folder: /no/such/folder"),
        ({**GOOD, "cwd": "a\0b"}, "no such folder"),
        ({**GOOD, "environment": {"A=B": "x"}}, "invalid environment variable: 'A=B'"),
        ({**GOOD, "environment": {"A": "x\0"}}, "invalid environment variable: 'A'"),
        ({**GOOD, "connection_file": []}, "connection_file is not a str"),
    ],
)
def test_a_malformed_request_is_refused(server: ForkServer, tmp_path: Path, raw: Any, why: str) -> None:
    """With the reason, without harm to the next one, and nothing is forked."""
    assert server.ready(60)
    if isinstance(raw, dict) and raw:
        environment = raw["environment"]
        raw = {**raw, "environment": {**os.environ, **environment} if isinstance(environment, dict) else environment}

    answer = _send(server, raw, descriptors=2)

    assert answer is not None
    assert re.search(why, answer["refused"]), answer
    with warm(server.address, tmp_path) as kernel:
        assert ask(kernel.connection, "", "1") == 1


def test_a_request_without_descriptors_is_refused(server: ForkServer) -> None:
    """A kernel needs an output, and a client that can be missed."""
    assert "lifeline" in _send(server, {**GOOD, "environment": dict(os.environ)}, descriptors=1)["refused"]


def test_descriptors_of_half_a_request_are_nobodys(server: ForkServer, tmp_path: Path) -> None:
    """What a client has sent so far does not get into another's kernel, and is closed when it goes away."""
    assert server.ready(60)
    with socket.socket(socket.AF_UNIX) as channel, open(tmp_path / "lock", "w") as file:
        channel.connect(server.address)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()] * 3))]
        channel.sendmsg([b"\0\0\1"], ancillary)
        _until(lambda: str(tmp_path / "lock") in _files(server.pid))

        with warm(server.address, tmp_path) as kernel:
            ask(kernel.connection, "", "1")
            assert str(tmp_path / "lock") not in _files(kernel.pid)
            assert not set(_sockets(kernel.pid)) & set(_sockets(server.pid))
    _until(lambda: str(tmp_path / "lock") not in _files(server.pid))


def _files(pid: int | None) -> list[str]:
    """Return what a process has open, as it is now; sockets have changing numbers."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(re.sub(r"\[\d+\]", "", os.readlink(f"/proc/{pid}/fd/{name}")))
    return sorted(found)


def _sockets(pid: int | None) -> list[str]:
    links = [Path(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd")]
    return [target for link in links if link.is_symlink() and (target := os.readlink(link)).startswith("socket:")]


def _until(condition: Any, seconds: float = 10.0) -> None:
    never = threading.Event()
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        never.wait(0.01)


def _send(server: ForkServer, what: Any, descriptors: int) -> Any:
    raw = what
    if not isinstance(what, bytes):
        text = json.dumps(what).encode()
        raw = struct.pack("!I", len(text)) + text
    with socket.socket(socket.AF_UNIX) as channel, open(os.devnull, "rb") as file:
        channel.settimeout(20)
        channel.connect(server.address)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()] * descriptors))]
        channel.sendmsg([raw], ancillary)
        return messages.receive(channel, messages.Buffer())


# -- which kernels -------------------------------------------------------------------------------------------------

PLAIN = {"argv": ["/opt/torch/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "language": "python"}


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("torch", {}, ("torch",)),
        ("torch-gpu0", {}, ("torch",)),
        ("TensorFlow-all", {}, ("tensorflow", "keras")),
        ("python3", {}, ()),
        ("torchy", {}, ()),
        ("torch", {"argv": [*PLAIN["argv"], "--debug"]}, ()),
        ("torch", {"argv": ["python", "-Xfrozen_modules=off", *PLAIN["argv"][1:]]}, ()),
        ("torch", {"argv": ["bash", "-c", "ipykernel", "-f", "{connection_file}"]}, ()),
        ("torch", {"argv": ["python", "-m", "ipykernel", "-f", "{connection_file}"]}, ("torch",)),
        ("torch", {"language": "R"}, ()),
        ("mine", {"metadata": {"rocmlab": {"preload": ["jax", "optax"]}}}, ("jax", "optax")),
        ("torch", {"metadata": {"rocmlab": {"preload": []}}}, ()),
        ("torch", {"argv": []}, ()),
    ],
)
def test_which_modules_a_kernelspec_has_preloaded(name: str, change: dict[str, Any], expected: tuple[str, ...]) -> None:
    """Only plain Python kernels of a framework, or whose kernelspec reports it."""
    assert recipes.modules_for(name, {**PLAIN, **change}) == expected


def test_a_key_changes_with_what_is_fixed_at_import(tmp_path: Path) -> None:
    """Another environment, module list, interpreter or package makes another parent; another GPU does not."""
    packages = tmp_path / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.symlink_to(sys.executable)
    environment = {"OMP_NUM_THREADS": "2", "HIP_VISIBLE_DEVICES": "0", "ROCMLAB_JOB": "x"}
    first = recipes.key(str(python), ("torch",), environment)

    assert recipes.key(str(python), ("torch",), {**environment, "HIP_VISIBLE_DEVICES": "1"}) == first
    others = {
        recipes.key(str(python), ("torch", "keras"), environment),
        recipes.key(sys.executable, ("torch",), environment),
        *(
            recipes.key(str(python), ("torch",), {**environment, name: "1"})
            for name in ("OMP_NUM_THREADS", "KERAS_BACKEND", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "XLA_FLAGS", "HOME")
        ),
    }
    (packages / "another.py").touch()
    others.add(recipes.key(str(python), ("torch",), environment))
    assert len(others) == 9
    assert first not in others


def test_an_installation_needs_another_fork_server_and_a_first_import_does_not(tmp_path: Path) -> None:
    """The first import of a module without a package compiles it into a new folder beside it."""
    python = tmp_path / "bin/python"
    site = tmp_path / "lib/python3.12/site-packages"
    information = site / "six-1.17.0.dist-info"
    for folder in (python.parent, information):
        folder.mkdir(parents=True)
    python.touch()

    def key() -> str:
        return recipes.key(str(python), ["torch"], {})

    first = key()
    (site / "__pycache__").mkdir()
    os.utime(site, (1, 1))
    compiled = key()
    (site / "attrs-26.1.0.dist-info").mkdir()
    added = key()
    os.utime(information, (2, 2))
    again = key()

    assert first == compiled
    assert len({compiled, added, again}) == 3, "a package that is added, or installed again"


def test_a_process_of_its_own_threads_may_not_fork(tmp_path: Path) -> None:
    """Each guard is looked at again: with a thread, with a GPU's file, and after both are gone."""
    source = f"""
import threading
import time
from rocmlab.kernels.forkserver import guards
guards.GPU_FILES = ({str(tmp_path)!r},)
assert guards.obstacle() is None
go = threading.Event()
thread = threading.Thread(target=go.wait)
thread.start()
assert "1 thread(s)" in guards.obstacle()
go.set()
thread.join()
end = time.monotonic() + 10
while "thread" in (guards.obstacle() or "") and time.monotonic() < end:  # the system forgets it a moment later
    time.sleep(0.01)
with open({str(tmp_path / "renderD128")!r}, "w"):
    assert "opened a GPU" in guards.obstacle()
assert guards.obstacle() is None
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
