"""Warm kernels: a forked kernel is like one that was started in the ordinary way."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from warm_kernels import Talk, ask, gone, lives, started_cold, warm

from rocmlab.base import job_tokens
from rocmlab.kernels import connection, forkserver
from rocmlab.kernels.fork_server import ForkServer
from rocmlab.kernels.forked import Refused, fork
from rocmlab.kernels.kernel import LocalKernel

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")]

TOKEN = job_tokens.new()  # of this process: tests that run next to it look for theirs
STAND_IN = "data = b'x' * 80_000_000\n"  # as heavy as a framework, and as little inclined to change
LOOK = """
import gc, os, signal, sys, threading
found = {
    "cwd": os.getcwd(), "path": sys.path, "program": sys.argv[0], "words": sys.argv[1::2], "name": __name__,
    "environment": {n: t for n, t in os.environ.items() if n not in ("JPY_PARENT_PID", "ROCMLAB_JOB")},
    "signals": {str(n): str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()},
    "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "gc": gc.isenabled(), "session": os.getsid(0) == os.getpid() == os.getpgrp(),
    "threads": sorted(t.name.rstrip("0123456789") for t in threading.enumerate()),
    "input": os.readlink("/proc/self/fd/0"), "umask": os.umask(0o22),
    "history": get_ipython().history_manager.hist_file,
    "banner": get_ipython().banner.partition("Tip")[0],
}
"""
FIND = """
import os
for number in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{number}") and os.readlink(f"/proc/self/fd/{number}").endswith("gpu.lock"):
        break
else:
    raise SystemError("the kernel has no lease")
"""
FORK_TWICE = """
import os
reader, writer = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(writer, b"1" if os.path.exists(f"/proc/self/fd/{number}") else b"0")
        os._exit(0)
    os.wait()
    os.write(writer, b"1" if os.path.exists(f"/proc/self/fd/{number}") else b"0")
    os._exit(0)
os.wait()
found = os.read(reader, 2).decode()
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory, kernel: str) -> Iterator[Path]:
    """A folder on PYTHONPATH with a module to preload."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "heavy_stand_in.py").write_text(STAND_IN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ["PYTHONPATH"])))
        yield folder


@pytest.fixture(scope="module")
def server(stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A server that serves."""
    folder = tmp_path_factory.mktemp("warm")
    found = ForkServer(sys.executable, ["heavy_stand_in", "numpy.random"], dict(os.environ), folder)
    assert found.ready(60), found.why
    yield found
    found.close()


@pytest.fixture
def forked(server: ForkServer, tmp_path: Path) -> Iterator[LocalKernel]:
    """A kernel of that server."""
    with warm(server.address, tmp_path, token=TOKEN) as found:
        yield found


def test_a_forked_kernel_is_like_a_cold_one(server: ForkServer, kernel: str, tmp_path: Path) -> None:
    """Folder, path, arguments, environment, signals, threads, session and the rest are those of a cold kernel."""
    environment = {**os.environ, "HIP_VISIBLE_DEVICES": "1", "MPLBACKEND": "agg", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}

    with warm(server.address, tmp_path, environment) as one, started_cold(kernel, tmp_path, environment) as other:
        ours, theirs = ask(one.connection, LOOK, "found"), ask(other.connection, LOOK, "found")

    theirs["threads"].remove("Thread-")  # it watches its parent; a forked one has its lifeline
    assert ours == theirs
    assert ours["environment"]["HIP_VISIBLE_DEVICES"] == "1"


def test_modules_are_there_and_were_not_imported_again(forked: LocalKernel) -> None:
    """The module's object in the kernel is the parent's: it is frozen for the collector, and shared."""
    assert ask(forked.connection, "import sys", "'heavy_stand_in' in sys.modules") is True
    assert ask(forked.connection, "import heavy_stand_in", "len(heavy_stand_in.data)") == 80_000_000
    assert ask(forked.connection, "import gc", "gc.get_freeze_count() > 10_000") is True


def test_two_kernels_draw_different_numbers(server: ForkServer, tmp_path: Path) -> None:
    """Python's, numpy's, and identifiers."""
    code = "import random, uuid, numpy, secrets, tempfile"
    draw = "(random.random(), float(numpy.random.rand()), str(uuid.uuid4()), secrets.token_hex(8), tempfile.mktemp())"

    with warm(server.address, tmp_path) as one, warm(server.address, tmp_path) as other:
        pairs = list(zip(ask(one.connection, code, draw), ask(other.connection, code, draw), strict=True))

    assert [first == second for first, second in pairs] == [False] * 5


def test_the_token_is_in_the_first_environment(forked: LocalKernel) -> None:
    """Anyone who looks for what a job has started finds the kernel, and what that starts or forks."""
    code = (
        "import subprocess, os; other = subprocess.Popen(['sleep', '60']); pid = os.fork()\nif not pid: signal.pause()"
    )
    started, own = ask(forked.connection, f"import signal\n{code}", "(other.pid, pid)")

    assert f"ROCMLAB_JOB={TOKEN}" in Path(f"/proc/{forked.pid}/environ").read_text().split("\0")
    assert set(job_tokens.find(TOKEN)) == {forked.pid, started, own}


def test_output_of_c_code_reaches_the_descriptor(forked: LocalKernel) -> None:
    """What is written to descriptor 1 or by a program arrives; the parent's log has nothing of it."""
    ask(forked.connection, "import os; os.write(1, b'from C\\n'); os.system('echo from a program >&2')")
    assert forked.output is not None
    os.set_blocking(forked.output, True)

    words = b""
    while b"from C" not in words or b"from a program" not in words:
        words += os.read(forked.output, 1000)


def test_a_lease_is_the_kernels_own(server: ForkServer, tmp_path: Path) -> None:
    """It keeps the lock when we let go of it; programs and children of children do not have it; it ends with it."""
    lock = os.open(tmp_path / "gpu.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with warm(server.address, tmp_path, descriptors=[lock]) as kernel:
        os.close(lock)
        again = os.open(tmp_path / "gpu.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        find = (
            "import os; number = next(n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}') "
        )
        find += "and os.readlink(f'/proc/self/fd/{n}').endswith('gpu.lock'))"
        assert ask(kernel.connection, f"{find}\n{FORK_TWICE}", "found") == "01"
        listed = (
            "import subprocess; listed = subprocess.run(['ls', '-l', '/proc/self/fd'], capture_output=True, text=True)"
        )
        assert "gpu.lock" not in ask(kernel.connection, listed, "listed.stdout")
        assert "gpu.lock" not in str([os.readlink(f"/proc/{server.pid}/fd/{n}") for n in _descriptors(server)])
        kernel.destroy()
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)


@pytest.mark.parametrize(
    ("code", "expected"),
    [("import os; os._exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("import os; os.abort()", -6)],
)
def test_how_it_ended_is_known(forked: LocalKernel, code: str, expected: int) -> None:
    """An exit code is distinguished from a signal, as of a child."""
    assert forked.exit_code() is None
    talk = Talk(forked.connection)
    talk.send(code)

    assert forked.process.exit_code(10) == expected
    talk.close()
    forked.destroy()
    assert (forked.exit_code(), forked.ended()) == (expected, True)


def test_a_kernel_that_is_asked_to_leave_tidies_up(forked: LocalKernel, tmp_path: Path) -> None:
    """Functions registered for the end of the process run, threads are waited for, and it ends with 0."""
    late = "import atexit, pathlib; atexit.register(lambda: pathlib.Path('left').write_text('in order'))"
    thread = "import threading; t = threading.Timer(1, lambda: pathlib.Path('thread').touch()); t.start()"
    ask(forked.connection, f"{late}\n{thread}\nexit()")

    assert forked.process.exit_code(10) == 0
    assert (tmp_path / "left").read_text() == "in order"
    assert (tmp_path / "thread").exists()


def test_it_can_be_interrupted_and_stopped(forked: LocalKernel) -> None:
    """An interrupt reaches the cell; a stopped kernel is seen to be so."""
    talk = Talk(forked.connection)
    talk.send("import os\nos.close(os.open('busy', os.O_CREAT))\nwhile True: pass")
    _until(Path(f"/proc/{forked.pid}/cwd/busy").exists)

    assert forked.interrupt()
    assert talk.answer()["ename"] == "KeyboardInterrupt"
    talk.close()
    forked.process.signal(signal.SIGSTOP)
    _until(forked.is_stopped)
    forked.process.signal(signal.SIGCONT)
    _until(lambda: not forked.is_stopped())


def test_a_connection_of_the_callers_is_used(server: ForkServer, tmp_path: Path) -> None:
    """Sockets and file are the given ones, and so are more arguments; as jupyter_client, the caller has a Popen."""
    made = connection.create({"language": "other"}, "")
    reader, writer = os.pipe()
    kernel = fork(
        server.address,
        cwd=str(tmp_path),
        environment=os.environ,
        descriptors=(),
        output=writer,
        connection_file=connection.write(made, str(tmp_path)),
        arguments=["--HistoryManager.hist_file=:memory:", "--InteractiveShell.banner2=on GPU 0"],
    )
    try:
        assert ask(made, "import sys", "sys.argv[2]") == str(tmp_path / "kernel.json")
        assert "on GPU 0" in ask(made, "", "get_ipython().banner")
        assert (tmp_path / "kernel.json").stat().st_mode & 0o777 == 0o600
        assert kernel.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            kernel.wait(0.01)
        kernel.kill()
        assert kernel.wait(10) == kernel.returncode == -9
    finally:
        kernel.close()
        os.close(reader)
        os.close(writer)


def test_a_relative_pythonpath_is_looked_up_where_the_kernel_runs(tmp_path: Path) -> None:
    """As it is when Python starts there."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/near.py").write_text("value = 7")
    environment = {**os.environ, "PYTHONPATH": "modules"}
    server = ForkServer(sys.executable, ["json"], environment, tmp_path / "warm")
    try:
        with warm(server.address, tmp_path, environment) as kernel:
            assert ask(kernel.connection, "import near", "near.value") == 7
    finally:
        server.close()


def test_openblas_has_the_threads_that_the_environment_gives(tmp_path: Path) -> None:
    """The server has one thread only; the kernel's product of matrices uses those it was given."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "3"}
    server = ForkServer(sys.executable, ["numpy"], environment, tmp_path / "warm")
    count = "import os\ndef count(): return len(os.listdir('/proc/self/task'))\nbefore = count()\nimport numpy"
    try:
        with warm(server.address, tmp_path, environment) as kernel:
            code = "a = numpy.ones((300, 300)); good = bool((a @ a == 300).all())"
            assert ask(kernel.connection, f"{count}\n{code}", "good")
            names = "{open(f'/proc/self/maps').read().count('openblas') > 0}"
            assert ask(kernel.connection, "", names) == {True}
            assert ask(kernel.connection, "import ctypes, glob, numpy", _openblas_threads()) == 3
            assert ask(kernel.connection, "", "os.environ['OPENBLAS_NUM_THREADS']") == "3"
    finally:
        server.close()


def _openblas_threads() -> str:
    library = "next(line.split()[-1] for line in open('/proc/self/maps') if 'openblas' in line)"
    return f"ctypes.CDLL({library}).scipy_openblas_get_num_threads64_()"


def test_a_forked_kernel_shares_its_modules_memory(forked: LocalKernel, kernel: str, tmp_path: Path) -> None:
    """Eighty megabytes of a module's are its own in a cold kernel and shared in a forked one."""
    with started_cold(kernel, tmp_path) as other:
        for one in (forked, other):
            ask(one.connection, "import heavy_stand_in, gc; gc.collect()", "len(heavy_stand_in.data)")
        ours = psutil.Process(forked.pid).memory_full_info().uss
        theirs = psutil.Process(other.process.pid).memory_full_info().uss

    assert theirs - ours > 80_000_000
    assert ours < 60_000_000


def test_a_kernel_leaves_what_its_parent_has_to_tidy_up(tmp_path: Path) -> None:
    """A module keeps a temporary folder as long as its process lives; it is still there for the next kernel."""
    (tmp_path / "keeping.py").write_text("import tempfile\nkept = tempfile.TemporaryDirectory()\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    server = ForkServer(sys.executable, ["keeping"], environment, tmp_path / "warm")
    try:
        for _ in range(2):
            with warm(server.address, tmp_path, environment) as kernel:
                assert ask(kernel.connection, "import keeping, os", "os.path.isdir(keeping.kept.name)")
                ask(kernel.connection, "exit()")
                assert kernel.process.exit_code(60) == 0
    finally:
        server.close()


def test_many_forks_leave_nothing(server: ForkServer, tmp_path: Path) -> None:
    """After twenty kernels, a few at a time: no zombie, no descriptor, no file, no more memory."""
    assert server.pid is not None
    process = psutil.Process(server.pid)
    _rounds(server, tmp_path, 4)
    _until(lambda: not process.children())
    before = (process.num_fds(), process.memory_full_info().uss)

    _rounds(server, tmp_path, 20)

    _until(lambda: not process.children())
    assert process.num_fds() == before[0]
    assert process.memory_full_info().uss - before[1] < 3_000_000
    assert sorted(path.name for path in Path(server.address).parent.iterdir()) == ["log", "server"]


def test_a_retired_server_exits_after_its_last_kernel(tmp_path: Path) -> None:
    """It serves until then, and its folder goes with it."""
    program = Path(forkserver.__file__).with_name("server.py")
    source = "import sys; sys.path[0] = sys.argv.pop(1); import server; server.RETIRE_SECONDS = 0.1; server.main"
    source += "(sys.argv[1:])"
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\nshift\nexec {sys.executable} -c '{source}' {program.parent} \"$@\"\n")
    wrapper.chmod(0o755)
    server = ForkServer(str(wrapper), ["json"], dict(os.environ), tmp_path / "warm")
    assert server.ready(60), server.why

    with warm(server.address, tmp_path) as kernel:
        server.retire()
        assert ask(kernel.connection, "", "1") == 1
        with warm(server.address, tmp_path) as another:
            assert ask(another.connection, "", "2") == 2
        assert server.why is None

    _until(lambda: server.why)
    assert server.why == "the fork server exited with code 0"
    assert list((tmp_path / "warm").iterdir()) == []
    server.close()


def _rounds(server: ForkServer, folder: Path, count: int) -> None:
    def one() -> None:
        with warm(server.address, folder) as kernel:
            assert ask(kernel.connection, "", "6 * 7") == 42

    for _ in range(0, count, 4):
        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_what_a_kernel_leaves_is_killed_with_it(forked: LocalKernel) -> None:
    """A process in a session of its own goes as well."""
    code = "import subprocess; other = subprocess.Popen(['sleep', '60'], start_new_session=True)"
    other = ask(forked.connection, code, "other.pid")

    forked.destroy()

    assert gone(forked.pid, other)


def test_a_kernel_that_cannot_start_is_refused(server: ForkServer, tmp_path: Path) -> None:
    """A connection that cannot be bound ends the kernel; the caller hears of it at once."""
    made = {**connection.create({}, "/tmp"), "ip": str(tmp_path / "no/such/folder/s")}
    file = connection.write(made, str(tmp_path))
    reader, writer = os.pipe()

    with pytest.raises(Refused, match="exited with code 1 before it could be reached"):
        fork(
            server.address,
            cwd=str(tmp_path),
            environment=os.environ,
            descriptors=(),
            output=writer,
            connection_file=file,
        )

    os.close(writer)
    assert b"Error" in os.read(reader, 100_000)
    os.close(reader)


def _descriptors(server: ForkServer) -> list[str]:
    return os.listdir(f"/proc/{server.pid}/fd")


def _until(condition, seconds: float = 10.0) -> None:
    done = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it did not come to pass")


@pytest.mark.long
def test_lives_tells_a_zombie() -> None:
    """The helper of these tests does not take a process that has ended for one that runs."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)

    assert gone(pid, seconds=10)
    assert not lives(pid)
    os.waitpid(pid, 0)
