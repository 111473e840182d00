"""A card whose driver never answers costs a second, once, and never the run."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import notebook_files
import pytest

from rocmlab.base.background import BackgroundReader
from rocmlab.cli import leases
from rocmlab.devices import Device, discover
from rocmlab.kernels import gpu_processes, ownership
from rocmlab.runs.command import main
from rocmlab.runs.scheduling import placement
from rocmlab.runs.scheduling.placement import free_vram
from rocmlab.simulation import write_host

pytestmark = pytest.mark.slow

PROCESSES = "sys/class/kfd/kfd/proc/4711/vram_{kfd_id}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two notebooks, as the current folder."""
    for name in "ab":
        notebook_files.write(tmp_path / f"notebooks/{name}.ipynb", "print(1)")
    monkeypatch.chdir(tmp_path)
    for module in (gpu_processes, placement):  # what hangs in one test must not count in the next
        monkeypatch.setattr(module, "DRIVERS", BackgroundReader(seconds=0.5))
    return tmp_path


def hang(root: Path, file: str) -> None:
    """Let a file of the first card, such as `{kfd_id}`, never answer."""
    path = file.format(kfd_id=discover(root)[0].kfd_id)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("2147483648\n")
    path = str((root / path).resolve().relative_to(root.resolve()))  # behind the links of /sys
    faults = root / "rocmlab-faults.json"
    faults.write_text(json.dumps({**json.loads(faults.read_text()), path: "hang"}))


def test_what_hangs_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    """The first who asks waits a little, the others not at all; when it answers again, it is asked again."""
    reader, gate, calls = BackgroundReader(seconds=0.2), threading.Event(), []

    def read() -> int:
        calls.append(1)
        gate.wait(60)
        return len(calls)

    async def several() -> tuple[list[int | None], float]:
        first = await asyncio.gather(*(asyncio.to_thread(reader.now, "a card", read) for _ in range(3)))
        begin = time.monotonic()
        again = [reader.now("a card", read) for _ in range(101)]
        return [*first, *again], time.monotonic() - begin

    with caplog.at_level(logging.WARNING, "rocmlab"):
        answers, seconds = asyncio.run(several())
    calls_meanwhile = len(calls)
    gate.set()
    end = time.monotonic() + 60
    while (answer := reader.now("a card", read)) is None:
        assert time.monotonic() < end

    assert answers == [None] * 104
    assert calls_meanwhile == 1
    assert seconds < 10  # a hundred times the limit are 20
    assert answer == 2
    assert [record.getMessage() for record in caplog.records] == [
        "could not read a card: no answer within 0.2 s; continuing without it"
    ]


def test_what_answers_is_passed_on_as_it_is() -> None:
    """Also an error, and also to several who ask at once."""
    reader = BackgroundReader(seconds=60)

    async def several() -> list[int | None]:
        return await asyncio.gather(*(asyncio.to_thread(reader.now, "a card", lambda: 7) for _ in range(5)))

    assert asyncio.run(several()) == [7] * 5
    assert reader.now("nothing", lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        reader.now("a card", lambda: 1 // 0)


def test_a_hanging_sensor_hides_the_free_memory_and_no_more(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated host with the fault `hang`: what is free is unknown, soon, and at once the next time."""
    root = write_host(project / "host", gpus=2, faults=["hang:0"])
    monkeypatch.setenv("ROCMLAB_ROOT", str(root))
    hanging, sound = discover(root)[:2]

    first = free_vram(hanging)
    begin = time.monotonic()
    again = [free_vram(hanging) for _ in range(100)]
    seconds = time.monotonic() - begin

    assert first is None
    assert again == [None] * 100
    assert seconds < 25  # a hundred times the limit are 50
    assert free_vram(sound)


@pytest.mark.long
@pytest.mark.parametrize("file", ["", PROCESSES])
def test_a_run_goes_on_beside_a_card_that_hangs(
    file: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its sensors hang, or KFD's list of what uses it does: jobs are placed, leased and run to their end."""
    root = write_host(project / "host", gpus=2, faults=["hang:0"])
    monkeypatch.setenv("ROCMLAB_ROOT", str(root))
    if file:
        hang(root, file)

    with caplog.at_level(logging.WARNING, "rocmlab"):
        code = main(["a", "b", "--gpus", "2", "--vram", "1GB", "--warm", "off", "--timeout", "120", "--json"])

    results = json.loads(capsys.readouterr().out)
    assert code == 0
    hung = {"the memory", "the sensors", *(["the process list"] if file else [])}
    assert {
        line.removeprefix("could not read ").partition(" of 0000:")[0]
        for line in caplog.messages
        if "could not read" in line
    } == hung
    assert {job["devices"][0]["index"] for job in results["jobs"]} == {0, 1}
    assert (Path(results["run"]["folder"]) / "report.html").is_file()


def test_leases_are_shown_and_kernels_get_theirs_beside_a_card_that_hangs(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """KFD's list of what uses it never answers: `rocmlab leases` reports it, and JupyterLab's kernel has its GPU."""
    root = write_host(project / "host", gpus=2, faults=["hang:0"])
    monkeypatch.setenv("ROCMLAB_ROOT", str(root))
    hang(root, PROCESSES)

    code = leases.main("leases", ["--json"])
    found = json.loads(capsys.readouterr().out)["gpus"]
    leases.main("leases", [])
    text = capsys.readouterr().out
    owned = ownership.claim("all", "a.ipynb", {}, "PyTorch")
    owned.release()

    assert code == 0
    assert [gpu["foreign"] for gpu in found] == [None, []]
    assert text.count("its driver does not answer, so its processes are not known") == 1
    assert [device.index for device in owned.devices] == [0, 1]
    assert owned.lease


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Device], threading.Event, threading.Event]:
    """Two NVIDIA GPUs whose driver is slow; whether it was asked, and whether it may answer."""
    devices = [Device(backend="cuda", index=index, name="a GPU", is_usable=True) for index in range(2)]
    is_asked, may_answer = threading.Event(), threading.Event()

    def slowly(some: list[Device], _root: Path) -> dict[Device, list]:
        is_asked.set()
        may_answer.wait(0.8)
        return {device: [] for device in some}

    monkeypatch.setattr(gpu_processes, "on_devices", slowly)
    return devices, is_asked, may_answer


def test_threads_that_ask_the_same_driver_get_their_own_gpus(
    nvidia: tuple[list[Device], threading.Event, threading.Event],
) -> None:
    """Two kernels of JupyterLab start at once, each on its NVIDIA GPU; neither hears of the other's."""
    devices, is_asked, may_answer = nvidia
    with ThreadPoolExecutor() as threads:
        first = threads.submit(gpu_processes.in_time, devices[:1])
        is_asked.wait(5)
        second = threads.submit(gpu_processes.in_time, devices[1:])
        time.sleep(0.2)  # until it waits for the same answer
        may_answer.set()

    assert list(first.result()) == devices[:1]
    assert list(second.result()) == devices[1:]


def test_jobs_that_ask_the_same_driver_get_their_own_gpus(
    nvidia: tuple[list[Device], threading.Event, threading.Event],
) -> None:
    """Two jobs of a run look at the same moment, each at its NVIDIA GPU; the second asks again for its own."""
    devices, _is_asked, may_answer = nvidia

    async def both() -> list[dict[Device, list[gpu_processes.GpuProcess]]]:
        asyncio.get_running_loop().call_later(0.2, may_answer.set)  # when both wait for the same answer
        return await asyncio.gather(*(gpu_processes.awaited([device]) for device in devices))

    assert asyncio.run(both()) == [{device: []} for device in devices]
