"""The processes of a job on several devices: their environment, their output, and that none outlives the job.

Every process of a job has a job token in its environment, so that processes that its ranks started themselves (a
DataLoader's workers) and abandoned when they died are found also.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from rocmlab.base import cores, job_tokens
from rocmlab.devices import visibility
from rocmlab.training import network

GRACE_SECONDS = 15  # for a process to end by itself after SIGTERM
# Where ranks of several machines would meet. Without it a program that does not use the private store of its rank (one
# that a rank starts, for example) reports an error instead of opening a port.
OF_A_NETWORK = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "NCCL_COMM_ID")
TOKEN = "ROCMLAB_RANKS"  # not ROCMLAB_JOB: by that the runner finds what a dead kernel left, these ranks among it


def rank_environment(base: Mapping[str, str], count: int, gpus: Sequence[int]) -> dict[str, str]:
    """Return the environment of `count` ranks: these GPUs, an even share of the cores; an error if masks hide them."""
    env = visibility.narrow(base, gpus)
    env["OMP_NUM_THREADS"] = env["MKL_NUM_THREADS"] = str(max(1, cores.count() // count))
    env["PYTHONUNBUFFERED"] = "1"  # lines appear when they are printed
    env[TOKEN] = secrets.token_hex(8)
    if not gpus:
        env.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave the core to the other ranks
    # PyTorch's own log repeats the error for every rank.
    env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # A collective that fails or takes too long ends its process; cleaning up first may hang as the collective did.
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    env.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "60")  # of the thread that watches over the collectives
    for name in OF_A_NETWORK:
        env.pop(name, None)
    return env | network.on_this_machine()  # whatever is set: other machines take no part, and must reach nothing


def end_with_parent() -> Callable[[], None] | None:
    """Return what a Linux child calls so that it ends when the notebook's kernel is killed, and not later."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def request() -> None:
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

    return request


def start(
    command: Sequence[str], env: Mapping[str, str], output: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a process in a session of its own that ends with this one; all it prints goes to `output`."""
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=end_with_parent(),
    )


def end(processes: Sequence[subprocess.Popen[str]], token: str, grace_seconds: float = GRACE_SECONDS) -> None:
    """End the processes of a job, with SIGKILL after a grace, and whatever of it is left; reap all of them."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + grace_seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.poll() is None:
            process.kill()
    for pid in job_tokens.find(token, TOKEN):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        # A process in a driver's uninterruptible sleep outlives SIGKILL; waiting for it would hang this kernel also.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)


def exit_text(code: int) -> str:
    """Return how a process ended: its exit code, or the signal that killed it (a negative code)."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (", often because memory is exhausted" if name == "SIGKILL" else "")
