"""PyTorch on several devices from one notebook, through torchelastic (`torch.distributed.run`).

Workers cannot be made from a notebook's own functions: those do not pickle, and a CUDA or HIP context does
not survive a fork. So the workers run a script, one process per device.
"""

from __future__ import annotations

import ctypes
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rocmlab.devices import visibility
from rocmlab.errors import RocmlabError
from rocmlab.training import interpreters

Ranks = dict[int | None, deque[str]]  # the last lines of each rank; None: of torchelastic itself
KEPT_LINES = 15  # of each rank, for the error
GRACE_SECONDS = 15  # for torchelastic to end its workers
LINE = re.compile(r"^\[rank(?P<rank>\d+)\]: ?(?:\[rank\d+\]: ?)?(?P<text>.*)$")  # PyTorch may say it twice
FAILED_RANK = re.compile(r"Root Cause.*?rank\s*:\s*(\d+)", re.DOTALL)
RANK = Path(__file__).with_name("rank.py")
NCCL_FIX = "try NCCL_P2P_DISABLE=1, then NCCL_SHM_DISABLE=1, then HSA_ENABLE_SDMA=0; NCCL_DEBUG=WARN says more"


def run(
    script: str | Path,
    *arguments: str,
    processes: int | None = None,
    gpus: Sequence[int] = (),
    time_limit_seconds: float = 600,
) -> None:
    """Run a PyTorch script in one process per device, and show its output line by line.

    Each process finds RANK, LOCAL_RANK and WORLD_SIZE in its environment; LOCAL_RANK numbers its GPU.

    Args:
        script: the program, written for one device.
        arguments: what it gets on its command line.
        processes: how many processes on the CPU; GPUs are hidden from them, and they share the cores evenly.
        gpus: the GPUs to use instead, numbered as PyTorch numbers them in this process.
        time_limit_seconds: after which all of it is ended.

    Raises:
        RocmlabError: a process failed (with its last lines), the time was up, or PyTorch is not here.
    """
    if bool(processes) == bool(gpus):
        raise RocmlabError("say either processes or gpus", "a run is on the CPU or on GPUs", "run(script, processes=2)")
    count = len(gpus) if gpus else int(processes or 0)
    torch = interpreters.find("torch")
    env = _environment(torch.environment(), count, gpus)
    options = ["--standalone", f"--nproc-per-node={count}", "--role=rank", "--tee=3"]
    ranks: Ranks = {}
    with tempfile.TemporaryDirectory(prefix="rocmlab-launch-") as logs:  # torchelastic tees through files
        options.append(f"--log-dir={logs}")
        command = [torch.python, "-m", "torch.distributed.run", *options, str(RANK), str(script), *arguments]
        try:
            code = _stream(command, env, time.monotonic() + time_limit_seconds, ranks)
        except TimeoutError as err:
            raise RocmlabError(
                f"{script} was not done after {time_limit_seconds:g} seconds on {count} devices",
                _last_lines(ranks) or "it printed nothing",
                "raise time_limit_seconds" + (f"; if a collective hangs: {NCCL_FIX}" if gpus else ""),
                exit_code=1,
            ) from err
    if code != 0:
        raise _failure(script, code, ranks, bool(gpus))


def _stream(command: list[str], env: dict[str, str], deadline: float, ranks: Ranks) -> int:
    """Run the command, show and keep what it prints, and return its exit code; nothing of it outlives this.

    Raises:
        TimeoutError: the deadline passed.
    """
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_end_with_parent(),
    )
    try:
        for line in _lines(process, deadline):
            _show(line, ranks)
        return process.wait()
    finally:
        _end(process)


def _environment(base: dict[str, str], count: int, gpus: Sequence[int]) -> dict[str, str]:
    env = visibility.narrow(base, gpus)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    env["OMP_NUM_THREADS"] = env["MKL_NUM_THREADS"] = str(max(1, cores // count))
    env["PYTHONUNBUFFERED"] = "1"  # lines appear when they are printed
    # torchelastic's own log repeats for every rank what the error below says once.
    env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if not gpus:
        # Without it gloo asks for the address of this host's name, which a container or laptop may not have.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    return env


def _end_with_parent() -> Callable[[], None] | None:
    """Return what a Linux child calls so that it ends when the notebook's kernel is killed, and not later."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

    return ask


def _lines(process: subprocess.Popen[str], deadline: float) -> Iterator[str]:
    """Yield lines as they come.

    Raises:
        TimeoutError: the deadline passed.
    """
    stdout = process.stdout
    assert stdout is not None
    arrived: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        with stdout:
            for line in stdout:
                arrived.put(line.rstrip("\n"))
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            return
        yield line


def _show(line: str, ranks: Ranks) -> None:
    """Print a line of a worker, and keep the last ones of each; torchelastic's own lines are only kept."""
    match = LINE.match(line)
    rank = int(match["rank"]) if match else None
    text = match["text"] if match else line
    ranks.setdefault(rank, deque(maxlen=200 if rank is None else KEPT_LINES)).append(text)
    if match:
        sys.stdout.write(f"[rank {rank}] {text}\n")
        sys.stdout.flush()


def _failure(script: str | Path, code: int, ranks: Ranks, is_gpu: bool) -> RocmlabError:
    own = "\n".join(ranks.get(None, ()))
    match = FAILED_RANK.search(own)
    rank = int(match[1]) if match else None
    who = f"rank {rank} of {script}" if rank is not None else f"{script}"
    last = ranks.get(rank) or ranks.get(None) or ()
    return RocmlabError(
        f"{who} failed (exit code {code})",
        "\n".join(list(last)[-KEPT_LINES:]) or "it printed nothing",
        f"mend {script} where these lines point" + (f"; if RCCL is to blame: {NCCL_FIX}" if is_gpu else ""),
        exit_code=1,
    )


def _last_lines(ranks: Ranks) -> str:
    return "\n".join(f"[rank {rank}] {lines[-1]}" for rank, lines in ranks.items() if rank is not None)


def _end(process: subprocess.Popen[str]) -> None:
    """End torchelastic and, through it, its workers, which are in sessions of their own."""
    if process.poll() is not None:
        return
    workers = _descendants(process.pid)
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        for pid in workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _descendants(parent: int) -> list[int]:
    """Return the processes below `parent`. Source: /proc/<pid>/stat; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = [parent]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
