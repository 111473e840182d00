"""Programs that are started on a simulated host, with the simulated driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import main
from rocmlab.devices import discover
from rocmlab.simulation import driver, environment, write_host

SOURCES = str(Path(__file__).parents[2] / "src")
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler: sudo apt-get install gcc libc6-dev"
)
LOOK = """
import fcntl, json, os, stat, struct, sys
seen = {"nodes": sorted(os.listdir("/sys/class/kfd/kfd/topology/nodes")), "dri": sorted(os.listdir("/dev/dri"))}
for path in sys.argv[1:]:
    try:
        handle = os.open(path, os.O_RDWR)
        seen[path] = [stat.S_ISCHR(os.stat(path).st_mode), stat.S_ISCHR(os.fstat(handle).st_mode)]
    except OSError as err:
        seen[path] = err.strerror
    else:
        if path == "/dev/kfd":
            version = fcntl.ioctl(handle, 0x80084B01, bytes(8))  # AMDKFD_IOC_GET_VERSION
            seen["kfd"] = struct.unpack("II", version)
print(json.dumps(seen))
"""


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The driver is compiled once for these tests, and not into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def run(host: Path, *program: str) -> subprocess.CompletedProcess[str]:
    """Run a program there, which succeeds."""
    command = [sys.executable, "-m", "rocmlab", "simulate", "--run", host, "--", *program]
    around = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.startswith("SIMULATED: ")
    return done


def look(host: Path, *paths: str) -> dict[str, object]:
    """Return what a Python program sees there."""
    return json.loads(run(host, sys.executable, "-c", LOOK, *paths).stdout)


@needs_compiler
class TestPrograms:
    """What a program finds at the usual paths."""

    def test_a_program_finds_the_simulated_driver(self, tmp_path: Path) -> None:
        """Topology, nodes that are character devices, and answers of the driver."""
        seen = look(write_host(tmp_path, gpus=2), "/dev/kfd", "/dev/dri/renderD129", "/dev/dri/renderD130")

        assert seen["nodes"] == ["0", "1", "2"]
        assert seen["dri"] == ["card0", "card1", "renderD128", "renderD129"]
        assert seen["/dev/kfd"] == [True, True]
        assert seen["kfd"] == [1, 18]
        assert seen["/dev/dri/renderD129"] == [True, True]
        assert seen["/dev/dri/renderD130"] == "No such file or directory"

    def test_faults_of_nodes_act_on_a_program_as_on_rocmlab(self, tmp_path: Path) -> None:
        """For root as well, who could open every file."""
        host = write_host(tmp_path, gpus=2, faults=["unreadable-node:0", "denied-node:1"])
        seen = look(host, "/dev/dri/renderD128", "/dev/dri/renderD129")

        assert seen["/dev/dri/renderD128"] == "Permission denied"
        assert seen["/dev/dri/renderD129"] == "Operation not permitted"
        reasons = [device.why_not for device in discover(host, {}) if device.backend == "rocm"]
        assert "cannot be opened" in str(reasons[0])
        assert "device rules" in str(reasons[1])

    def test_access_says_what_opening_would(self, tmp_path: Path) -> None:
        """Programs that ask first, by access or faccessat, see faults of nodes, and files that they cannot change."""
        host = write_host(tmp_path, gpus=3, faults=["unreadable-node:0", "denied-node:1"])
        program = (
            "import ctypes, os\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "def ask(path, mode, function='access'):\n"
            "    path = path.encode()\n"
            "    failed = (libc.access(path, mode) if function == 'access' else\n"
            "              libc.faccessat(-100, path, mode, 0x200))\n"
            "    return failed and os.strerror(ctypes.get_errno())\n"
            "for number in (128, 129, 130, 131):\n"
            "    path = f'/dev/dri/renderD{number}'\n"
            "    print(ask(path, 6), ask(path, 4, 'faccessat'), ask(path, 0), sep=', ')\n"
            "print(ask('/sys/class/kfd/kfd/topology/generation_id', 4), ask('/sys/class/kfd/kfd/topology', 2))\n"
        )

        done = run(host, sys.executable, "-c", program)

        assert done.stdout.splitlines() == [
            "Permission denied, Permission denied, 0",
            "Operation not permitted, Operation not permitted, 0",
            "0, 0, 0",
            ", ".join(["No such file or directory"] * 3),
            "0 Permission denied",
        ]

    def test_requests_are_traced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those of both kinds of nodes, each with its number, and what is not known is called so."""
        monkeypatch.setenv("ROCMLAB_SIMULATED_TRACE", "1")
        program = (
            "import fcntl, os\n"
            "for path, request in (('/dev/kfd', 0x80084B01), ('/dev/dri/renderD128', 0xC010640C), "
            "('/dev/dri/renderD128', 0x647F)):\n"
            "    try: fcntl.ioctl(os.open(path, os.O_RDWR), request, bytes(16))\n"
            "    except OSError: pass\n"
        )

        lines = run(write_host(tmp_path), sys.executable, "-c", program).stderr.splitlines()

        assert [line.partition("driver: ")[2] for line in lines if ": request" in line] == [
            "/dev/kfd: request 0x01",
            "/dev/dri/renderD128: request 0x0c",
            "/dev/dri/renderD128: request 0x7f",
            "/dev/dri/renderD128: request 0x7f is unknown",
        ]

    def test_a_program_keeps_its_own_python_path(self, tmp_path: Path) -> None:
        """From a clone as well, which puts itself in front; rocmlab itself imports nothing from the current folder."""
        host = write_host(tmp_path / "host")
        (tmp_path / "json.py").write_text("raise SystemExit('the json of the current folder')\n")
        around = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": ":/of/the/user"}
        command = [Path(SOURCES).parent / "scripts/rocmlab", "simulate", "--run", host, "--", "printenv", "PYTHONPATH"]

        done = subprocess.run(
            command, env=around, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

        assert (done.returncode, done.stdout) == (0, f"{SOURCES}::/of/the/user\n"), done.stderr

    def test_a_program_changes_no_file_of_the_host(self, tmp_path: Path) -> None:
        """Neither by opening one for writing nor by making one."""
        host = write_host(tmp_path)
        before = {path: path.read_bytes() for path in host.rglob("*") if path.is_file()}
        paths = ("/sys/class/drm/renderD128/device/power_state", "/sys/class/kfd/new")
        program = (
            "import os, sys\n"
            "for path in sys.argv[1:]:\n"
            "    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT):\n"
            "        try: os.open(path, flags)\n"
            "        except OSError as err: print(err.strerror)\n"
        )

        done = run(host, sys.executable, "-c", program, *paths)

        assert done.stdout.splitlines() == ["Permission denied"] * 6
        assert {path: path.read_bytes() for path in host.rglob("*") if path.is_file()} == before

    def test_a_device_stays_open_however_often_others_are_opened(self, tmp_path: Path) -> None:
        """Monitors open the nodes again and again; a program that changes its title overwrites its environment."""
        program = (
            "import ctypes, fcntl, os\n"
            "kept = os.open('/dev/kfd', os.O_RDWR)\n"
            "for _ in range(5000): os.close(os.open('/dev/dri/renderD128', os.O_RDWR))\n"
            "libc = ctypes.CDLL(None)\n"
            "libc.getenv.restype = ctypes.c_void_p\n"
            "ctypes.memset(libc.getenv(b'ROCMLAB_ROOT'), 0, 4)\n"
            "print(fcntl.ioctl(kept, 0x80084B01, bytes(8))[:4], os.listdir('/sys/class/kfd/kfd/topology/nodes'))\n"
        )

        done = run(write_host(tmp_path), sys.executable, "-c", program)

        assert done.stdout.startswith("b'\\x01\\x00\\x00\\x00' ['"), done.stderr

    def test_a_program_ends_as_elsewhere_when_its_reader_has_gone(self, tmp_path: Path) -> None:
        """Python ignores SIGPIPE; what it becomes does not."""
        done = run(write_host(tmp_path), "sh", "-c", "yes | head -n 1")

        assert done.stdout == "y\n"
        assert "Broken pipe" not in done.stderr

    def test_what_was_preloaded_stays(self, tmp_path: Path) -> None:
        """The driver comes first, and the program's commands see the host as well."""
        around = environment(write_host(tmp_path), {"LD_PRELOAD": "libother.so"})

        assert around["LD_PRELOAD"].split() == [str(driver()), "libother.so"]
        assert around["ROCMLAB_ROOT"] == str(tmp_path)

    def test_a_missing_program_is_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The error is not a traceback."""
        host = write_host(tmp_path)

        assert main(["simulate", "--run", str(host), "--", "no-such-program"]) == 2
        assert "no-such-program cannot be started" in capsys.readouterr().err


@needs_compiler
def test_a_cache_that_the_loader_cannot_name_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would omit the driver with a warning, and the program would see this machine; a relative one is not used."""
    host = write_host(tmp_path / "host")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    with pytest.raises(RocmlabError, match="cannot be started") as raised:
        environment(host, {})
    assert "XDG_CACHE_HOME" in raised.value.problem.fix

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert environment(host, {})["LD_PRELOAD"].startswith(f"{tmp_path}/home/.cache/rocmlab/")


def test_without_a_compiler_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is said, and nothing is left in the cache."""
    monkeypatch.setenv("PATH", "")

    with pytest.raises(RocmlabError, match="C compiler not found") as raised:
        driver(tmp_path)

    assert "apt-get install gcc" in raised.value.problem.fix
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--run", "HOST"], "--run takes a simulated host and, after --, a program"),
        (["--run", "HOST", "--", ""], "--run takes a simulated host"),
        (["--run", "HOST", "--live", "--", "true"], "--run takes a simulated host"),
        (["HOST", "--", "true"], "a program after -- is for --run"),
        (["--run", "HOST", "--", "true"], "is not a simulated host"),
    ],
)
def test_run_takes_a_host_and_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """Anything else is an error, and nothing is written."""
    given = [word.replace("HOST", str(tmp_path)) for word in arguments]

    assert main(["simulate", *given]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
