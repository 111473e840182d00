"""How long it takes to find the GPUs and to check the machine, measured as whole commands, interpreter start included.

Ours and theirs take turns within one run. Bytecode is kept between runs, as it is on any machine that has started
rocmlab before.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, discover, is_simulated, system_root

GPUS = 8  # of the simulated host that stands in where there is no AMD GPU
LIMIT_SECONDS = 120.0
THEIRS = "rocm-smi --showallinfo --json"  # what answers the same questions
UP_CHECKS = """\
import time
from rocmlab.stack import project as projects
project = projects.plan(projects.find())
started = time.monotonic()
from rocmlab import doctor
doctor.blocking(project)
print(time.monotonic() - started)
"""


@dataclass(frozen=True)
class Figures:
    """Milliseconds by name of the figure, and what was measured on."""

    device: str | None  # the first GPU
    gpus: int
    simulated: bool
    ours: dict[str, list[float]] = field(default_factory=dict)
    theirs: dict[str, list[float]] = field(default_factory=dict)


def measure(runs: int, theirs: str | None = None, project: Path | None = None) -> Figures:
    """Measure `devices_wall`, in a project folder `up_checks_wall` and `doctor_wall`, and what the interpreter costs.

    Args:
        runs: how often each figure is taken, at least 1.
        theirs: a command to compare `rocmlab devices` with; None for rocm-smi where it is installed.
        project: the clone, which the checks look at.

    Raises:
        RocmlabError: a measured command failed.
    """
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as folder:
        environment = _environment(Path(folder))
        found = _gpus(Path(environment["ROCMLAB_ROOT"]))
        figures = Figures(
            device=found[0].name if found else None,
            gpus=len(found),
            simulated=is_simulated(Path(environment["ROCMLAB_ROOT"])),
        )
        other = their_command(theirs, simulated=figures.simulated)
        rocmlab = [sys.executable, "-m", "rocmlab"]
        for run in range(max(1, runs) + 1):
            once = {"devices_wall": milliseconds([*rocmlab, "devices", "--json"], environment)}
            if project:
                once["up_checks_wall"] = _printed([sys.executable, "-c", UP_CHECKS], environment, project)
                command = [*rocmlab, "doctor", "--json", "--no-frameworks"]
                once["doctor_wall"] = milliseconds(command, environment, project, allowed=(0, 1, 2))
            once["interpreter_wall"] = milliseconds([sys.executable, "-c", "pass"], environment)
            compared = {"devices_wall": milliseconds(other, dict(os.environ))} if other else {}
            if run:  # the first only fills caches
                _add(figures.ours, once)
                _add(figures.theirs, compared)
    return figures


def their_command(chosen: str | None, *, simulated: bool) -> list[str]:
    """Return the command to compare with; rocm-smi cannot see a simulated host, so there it must be given.

    Raises:
        RocmlabError: what was given is no command.
    """
    if chosen is not None:
        try:
            words = shlex.split(chosen)
        except ValueError as err:
            raise _no_command(chosen, str(err)) from None
        if not words:
            raise _no_command(chosen, "it is empty")
        return words
    return shlex.split(THEIRS) if shutil.which("rocm-smi") and not simulated else []


def _no_command(text: str, why: str) -> RocmlabError:
    return RocmlabError(f"--theirs {text!r} is no command", why, f"quote it as a shell wants it: --theirs '{THEIRS}'")


def milliseconds(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None, allowed: Sequence[int] = (0,)
) -> float:
    """Return how long a command takes.

    Raises:
        RocmlabError: it failed, or did not end.
    """
    started = time.monotonic()
    _output(command, environment, folder, allowed)
    return (time.monotonic() - started) * 1e3


def _printed(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> float:
    return float(_output(command, environment, folder).split()[-1]) * 1e3


def _output(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None, allowed: Sequence[int] = (0,)
) -> str:
    by_hand = "run it by hand and mend what it says"
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise RocmlabError(f"{shlex.join(command)} could not be measured", str(err), by_hand) from err
    if done.returncode not in allowed:
        raise RocmlabError(f"{shlex.join(command)} failed", (done.stderr or done.stdout)[-600:], by_hand)
    return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a measured command: this package, bytecode kept, and a host with GPUs."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    source = str(Path(__file__).parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (source, kept.get("PYTHONPATH"))))
    kept["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    kept["ROCMLAB_ROOT"] = str(system_root())
    if not _gpus(system_root()):
        from rocmlab.simulation import write_host

        kept["ROCMLAB_ROOT"] = str(write_host(folder / "host", gpus=GPUS, profile="instinct"))
    return kept


def _gpus(root: Path) -> list[Device]:
    return [device for device in discover(root, {}) if device.backend == "rocm"]


def _add(figures: dict[str, list[float]], once: Mapping[str, float]) -> None:
    for name, value in once.items():
        figures.setdefault(name, []).append(value)
