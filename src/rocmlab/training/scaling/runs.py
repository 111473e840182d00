"""Runs the measures in processes of their own, one set of GPUs after the other."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import visibility
from rocmlab.training import children, interpreters, launch, network
from rocmlab.training.collectives import Collectives
from rocmlab.training.placement import Description, alike
from rocmlab.training.scaling.measures import Measure, Results

HERE = Path(__file__).parent
LISTING = "import json; from rocmlab.training import placement; print(json.dumps(placement.visible('torch')))"


def team() -> list[Description]:
    """Return the GPUs of one kind that PyTorch sees, asked in its own interpreter; empty where there are none."""
    told = interpreters.run("torch", "-c", LISTING, time_limit_seconds=300)
    return alike(json.loads(told.splitlines()[-1]))


def counts(gpus: int) -> list[int]:
    """Return how many GPUs are measured together: 1, 2, 4, … and all of them."""
    powers = [2**power for power in range(gpus.bit_length()) if 2**power <= gpus]
    return sorted({*powers, gpus} - {0})


def ddp(
    measures: Sequence[Measure],
    *,
    processes: int | None = None,
    gpus: Sequence[int] = (),
    time_limit_seconds: float = 600,
    collectives: Collectives | None = None,
) -> Results:
    """Run measures with PyTorch, one process per device, and return what each found, by name.

    If it fails on the way, what was found before is returned, and the others have the reason as `error`.

    Raises:
        RocmlabError: it failed before the first result; see `launch.run`.
    """
    with tempfile.TemporaryDirectory(prefix="rocmlab-scaling-") as name:
        order, result, error = Path(name, "order.json"), Path(name, "result.json"), ""
        order.write_text(json.dumps({"is_gpu": bool(gpus), "measures": list(measures)}))
        try:
            launch.run(
                HERE / "ddp.py",
                str(order),
                str(result),
                processes=processes,
                gpus=gpus,
                time_limit_seconds=time_limit_seconds,
                collectives=collectives,
            )
        except RocmlabError as err:
            if not result.is_file():
                raise
            error = str(err)
        read = json.loads(result.read_text())
    found = {one["name"]: {**one, "torch": read["torch"]} for one in read["results"]}
    missing = {one["name"]: {"name": one["name"], "error": error} for one in measures if one["name"] not in found}
    return {**found, **missing}


def keras_jax(
    measure: Measure,
    *,
    processes: int | None = None,
    gpus: Sequence[int] = (),
    time_limit_seconds: float = 600,
) -> dict[str, Any]:
    """Run one measure with Keras on JAX, all devices in one process, and return what it found.

    Args:
        measure: see `measures.keras`.
        processes: how many parts of the CPU, simulated by XLA.
        gpus: the GPUs to use instead, as the framework numbers them in this process.
        time_limit_seconds: after which it is ended.

    Raises:
        RocmlabError: it failed, it took too long, or JAX does not see the devices.
    """
    count = len(gpus) if gpus else int(processes or 0)
    torch = interpreters.find("torch")
    env = visibility.narrow(torch.environment(), gpus) | network.on_this_machine()
    flags = [env.get("XLA_FLAGS", ""), measure.get("xla_flags", "")]
    if not gpus:
        flags.append(f"--xla_force_host_platform_device_count={count}")
        # XLA gives its collectives as many threads as there are cores; with fewer than devices they wait forever.
        env |= {"JAX_PLATFORMS": "cpu", "NPROC": str(max(8, 2 * count))}
    env |= {"XLA_FLAGS": " ".join(filter(None, flags)), "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "2")}
    with tempfile.TemporaryDirectory(prefix="rocmlab-scaling-") as name:
        order, result = Path(name, "order.json"), Path(name, "result.json")
        order.write_text(json.dumps({"is_gpu": bool(gpus), "devices": count, "measure": measure}))
        _program([torch.python, str(HERE / "keras_jax.py"), str(order), str(result)], env, time_limit_seconds)
        read: dict[str, Any] = json.loads(result.read_text())
    return {**read.pop("result"), **read}


def _program(command: list[str], env: dict[str, str], time_limit_seconds: float) -> None:
    """Run a program, its lines on stderr.

    Raises:
        RocmlabError: it failed or took too long, with its last lines.
    """
    mark = os.urandom(8).hex()
    process = children.start(command, {**env, children.MARK: mark})
    last: deque[str] = deque(maxlen=15)
    try:
        for line in children.lines(process, time.monotonic() + time_limit_seconds):
            last.append(line)
            sys.stderr.write(f"{line}\n")
        code = process.wait()
    except TimeoutError as err:
        what = f"{Path(command[1]).name} was not done after {time_limit_seconds:g} seconds"
        raise RocmlabError(what, "\n".join(last), "raise the time limit", exit_code=1) from err
    finally:
        children.end([process], mark)
    if code:
        raise RocmlabError(
            f"{Path(command[1]).name} failed ({children.ending(code)})",
            "\n".join(last) or "it printed nothing",
            "`make devices` shows the devices; JAX needs a plugin of its own to see GPUs",
            exit_code=1,
        )
