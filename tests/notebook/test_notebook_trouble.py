"""Notebooks that do what no notebook should, and places that cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import engine_runs
import notebook_files
import pytest
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from watching import Watcher

from rocmlab.devices import Device
from rocmlab.kernels import memory
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.run import run
from rocmlab.runs.scheduling.placement import Slots

pytestmark = pytest.mark.slow

NEVER_LETS_GO = "import re\nre.match('(a+)+$', 'a' * 60 + 'b')  # holds the interpreter, and hears no signal"


@pytest.mark.parametrize(
    "closing",
    ["import sys; sys.stdout.close(); sys.stderr.close()", "import os; os.close(1); os.close(2)"],
    ids=["streams", "descriptors"],
)
def test_a_notebook_that_closes_its_output_runs_on(tmp_path: Path, closing: str) -> None:
    """What it does afterwards counts, and is seen in its results."""
    ran = engine_runs.run(tmp_path, closing, "6 * 7")

    assert ran.error is None
    assert ran.states == ["completed", "completed"]
    assert "".join(ran.outputs(1)[0]["data"]["text/plain"]) == "42"


def test_what_is_no_text_is_printed_all_the_same(tmp_path: Path) -> None:
    """A file name in another encoding is shown with a replacement character, in valid UTF-8, and the rest runs."""
    ran = engine_runs.run(tmp_path, "print('name', '\\udcff')", "'\\udcff'.encode('utf-8', 'surrogateescape')")

    assert ran.error is None
    assert ran.outputs(0)[0]["text"] == "name \ufffd\n"
    assert "".join(ran.outputs(1)[0]["data"]["text/plain"]) == "b'\\xff'"


def test_a_cell_that_never_lets_go_is_ended_by_its_limit(tmp_path: Path) -> None:
    """It hears no interrupt and answers no heartbeat; its process is killed soon after the limit."""
    begin = time.monotonic()

    ran = engine_runs.run(tmp_path, "import os; print(os.getpid())", NEVER_LETS_GO, "1", cell_seconds=1)

    assert time.monotonic() - begin < 15
    assert isinstance(ran.error, CellTimeoutError)
    assert ran.states == ["completed", "failed", "pending"]
    assert ran.outputs(1)[-1]["evalue"] == "a cell ran longer than 1 s"
    assert not Path(f"/proc/{int(ran.outputs(0)[0]['text'])}").exists()


def test_a_notebook_may_delete_its_own_files(tmp_path: Path) -> None:
    """The input and the output are gone while it runs; at the end the output is there, whole."""
    deleting = (
        "from pathlib import Path\nfor path in Path().glob('*.ipynb'): path.unlink()\nprint(list(Path().iterdir()))"
    )

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        ran = engine_runs.run(tmp_path, deleting, "print('after')", save_seconds=60)

    assert ran.error is None
    assert ran.states == ["completed", "completed"]
    assert ran.outputs(0)[0]["text"] == "[]\n"
    assert {path.name for path in tmp_path.iterdir()} == {"out.ipynb"}


def test_a_kernel_that_the_system_ends_for_want_of_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control group's counter of such ends has gone up since the kernel was started."""
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 0\noom_kill 3\n")
    monkeypatch.setattr(memory, "OOM_COUNTERS", (str(events),))
    ends = "import os, signal\nfrom pathlib import Path\nPath({path!r}).write_text('oom 1\\noom_kill 4\\n')\n"

    ran = engine_runs.run(tmp_path, ends.format(path=str(events)) + "os.kill(os.getpid(), signal.SIGKILL)", "1")

    assert isinstance(ran.error, DeadKernelError)
    assert ran.states == ["failed", "pending"]
    assert ran.outputs(0)[-1]["ename"] == "Killed"
    assert ran.outputs(0)[-1]["evalue"].endswith("because the memory was full")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.getuid() != 0 or sys.platform != "linux":
        pytest.skip("only root can mount a small file system: run the tests as root, as in a container")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_is_full_at_the_end_leaves_the_last_notebook_whole(small_disk: Path) -> None:
    """The error reports it; what was saved before can be read, and no draft is left."""
    fills = "print('kept')\nimport time; time.sleep(0.5)"

    with pytest.raises(OSError, match="No space left"):
        raise engine_runs.run(small_disk, fills, "print('x' * 3_000_000)", save_seconds=0.1).error

    ran = engine_runs.Ran(small_disk / "out.ipynb", None)
    assert ran.outputs(0)[0]["text"] == "kept\n"
    assert {path.name for path in small_disk.iterdir()} == {"in.ipynb", "out.ipynb"}


def test_a_full_disk_does_not_hide_why_a_notebook_was_cut_short(small_disk: Path) -> None:
    """The limit is the error; that the last lines could not be saved is only said next to it."""
    fills = "print('x' * 3_000_000, flush=True)\nimport time; time.sleep(60)"

    ran = engine_runs.run(small_disk, "1", fills, cell_seconds=1, save_seconds=0.1)

    assert isinstance(ran.error, CellTimeoutError)
    assert json.loads(ran.path.read_text())["cells"]


def test_a_disk_that_is_full_meanwhile_costs_logs_alone(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log of long output and a copy of what cells print lack a part, which is reported; the notebook is whole."""
    filler = f"filler = {str(small_disk / 'filler')!r}\n"
    fills = (
        "file = open(filler, 'wb', buffering=0)\ntry:\n    while True: file.write(bytes(4096))\nexcept OSError: pass\n"
    )
    prints = "print('x' * 20_000, flush=True)\nimport os, time; time.sleep(1)\nos.unlink(filler)"

    with (small_disk / "copy").open("w") as copy:
        ran = engine_runs.run(
            small_disk, filler + fills, prints, "print('end')", output_bytes=2000, save_seconds=0.1, stdout_file=copy
        )

    assert ran.error is None
    assert ran.states == ["completed"] * 3
    assert "out.output.log lacks a part of it (No space left on device)" in ran.outputs(1)[-1]["text"]
    assert (small_disk / "copy").read_text().endswith("end\n")
    assert sum("lacks a part" in one.message or "passed on" in one.message for one in caplog.records) == 2


def test_a_job_whose_notebook_cannot_be_saved_fails_and_the_next_one_runs(
    tmp_path: Path, cpu: Device, run_folder: RunFolder
) -> None:
    """A folder is in the notebook's place: it reports it, its kernel is gone, and the run continues."""
    paths = [notebook_files.write(tmp_path / f"{name}.ipynb", "import os; print(os.getpid())") for name in "ab"]
    run_folder.file("a", "notebook").mkdir()

    done = run(
        notebook_files.jobs(paths),
        folder=run_folder,
        slots=Slots([], cpu),
        display=Watcher(),
    )

    assert [result.status for result in done.results] == ["failed", "ok"]
    assert "Is a directory" in done.results[0].error["value"]
    assert json.loads(run_folder.file("b", "notebook").read_text())["cells"]
