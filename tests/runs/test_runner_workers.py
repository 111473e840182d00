"""The processes of a run: kept from job to job, replaced when in doubt, and gone when the run is, however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import hosts
import notebook_files
import psutil
import pytest
from watching import Watcher, eventually, is_alive

from rocmlab.base import job_tokens, safe
from rocmlab.devices import Device
from rocmlab.kernels.leases import Leases
from rocmlab.notebook.execution import SHUTDOWN_SECONDS
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.run import Run, run
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.scheduling.plan import Before
from rocmlab.runs.workers.channel import Link
from rocmlab.runs.workers.converter import PROGRAM as CONVERTER
from rocmlab.runs.workers.supervisor import Limits
from rocmlab.runs.workers.workers import Workers

pytestmark = pytest.mark.slow

GONE_WITHIN_SECONDS = 10.0  # on a machine with much else to do; the figures are in docs/verification.md
SAYS_WHO = "import os; print('worker', os.getppid(), 'end')"


def execute(folder: Path, slots: Slots, notebooks: dict[str, tuple[str, ...]], **options: Any) -> Run:
    """Run notebooks by their names."""
    paths = [notebook_files.write(folder / f"notebooks/{name}.ipynb", *cells) for name, cells in notebooks.items()]
    jobs = notebook_files.jobs(paths)
    return run(jobs, folder=RunFolder.create(folder / "share", "test"), slots=slots, display=Watcher(), **options)


def worker_of(done: Run, name: str) -> int:
    """Return the worker that ran a job which says who it is."""
    return int(done.folder.file(name, "log").read_text().partition("worker ")[2].split()[0])


# -- From job to job

SURROUNDINGS = """
import json, os, signal
from pathlib import Path
ignored = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigIgn"))
blocked = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigBlk"))
names = {name: os.environ.get(name) for name in ("ROCMLAB_JOB", "ROCMLAB_LEASED", "LEAK", "JUPYTER_RUNTIME_DIR")}
open_files = sorted(os.readlink(f"/proc/{os.getppid()}/fd/{n}") for n in (1, 2))
print("seen", json.dumps([os.getcwd(), ignored, blocked, names, open_files]), "end")
"""
LEAVE_TRACES = """
import os
os.environ["LEAK"] = "from the first"
os.chdir("/")
print("printed by the first")
"""


def test_a_slot_keeps_its_worker_and_a_job_sees_nothing_of_the_one_before(tmp_path: Path, cpu: Device) -> None:
    """One process runs both; folder, environment, mark, log and signals are each job's own."""
    first = (SAYS_WHO, SURROUNDINGS, LEAVE_TRACES, "1 / 0")

    done = execute(tmp_path, Slots([], cpu), {"a/first": first, "b/second": (SAYS_WHO, SURROUNDINGS)})

    logs = [done.folder.file(name, "log") for name in ("first", "second")]
    seen = [json.loads(log.read_text().partition("seen ")[2].partition(" end")[0]) for log in logs]
    assert [result.status for result in done.results] == ["failed", "ok"]
    assert worker_of(done, "first") == worker_of(done, "second")
    assert [Path(each[0]).name for each in seen] == ["a", "b"]
    assert seen[0][1:3] == seen[1][1:3]  # signals
    assert [each[3]["LEAK"] for each in seen] == [None, None]
    assert [each[3]["ROCMLAB_LEASED"] for each in seen] == ["1", "1"]
    assert len({each[3]["ROCMLAB_JOB"] for each in seen}) == len({each[3]["JUPYTER_RUNTIME_DIR"] for each in seen}) == 2
    assert [set(each[4]) for each in seen] == [{str(log)} for log in logs]
    assert "the first" not in logs[1].read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "status"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "kernel died"),
        ("import time; time.sleep(60)", "timeout"),
        ("import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)", "killed"),
    ],
    ids=["kernel died", "timeout", "killed"],
)
def test_a_worker_in_doubt_has_no_other_job(tmp_path: Path, cpu: Device, cell: str, status: str) -> None:
    """After any end that is not the notebook's own the next job has a fresh process."""
    cells = {"1": (SAYS_WHO, cell), "2": (SAYS_WHO,)}

    done = execute(tmp_path, Slots([], cpu), cells, limits=Limits(notebook_seconds=60, cell_seconds=5))

    assert [result.status for result in done.results] == [status, "ok"]
    assert worker_of(done, "1") != worker_of(done, "2")


@pytest.mark.long
def test_a_worker_that_is_killed_while_idle_costs_nothing(tmp_path: Path, cpu: Device) -> None:
    """The first job's worker is killed when the job has ended; the second runs in another, and no one is told."""

    class Killer(Watcher):
        def event(self, job: Any, event: dict[str, Any]) -> None:
            super().event(job, event)
            if event["event"] == "ended" and job.name == "1":
                log = (tmp_path / "share").glob("runs/*/1.log")
                os.kill(int(next(log).read_text().partition("worker ")[2].split()[0]), signal.SIGKILL)

    paths = [notebook_files.write(tmp_path / f"{name}.ipynb", SAYS_WHO) for name in "12"]
    jobs = notebook_files.jobs(paths)

    done = run(jobs, folder=RunFolder.create(tmp_path / "share", "test"), slots=Slots([], cpu), display=Killer())

    assert [(result.status, result.warnings) for result in done.results] == [("ok", [])] * 2
    assert worker_of(done, "1") != worker_of(done, "2")


@pytest.mark.long
def test_many_jobs_leave_the_runner_and_its_workers_as_they_were(tmp_path: Path, gpus: list[Device]) -> None:
    """18 notebooks on two slots: two workers, no file left open, hardly any memory, no kernel that would not end."""
    sizes: list[tuple[int, int, frozenset[int]]] = []
    cpu = Device(backend="cpu", index=0, name="a processor", is_usable=True)

    class Measuring(Watcher):
        def finished(self, result: Any) -> None:
            super().finished(result)
            me = psutil.Process()
            below = [child for child in me.children() if is_alive(child.pid) and is_worker(child)]
            memory = me.memory_info().rss + sum(child.memory_info().rss for child in below)
            sizes.append((memory, me.num_fds(), frozenset(child.pid for child in below)))

    path = notebook_files.write(tmp_path / "n.ipynb", "pass")
    jobs = notebook_files.jobs([path] * 18)

    done = run(jobs, folder=RunFolder.create(tmp_path / "share", "test"), slots=Slots(gpus, cpu), display=Measuring())

    assert done.is_ok, [result.error for result in done.results]
    assert all(done.folder.file(job.name, "html").exists() for job in jobs)
    assert len(frozenset().union(*(pids for _, _, pids in sizes))) == 2
    assert sizes[-2][0] - sizes[8][0] < 8_000_000
    assert sizes[-2][1] <= sizes[8][1] + 4
    assert max(result.seconds for result in done.results) < SHUTDOWN_SECONDS


# -- A process that says strange things

BABBLERS = {
    "half a line": ('write(b\'{"event": "one"}\\n{"event": "tw\')', ["one"], None),
    "no JSON": (
        "write(b'x\\n[]\\n{}\\n{\"event\": 3}\\n' + b'[' * 100_000 + b'\\n{\"event\": \"one\"}\\n')",
        ["one"],
        None,
    ),
    "no end": ("write(b'x' * 50_000_000)", [], "a line of more than 1 MB"),
    "many": ('write(b\'{"event": "one"}\\n\' * 20_000)', ["one"] * 20_000, None),
}


@pytest.mark.parametrize("name", BABBLERS)
def test_whatever_a_process_says_the_runner_goes_on(tmp_path: Path, name: str) -> None:
    """What is not an event is skipped, and a line without an end is not waited for."""
    action, events, fault = BABBLERS[name]
    source = "import socket, sys\nend = socket.socket(fileno=int(sys.argv[1]))\n"
    source += f"def write(data):\n    try: end.sendall(data)\n    except OSError: pass\nprint('my words')\n{action}\n"
    (tmp_path / "babbler.py").write_text(source)

    async def listen() -> tuple[list[str], int, str | None, str]:
        babbler = Link("babbler", {**os.environ, "PYTHONPATH": str(tmp_path)})
        said = []
        while (event := await babbler.event()) is not None:
            said.append(event["event"])
        found = said, await babbler.exit_code(), babbler.fault, babbler.last_output()
        await babbler.close()
        return found

    said, code, why, words = asyncio.run(asyncio.wait_for(listen(), 30))

    assert said == events
    assert (why or "").endswith(fault or "")
    assert code == (-signal.SIGKILL if fault else 0)
    assert words == "my words\n"


def test_a_process_that_cannot_start_is_told_in_the_log(
    tmp_path: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three attempts, then the job fails, and its log has the process's own words."""
    monkeypatch.setattr("rocmlab.runs.workers.workers.WORKER", "rocmlab.runs.there_is_no_such_worker")

    done = execute(tmp_path, Slots([], cpu), {"n": ("1",)})

    log = done.folder.file("n", "log").read_text()
    assert done.results[0].status == "failed"
    assert "exited with code 1" in done.results[0].error["value"]
    assert log.count("No module named rocmlab.runs.there_is_no_such_worker") == 3


# -- Conversion


@pytest.mark.long
def test_a_conversion_survives_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is retried in a new one; what cannot be converted is told, and the next one is converted."""
    good = notebook_files.write(tmp_path / "good.ipynb", "pass")
    (tmp_path / "bad.ipynb").write_text("{")
    started: list[Link] = []

    class Killed(Link):
        def __init__(self, module: str, environment: dict[str, str]) -> None:
            super().__init__(module, environment)
            started.append(self)
            if module == CONVERTER and len(started) == 1:
                self.process.kill()
                self.process.wait()
                self.process.returncode = None  # as if it were killed just after it was looked at

    monkeypatch.setattr("rocmlab.runs.workers.converter.Link", Killed)

    async def several() -> list[str | None]:
        workers = Workers(os.environ)
        convert = workers.converter.convert
        said = [await convert(tmp_path / f"{name}.ipynb", tmp_path / "out.html") for name in ("bad", "good")]
        workers.converter.stop()
        said.append(await convert(good, tmp_path / "never.html"))
        await workers.close()
        return said

    bad, fine, hurried = asyncio.run(several())

    assert len(started) == 2
    assert "JSON" in (bad or "")
    assert fine is None
    assert "pass" in (tmp_path / "out.html").read_text()
    assert hurried == "the run was ended"
    assert not (tmp_path / "never.html").exists()


def convert_with(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a notebook with a converter that is another program; it is in the module `another`."""
    (folder / "modules").mkdir()
    (folder / "modules/another.py").write_text(source)
    monkeypatch.setattr("rocmlab.runs.workers.converter.PROGRAM", "another")
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'modules'}:{os.environ['PYTHONPATH']}"}
    cpu = Device(backend="cpu", index=0, name="a processor", is_usable=True)
    return execute(folder, Slots([], cpu), {"n": ("1",)}, environment=environment)


@pytest.mark.long
def test_a_conversion_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is killed, the job is in the journal before that, and the result says why there is no HTML."""
    monkeypatch.setattr("rocmlab.runs.workers.converter.CONVERSION_SECONDS", 1.5)
    source = "import os, pathlib, sys, time\npathlib.Path(%r).write_text(str(os.getpid()))\ntime.sleep(600)"

    done = convert_with(source % str(tmp_path / "pid"), tmp_path, monkeypatch)

    written = json.loads(done.folder.results_path.read_text())["jobs"][0]
    events = {event["event"]: event["time"] for event in done.folder.journal()}
    first, last = (
        datetime.fromisoformat(events[f"{which} finished"].replace("Z", "+00:00")) for which in ("job", "run")
    )
    assert (written["status"], written["warnings"]) == ("ok", ["no HTML: it took longer than 1.5 s"])
    assert sorted(written["files"]) == ["log", "notebook"]
    assert (last - first).total_seconds() > 1
    assert not is_alive(int((tmp_path / "pid").read_text()))


@pytest.mark.long
def test_an_interrupted_conversion_is_made_up_for_when_the_run_is_continued(
    tmp_path: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C gives a converter that hangs a short time; the job has its result, and only the HTML is made later."""
    monkeypatch.setattr("rocmlab.runs.runner.CONVERT_TIMEOUT_SECONDS", 0.5)
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(600)")
    path = notebook_files.write(tmp_path / "n.ipynb", "open('starts', 'a').write('x')")
    jobs = notebook_files.jobs([path])
    folder = RunFolder.create(tmp_path / "share", "test")

    class Interrupts(Watcher):
        def finished(self, result: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("rocmlab.runs.workers.converter.PROGRAM", "hangs")
        patch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
        cut = run(jobs, folder=folder, slots=Slots([], cpu), display=Interrupts())
    before = Before({"n": cut.results[0]}, {}, cut.started, cut.seconds, [])

    done = run(jobs, folder=folder, slots=Slots([], cpu), display=Watcher(), before=before)

    assert cut.is_interrupted
    assert (cut.results[0].status, cut.results[0].warnings) == ("ok", ["no HTML: the run was ended"])
    assert (done.results[0].status, done.results[0].warnings) == ("ok", [])
    assert sorted(done.results[0].files) == ["html", "log", "notebook"]
    assert (tmp_path / "starts").read_text() == "x"


@pytest.mark.long
def test_a_converter_that_cannot_be_started_costs_only_the_html(
    tmp_path: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job runs in the worker that was there, the run continues, and no worker is left."""

    class Refused(Link):
        def __init__(self, module: str, environment: dict[str, str]) -> None:
            if module == CONVERTER:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            super().__init__(module, environment)

    monkeypatch.setattr("rocmlab.runs.workers.converter.Link", Refused)

    done = execute(tmp_path, Slots([], cpu), {"1": (SAYS_WHO,), "2": (SAYS_WHO,)})

    assert [result.status for result in done.results] == ["ok", "ok"]
    assert all("no HTML: no process could be started" in result.warnings[0] for result in done.results)
    assert worker_of(done, "1") == worker_of(done, "2")
    assert not is_alive(worker_of(done, "1"))


# -- What is not the job's fault


def test_an_idle_worker_that_died_is_closed(tmp_path: Path) -> None:
    """Its socket and its file are not kept until the run ends."""

    async def count() -> tuple[int, int]:
        workers = Workers(os.environ)
        first = workers.take()
        before = psutil.Process().num_fds()
        for _ in range(5):
            first.process.kill()
            first.process.wait()
            workers.give_back(first)
            first = workers.take()
        end = time.monotonic() + 10
        while psutil.Process().num_fds() > before and time.monotonic() < end:
            await asyncio.sleep(0.01)
        found = before, psutil.Process().num_fds()
        await workers.close()
        return found

    before, after = asyncio.run(count())

    assert after <= before + 1


def test_files_where_the_run_is_started_are_not_imported(
    tmp_path: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules of the same names as those of the worker and the converter lie in the current folder."""
    for name in ("nbformat", "queue", "zmq", "runpy", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is not the module that you look for')")
    (tmp_path / "here").mkdir()
    (tmp_path / "here/only_by_relative_path.py").write_text("print('found', flush=True)")
    monkeypatch.chdir(tmp_path)

    done = execute(tmp_path, Slots([], cpu), {"a/n": ("1",)})

    assert [(result.status, result.warnings) for result in done.results] == [("ok", [])]
    assert done.folder.file("n", "html").exists()

    async def words() -> str:
        link = Link("only_by_relative_path", {**os.environ, "PYTHONPATH": "here"})
        await link.exit_code()
        found = link.last_output()
        await link.close()
        return found

    assert asyncio.run(words()) == "found\n"


def test_a_full_disk_costs_the_log_and_not_the_job(
    tmp_path: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is written to the log fails; the notebook runs to its end, and it is said once."""
    path = notebook_files.write(tmp_path / "n.ipynb", "print('x' * 1000)", "import os; os.write(2, b'y' * 1000)")
    folder = RunFolder.create(tmp_path / "share", "test")
    monkeypatch.setattr(safe, "append", lambda _: open("/dev/full", "ab"))  # noqa: SIM115  the runner closes it

    done = run(notebook_files.jobs([path]), folder=folder, slots=Slots([], cpu), display=Watcher())

    (result,) = done.results
    assert (result.status, result.cells_done) == ("ok", 2), result.error
    assert result.warnings == ["its log is not complete: No space left on device"]


@pytest.mark.long
def test_a_job_that_ended_by_itself_is_not_called_killed(tmp_path: Path, cpu: Device) -> None:
    """The run is interrupted when the worker has said that the notebook failed."""

    class Interrupts(Watcher):
        def event(self, job: Any, event: dict[str, Any]) -> None:
            super().event(job, event)
            if event["event"] == "ended":
                os.kill(os.getpid(), signal.SIGINT)

    path = notebook_files.write(tmp_path / "n.ipynb", "1 / 0")
    folder = RunFolder.create(tmp_path / "share", "test")

    done = run(notebook_files.jobs([path]), folder=folder, slots=Slots([], cpu), display=Interrupts())

    assert done.is_interrupted
    assert (done.results[0].status, done.results[0].error["name"]) == ("failed", "ZeroDivisionError")


@pytest.mark.long
def test_an_error_of_ours_fails_one_job_only(tmp_path: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of the second job goes while the first runs, and the third is none of their business."""
    specs = tmp_path / "jupyter"
    notebook_files.write_kernel(specs / "kernels/goes", str(specs / "goes"))
    (specs / "goes").symlink_to(sys.executable)
    monkeypatch.setenv("JUPYTER_PATH", f"{specs}:{os.environ['JUPYTER_PATH']}")
    remove = f"import shutil; shutil.rmtree({str(specs)!r})"
    paths = [
        notebook_files.write(tmp_path / "1.ipynb", remove),
        notebook_files.write(tmp_path / "2.ipynb", "1", kernel="goes"),
        notebook_files.write(tmp_path / "3.ipynb", "1"),
    ]
    jobs = notebook_files.jobs(paths)
    folder = RunFolder.create(tmp_path / "share", "test")

    done = run(jobs, folder=folder, slots=Slots([], cpu), display=Watcher())

    assert [result.status for result in done.results] == ["ok", "failed", "ok"]
    assert "goes" in done.results[1].error["value"]


# -- kill -9

PROGRAM = """
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
DESCENDANTS = """
import os, subprocess, sys, time
from pathlib import Path
program = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(program, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""
READY = "import os, time\nfrom pathlib import Path\n"
READY += "Path('pids').write_text(f'{os.getppid()} {os.getpid()} {os.environ[\"ROCMLAB_JOB\"]} end')\n"
NEVER_LETS_GO = "import re\nre.match('(a+)+$', 'a' * 60 + 'b')  # holds the interpreter, and hears no signal"
SLEEPS = "time.sleep(600)"


@contextmanager
def running(folder: Path, *cells: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int, str]]:
    """Run a notebook in a runner of its own; yield the runner, the worker, the kernel and the mark."""
    path = notebook_files.write(folder / "n.ipynb", *cells)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], env=environment) as runner:
        assert eventually(lambda: "end" in ((folder / "pids").read_text() if (folder / "pids").exists() else ""), 60)
        worker, kernel, mark, _ = (folder / "pids").read_text().split()
        try:
            yield runner, int(worker), int(kernel), mark
        finally:
            runner.kill()
            job_tokens.end(mark, 0)


def is_worker(process: psutil.Process) -> bool:
    """Return whether a process is a worker; one that has just ended is none."""
    try:
        return "rocmlab.runs.workers.serving" in process.cmdline()
    except psutil.Error:
        return False


@pytest.mark.parametrize("last", [SLEEPS, NEVER_LETS_GO], ids=["silent", "holds the GIL"])
def test_nothing_is_left_of_a_runner_that_is_killed(tmp_path: Path, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker, converter, kernel, what left the kernel's group and session, and the job's folder are soon gone."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    locks, gpu = Leases.of_host(), hosts.device(0)
    with running(tmp_path, DESCENDANTS, READY + last) as (runner, worker, kernel, mark):
        helpers = [child.pid for child in psutil.Process(runner.pid).children()]
        assert eventually(lambda: len(job_tokens.find(mark)) >= 3, 10)
        before = job_tokens.find(mark)
        assert not locks.is_free(gpu)
        assert len(list((tmp_path / "scratch").glob("rocmlab-job-*"))) == 1
        assert not list((tmp_path / "scratch").glob("rocmlab-job-*/job.json"))

        runner.kill()
        began = time.monotonic()
        is_gone = eventually(
            lambda: not any(map(is_alive, helpers)) and not job_tokens.find(mark) and locks.is_free(gpu), 10
        )
        seconds = time.monotonic() - began

    assert kernel in before
    assert worker in helpers
    assert is_gone
    assert not list((tmp_path / "scratch").glob("rocmlab-job-*"))
    assert seconds < GONE_WITHIN_SECONDS


def test_a_worker_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """The runner ends what it has left, even what hears no signal, and says what happened."""
    locks, gpu = Leases.of_host(), hosts.device(0)
    with running(tmp_path, DESCENDANTS, READY + NEVER_LETS_GO) as (runner, worker, kernel, mark):
        os.kill(worker, signal.SIGKILL)
        began = time.monotonic()
        is_gone = eventually(lambda: not job_tokens.find(mark) and locks.is_free(gpu), 10)
        seconds = time.monotonic() - began
        runner.wait(20)

    written = json.loads(next(tmp_path.glob("runs/*/results.json")).read_text())
    assert is_gone
    assert not is_alive(kernel)
    assert seconds < GONE_WITHIN_SECONDS
    assert written["jobs"][0]["status"] == "killed"
    assert "its worker was killed (SIGKILL)" in written["jobs"][0]["error"]["value"]


def test_a_kernel_does_not_outlive_both(tmp_path: Path) -> None:
    """With runner and worker killed at once no one is there to end it but the operating system."""
    locks, gpu = Leases.of_host(), hosts.device(0)
    with running(tmp_path, READY + NEVER_LETS_GO) as (runner, worker, kernel, _):
        os.kill(worker, signal.SIGSTOP)  # so that it cannot do it
        runner.kill()
        os.kill(worker, signal.SIGKILL)
        began = time.monotonic()
        is_gone = eventually(lambda: not is_alive(kernel) and locks.is_free(gpu), 10)
        seconds = time.monotonic() - began

    assert is_gone
    assert seconds < GONE_WITHIN_SECONDS
