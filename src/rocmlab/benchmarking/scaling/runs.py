"""Runs the measures in processes of their own, one set of GPUs after the other."""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.benchmarking.scaling.measures import Measure, Results
from rocmlab.devices import visibility
from rocmlab.training import children, interpreters, launch, network, ranks
from rocmlab.training.collectives import Collectives
from rocmlab.training.placement import Description, alike

HERE = Path(__file__).parent
LISTING = "import json; from rocmlab.training import placement; print(json.dumps(placement.visible('torch')))"


def team() -> list[Description]:
    """Return the GPUs of one kind that PyTorch sees, queried in its own interpreter; empty where there are none."""
    output = interpreters.run("torch", "-c", LISTING, time_limit_seconds=300)
    return alike(json.loads(output.splitlines()[-1]))


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

    If it fails midway, what was found before is returned, and the others have the reason as `error`.

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
        command = [torch.python, str(HERE / "keras_jax.py"), str(order), str(result)]
        _program(command, env, Path(name), time_limit_seconds)
        read: dict[str, Any] = json.loads(result.read_text())
    return {**read.pop("result"), **read}


def _program(command: list[str], env: dict[str, str], folder: Path, time_limit_seconds: float) -> None:
    """Run a program of one process, and show its lines.

    Raises:
        RocmlabError: it failed or took too long, with its last lines.
    """
    name = Path(command[1]).name
    env = {**env, children.TOKEN: secrets.token_hex(8)}
    found = ranks.run(command, env, 1, folder, time.monotonic() + time_limit_seconds, (0, 0))
    last = "\n".join(found.lines.get(0, ())) or "it printed nothing"
    if found.is_late:
        what = f"{name} did not finish within {time_limit_seconds:g} seconds"
        raise RocmlabError(what, last, "raise the time limit", exit_code=1)
    if found.failed:
        raise RocmlabError(
            f"{name} failed ({children.exit_text(found.failed[0])})",
            last,
            "`make devices` shows the devices; JAX needs a plugin to use GPUs",
            exit_code=1,
        )
