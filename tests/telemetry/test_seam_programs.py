"""`rocmlab nvml-exec`: which program is run by which Python, and what it finds there."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.nvml_exec import _divided
from rocmlab.devices import cuda, nvml
from rocmlab.simulation import write_host
from rocmlab.telemetry.seam import install, programs
from rocmlab.telemetry.seam.programs import Program

COUNT = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
LIMIT_SECONDS = 120  # of a program on a slow machine


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated host with two GPUs."""
    return write_host(tmp_path_factory.mktemp("seam") / "host", busy="50")


@pytest.fixture
def run(repository: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line in an empty folder."""

    def rocmlab(root: Path | str, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rocmlab", *words],
            capture_output=True,
            text=True,
            cwd=cwd or tmp_path,
            env={**os.environ, "PYTHONPATH": str(repository / "src"), "ROCMLAB_ROOT": str(root)},
            timeout=LIMIT_SECONDS,
            check=False,
        )

    return rocmlab


def script(path: Path, *lines: str, mode: int = 0o755) -> Path:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join((*lines, "")))
    path.chmod(mode)
    return path


def test_a_command_finds_the_gpus(run: Callable[..., subprocess.CompletedProcess[str]], host: Path) -> None:
    """`python -c` sees two GPUs, and stderr says that they are simulated."""
    done = run(host, "nvml-exec", "--", sys.executable, "-c", COUNT)

    assert (done.returncode, done.stdout) == (0, "2\n")
    assert done.stderr == f"SIMULATED: read from {str(host)!r}, not from this machine\n"


def test_a_script_runs_as_it_would_without_us(
    run: Callable[..., subprocess.CompletedProcess[str]], host: Path, tmp_path: Path
) -> None:
    """Arguments, name, folder and exit code are the same; its children see no NVML, and nothing is left behind."""
    child = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {COUNT!r}]).returncode)"
    path = script(
        tmp_path / "a folder/watch.py",
        "import os, subprocess, sys, pynvml",
        "pynvml.nvmlInit()",
        f"child = subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True)",
        "print(sys.argv, __name__, os.path.basename(__file__), sys.path[0], pynvml.nvmlDeviceGetCount())",
        "print('no NVML' if 'NVMLError_LibraryNotFound' in child.stderr else child)",
        "sys.exit(7)",
        mode=0o644,
    )

    done = run(host, "nvml-exec", str(path), "--json", "a b")

    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == [
        f"['{path}', '--json', 'a b'] __main__ watch.py {path.parent} 2",
        "no NVML",
    ]


@pytest.mark.slow
def test_forked_workers_go_on_asking(
    run: Callable[..., subprocess.CompletedProcess[str]], host: Path, tmp_path: Path
) -> None:
    """A worker that was forked after the library was opened reads the GPUs itself."""
    path = script(
        tmp_path / "workers.py",
        "import multiprocessing, pynvml, sys, time",
        "pynvml.nvmlInit()",
        "handle = pynvml.nvmlDeviceGetHandleByIndex(0)",
        "first = pynvml.nvmlDeviceGetPowerUsage(handle)",
        "time.sleep(0.6)  # what was read is no longer fresh",
        "def ask(): sys.exit(0 if pynvml.nvmlDeviceGetPowerUsage(handle) == first > 0 else 5)",
        "worker = multiprocessing.get_context('fork').Process(target=ask)",
        "worker.start()",
        "worker.join()",
        "print(worker.exitcode)",
    )

    done = run(host, "nvml-exec", "--", sys.executable, str(path))

    assert done.stdout == "0\n", done.stderr


def test_a_module_finds_its_neighbours(
    run: Callable[..., subprocess.CompletedProcess[str]], host: Path, tmp_path: Path
) -> None:
    """`python -m` looks into the present folder, and not into ours."""
    script(tmp_path / "answers.py", "text = 'that of the user'")
    script(tmp_path / "tool.py", "import answers, sys", "print(answers.text, sys.argv[1:])")

    done = run(host, "nvml-exec", "--", sys.executable, "-B", "-m", "tool", "-x", cwd=tmp_path)

    assert done.stdout == "that of the user ['-x']\n", done.stderr


def test_a_program_keeps_its_own_python(tmp_path: Path) -> None:
    """The first line of a script decides, in each of the forms that installers write."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    python = tmp_path / "venv/bin/python3.12"
    python.symlink_to(sys.executable)
    forms = {
        "plain": f"#!{python}",
        "options": f"#!{python} -s",
        "env": "#!/usr/bin/env python3",
        "split": "#!/usr/bin/env -S python3 -u",
        "long": f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''",
        "short": f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''",
    }
    found = {
        name: programs.find([str(script(tmp_path / name, first, "print(1)")), "-x"]) for name, first in forms.items()
    }

    assert found["plain"] == Program([str(python)], "--script", str(tmp_path / "plain"), ["-x"])
    assert found["options"].interpreter == [str(python), "-s"]
    assert os.path.basename(found["env"].interpreter[0]) == "python3"
    assert found["split"].interpreter[1:] == ["-u"]
    assert found["long"].interpreter == found["short"].interpreter == [str(python)]


@pytest.mark.parametrize(
    ("words", "options", "kind", "name", "arguments"),
    [
        (["-c", "print(1)", "-m"], [], "--command", "print(1)", ["-m"]),
        (["-cprint(1)"], [], "--command", "print(1)", []),
        (["-um", "gpustat", "-i"], ["-u"], "--module", "gpustat", ["-i"]),
        (["-W", "error", "-Xutf8", "-I", "x.py", "-c"], ["-Werror", "-Xutf8", "-I"], "--script", "x.py", ["-c"]),
        (["-uWerror", "x.py"], ["-u", "-Werror"], "--script", "x.py", []),
    ],
)
def test_options_of_python_stay_its_own(
    words: list[str], options: list[str], kind: str, name: str, arguments: list[str]
) -> None:
    """What stands before the program goes to the interpreter, what stands behind it to the program."""
    found = programs.find([sys.executable, *words])

    assert found == Program([sys.executable, *options], kind, name, arguments)


def test_what_is_no_python_program_is_refused(tmp_path: Path) -> None:
    """With what it is, and what to do."""
    shell = script(tmp_path / "wrapper", "#!/bin/sh", "exec gpustat")

    with pytest.raises(RocmlabError, match="is a script for another interpreter") as refused:
        programs.find([str(shell)])
    assert "rocmlab nvml-exec -- python3 -m NAME" in refused.value.problem.fix
    with pytest.raises(RocmlabError, match="is a binary"):
        programs.find(["ls"])
    with pytest.raises(RocmlabError, match="command 'no-such-program' not found"):
        programs.find(["no-such-program"])
    with pytest.raises(RocmlabError, match="an interactive Python"):
        programs.find([sys.executable, "-u"])


def test_without_a_gpu_it_says_so(run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """Exit code 2 before the program is started."""
    root = write_host(tmp_path / "host", faults=["no-driver"])

    done = run(root, "nvml-exec", "--", sys.executable, "-c", "print('started')")

    assert done.returncode == 2
    assert done.stdout == ""
    assert "error: no AMD GPU was found" in done.stderr
    assert "fix:" in done.stderr


def test_a_python_without_the_bindings_is_told(
    run: Callable[..., subprocess.CompletedProcess[str]], host: Path
) -> None:
    """Also one that is shut off from all packages and from our own."""
    done = run(host, "nvml-exec", "--", sys.executable, "-I", "-S", "-c", "print('started')")

    assert done.returncode == 2
    assert "nvidia-ml-py is not installed for this Python" in done.stderr
    assert "pip install nvidia-ml-py" in done.stderr


def test_another_package_of_that_name_is_told(
    run: Callable[..., subprocess.CompletedProcess[str]], host: Path, tmp_path: Path
) -> None:
    """There are two that install a module `pynvml` of their own."""
    script(tmp_path / "pynvml.py", "def nvmlInit(): pass")
    code = "import sys; sys.path.insert(0, '.'); import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"

    done = subprocess.run(
        [sys.executable, "-c", code, programs.SEAM, "--command", "print('started')"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "ROCMLAB_ROOT": str(host)},
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert done.returncode == 2, done
    assert "is not nvidia-ml-py" in done.stderr


def test_usage_is_explained(run: Callable[..., subprocess.CompletedProcess[str]], host: Path) -> None:
    """No command is a usage error; help needs neither GPU nor nvitop."""
    without, help_text = run(host, "nvml-exec"), run(host, "nvitop", "--help")

    assert without.returncode == 2
    assert "name a command after --" in without.stderr
    assert help_text.returncode == 0
    assert "rocmlab nvitop -1" in help_text.stdout


def test_our_options_end_where_the_command_begins() -> None:
    """With and without two dashes."""
    assert _divided(["--notebooks", "--", "gpustat", "--json"]) == (["--notebooks"], ["gpustat", "--json"])
    assert _divided(["gpustat", "--", "-c"]) == ([], ["gpustat", "--", "-c"])
    assert _divided([]) == ([], [])


def _count_one(where: object) -> int:
    ctypes.cast(where, ctypes.POINTER(ctypes.c_uint))[0] = 1  # type: ignore[arg-type]
    return 0


ONE_GPU = SimpleNamespace(  # NVIDIA's library on a machine with one GPU, as far as it is asked here
    nvmlInit_v2=lambda: 0,
    nvmlShutdown=lambda: 0,
    nvmlDeviceGetCount_v2=_count_one,
    nvmlDeviceGetHandleByIndex_v2=lambda index, where: 0,
)


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where NVIDIA's library answers."""

    @contextmanager
    def session() -> Iterator[nvml.Nvml]:
        yield nvml.Nvml(ONE_GPU)

    monkeypatch.setattr(cuda, "has_driver", lambda root: True)
    monkeypatch.setattr(nvml, "session", session)


@pytest.mark.usefixtures("nvidia")
def test_where_nvidia_answers_the_seam_is_refused(host: Path) -> None:
    """A program must not take AMD GPUs for NVIDIA's; a simulated host was requested and is shown."""
    assert install.nvidia_answers(Path("/"))
    assert not install.nvidia_answers(host)
    with pytest.raises(RocmlabError, match="NVIDIA's own library"):
        install.install(Path("/"), with_notebooks=False)


@pytest.mark.usefixtures("nvidia")
def test_where_nvidia_answers_the_command_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """`nvml-exec` says that it is not needed; `nvitop` says nothing and is plain nvitop."""
    from rocmlab.cli import main

    started: list[list[str]] = []

    def execv(path: str, words: list[str]) -> None:
        started.append(words)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setenv("ROCMLAB_ROOT", "/")  # whatever is remembered in the present folder

    with pytest.raises(SystemExit):
        main(["nvml-exec", "--", "ls", "-l"])
    told = capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["nvitop", "-1"])

    assert [words[1:] for words in started] == [["-l"], ["-m", "nvitop", "-1"]]
    assert "rocmlab is not needed" in told
    assert capsys.readouterr().err == ""
