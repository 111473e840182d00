"""Which job goes where, and when it waits."""

from __future__ import annotations

import pytest
from placing import take

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.placement import Slots, choose_gpus


def job(name: str, gpus=None) -> Job:
    """Return a job that asks for this many GPUs."""
    return Job(name=name, notebook=f"/{name}.ipynb", gpus=gpus)


def test_each_job_gets_one_gpu_of_its_own(gpus: list[Device], cpu: Device) -> None:
    """Two GPUs hold two jobs, and the third waits for the first that is given back."""
    slots, waiting = Slots(gpus, cpu, cores=8), [job("a"), job("b"), job("c")]

    first, second = take(slots, waiting), take(slots, waiting[1:])
    none = take(slots, waiting[2:])
    slots.release(second[1])
    third = take(slots, waiting[2:])

    assert [taken[0].name for taken in (first, second, third)] == ["a", "b", "c"]
    assert [taken[1].gpus[0].index for taken in (first, second, third)] == [0, 1, 1]
    assert none is None


def test_a_job_for_all_gpus_waits_and_is_not_overtaken(gpus: list[Device], cpu: Device) -> None:
    """Later jobs for one GPU would starve it; a job for the CPU takes nothing from it and goes ahead."""
    slots = Slots(gpus, cpu, cores=8)
    _, running = take(slots, [job("a")])
    waiting = [job("all", "all"), job("b"), job("c", 0), job("d", 0)]

    overtaker = take(slots, waiting)
    none = take(slots, [each for each in waiting if each is not overtaker[0]])
    slots.release(running)
    after = take(slots, waiting[:2])

    assert overtaker[0].name == "c"
    assert overtaker[1].devices == (cpu,)
    assert none is None
    assert after[0].name == "all"
    assert after[1].gpus == tuple(gpus)


def test_every_job_gets_its_turn_whatever_the_order(gpus: list[Device], cpu: Device) -> None:
    """Jobs for the same device start in the order in which they wait."""
    slots = Slots(gpus, cpu, cores=2)
    waiting = [job(f"{number}", wish) for number, wish in enumerate([None, "all", 1, 2, 0, None, "all", 0])]
    started, running = [], []

    while waiting or running:
        while taken := take(slots, waiting):
            waiting.remove(taken[0])
            running.append(taken[1])
            started.append(taken[0])
        slots.release(running.pop(0))

    on_gpus = [each.name for each in started if each.gpus != 0]
    assert on_gpus == ["0", "1", "2", "3", "5", "6"]
    assert [each.name for each in started if each.gpus == 0] == ["4", "7"]


def test_without_a_gpu_jobs_run_on_the_cpu_one_after_another(cpu: Device) -> None:
    """`all` of no GPUs is the CPU, and there is one place on it."""
    slots = Slots([], cpu, cores=4)

    taken, none = take(slots, [job("a", "all")]), take(slots, [job("b")])

    assert taken[1].devices == (cpu,)
    assert taken[1].threads == 4
    assert none is None


def test_gpus_that_are_not_there_are_never_replaced_by_the_cpu(gpus: list[Device], cpu: Device) -> None:
    """A notebook that requests a number of GPUs gets them or a problem."""
    assert Slots(gpus, cpu).problem(job("a", 2)) is None
    assert "asks for 3 GPUs" in Slots(gpus, cpu).problem(job("a", 3)).what
    assert Slots([], cpu).problem(job("a", 1)) is not None
    assert Slots([], cpu).problem(job("a", "all")) is None


def test_the_environment_pins_the_device_and_shares_the_cores(gpus: list[Device], cpu: Device) -> None:
    """Masks name the GPU, threads are cores by slots, and what the user set stays."""
    slots = Slots(gpus, cpu, cores=8)
    _, zero = take(slots, [job("zero")])
    _, one = take(slots, [job("one")])
    _, processor = take(slots, [job("processor", 0)])

    found = one.environment({"PATH": "/bin", "MKL_NUM_THREADS": "3", "ROCR_VISIBLE_DEVICES": "1"})

    assert zero.environment({})["HIP_VISIBLE_DEVICES"] == "0"
    assert found["HIP_VISIBLE_DEVICES"] == found["CUDA_VISIBLE_DEVICES"] == "1"
    assert found["PATH"] == "/bin"
    assert found["MKL_NUM_THREADS"] == "3"
    assert found["OMP_NUM_THREADS"] == found["OPENBLAS_NUM_THREADS"] == found["TF_NUM_INTRAOP_THREADS"] == "4"
    assert "ROCR_VISIBLE_DEVICES" not in found
    assert processor.environment({})["HIP_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize(("given", "expected"), [("3", "3"), ("3,2", "4"), ("", "4")])
def test_openmps_threads_are_those_of_all(gpus: list[Device], cpu: Device, given: str, expected: str) -> None:
    """PyTorch would go by MKL's, and use all cores of the slot; a list, of nested regions, is OpenMP's own."""
    _, place = take(Slots(gpus, cpu, cores=8), [job("one")])

    found = place.environment({"OMP_NUM_THREADS": given})

    assert found["OMP_NUM_THREADS"] == given
    assert found["MKL_NUM_THREADS"] == found["OPENBLAS_NUM_THREADS"] == found["TF_NUM_INTRAOP_THREADS"] == expected


@pytest.mark.parametrize(
    ("choice", "environment", "indices"),
    [
        (None, {}, [0, 1]),
        ("all", {}, [0, 1]),
        ("none", {}, []),
        ("1", {}, [0]),
        ("2", {}, [0, 1]),
        ("1,", {}, [1]),
        ("1,0", {}, [1, 0]),
        ("0000:04:00.0", {}, [1]),
        (None, {"HIP_VISIBLE_DEVICES": "1"}, [1]),
        (None, {"HIP_VISIBLE_DEVICES": "-1"}, []),
        (None, {"ROCMLAB_BACKEND": "cpu"}, []),
        ("all", {"ROCMLAB_BACKEND": "rocm"}, [0, 1]),
    ],
)
def test_a_run_uses_the_gpus_it_was_given(
    choice: str | None, environment: dict[str, str], indices: list[int], gpus: list[Device], cpu: Device
) -> None:
    """The choice decides; without one, what the lab itself was given."""
    assert [gpu.index for gpu in choose_gpus([*gpus, cpu], choice, environment)] == indices


@pytest.mark.parametrize("choice", ["0", "3", "2,", "0,0", "radeon"])
def test_a_choice_that_cannot_be_had_is_an_error(choice: str, gpus: list[Device], cpu: Device) -> None:
    """Too many, unknown or ambiguous GPUs stop the run before it starts."""
    with pytest.raises(RocmlabError) as caught:
        choose_gpus([*gpus, cpu], choice, {})

    assert choice.strip(",") in caught.value.problem.what
    assert caught.value.problem.fix
