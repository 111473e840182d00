"""A GPU that is broken or gone does not take one job of a run after another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import notebook_files
import pytest
from watching import Watcher

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.notebook.outcome import Executed, Outcome, Status
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.run import Run, run
from rocmlab.runs.scheduling.health import DEATHS, REST_SECONDS, Health, is_death
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.scheduling.plan import Rules
from rocmlab.runs.scheduling.pool import Pool

DEAD = Outcome("kernel died", "the kernel's process was ended by SIGSEGV")
OK = Outcome("ok")
DIES_ON = """
import os, signal, time
if os.environ["HIP_VISIBLE_DEVICES"] == {broken!r}:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.2)
"""


def failed(name: str, value: str) -> Outcome:
    """A notebook that ended with this error."""
    return Outcome("failed", notebook=Executed(0, 1, {}, {"name": name, "value": value}))


class Clock:
    """Time as a test has it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.seconds


@pytest.fixture
def pool(gpus: list[Device]) -> Pool:
    """Two GPUs, both free."""
    return Pool(gpus)


@pytest.mark.parametrize(
    ("outcome", "is_of_the_device"),
    [
        (DEAD, True),
        (failed("RuntimeError", "HIP error: unspecified launch failure"), True),
        (failed("AcceleratorError", "CUDA error: an illegal memory access was encountered"), True),
        (failed("XlaRuntimeError", "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS"), True),
        (Outcome("failed", "GPU 0 is gone", is_unplaced=True), True),
        (failed("OutOfMemoryError", "HIP out of memory. Tried to allocate 2 GiB"), False),
        (failed("RuntimeError", "HIP error: out of memory"), False),
        (failed("AcceleratorError", "CUDA error: device-side assert triggered"), False),
        (failed("ValueError", "shapes differ"), False),
        (Outcome("failed"), False),
        (Outcome("killed", "perhaps because the memory was full"), False),
        (Outcome("timeout"), False),
        (OK, False),
    ],
)
def test_what_counts_as_the_devices_fault(outcome: Outcome, is_of_the_device: bool) -> None:
    """A kernel that died, and errors of the runtime; a full memory and errors of the notebook do not."""
    assert is_death(outcome) is is_of_the_device


def test_a_gpu_rests_after_some_deaths_in_a_row(gpus: list[Device], pool: Pool) -> None:
    """It is used again after a while; the next death makes it rest for twice as long."""
    clock = Clock()
    health = Health(pool, clock)

    said = [health.note(gpus[:1], DEAD) for _ in range(DEATHS)]
    resting = [*pool]
    clock.seconds += REST_SECONDS - 1
    too_early = health.wake(is_idle=False)
    clock.seconds += 1
    in_time = health.wake(is_idle=False)
    again = [*pool]
    second = health.note(gpus[:1], DEAD)
    clock.seconds += REST_SECONDS
    still_resting = health.wake(is_idle=False)

    assert said[:-1] == [None] * (DEATHS - 1)
    assert f"GPU 0 gets no further job for 5:00, while others have one: {DEATHS} jobs" in str(said[-1])
    assert resting == [gpus[1]]
    assert (too_early, in_time) == (False, True)
    assert again == gpus
    assert "10:00" in str(second)
    assert not still_resting


def test_thousands_of_deaths_are_no_error(gpus: list[Device], pool: Pool) -> None:
    """All jobs of a long run may die; a rest takes an hour at most."""
    health = Health(pool)

    for _ in range(2000):
        said = health.note(gpus[:1], DEAD)

    assert "for 1:00:00" in str(said)


@pytest.mark.parametrize("status", ["ok", "failed", "skipped"])
def test_a_job_that_gets_through_ends_the_count(gpus: list[Device], pool: Pool, status: Status) -> None:
    """Deaths that are not in a row are the jobs' own."""
    health = Health(pool)

    said = [health.note(gpus[:1], each) for each in [*[DEAD] * (DEATHS - 1), Outcome(status)] * 3]

    assert said == [None] * len(said)
    assert [*pool] == gpus


def test_when_nothing_else_runs_all_are_used(gpus: list[Device], pool: Pool) -> None:
    """A job that needs every GPU gets them, and jobs that die everywhere have had their turn."""
    health = Health(pool)
    for gpu in gpus:
        for _ in range(DEATHS):
            health.note([gpu], DEAD)

    nothing_is_free = [*pool]
    woken = health.wake(is_idle=True)

    assert (nothing_is_free, woken) == ([], True)
    assert [*pool] == gpus
    assert not health.wake(is_idle=True)


def test_the_only_gpu_of_a_run_never_rests(gpus: list[Device]) -> None:
    """Nor is one blamed for a job that had several."""
    only, both = Pool(gpus[:1]), Pool(gpus)

    said = [Health(only).note(gpus[:1], DEAD) for _ in range(DEATHS)]
    said += [Health(both).note(gpus, DEAD) for _ in range(DEATHS)]

    assert said == [None] * len(said)
    assert [*only, *both] == [gpus[0], *gpus]


def run_all(jobs: list[Any], folder: RunFolder, slots: Slots, retries: int = 0) -> Run:
    """Run jobs."""
    return run(jobs, folder=folder, slots=slots, display=Watcher(), rules=Rules(retries=retries))


@pytest.mark.long
@pytest.mark.slow
def test_a_broken_gpu_does_not_take_the_queue(tmp_path: Path, slots: Slots, run_folder: RunFolder) -> None:
    """It is the free one each time: without a rest most jobs of the run would die on it."""
    path = notebook_files.write(tmp_path / "n.ipynb", DIES_ON.format(broken="0"))

    done = run_all(notebook_files.jobs([path] * 10), run_folder, slots)

    dead = [result for result in done.results if result.status == "kernel died"]
    assert len(dead) == DEATHS
    assert len([result for result in done.results if result.is_ok]) == 10 - DEATHS
    assert any("GPU 0 gets no further job" in note for note in done.notes)
    assert [event["devices"][0]["index"] for event in run_folder.journal() if event["event"] == "device rests"] == [0]


@pytest.mark.slow
def test_a_job_gets_the_number_that_its_gpu_has_now(
    tmp_path: Path, gpus: list[Device], cpu: Device, run_folder: RunFolder
) -> None:
    """When a GPU vanishes the others are counted again, and the old number may be one that someone else has leased."""

    def counted(asked: Sequence[Device]) -> list[Device]:
        return [replace(gpu, index=gpus.index(gpu) + 5) for gpu in asked]

    path = notebook_files.write(tmp_path / "n.ipynb", "import os; print('has', os.environ['HIP_VISIBLE_DEVICES'])")

    done = run_all(notebook_files.jobs([path]), run_folder, Slots(gpus[:1], cpu, numbered=counted))

    assert "has 5" in json.dumps(json.loads(run_folder.file("n", "notebook").read_text()))
    assert done.results[0].devices[0]["index"] == 5


@pytest.mark.slow
def test_a_job_whose_gpu_is_gone_gets_another(
    tmp_path: Path, gpus: list[Device], cpu: Device, run_folder: RunFolder
) -> None:
    """It has not begun, so that nothing is lost and nothing counts as a retry."""

    def present(asked: Sequence[Device]) -> Sequence[Device]:
        if gpus[0] in asked:
            raise RocmlabError("GPU 0, which this job had, is gone", "it is not there", "make doctor")
        return asked

    path = notebook_files.write(tmp_path / "n.ipynb", "import os; print('has', os.environ['HIP_VISIBLE_DEVICES'])")

    done = run_all(notebook_files.jobs([path] * 3), run_folder, Slots(gpus, cpu, numbered=present))

    assert done.is_ok
    assert [result.devices[0]["index"] for result in done.results] == [1, 1, 1]
    assert not any(result.attempts for result in done.results)
    assert any("it is gone" in note for note in done.notes)


@pytest.mark.slow
def test_a_job_none_of_whose_gpus_is_there_fails_with_the_reason(
    tmp_path: Path, gpus: list[Device], cpu: Device, run_folder: RunFolder
) -> None:
    """After a few attempts; the run ends."""

    def absent(asked: Sequence[Device]) -> Sequence[Device]:
        raise RocmlabError("the GPU, which this job had, is gone", "it is not there", "make doctor")

    path = notebook_files.write(tmp_path / "n.ipynb", "print(1)")

    done = run_all(notebook_files.jobs([path]), run_folder, Slots(gpus[:1], cpu, numbered=absent))

    (result,) = done.results
    assert result.status == "failed"
    assert "is gone" in str(result.error)
