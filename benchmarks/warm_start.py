"""From starting a kernel to a framework that has multiplied its first matrices: from a fork server, and cold.

Both run the same cell under the same interpreter, take turns, and get their request in the same way: it is sent
immediately and waits for the kernel. The fork server's own start is not counted; `queue_vs_sequential` has it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.environment import write_specification
from rocmlab.base.errors import RocmlabError
from rocmlab.kernels import kernel, kernelspec, recipes
from rocmlab.kernels.fork_server import ForkServer
from rocmlab.kernels.forked import Refused

READY_SECONDS = 300.0
CELL_SECONDS = 300
RETRY_MILLISECONDS = 5  # how often a socket that is not there yet is tried; a kernel does not wait
KERNELS = {"warm_start_torch": "torch", "warm_start_tensorflow": "tensorflow"}
CELLS = {
    "torch": "import torch\nassert float((torch.ones(200, 200) @ torch.ones(200, 200)).sum()) == 8e6",
    "tensorflow": (
        "import tensorflow, keras\n"
        "assert float(tensorflow.reduce_sum(tensorflow.ones((200, 200)) @ tensorflow.ones((200, 200)))) == 8e6"
    ),
}


def missing(row: str) -> str | None:
    """Say why a row cannot be measured here; None if it can."""
    name = KERNELS[row]
    specification = _specification(name)
    if specification is None:
        return f"no kernelspec found: {name}"
    if not recipes.modules_for(name, specification):
        return f"the kernel {name} is not forked here: warm kernels are Python's own, on Linux"
    return None


def measure(row: str, runs: int) -> tuple[list[float], list[float]]:
    """Return seconds, warm and cold, measured alternately.

    Args:
        row: a name of `KERNELS`.
        runs: how often each is measured, after one round that does not count.

    Raises:
        RocmlabError: there is no such kernel, or it cannot be forked here.
    """
    name = KERNELS[row]
    specification = _specification(name)
    if specification is None:
        raise _not_here(name, str(missing(row)))
    modules = recipes.modules_for(name, specification)
    times: tuple[list[float], list[float]] = ([], [])
    with _folder() as folder, _kernelspec(folder, name, specification):
        spec = kernelspec.find(name)
        inherited = {**os.environ, "IPYTHONDIR": str(folder / "ipython")}
        environment = kernelspec.environment(specification, inherited)
        server = ForkServer(specification["argv"][0], modules, environment, folder)
        try:
            if not modules or not server.ready(READY_SECONDS):
                raise _not_here(name, server.why or f"it was not ready after {READY_SECONDS:g} seconds")
            for number in range(runs + 1):
                seconds = (
                    _seconds(name, lambda: kernel.start(spec, str(folder), inherited, fork_server=server.address)),
                    _seconds(name, lambda: kernel.start(spec, str(folder), inherited)),
                )
                for side, value in zip(times, seconds, strict=True):
                    side.extend([value] if number else [])
        except Refused as err:
            raise _not_here(name, str(err)) from err
        finally:
            server.close()
    return times


def _not_here(name: str, why: str) -> RocmlabError:
    return RocmlabError(
        f"no warm kernel {name}", why, f"a lab with the kernel {name} on Linux; rocmlab kernels lists them"
    )


def _specification(name: str) -> dict[str, Any] | None:
    """Return a kernelspec without its provisioner, for no GPU is requested; None if there is none of that name."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        found: dict[str, Any] = KernelSpecManager(ensure_native_kernel=False).get_kernel_spec(name).to_dict()
    except NoSuchKernel:
        return None
    found["metadata"] = {}
    return found


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as folder:
        yield Path(folder)


@contextmanager
def _kernelspec(folder: Path, name: str, specification: Mapping[str, Any]) -> Iterator[None]:
    """Have a plain kernelspec found before any other of its name."""
    write_specification(folder, name, specification)
    before = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, (str(folder), before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["JUPYTER_PATH"]
        else:
            os.environ["JUPYTER_PATH"] = before


def _seconds(name: str, start: Callable[[], kernel.Kernel]) -> float:
    began = time.monotonic()
    started = start()
    try:
        reply = _first_cell(started.connection, CELLS[name])
        seconds = time.monotonic() - began
    finally:
        started.destroy()
    if reply["status"] != "ok":
        raise _not_here(name, f"its first cell failed: {reply.get('ename')}: {reply.get('evalue')}")
    return seconds


def _first_cell(connection: Mapping[str, Any], code: str) -> dict[str, Any]:
    """Send a cell at once, whether the kernel listens yet or not, and wait for its reply."""
    import zmq
    from jupyter_client.session import Session

    session = Session(key=connection["key"].encode())
    between = "-" if connection["transport"] == "ipc" else ":"
    place = f"{connection['transport']}://{connection['ip']}{between}{connection['shell_port']}"
    with zmq.Context() as context, context.socket(zmq.DEALER) as shell:
        shell.linger = 0
        shell.reconnect_ivl = RETRY_MILLISECONDS
        shell.connect(place)
        content = {"code": code, "silent": True, "user_expressions": {}, "allow_stdin": False, "stop_on_error": True}
        session.send(shell, "execute_request", content)
        if not shell.poll(CELL_SECONDS * 1000):
            raise RocmlabError("a kernel of the benchmark does not answer", "", "rocmlab bench runner, again")
        reply: dict[str, Any] = session.recv(shell)[1]["content"]
    return reply
