"""Jobs of a run whose kernels are forked from a warm parent, and jobs that start cold and say why."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import notebook_files
import pytest
from watching import Watcher

from rocmlab.devices import Device
from rocmlab.runner.folder import RunFolder
from rocmlab.runner.jobs import name_uniquely
from rocmlab.runner.leases import Leases
from rocmlab.runner.placement import Slots
from rocmlab.runner.plan import Rules
from rocmlab.runner.preflight import examine
from rocmlab.runner.runs import Run, run
from rocmlab.runner.selection import Found

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")

PRELOADED = "rocmlab_preloaded"  # a module that only the parent imports
SAYS = f"""
import os, sys
from pathlib import Path
print("warm", {PRELOADED!r} in sys.modules, "parent", os.getppid(), "mask", os.environ["HIP_VISIBLE_DEVICES"], "end")
links = [Path(f"/proc/self/fd/{{number}}") for number in os.listdir("/proc/self/fd")]
print("locks", sum(os.readlink(link).endswith(".lock") for link in links if os.path.lexists(link)), "end")
print(*(path.read_text() for path in Path("../share/leases").glob("*.json")))
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
    folder: Path, devices: list[Device], cpu: Device, *cells: str, count: int, display: Any = None, **rules: Any
) -> Run:
    """Run the same notebook so many times."""
    path = notebook_files.write(folder / "notebooks/n.ipynb", *cells, kernel="can-be-warm")
    jobs = name_uniquely(examine([Found(str(path), path)] * count, {}))
    share = RunFolder.create(folder / "share", "test")
    return run(jobs, folder=share, slots=Slots(devices, cpu), display=display or Watcher(), rules=Rules(**rules))


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
    assert all(map(Leases.of_share(tmp_path / "share").is_free, gpus))


@pytest.mark.parametrize(("count", "rules"), [(1, {}), (2, {"warm": "off"}), (2, {"engine": "papermill"})])
def test_kernels_start_cold_where_a_parent_is_of_no_use(
    tmp_path: Path, preload: Path, gpus: list[Device], cpu: Device, count: int, rules: dict[str, str]
) -> None:
    """For a single job, when that is asked for, and for the reference; nobody has to be told."""
    done = execute(tmp_path, gpus, cpu, SAYS, count=count, **rules)

    assert [(result.status, result.warnings) for result in done.results] == [("ok", [])] * count
    assert said(done, "warm") == ["False"] * count


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "thread"),
        ("raise RuntimeError('it has no driver')", "it has no driver"),
    ],
    ids=["thread", "error"],
)
def test_a_parent_that_must_not_fork_is_told_and_done_without(
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


def test_a_parent_that_is_killed_is_replaced(tmp_path: Path, preload: Path, gpus: list[Device], cpu: Device) -> None:
    """The first job's end is the parent's; the others are forked from another one."""

    class Killer(Watcher):
        def event(self, job: Any, event: dict[str, Any]) -> None:
            super().event(job, event)
            if event["event"] == "ended" and job.name == "n":
                log = next((tmp_path / "share").glob("runs/*/n.log")).read_text()
                os.kill(int(log.partition("parent ")[2].split()[0]), signal.SIGKILL)

    done = execute(tmp_path, gpus[:1], cpu, SAYS, count=3, display=Killer())

    assert [result.status for result in done.results] == ["ok"] * 3
    assert said(done, "warm") == ["True"] * 3
    parents = said(done, "parent")
    assert parents[0] != parents[1] == parents[2]
