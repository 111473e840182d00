"""What looking costs: a sample, a look at the processes, a day of history, a measured cell, the server with a viewer.

CPU times are those of this process, of all its threads; of a command they are its own and its children's. What is
measured is a simulated host with eight MI300X, written for it. Ours and theirs take turns.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import lab_server
from benchmarks.results import Results, check_names
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, Sample, discover
from rocmlab.simulation import Live
from rocmlab.simulation.processes import GpuUse
from rocmlab.telemetry.history import METRICS, History
from rocmlab.telemetry.measurement import measure as measure_cell
from rocmlab.telemetry.model import Snapshot
from rocmlab.telemetry.sampler import Sampler

GPUS = 8
SAMPLES = 250  # of one run
PASSES = 10  # over the processes, of one run
PROCESSES = 500
DAY_SECONDS = 86_400
CELL_SECONDS = 10.0
LIMIT_SECONDS = 120.0
ORACLE = "rocm-smi-6.4"  # below $ORACLES: AMD's own tool, on a simulated host
THEIRS = ("--showuse", "--showmeminfo", "vram", "--showtemp", "--showpower", "--json")
ROWS = (
    "sample_cpu",
    "sample_moving_cpu",
    "sample_guarded_cpu",
    "processes_cpu",
    "processes_first_cpu",
    "memory_24h",
    "cell_cost_percent",
    "server_cpu_percent",
)


def measure(runs: int, theirs: str | None = None, names: Sequence[str] = ROWS) -> Results:
    """Measure rows.

    Args:
        runs: how often each is measured, at least 1; the history's, a cell's and the server's no more than three times.
        theirs: a command to compare a sample with, which gets the simulated root as its first argument; None for
            `$ORACLES/rocm-smi-6.4`, where that is.
        names: of the rows.

    Raises:
        RocmlabError: there is no such row, or a command failed.
    """
    check_names(names, ROWS)
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as folder:
        live = Live(Path(folder, "host"), profile="instinct", gpus=GPUS, busy="waves")
        gpus = [device for device in discover(live.folder, {}) if device.backend == "rocm"]
        results = Results(f"{len(gpus)}x {gpus[0].name}")
        if any(name.startswith("sample") for name in names):
            _measure_samples(live, gpus, runs, _their_command(theirs), names, results)
        if any(name.startswith("processes") for name in names):
            _measure_processes(Path(folder, "busy"), runs, results)
        if "memory_24h" in names:
            for _ in range(min(runs, 3)):
                results.add("memory_24h", "MB", _growth_megabytes())
        if "cell_cost_percent" in names:
            for _ in range(min(runs, 3)):
                results.add("cell_cost_percent", "percent", _cell_percent(live))
        if "server_cpu_percent" in names:
            _measure_server(live, min(runs, 3), results)
        for name in set(results.ours) - set(names):
            del results.ours[name]
    return results


def _their_command(given: str | None) -> list[str]:
    if given is not None:
        return shlex.split(given)
    oracle = Path(os.environ.get("ORACLES") or "/nowhere", ORACLE)
    return [os.fspath(oracle)] if shutil.which(oracle) else []


def _measure_samples(
    live: Live, gpus: Sequence[Device], runs: int, theirs: Sequence[str], names: Sequence[str], results: Results
) -> None:
    """Measure a sample: of constant values, of values that all change, and by a thread that may be abandoned."""
    alone = Sampler(gpus, live.folder, limit_seconds=None, errors_seconds=0.0)
    guarded = Sampler(gpus, live.folder, errors_seconds=0.0)
    moving = _Moving(live) if "sample_moving_cpu" in names else None
    costs: dict[str, Callable[[], float]] = {
        "sample_cpu": lambda: _milliseconds(lambda: _times(alone.read, SAMPLES)) / SAMPLES,
        "sample_moving_cpu": lambda: sum(moving.next_cost(alone) for _ in range(SAMPLES)) / SAMPLES if moving else 0.0,
        "sample_guarded_cpu": lambda: _milliseconds(lambda: _times(guarded.read, SAMPLES)) / SAMPLES,
    }
    for run in range(runs + 1):
        found = {name: cost() for name, cost in costs.items() if name in names}
        if not run:
            continue  # the first only fills caches
        for name, milliseconds in found.items():
            results.add(name, "ms", milliseconds)
        if theirs and "sample_cpu" in names:
            other = _command_milliseconds([*theirs, os.fspath(live.folder), *THEIRS])
            results.theirs.setdefault("sample_cpu", []).append(other)
    alone.close()
    guarded.close()


class _Moving:
    """A host of which all values that can move do so before each sample; writing them is not measured."""

    def __init__(self, live: Live) -> None:
        self._states: list[dict[Path, bytes]] = []
        self._turn = 0
        paths = [path for path in (live.folder / "sys/devices").rglob("*") if path.is_file()]
        for step in range(12):
            live.step(float(step))
            self._states.append({path: path.read_bytes() for path in paths})

    def next_cost(self, sampler: Sampler) -> float:
        """Write the next state, and return what one sample of it costs in milliseconds."""
        before, self._turn = self._states[self._turn], (self._turn + 1) % len(self._states)
        for path, content in self._states[self._turn].items():
            if content != before[path]:
                with path.open("r+b") as file:
                    file.truncate(file.write(content))
        return _milliseconds(sampler.read)


def _measure_processes(folder: Path, runs: int, results: Results) -> None:
    """Measure a look at as many GPU processes; the first one has to find out more of each."""
    from rocmlab.telemetry.attribution import attribute
    from rocmlab.telemetry.owners import ProcSource

    command = ("python3", "-m", "ipykernel_launcher", "-f", "/run/kernel-0a1b2c3d-0000-4000-8000-000000000000.json")
    uses = [GpuUse(20_000 + turn, turn % GPUS, 1 << 28, 4, command=command) for turn in range(PROCESSES)]
    root = Live(folder, profile="instinct", gpus=GPUS, busy="50", processes=uses).folder
    gpus = [device for device in discover(root, {}) if device.backend == "rocm"]
    source = ProcSource(root)
    first = _milliseconds(lambda: attribute(gpus, root, [source]))
    found = attribute(gpus, root, [source])
    if len(found) != PROCESSES:
        raise RocmlabError(
            f"{len(found)} of {PROCESSES} processes were found", "the simulated host or the search is at fault", ""
        )
    results.add("processes_first_cpu", "ms", first)
    for _ in range(runs):
        cost = _milliseconds(lambda: _times(lambda: attribute(gpus, root, [source]), PASSES)) / PASSES
        results.add("processes_cpu", "ms", cost)


def _growth_megabytes() -> float:
    """Return by how much this process grows while a history takes 24 hours, once it has taken the first."""
    history = History()
    names = [f"0000:{bus:02x}:00.0" for bus in range(GPUS)]
    begin, at_first = 1_800_000_000.0, 0.0
    turns = []
    for step in range(100):
        sample = Sample(begin, **dict.fromkeys(METRICS, float(step)))  # type: ignore[arg-type]
        turns.append(dict.fromkeys(names, sample))
    for second in range(DAY_SECONDS + 3600):
        history.add(Snapshot(begin + second, turns[second % len(turns)]))
        if second == 3600:
            at_first = _resident_megabytes()
    return max(0.0, _resident_megabytes() - at_first)


def _resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cell_percent(live: Live) -> float:
    """Return which share of a core it costs to measure a cell on all GPUs; the cell itself sleeps."""

    def run() -> None:
        with measure_cell(show=False):
            time.sleep(CELL_SECONDS)

    before = os.environ.get("ROCMLAB_ROOT")
    os.environ["ROCMLAB_ROOT"] = str(live.folder)
    try:
        return _milliseconds(run) / 10 / CELL_SECONDS
    finally:
        os.environ.pop("ROCMLAB_ROOT")
        os.environ.update({} if before is None else {"ROCMLAB_ROOT": before})


def _measure_server(live: Live, runs: int, results: Results) -> None:
    why = lab_server.missing()
    if why:
        results.skipped["server_cpu_percent"] = why
        return
    for alone, ours in lab_server.measure(live.folder, runs):
        results.add("server_cpu_percent", "percent", ours - alone)


def _times(work: Callable[[], object], count: int) -> None:
    for _ in range(count):
        work()


def _milliseconds(work: Callable[[], object]) -> float:
    """Return what some work costs of the CPU."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def _command_milliseconds(command: Sequence[str]) -> float:
    """Return what a command costs of the CPU.

    Raises:
        RocmlabError: it failed, or printed no JSON.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise RocmlabError(f"{shlex.join(command)} could not be measured", str(err), "run it manually") from err
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = next((line for line in done.stdout.splitlines() if line.startswith("{")), "")
    try:
        is_json = bool(json.loads(printed))
    except ValueError:
        is_json = False
    if done.returncode or not is_json:
        raise RocmlabError(f"{shlex.join(command)} failed", (done.stderr or done.stdout)[-600:], "run it manually")
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3
