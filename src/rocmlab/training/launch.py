"""PyTorch on several devices of this machine from one notebook.

Workers cannot be made from a notebook's own functions: those do not pickle, and a CUDA or HIP context does
not survive a fork. So the workers run a script, one process per device.
"""

from __future__ import annotations

import math
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.training import children, interpreters, ranks
from rocmlab.training import collectives as probes
from rocmlab.training.collectives import Collectives

RANK = Path(__file__).with_name("rank.py")
VARIABLE = "ROCMLAB_COLLECTIVES"  # how the ranks communicate: nccl or gloo


def run(
    script: str | Path,
    *arguments: str,
    processes: int | None = None,
    gpus: Sequence[int] = (),
    time_limit_seconds: float | None = None,
    collectives: Collectives | None = None,
    restarts: int = 0,
) -> None:
    """Run a PyTorch script in one process per device, and show its output line by line.

    Each process finds RANK, LOCAL_RANK and WORLD_SIZE in its environment; LOCAL_RANK numbers its GPU.
    ROCMLAB_COLLECTIVES is the backend for `init_process_group`: `nccl` (RCCL on AMD) or `gloo`. They find each other
    through a file that only this user can open, and their sockets are on the loopback.

    Args:
        script: the program, written for one device.
        arguments: its command-line arguments.
        processes: how many processes on the CPU; GPUs are hidden from them, and they share the cores evenly.
        gpus: the GPUs to use instead, numbered as PyTorch numbers them in this process; all of one kind.
        time_limit_seconds: after which all of it is ended; None: it may take as long as it needs.
        collectives: how GPUs communicate; None: found first by `collectives.probe`, which remembers it.
        restarts: how often all of them start again after one has failed; TORCHELASTIC_RESTART_COUNT counts for them.

    Raises:
        RocmlabError: a process failed (with its last lines), the time was up, the GPUs are of different kinds or
            cannot communicate, PyTorch is not installed, or a number is negative.
    """
    if bool(processes) == bool(gpus):
        raise RocmlabError(
            "pass either processes or gpus", "a run is on the CPU or on GPUs", "run(script, processes=2)"
        )
    if (processes or 0) < 0 or restarts < 0:
        raise RocmlabError(
            f"processes={processes}, restarts={restarts}: neither can be negative",
            "nothing would run",
            "run(script, processes=2, restarts=0)",
        )
    count = len(gpus) if gpus else int(processes or 0)
    torch = interpreters.find("torch")
    env = children.rank_environment(torch.environment(), count, gpus)
    if len(gpus) > 1:
        reject_mixed(probes.numbered(gpus))
        collectives = collectives or probes.probe(gpus=gpus)
        sys.stdout.write(f"{collectives.sentence()}\n")
    env[VARIABLE] = collectives.backend if collectives else "nccl" if gpus else "gloo"
    env |= collectives.environment if collectives else {}
    command = [torch.python, str(RANK), str(script), *arguments]
    deadline = math.inf if time_limit_seconds is None else time.monotonic() + time_limit_seconds
    for number in range(restarts + 1):
        with tempfile.TemporaryDirectory(prefix="rocmlab-launch-") as folder:
            found = ranks.run(command, env, count, Path(folder), deadline, (number, restarts))
            failure = _failure(script, found, gpus, Path(folder)) if found.failed else None
        if found.is_late:
            raise RocmlabError(
                f"{script} did not finish within {time_limit_seconds:g} seconds on {count} devices",
                "\n".join(f"[rank {rank}] {last[-1]}" for rank, last in sorted(found.lines.items()))
                or "it printed nothing",
                "raise time_limit_seconds" + _collective_fix(gpus),
                exit_code=1,
            )
        if failure is None:
            return
        if number == restarts:
            raise failure
        sys.stdout.write(f"{failure.problem.what}; restart {number + 1} of {restarts}\n")


def reject_mixed(gpus: Sequence[Device]) -> None:
    """Raise RocmlabError unless GPUs can share a job: one name, one gfx, no integrated graphics next to a card."""
    kinds: dict[tuple[str, str | None, bool], list[Device]] = {}
    for gpu in gpus:
        kinds.setdefault((gpu.name, gpu.gfx, bool(gpu.is_apu)), []).append(gpu)
    if len(kinds) < 2:
        return
    cards = [group for (_name, _gfx, is_apu), group in kinds.items() if not is_apu] or list(kinds.values())
    largest = max(cards, key=len)
    raise RocmlabError(
        "GPUs of different kinds cannot share one job: " + ", ".join(map(_kind, gpus)),
        "a collective over different kinds hangs or fails (integrated graphics next to a card always does), "
        "and every step would wait for the slowest",
        "use GPUs of one kind: HIP_VISIBLE_DEVICES=" + ",".join(str(gpu.index) for gpu in largest),
    )


def _kind(gpu: Device) -> str:
    return f"{gpu.name} ({', '.join(filter(None, [gpu.gfx, 'APU' if gpu.is_apu else '', gpu.pci_address]))})"


def _failure(script: str | Path, found: ranks.Attempt, gpus: Sequence[int], notes: Path) -> RocmlabError:
    rank, code = _culprit(found.failed, notes)
    # Output and errors of a rank arrive in two ways, in any order; the error that it noted is its last output.
    error = _noted(notes, rank)[1].splitlines()
    known = {line.strip() for line in error}
    lines = [line for line in found.lines.get(rank, ()) if line.strip() not in known] + error
    return RocmlabError(
        f"rank {rank} of {script} failed ({children.exit_text(code)})",
        "\n".join(lines[-ranks.KEPT_LINES :]) or "it printed nothing",
        f"fix {script} where these lines point" + _collective_fix(gpus),
        exit_code=1,
    )


def _culprit(failed: Mapping[int, int], notes: Path) -> tuple[int, int]:
    """Return the rank that failed first and its exit code; the others fail because their partner has exited.

    A rank that was killed or exited immediately has written no note. An abort without a note ranks later: that is
    how a process ends whose collective never returned. SIGTERM ranks last: the others are ended by it.
    """

    def order(rank: int) -> tuple[int, int]:
        when, _error = _noted(notes, rank)
        if when is not None:
            return 1, when
        return {-signal.SIGABRT: 2, -signal.SIGTERM: 3}.get(failed[rank], 0), 0

    first = min(failed, key=order)
    return first, failed[first]


def _noted(notes: Path, rank: int) -> tuple[int | None, str]:
    """Return when a rank noted that it failed, in nanoseconds, None if it did not, and its error."""
    try:
        text = (notes / f"rank{rank}").read_text(encoding="utf-8")
    except OSError:
        return None, ""
    when, _, error = text.partition("\n")
    return int(when or 0), error


def _collective_fix(gpus: Sequence[int]) -> str:
    """Return what to do if a collective is the cause; the next run probes the ways again."""
    if len(gpus) < 2:
        return ""
    probes.forget(gpus)
    return "; if a collective is the cause: the next run probes the ways again, and NCCL_DEBUG=WARN shows more"
