"""How long training takes: Keras' `fit` against `fit_resident`, the same model, data and backend.

Each row is measured by a process of its own (`train_row`), in the interpreter that has its backend: Keras has one
backend per process, and what one framework leaves on a device would disturb the next.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import visibility
from rocmlab.training import children, interpreters

BACKENDS = ("tensorflow", "torch", "jax")
WORKLOADS = ("mnist_fc", "mnist_cnn", "mnist_cnn_rmsprop", "unet", "unet_mixed")
ROWS = tuple(f"{workload}_{backend}" for workload in WORKLOADS for backend in BACKENDS)
USUAL = ("mnist_fc_tensorflow", "mnist_fc_torch", "mnist_fc_jax", "mnist_cnn_tensorflow")
DEVICES = ("auto", "gpu", "cpu")
# Of a quick epoch; the U-Net's are few anyway.
SHORT_SAMPLES = dict.fromkeys(("mnist_fc", "mnist_cnn", "mnist_cnn_rmsprop"), 6_400)


@dataclass(frozen=True)
class Report:
    """What was measured: `rows` as `train_row` returns them, and why the others were not."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # their backend is not installed, and they were not named
    failed: dict[str, RocmlabError] = field(default_factory=dict)


def measure(
    names: Sequence[str] | None = None,
    *,
    runs: int = 5,
    samples: int | None = None,
    quick: bool = False,
    device: str = "auto",
    options: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda line: None,
    each: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Measure rows, one after the other; one that fails is noted, and the next one is measured.

    Args:
        names: rows; None: the usual ones.
        runs: epochs of each side after the first, which compiles.
        samples: of an epoch; None: what suits workload and device, see `train_row.SAMPLES`.
        quick: `SHORT_SAMPLES` per epoch for the digits, unless `samples` is given.
        device: `auto`, `gpu` (an error where there is none) or `cpu` (GPUs are hidden).
        options: more keyword arguments of `train_row.measure`.
        say: prints a line of progress.
        each: receives the report so far after each row: the next one may take long.

    Raises:
        RocmlabError: a row is unknown, or none was measured.
    """
    if unknown := sorted(set(names or ()) - set(ROWS)):
        raise RocmlabError(f"no such row: {', '.join(unknown)}", "", f"use one of: {', '.join(ROWS)}")
    report = Report()
    for name in dict.fromkeys(names or USUAL):
        workload, _, backend = name.rpartition("_")
        try:
            interpreter = _interpreter(name, backend)
        except RocmlabError as err:
            if names:
                _fail(report, name, err, say)
            else:
                report.skipped[name] = err.problem.what
            continue
        say(f"{name}: measuring")
        count = samples or (SHORT_SAMPLES.get(workload) if quick else None)
        try:
            task = {"workload": workload, "backend": backend, "runs": runs, "samples": count, "device": device}
            report.rows.append({"name": name, **_run(interpreter, {**task, **(options or {})})})
        except RocmlabError as err:
            _fail(report, name, err, say)
        else:
            each(report)
    if not report.rows:
        raise _nothing(report)
    return report


def missing(backends: Sequence[str] = BACKENDS) -> dict[str, str]:
    """Return those backends that no kernel of the lab has, with the reason."""
    found = {}
    for backend in backends:
        try:
            _interpreter(backend, backend)
        except RocmlabError as err:
            found[backend] = err.problem.what
    return found


def _fail(report: Report, name: str, err: RocmlabError, say: Callable[[str], None]) -> None:
    report.failed[name] = err
    say(f"{name}: failed: {err.problem.what}")


def _nothing(report: Report) -> RocmlabError:
    """Return the error for a report without rows: that of the rows themselves if it is the same for all."""
    errors = list(report.failed.values())
    if errors and len({err.problem.what for err in errors}) == 1:
        return errors[0]
    reasons = report.skipped | {name: str(err.problem) for name, err in report.failed.items()}
    return RocmlabError(
        "nothing was measured",
        "\n".join(f"{name}: {why}" for name, why in reasons.items()),
        errors[0].problem.fix if errors else "run it in the lab: make bench",
        exit_code=1 if errors else 2,
    )


def environment(base: Mapping[str, str], backend: str, device: str) -> dict[str, str]:
    """Return the environment of a row's process: one backend, and no GPU where the CPU was requested."""
    env = {**base, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if device != "cpu":
        return env
    return {**visibility.apply(env, ()), "JAX_PLATFORMS": "cpu"}


def _interpreter(name: str, backend: str) -> interpreters.Interpreter:
    """Return the interpreter that can measure a row.

    Raises:
        RocmlabError: none was found, or it does not have Keras and the backend.
    """
    found = interpreters.find(backend)
    program = f"import importlib.util as u; print(*(n for n in ('keras', '{backend}') if u.find_spec(n) is None))"
    done = subprocess.run(
        [found.python, "-c", program], env=found.environment(), capture_output=True, text=True, check=False
    )
    missing = f"{found.python} has no {' and no '.join(done.stdout.split())}" if done.stdout.split() else ""
    if done.returncode:
        missing = f"{found.python} does not run: {done.stderr.strip()[-200:]}"
    if missing:
        raise RocmlabError(missing, f"so {name} cannot be measured", "make build, which installs it")
    return found


def _run(interpreter: interpreters.Interpreter, task: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as folder:
        answer = Path(folder, "row.json")
        # Its output goes to stderr, so that stdout stays JSON. A child of this group ends with Ctrl-C, and on Linux
        # with this process, however that ends.
        done = subprocess.run(
            [interpreter.python, "-m", "rocmlab.benchmarking.train_row", json.dumps(task), str(answer)],
            env=environment(interpreter.environment(), task["backend"], task["device"]),
            stdout=_stderr(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            preexec_fn=children.end_with_parent(),
        )
        if not answer.is_file():
            output = [line for line in done.stderr.splitlines() if line.strip()][-15:]
            raise RocmlabError(
                f"{task['workload']}_{task['backend']} was not measured: the process exited with {done.returncode}",
                "\n".join(output) or f"{interpreter.python} printed nothing",
                "fix the error above; `make doctor` checks the devices",
                exit_code=1,
            )
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if problem := found.get("problem"):
        raise RocmlabError(**problem)
    return found


def _stderr() -> int:
    """Return the descriptor of stderr; a notebook's has none."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return subprocess.DEVNULL
