"""Jobs of a run whose kernels are forked from a fork server, and jobs that start cold and say why."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import notebook_files
import pytest
from watching import Watcher, eventually, is_alive

from rocmlab.devices import Device
from rocmlab.kernels.leases import Leases
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job, Request
from rocmlab.runs.run import Run, run
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.scheduling.plan import Rules
from rocmlab.runs.workers.forking import JobForkServers, group_of, recipe_of
from rocmlab.runs.workers.supervisor import Limits

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")]

PRELOADED = "rocmlab_preloaded"  # a module that only the parent imports
SAYS = f"""
import os, sys
from pathlib import Path
print("warm", {PRELOADED!r} in sys.modules, "parent", os.getppid(), "mask", os.environ["HIP_VISIBLE_DEVICES"], "end")
links = [Path(f"/proc/self/fd/{{number}}") for number in os.listdir("/proc/self/fd")]
print("locks", sum(os.readlink(link).endswith(".lock") for link in links if os.path.lexists(link)), "end")
print(*(path.read_text() for path in Path(os.environ["LEASES_DIR"]).glob("*.json")))
print("pid", os.getpid(), "end")
"""


@pytest.fixture
def preload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernelspec whose kernels can be forked, and the module that its parent imports."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / f"{PRELOADED}.py").write_text("")
    notebook_files.write_kernel(tmp_path / "jupyter/kernels/can-be-warm", sys.executable)
    path = tmp_path / "jupyter/kernels/can-be-warm/kernel.json"
    specification = json.loads(path.read_text())
    path.write_text(json.dumps({**specification, "metadata": {"rocmlab": {"preload": [PRELOADED]}}}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(modules), os.environ["PYTHONPATH"])))
    return modules / f"{PRELOADED}.py"


def execute(
    folder: Path,
    devices: list[Device],
    cpu: Device,
    *cells: str,
    count: int,
    display: Any = None,
    limits: Limits | None = None,
    **rules: Any,
) -> Run:
    """Run the same notebook this many times."""
    path = notebook_files.write(folder / "notebooks/n.ipynb", *cells, kernel="can-be-warm")
    jobs = notebook_files.jobs([path] * count)
    share = RunFolder.create(folder / "share", "test")
    slots = Slots(devices, cpu)
    return run(
        jobs, folder=share, slots=slots, display=display or Watcher(), limits=limits or Limits(), rules=Rules(**rules)
    )


def said(done: Run, label: str) -> list[str]:
    """Return what each job printed behind a word."""
    logs = [done.folder.file(result.name, "log").read_text() for result in done.results]
    return [log.partition(f"{label} ")[2].split()[0] for log in logs]


def test_kernels_of_several_jobs_are_forked(tmp_path: Path, preload: Path, gpus: list[Device], cpu: Device) -> None:
    """One parent for all; each kernel has its GPU and its lease, whose text names it, and nothing is warned of."""
    done = execute(tmp_path, gpus, cpu, SAYS, count=4)

    assert [(result.status, result.warnings) for result in done.results] == [("ok", [])] * 4
    assert said(done, "warm") == ["True"] * 4
    assert len(set(said(done, "parent"))) == 1
    assert set(said(done, "mask")) == {"0", "1"}
    assert said(done, "locks") == ["1"] * 4
    assert all(
        f'"pid": {pid}' in done.folder.file(result.name, "log").read_text()
        for pid, result in zip(said(done, "pid"), done.results, strict=True)
    )
    assert all(map(Leases.of_host().is_free, gpus))


@pytest.mark.long
@pytest.mark.parametrize(("count", "rules"), [(1, {}), (2, {"warm": "off"})])
def test_kernels_start_cold_where_a_fork_server_is_of_no_use(
    tmp_path: Path, preload: Path, gpus: list[Device], cpu: Device, count: int, rules: dict[str, str]
) -> None:
    """For a single job, and when that is requested; no one has to be told."""
    done = execute(tmp_path, gpus, cpu, SAYS, count=count, **rules)

    assert [(result.status, result.warnings) for result in done.results] == [("ok", [])] * count
    assert said(done, "warm") == ["False"] * count


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "thread"),
        ("raise RuntimeError('it has no driver')", "it has no driver"),
    ],
    ids=["thread", "error"],
)
def test_a_fork_server_that_must_not_fork_is_told_and_done_without(
    tmp_path: Path, preload: Path, gpus: list[Device], cpu: Device, source: str, reason: str
) -> None:
    """The jobs run cold, and the reason is in their results and their logs."""
    preload.write_text(source)

    done = execute(tmp_path, gpus, cpu, "import sys; print('run cold')", count=2)

    for result in done.results:
        assert result.status == "ok"
        assert len(result.warnings) == 1
        assert result.warnings[0].startswith("cold start: ")
        assert reason in result.warnings[0]
        assert f"--- warning: {result.warnings[0].splitlines()[0]}" in done.folder.file(result.name, "log").read_text()


@pytest.mark.long
def test_a_killed_fork_server_is_replaced(tmp_path: Path, preload: Path, gpus: list[Device], cpu: Device) -> None:
    """The first job's end is the parent's; the others are forked from another one."""

    class Killer(Watcher):
        def event(self, job: Any, event: dict[str, Any]) -> None:
            super().event(job, event)
            if event["event"] == "ended" and job.name == "n":
                log = next((tmp_path / "share").glob("runs/*/n.log")).read_text()
                parent = int(log.partition("parent ")[2].split()[0])
                os.kill(parent, signal.SIGKILL)
                # On a busy machine it lives on for a moment, in which the next job still gets its address.
                assert eventually(lambda: not is_alive(parent), 20)

    done = execute(tmp_path, gpus[:1], cpu, SAYS, count=3, display=Killer())

    assert [result.status for result in done.results] == ["ok"] * 3
    assert said(done, "warm") == ["True"] * 3
    parents = said(done, "parent")
    assert parents[0] != parents[1] == parents[2]


@pytest.mark.long
@pytest.mark.parametrize("warm", ["auto", "off"])
def test_the_memory_of_a_kernel_can_be_limited(
    tmp_path: Path, preload: Path, gpus: list[Device], cpu: Device, warm: str
) -> None:
    """An allocation beyond it fails in the cell that wants it, in a process that the cell starts too."""
    code = "try:\n    x = bytearray(2_000_000_000)\nexcept MemoryError:\n    print('too much')"
    child = f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {code!r}], text=True))"
    limits = Limits(memory_bytes=1_000_000_000)

    done = execute(tmp_path, gpus, cpu, SAYS, code, child, count=2, limits=limits, warm=warm)

    assert [result.status for result in done.results] == ["ok"] * 2
    assert said(done, "warm") == [str(warm == "auto")] * 2
    logs = [done.folder.file(result.name, "log").read_text() for result in done.results]
    assert [log.count("too much\n") for log in logs] == [2, 2]


def asked(path: Path, count: int = 2) -> list[Request]:
    """Return requests for a notebook, not examined."""
    return [Request(str(path), str(path)) for _ in range(count)]


@pytest.fixture
def servers() -> Iterator[JobForkServers]:
    """The fork servers of a run."""
    with contextlib.closing(JobForkServers()) as found:
        yield found


def address(servers: JobForkServers, job: Job, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the address of a fork server for a job with this environment, or why there is none."""
    assert job.kernelspec is not None
    recipe = recipe_of(job.kernelspec, environment)
    assert recipe is not None
    return servers.address(group_of(job), recipe)


def test_a_fork_server_imports_during_the_preflight(tmp_path: Path, preload: Path, servers: JobForkServers) -> None:
    """It was started for what the notebook names, before anything else was known, and is the one that the jobs get."""
    path = notebook_files.write(tmp_path / "n.ipynb", "1", kernel="can-be-warm")
    environment = dict(os.environ)

    servers.begin(asked(path), environment)
    (early,) = servers.all()
    jobs = notebook_files.jobs([path] * 2)
    servers.expect({group_of(jobs[0]): 2})

    assert address(servers, jobs[0], environment) == (early.address, None)
    assert early.ready(60)


def test_a_fork_server_that_no_job_can_use_is_ended(tmp_path: Path, preload: Path, servers: JobForkServers) -> None:
    """The jobs turn out to have another number of threads: they get a parent of their own, and the first one ends."""
    path = notebook_files.write(tmp_path / "n.ipynb", "1", kernel="can-be-warm")
    servers.begin(asked(path), {**os.environ, "OMP_NUM_THREADS": "1"})
    (early,) = servers.all()
    jobs = notebook_files.jobs([path] * 2)
    servers.expect({group_of(jobs[0]): 2})

    another, why = address(servers, jobs[0], {**os.environ, "OMP_NUM_THREADS": "2"})

    assert why is None
    assert another not in (None, early.address)
    assert early.why == "the fork server was closed"
    assert not Path(early.address).exists()


@pytest.mark.parametrize(
    ("text", "count", "gpus"),
    [
        *[(text, 2, None) for text in ("{", '{"metadata": {}}', "[]", None)],
        ("good", 1, None),
        ("good", 2, 2),
    ],
    ids=["broken", "no kernel", "no notebook", "missing", "a single job", "two GPUs"],
)
def test_no_fork_server_is_started_for_what_may_not_use_it(
    tmp_path: Path, preload: Path, servers: JobForkServers, text: str | None, count: int, gpus: int | None
) -> None:
    """Whatever is odd is left to those who examine it."""
    path = notebook_files.write(tmp_path / "n.ipynb", "1", kernel="can-be-warm")
    if text is None:
        path.unlink()
    elif text != "good":
        path.write_text(text)

    servers.begin([replace(each, gpus=gpus) for each in asked(path, count)], os.environ)

    assert servers.all() == []
