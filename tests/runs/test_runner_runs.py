"""Real notebooks in real kernels: how each kind of end is told, and that nothing is left running."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import notebook_files
import psutil
import pytest
from watching import Watcher

from rocmlab.base import job_tokens
from rocmlab.devices import Device
from rocmlab.runs.folder import KINDS, RunFolder
from rocmlab.runs.jobs import Result
from rocmlab.runs.run import Run, run
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.workers.supervisor import Limits

pytestmark = pytest.mark.slow

OF_THE_RUN = {"journal.jsonl", "results.json", "report.html", "junit.xml"}
LEAVE_A_CHILD = """
import os, subprocess, sys
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
Path({path!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
"""


def write_all(folder: Path) -> list[Path]:
    """Write one notebook for each kind of end."""
    declared = notebook_files.PARAMETERS + "epochs: int = 1  # how often\nlearning_rate: float = 0.5"
    masks = "import os; print({name: os.environ.get(name) for name in ('HIP_VISIBLE_DEVICES', 'OMP_NUM_THREADS')})"
    cells = {
        "hangs in a cell": (
            LEAVE_A_CHILD.format(path=str(folder / "hang.pids")),
            "import time\nprint('asleep', flush=True)\ntime.sleep(600)",
        ),
        "records metrics": (
            "## Title",
            declared,
            "print('é', epochs, learning_rate)",
            "import rocmlab\nrocmlab.record(accuracy=0.98, epochs=epochs)",
        ),
        "fails": ("x = 1", "# Divide\nx / 0", "print('never')"),
        "kernel is killed": ("x = 1", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "x = 3"),
        "worker is killed": (
            LEAVE_A_CHILD.format(path=str(folder / "worker.pids")),
            "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)",
        ),
        "leaves a child": (LEAVE_A_CHILD.format(path=str(folder / "child.pids")),),
        "sees {one} gpu": (masks, "import os; print(os.getcwd())"),
        "julia": ("1",),
    }
    kernels = {"julia": "julia-9"}
    paths = []
    for name, sources in cells.items():
        kernel = kernels.get(name, "test-kernel")
        paths.append(notebook_files.write(folder / f"{name}.ipynb", *sources, kernel=kernel))
    broken = folder / "broken.ipynb"
    broken.write_text('{"cells": [')
    paths.append(broken)
    paths.append(notebook_files.write(folder / "wants 3 gpus.ipynb", "1", rocmlab={"gpus": 3}))
    return paths


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, gpus: list[Device], cpu: Device) -> Run:
    """One run over two GPUs in which every kind of end happens."""
    folder = tmp_path_factory.mktemp("mixed")
    paths = write_all(folder / "notebooks")
    jobs = notebook_files.jobs(paths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEASES_DIR", str(folder / "leases"))  # not this host's own
        return run(
            jobs,
            folder=RunFolder.create(folder / "share", "mixed"),
            slots=Slots(gpus, cpu, cores=2),
            display=Watcher(),
            limits=Limits(cell_seconds=5),
        )


def result_of(run: Run, name: str) -> Result:
    """Return a job's result."""
    return next(result for result in run.results if result.name == name)


def notebook_of(run: Run, name: str) -> dict:
    """Return a job's executed notebook."""
    return json.loads(run.folder.file(name, "notebook").read_text(encoding="utf-8"))


def states(notebook: dict) -> list[str | None]:
    """Return what papermill's metadata says of the code cells."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell["metadata"]["papermill"]["status"] for cell in code]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "status", "exit_code"),
    [
        ("records_metrics", "ok", 0),
        ("fails", "failed", 1),
        ("kernel_is_killed", "kernel died", 138),
        ("worker_is_killed", "killed", 137),
        ("leaves_a_child", "ok", 0),
        ("hangs_in_a_cell", "timeout", 124),
        ("sees_one_gpu", "ok", 0),
        ("julia", "not run", 2),
        ("broken", "not run", 2),
        ("wants_3_gpus", "not run", 2),
    ],
)
def test_each_end_has_its_status_and_exit_code(mixed: Run, name: str, status: str, exit_code: int) -> None:
    """Whatever happens to one notebook, the others run, and each end is distinguished."""
    result = result_of(mixed, name)

    assert (result.status, result.exit_code) == (status, exit_code)
    assert (result.error is None) == (status == "ok")
    assert not mixed.is_ok


@pytest.mark.parametrize(
    ("name", "expected", "value"),
    [
        ("fails", ["completed", "failed", "pending"], "division by zero"),
        ("kernel_is_killed", ["completed", "failed", "pending"], "SIGKILL"),
        ("worker_is_killed", ["completed", "failed"], "its worker was killed"),
        ("hangs_in_a_cell", ["completed", "failed"], "a cell ran longer than 5 s"),
    ],
)
def test_the_executed_notebook_tells_the_truth(mixed: Run, name: str, expected: list[str], value: str) -> None:
    """A reader of the file alone sees which cell failed and why, in the notebook and in the HTML."""
    notebook, error = notebook_of(mixed, name), result_of(mixed, name).error

    assert states(notebook) == expected
    assert notebook["metadata"]["papermill"]["exception"] is True
    assert value in error["value"]
    assert error["cell"] == 2
    assert notebook["cells"][error["cell_index"]]["metadata"]["papermill"]["status"] == "failed"
    assert value in mixed.folder.file(name, "html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["worker", "child", "hang"])
def test_nothing_is_left_running(mixed: Run, name: str) -> None:
    """The kernel and a child in a session of its own end with the job, however it ended."""
    notebooks = Path(result_of(mixed, "fails").notebook).parent
    pids = [int(pid) for pid in (notebooks / f"{name}.pids").read_text().split()]

    alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]

    assert len(pids) == 2
    assert alive == []


def test_what_a_notebook_records_is_in_the_results(mixed: Run) -> None:
    """`rocmlab.record` in the kernel reaches results.json, with the device that was pinned."""
    written = json.loads(mixed.folder.results_path.read_text(encoding="utf-8"))
    job = next(job for job in written["jobs"] if job["name"] == "records_metrics")

    assert job["recorded"] == {"accuracy": 0.98, "epochs": 1}
    assert (job["cells_done"], job["cells_total"]) == (3, 3)
    assert job["devices"][0]["backend"] == "rocm"
    assert job["devices"][0]["pci_address"] in ("0000:03:00.0", "0000:04:00.0")
    assert job["simulated"] is True
    assert written["simulated"] is True
    assert written["schema"] == 1
    assert written["run"]["status"] == "failed"
    assert {"rocmlab", "papermill", "python", "image"} <= set(written["versions"])


def test_the_kernel_sees_only_its_gpu(mixed: Run) -> None:
    """The mask and the threads are set before anything is imported; the notebook runs where it lies."""
    log = mixed.folder.file("sees_one_gpu", "log").read_text(encoding="utf-8")
    device = result_of(mixed, "sees_one_gpu").devices[0]

    assert f"'HIP_VISIBLE_DEVICES': '{device['index']}', 'OMP_NUM_THREADS': '1'" in log
    assert str(Path(result_of(mixed, "fails").notebook).parent) in log


def test_the_run_folder_is_complete(mixed: Run) -> None:
    """Every job has notebook, HTML, log and samples; versions of a kernel are kept once; no draft is left."""
    ran = [result.name for result in mixed.results if result.status != "not run"]
    expected = {f"{name}{kind}" for name in ran for kind in KINDS.values()}
    (versions,) = {result.environment for result in mixed.results if result.name in ran}

    events = list(mixed.folder.journal())

    assert {path.name for path in mixed.folder.path.iterdir()} == expected | OF_THE_RUN | {versions}
    assert [events[0]["event"], events[-1]["event"]] == ["run started", "run finished"]
    assert sum(event["event"] == "job started" for event in events) == len(ran)
    finished = {event["job"]: event["result"]["status"] for event in events if event["event"] == "job finished"}
    assert finished == {result.name: result.status for result in mixed.results}
    assert result_of(mixed, "fails").files == {kind: f"fails{end}" for kind, end in KINDS.items()}


def test_the_log_has_what_was_printed(mixed: Run) -> None:
    """Output, tracebacks without colours, and what the worker itself says."""
    good = mixed.folder.file("records_metrics", "log").read_text(encoding="utf-8")
    bad = mixed.folder.file("fails", "log").read_text(encoding="utf-8")

    assert "é 1 0.5" in good
    assert "WARNING" not in good
    assert "----> 2 x / 0" in bad
    assert "\x1b" not in bad


def test_two_notebooks_run_side_by_side_and_one_for_all_gpus_alone(
    tmp_path: Path, slots: Slots, run_folder: RunFolder, watcher: Watcher
) -> None:
    """Two wait for each other, which only works when they run at once; the third sees both GPUs when they are free."""
    meet = """
import os, time
from pathlib import Path
Path("{me}.here").write_text(os.environ["HIP_VISIBLE_DEVICES"])
for _ in range(400):
    if Path("{other}.here").exists():
        break
    time.sleep(0.05)
else:
    raise TimeoutError("the other never came")
"""
    paths = [
        notebook_files.write(tmp_path / "left.ipynb", meet.format(me="left", other="right")),
        notebook_files.write(tmp_path / "right.ipynb", meet.format(me="right", other="left")),
        notebook_files.write(
            tmp_path / "both.ipynb", "import os; print(os.environ['HIP_VISIBLE_DEVICES'])", rocmlab={"gpus": "all"}
        ),
    ]
    jobs = notebook_files.jobs(paths)

    done = run(jobs, folder=run_folder, slots=slots, display=watcher)

    assert done.is_ok, [result.error for result in done.results]
    assert {(tmp_path / f"{name}.here").read_text() for name in ("left", "right")} == {"0", "1"}
    assert run_folder.file("both", "log").read_text().splitlines()[-1] == "0,1"
    order = [seen for seen in watcher.seen if seen[0] in ("started", "finished")]
    assert order[:2] == [("started", "left"), ("started", "right")]
    assert [name for kind, name in order if kind == "started"][-1] == "both"
    assert order[-1] == ("finished", "both")


def test_a_notebook_that_takes_too_long_is_saved_and_ended(
    tmp_path: Path, cpu: Device, run_folder: RunFolder, watcher: Watcher
) -> None:
    """What was printed until then is in the notebook, and the cell is not called completed."""
    path = notebook_files.write(tmp_path / "long.ipynb", "import time\nprint('so far')\ntime.sleep(600)")
    jobs = notebook_files.jobs([path])

    done = run(jobs, folder=run_folder, slots=Slots([], cpu), display=watcher, limits=Limits(notebook_seconds=6))

    result = done.results[0]
    assert (result.status, result.exit_code) == ("timeout", 124)
    assert "6 s" in result.error["value"]
    assert "so far" in json.dumps(notebook_of(done, "long"))
    assert states(notebook_of(done, "long")) == ["failed"]


@pytest.mark.long
@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_signal_ends_the_run_in_order(tmp_path: Path, number: signal.Signals, times: int) -> None:
    """The running job is ended and saved, the others are marked as not run, and no process is left."""
    waits = "from pathlib import Path\nimport time\nprint('so far')\nPath('running').touch()\ntime.sleep(600)"
    notebook_files.write(tmp_path / "notebooks/1.ipynb", LEAVE_A_CHILD.format(path=str(tmp_path / "pids")), waits)
    notebook_files.write(tmp_path / "notebooks/2.ipynb", "print(2)")
    program = "import sys; from rocmlab.runs.command import main; sys.exit(main(['--gpus', 'none', '--json']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(tmp_path / "notebooks/running")
        for _ in range(times):
            process.send_signal(number)
            time.sleep(0.1)
        output, _ = process.communicate(timeout=20)

    written = json.loads(output)
    assert process.returncode == 1
    assert written["run"]["status"] == "interrupted"
    assert [(job["status"], job["exit_code"]) for job in written["jobs"]] == [("killed", 137), ("not run", None)]
    notebook = (Path(written["run"]["folder"]) / "1.ipynb").read_text()
    assert states(json.loads(notebook)) == ["completed", "failed"]
    assert times > 1 or "so far" in notebook
    children = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    end = time.monotonic() + 30  # killed processes wait for anyone who has to collect them
    while time.monotonic() < end and any(map(psutil.pid_exists, children)):
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, children))


def wait_for(path: Path, seconds: float = 30) -> None:
    """Wait until a notebook has written a file."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.05)


def test_processes_are_found_by_their_mark() -> None:
    """One that left its parent, its group and its session still carries the mark, even when it is stopped."""
    script = (
        "import os, signal\nif os.fork(): os._exit(0)\nos.setsid()\n"
        "print(os.getpid(), flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)"
    )
    env = {**os.environ, job_tokens.NAME: "a-mark-of-a-test"}
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.wait()  # it has the mark, too

        found = job_tokens.find("a-mark-of-a-test")
        left = job_tokens.end("a-mark-of-a-test", grace_seconds=0.5)

    assert found == [pid]
    assert left == []
    assert job_tokens.find("a-mark-of-a-test") == []


HOLDS = """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
memory = bytearray(b"x") * 400_000_000  # which the system frees before it closes files
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.long
@pytest.mark.parametrize("grace_seconds", [0.0, 5.0])
def test_what_a_job_held_is_free_when_its_processes_are_ended(tmp_path: Path, grace_seconds: float) -> None:
    """A lease that one of them inherited can be taken at once, however much memory the process had."""
    token = job_tokens.new()
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", HOLDS, tmp_path / "lock"],
            env={**os.environ, job_tokens.NAME: token},
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"

            left = job_tokens.end(token, grace_seconds)
            with open(tmp_path / "lock", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert left == []
