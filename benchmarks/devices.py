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
from pathlib import Path

from benchmarks.environment import CLONE, python_path
from benchmarks.results import Results
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, discover, is_simulated, system_root
from rocmlab.simulation import write_host

GPUS = 8  # of the simulated host that is used where there is no AMD GPU
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


def measure(runs: int, theirs: str | None = None) -> Results:
    """Measure `devices_wall`, `up_checks_wall` and `doctor_wall` of this clone, and what the interpreter costs.

    Args:
        runs: how often each is measured, at least 1.
        theirs: a command to compare `rocmlab devices` with; None for rocm-smi where it is installed.

    Raises:
        RocmlabError: a measured command failed.
    """
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as folder:
        environment = _environment(Path(folder))
        root = Path(environment["ROCMLAB_ROOT"])
        found = _gpus(root)
        results = Results(f"{len(found)}x {found[0].name if found else None}", simulated=is_simulated(root))
        other = their_command(theirs, simulated=results.simulated)
        rocmlab = [sys.executable, "-m", "rocmlab"]
        doctor = [*rocmlab, "doctor", "--json", "--no-frameworks"]
        for run in range(runs + 1):
            once = {
                "devices_wall": milliseconds([*rocmlab, "devices", "--json"], environment),
                "up_checks_wall": float(_output([sys.executable, "-c", UP_CHECKS], environment).split()[-1]) * 1e3,
                "doctor_wall": milliseconds(doctor, environment, allowed=(0, 1, 2)),
                "interpreter_wall": milliseconds([sys.executable, "-c", "pass"], environment),
            }
            compared = {"devices_wall": milliseconds(other, dict(os.environ))} if other else {}
            if run:  # the first only fills caches
                for name, value in once.items():
                    results.add(name, "ms", value, compared.get(name))
    return results


def their_command(chosen: str | None, *, simulated: bool) -> list[str]:
    """Return the command to compare with; rocm-smi cannot see a simulated host, so there it must be given.

    Raises:
        RocmlabError: what was given is not a command.
    """
    if chosen is not None:
        try:
            command = shlex.split(chosen)
        except ValueError as err:
            raise _no_command(chosen, str(err)) from None
        if not command:
            raise _no_command(chosen, "it is empty")
        return command
    return shlex.split(THEIRS) if shutil.which("rocm-smi") and not simulated else []


def _no_command(text: str, why: str) -> RocmlabError:
    return RocmlabError(f"--theirs {text!r} is no command", why, f"quote it as a shell wants it: --theirs '{THEIRS}'")


def milliseconds(command: Sequence[str], environment: Mapping[str, str], allowed: Sequence[int] = (0,)) -> float:
    """Return how long a command takes in the clone.

    Raises:
        RocmlabError: it failed, or did not end.
    """
    started = time.monotonic()
    _output(command, environment, allowed)
    return (time.monotonic() - started) * 1e3


def _output(command: Sequence[str], environment: Mapping[str, str], allowed: Sequence[int] = (0,)) -> str:
    manually = "run it manually and fix what it reports"
    try:
        done = subprocess.run(
            command, cwd=CLONE, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise RocmlabError(f"{shlex.join(command)} could not be measured", str(err), manually) from err
    if done.returncode not in allowed:
        raise RocmlabError(f"{shlex.join(command)} failed", (done.stderr or done.stdout)[-600:], manually)
    return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a measured command: this package, bytecode kept, and a host with GPUs."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    kept["PYTHONPATH"] = python_path()
    kept["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    kept["ROCMLAB_ROOT"] = str(system_root())
    if not _gpus(system_root()):
        kept["ROCMLAB_ROOT"] = str(write_host(folder / "host", gpus=GPUS, profile="instinct"))
    return kept


def _gpus(root: Path) -> list[Device]:
    return [device for device in discover(root, {}) if device.backend == "rocm"]
