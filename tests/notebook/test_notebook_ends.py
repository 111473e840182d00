"""Real kernels that die, hang, stop, print too much or are asked to stop: the notebook shows what happened."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import engine_runs
import notebook_files
import psutil
import pytest
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from rocmlab.base.errors import RocmlabError
from rocmlab.kernels import connection, kernelspec
from rocmlab.notebook import execution, messages, notebooks, watch, wire

pytestmark = pytest.mark.slow

GRANDCHILD = """
import subprocess, sys
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session={session})
Path({path!r}).write_text(str(child.pid))
"""


def is_gone(pid: int, seconds: float = 3.0) -> bool:
    """Wait until a process has ended."""
    end = time.monotonic() + seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "was stopped (SIGSTOP) for 1 s"),
    ],
    ids=["killed", "exits", "crashes", "is stopped"],
)
def test_a_kernel_that_is_gone_leaves_true_states(tmp_path: Path, cell: str, message: str) -> None:
    """The reference would call all four cells completed, or wait for ever."""
    begin = time.monotonic()

    ran = engine_runs.run(tmp_path, "print('kept')", cell, "print('never')", silent_seconds=1)

    assert time.monotonic() - begin < 20
    assert isinstance(ran.error, DeadKernelError)
    assert ran.states == ["completed", "failed", "pending"]
    assert ran.notebook["metadata"]["papermill"]["exception"] is True
    assert ran.outputs(0)[0]["text"] == "kept\n"
    assert message in ran.outputs(1)[-1]["evalue"]
    assert {path.name for path in tmp_path.iterdir()} == {"in.ipynb", "out.ipynb"}


def test_what_the_kernel_said_last_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in C writes past Python to the process's own stderr; it is in the notebook and passed on."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it an IPython kernel leaves its stderr alone

    ran = engine_runs.run(tmp_path, "import ctypes; ctypes.string_at(0)")

    assert "Segmentation fault" in ran.outputs(0)[-1]["traceback"][1]
    assert "Segmentation fault" in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "metadata", "cell", "message"),
    [
        ({"execution_timeout": 1}, {}, "time.sleep(60)", "a cell ran longer than 1 s"),
        ({}, {"cell_seconds": 1}, "time.sleep(60)", "a cell ran longer than 1 s"),
        ({"notebook_seconds": 1.5}, {}, "time.sleep(60)", "the notebook ran longer than 1.5 s"),
        ({"idle_seconds": 1}, {}, "print('last'); time.sleep(60)", "a cell printed nothing for 1 s"),
    ],
    ids=["cell", "metadata", "notebook", "idle"],
)
def test_a_limit_interrupts_and_says_where(
    tmp_path: Path, options: dict, metadata: dict, cell: str, message: str
) -> None:
    """The traceback of the interrupt shows the line, and the error the limit."""
    ran = engine_runs.run(tmp_path, "import time", cell, "1", metadata={"rocmlab": {"limits": metadata}}, **options)

    assert isinstance(ran.error, CellTimeoutError)
    assert ran.states == ["completed", "failed", "pending"]
    names = [output["ename"] for output in ran.outputs(1) if output["output_type"] == "error"]
    assert names == ["KeyboardInterrupt", "Timeout"]
    assert ran.outputs(1)[-1]["evalue"] == message


def test_the_start_of_the_kernel_is_no_part_of_the_notebooks_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that takes longer to start than its cells may take together has a limit of its own."""
    plain = kernelspec.command
    late = "import os, sys, time; time.sleep(4); os.execv(sys.argv[1], sys.argv[1:])"
    monkeypatch.setattr(kernelspec, "command", lambda *given: [sys.executable, "-c", late, *plain(*given)])

    ran = engine_runs.run(tmp_path, "1", notebook_seconds=3)

    assert ran.error is None
    assert ran.states == ["completed"]


def test_a_cell_that_prints_is_not_idle(tmp_path: Path) -> None:
    """Only silence counts for the limit on idle output."""
    ran = engine_runs.run(
        tmp_path, "import time\nfor i in range(8):\n    print(i)\n    time.sleep(0.3)", idle_seconds=1.5
    )

    assert ran.error is None
    assert ran.states == ["completed"]


@pytest.mark.long
def test_a_cell_that_takes_no_interrupt_is_ended(tmp_path: Path) -> None:
    """It holds out against SIGINT; its process group is killed."""
    stubborn = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    stubborn += "end = time.time() + 60\nwhile time.time() < end: pass"
    child = GRANDCHILD.format(session=False, path=str(tmp_path / "pid"))

    ran = engine_runs.run(tmp_path, child, stubborn, cell_seconds=1)

    assert ran.states == ["completed", "failed"]
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_wrong_limit_stops_the_notebook_before_it_starts(tmp_path: Path) -> None:
    """No kernel is started for a typo."""
    path = notebook_files.write(tmp_path / "in.ipynb", "1", rocmlab={"limits": {"hours": 3}})

    with pytest.raises(RocmlabError, match="hours"):
        engine_runs.papermill.execute_notebook(str(path), None, engine_name="rocmlab", progress_bar=False)


def test_a_progress_bar_is_one_line(tmp_path: Path) -> None:
    """Redraws leave their last state; a kernel keeps 1,000 messages for a reader that has no CPU, not more."""
    bar = "import sys\nfor i in range(901):\n    sys.stderr.write(f'\\r{i}/900')\n    sys.stderr.flush()"

    ran = engine_runs.run(tmp_path, bar)

    assert [output["text"] for output in ran.outputs(0)] == ["900/900"]


@pytest.mark.long
def test_too_much_output_goes_to_a_log_beside_the_notebook(tmp_path: Path) -> None:
    """The notebook stays small, the log has every line."""
    printing = "for i in range(200_000): print(f'{i:0100d}')"

    ran = engine_runs.run(tmp_path, printing, "print('after')", output_bytes=1_000_000)

    assert ran.error is None
    assert ran.path.stat().st_size < 1_500_000
    assert ran.outputs(0)[-1]["text"].endswith(f"{199_999:0100d}\n")
    assert ran.outputs(1)[0]["text"] == "after\n"
    lines = (tmp_path / "out.output.log").read_text().splitlines()
    assert lines[2:] == [f"{number:0100d}" for number in range(200_000)]


def test_the_log_beside_the_notebook_replaces_only_one_of_ours(tmp_path: Path) -> None:
    """A file of the same name that is someone's own stays, and the notebook says where the log is instead."""
    (tmp_path / "out.output.log").write_text("--- my notes\n")

    for _ in range(2):
        ran = engine_runs.run(tmp_path, "for i in range(2_000): print(f'{i:0100d}')", output_bytes=10_000)

    assert "all of it is in out.output.2.log" in ran.outputs(0)[-1]["text"]
    assert (tmp_path / "out.output.log").read_text() == "--- my notes\n"
    assert len((tmp_path / "out.output.2.log").read_text().splitlines()) == 2_002
    assert not (tmp_path / "out.output.3.log").exists()


def test_a_notebook_is_saved_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty quick cells are not a hundred saves."""
    saves: list[Path] = []
    plain = notebooks.save
    monkeypatch.setattr(notebooks, "save", lambda notebook, path: (saves.append(path), plain(notebook, path)))

    ran = engine_runs.run(tmp_path, *["x = 1"] * 50, "import time; time.sleep(1.5)", save_seconds=1)

    assert ran.error is None
    assert 3 <= len(saves) <= 8


def test_a_quiet_cell_wakes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a cell says nothing the engine sleeps until something is due, and its end is noticed at once."""
    moments: list[float] = []
    take = messages.Messages.take
    monkeypatch.setattr(
        messages.Messages, "take", lambda self, ready: (moments.append(time.monotonic()), take(self, ready))[1]
    )

    ran = engine_runs.run(tmp_path, "import time; time.sleep(2.5)", save_seconds=0.3)

    took = ran.notebook["cells"][0]["metadata"]["papermill"]["duration"]
    assert ran.error is None
    assert 2.5 <= took < 30
    assert max(later - earlier for earlier, later in pairwise(moments)) > 1.5


def test_a_save_that_takes_long_is_not_the_kernels_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slow disk holds up the engine no one asks the kernel, so its silence means nothing."""
    stalls: list[Path] = []
    plain = notebooks.save

    def save(notebook: dict, path: Path) -> None:
        plain(notebook, path)
        if not stalls and notebook["cells"][0]["metadata"].get("execution"):  # the cell runs
            stalls.append(path)
            time.sleep(3)

    monkeypatch.setattr(notebooks, "save", save)

    ran = engine_runs.run(tmp_path, "import time; time.sleep(5)", save_seconds=0.1, silent_seconds=2)

    assert stalls
    assert ran.error is None
    assert ran.states == ["completed"]


def test_a_disk_that_is_full_for_a_while_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save in between may fail; the one at the end counts."""
    calls: list[int] = []
    plain = notebooks.save

    def save(notebook: dict, path: Path) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        plain(notebook, path)

    monkeypatch.setattr(notebooks, "save", save)

    ran = engine_runs.run(tmp_path, "1", "import time; time.sleep(1)", "print('all')", save_seconds=0.1)

    assert ran.error is None
    assert ran.outputs(2)[0]["text"] == "all\n"


def test_a_kernel_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words say why; and one that never answers is not waited for."""
    monkeypatch.setattr(
        kernelspec, "command", lambda *_: [sys.executable, "-c", "raise SystemExit('no such framework')"]
    )
    dead = engine_runs.run(tmp_path / "dead", "1")
    monkeypatch.setattr(kernelspec, "command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    mute = engine_runs.run(tmp_path / "mute", "1", start_seconds=1)

    assert "no such framework" in str(dead.error)
    assert "did not start" in str(dead.error)
    assert "no answer within 1 s" in str(mute.error)
    assert dead.states == mute.states == ["pending"]


def test_an_end_that_the_system_does_not_tell_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pidfd the process is looked at twice a second, also while it starts and while its children print."""
    monkeypatch.delattr("os.pidfd_open", raising=False)
    monkeypatch.setattr(watch, "HEARTBEAT_SECONDS", 60.0)  # nothing else makes the engine look
    talks = "import time\nfor _ in range(300): print('I am here', flush=True); time.sleep(0.1)"
    leaves = (
        f"import os, subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {talks!r}], start_new_session=True)\n"
    )

    begin = time.monotonic()
    ran = engine_runs.run(tmp_path / "runs", leaves + "os.kill(os.getpid(), 9)", silent_seconds=600, save_seconds=600)
    took = time.monotonic() - begin
    monkeypatch.setattr(kernelspec, "command", lambda *_: [sys.executable, "-c", leaves + "sys.exit('no framework')"])
    starts = engine_runs.run(tmp_path / "starts", "1", start_seconds=8)

    assert "SIGKILL" in ran.outputs(0)[-1]["evalue"]
    assert took < 20
    assert "ended with exit code 1" in str(starts.error)


def test_a_flood_past_the_notebook_holds_no_limit_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the kernel prints faster than anybody can write it down; the clock is looked at all the same."""
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=lambda _: time.sleep(0.02), flush=lambda: None))
    floods = "import os, time\nend = time.time() + 40\nwhile time.time() < end: os.write(1, bytes(65536))"
    cell = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {floods!r}]).wait()"

    begin = time.monotonic()
    ran = engine_runs.run(tmp_path, cell, cell_seconds=2)

    assert time.monotonic() - begin < 25
    assert isinstance(ran.error, CellTimeoutError)
    assert ran.states == ["failed"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_interrupts_saves_and_ends_everything(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """What was printed is saved, the cell has failed, and a grandchild in a session of its own is gone."""
    cells = [
        GRANDCHILD.format(session=True, path=str(tmp_path / "pid")),
        f"from pathlib import Path\nprint('so far')\nPath({str(tmp_path / 'here')!r}).touch()\n"
        "import time; time.sleep(60)",
        "1",
    ]
    path, output = notebook_files.write(tmp_path / "in.ipynb", *cells), tmp_path / "out.ipynb"
    command = [sys.executable, "-c", engine_runs.PROGRAM, str(path), str(output)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "here").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=20)

    ran = engine_runs.Ran(output, None)
    assert process.returncode == code
    assert ran.states == ["completed", "failed", "pending"]
    assert ran.outputs(1)[0]["text"] == "so far\n"
    assert [output["ename"] for output in ran.outputs(1)[1:]] == ["KeyboardInterrupt", "Killed"]
    assert number.name in ran.outputs(1)[-1]["evalue"]
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_output_that_never_ends_in_the_protocol_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message that a cell has ended may be lost; its reply is enough after a while."""
    monkeypatch.setattr(execution, "LATE_OUTPUT_SECONDS", 0.5)
    receive = wire.Channels.receive

    def lossy(self: wire.Channels, socket: object) -> wire.Message | None:
        message = receive(self, socket)
        return lossy(self, socket) if message and message.content.get("execution_state") == "idle" else message

    monkeypatch.setattr(wire.Channels, "receive", lossy)

    ran = engine_runs.run(tmp_path, "print(1)", "print(2)")

    assert ran.error is None
    assert [ran.outputs(number)[0]["text"] for number in (0, 1)] == ["1\n", "2\n"]


def test_a_kernel_of_another_language_gets_ports(tmp_path: Path) -> None:
    """Sockets in a folder are for Python; any other kernel is reached over the loopback."""
    made = connection.create({"language": "R"}, str(tmp_path))

    assert (made["transport"], made["ip"]) == ("tcp", "127.0.0.1")
    assert len({made[port] for port in connection.PORTS}) == len(connection.PORTS)
    assert connection.create({"language": "python"}, "/tmp/x")["transport"] == "ipc"
