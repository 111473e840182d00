"""PyTorch on several devices from one notebook, through torchelastic (`torch.distributed.run`).

Workers cannot be made from a notebook's own functions: those do not pickle, and a CUDA or HIP context does
not survive a fork. So the workers run a script, one process per device.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from rocmlab.devices import Device, discover, visibility
from rocmlab.errors import RocmlabError
from rocmlab.training import children, interpreters
from rocmlab.training import collectives as probes
from rocmlab.training.collectives import Collectives

Ranks = dict[int | None, deque[str]]  # the last lines of each rank; None: of torchelastic itself
KEPT_LINES = 15  # of each rank, for the error
LINE = re.compile(r"^\[rank(?P<rank>\d+)\]: ?(?:\[rank\d+\]: ?)?(?P<text>.*)$")  # PyTorch may say it twice
FAILED_RANK = re.compile(r"\brank\s*:\s*(?P<rank>\d+)(?:[^\n]*\n\s*exitcode\s*:\s*(?P<code>-?\d+))?")
RANK = Path(__file__).with_name("rank.py")
TOLD = "ROCMLAB_COLLECTIVES"  # tells the ranks how to talk: nccl or gloo
NOTES = "ROCMLAB_RANK_NOTES"  # the folder where rank.py notes when its script raised


def run(
    script: str | Path,
    *arguments: str,
    processes: int | None = None,
    gpus: Sequence[int] = (),
    time_limit_seconds: float = 600,
    collectives: Collectives | None = None,
) -> None:
    """Run a PyTorch script in one process per device, and show its output line by line.

    Each process finds RANK, LOCAL_RANK and WORLD_SIZE in its environment; LOCAL_RANK numbers its GPU. How ranks talk
    is in ROCMLAB_COLLECTIVES, for `init_process_group`: `nccl` (RCCL on AMD) or `gloo`.

    Args:
        script: the program, written for one device.
        arguments: what it gets on its command line.
        processes: how many processes on the CPU; GPUs are hidden from them, and they share the cores evenly.
        gpus: the GPUs to use instead, numbered as PyTorch numbers them in this process; all of one kind.
        time_limit_seconds: after which all of it is ended.
        collectives: how GPUs talk to each other; None: found out first by `collectives.probe`, which remembers it.

    Raises:
        RocmlabError: a process failed (with its last lines), the time was up, the GPUs are of different kinds or
            cannot talk to each other, or PyTorch is not here.
    """
    if bool(processes) == bool(gpus):
        raise RocmlabError("say either processes or gpus", "a run is on the CPU or on GPUs", "run(script, processes=2)")
    count = len(gpus) if gpus else int(processes or 0)
    torch = interpreters.find("torch")
    env = children.rank_environment(torch.environment(), count, gpus)
    if len(gpus) > 1:
        refuse_mixed(_known(gpus))
        collectives = collectives or probes.probe(gpus=gpus)
        sys.stdout.write(f"{collectives.sentence()}\n")
    env[TOLD] = collectives.backend if collectives else "nccl" if gpus else "gloo"
    env |= collectives.environment if collectives else {}
    options = ["--standalone", f"--nproc-per-node={count}", "--role=rank", "--tee=3"]
    ranks: Ranks = {}
    with tempfile.TemporaryDirectory(prefix="rocmlab-launch-") as logs:  # torchelastic tees through files
        options.append(f"--log-dir={logs}")
        env[NOTES] = logs
        command = [torch.python, "-m", "torch.distributed.run", *options, str(RANK), str(script), *arguments]
        try:
            code = _stream(command, env, time.monotonic() + time_limit_seconds, ranks)
        except TimeoutError as err:
            raise RocmlabError(
                f"{script} was not done after {time_limit_seconds:g} seconds on {count} devices",
                _last_lines(ranks) or "it printed nothing",
                "raise time_limit_seconds" + _collective_fix(gpus),
                exit_code=1,
            ) from err
        if code != 0:
            raise _failure(script, code, ranks, gpus, Path(logs))


def refuse_mixed(gpus: Sequence[Device]) -> None:
    """Make sure that GPUs can share one job: one name, one gfx, no processor's own graphics beside a card.

    Raises:
        RocmlabError: they cannot; with the largest group that can.
    """
    kinds: dict[tuple[str, str | None, bool], list[Device]] = {}
    for gpu in gpus:
        kinds.setdefault((gpu.name, gpu.gfx, bool(gpu.is_apu)), []).append(gpu)
    if len(kinds) < 2:
        return
    cards = [group for (_name, _gfx, is_apu), group in kinds.items() if not is_apu] or list(kinds.values())
    largest = max(cards, key=len)
    raise RocmlabError(
        "GPUs of different kinds cannot share one job: " + ", ".join(_kind(gpu) for gpu in gpus),
        "a collective over different kinds hangs or fails (a processor's own graphics beside a card always does), "
        "and every step would wait for the slowest",
        "use GPUs of one kind: HIP_VISIBLE_DEVICES=" + ",".join(str(gpu.index) for gpu in largest),
    )


def _kind(gpu: Device) -> str:
    return f"{gpu.name} ({', '.join(filter(None, [gpu.gfx, 'APU' if gpu.is_apu else '', gpu.pci_address]))})"


def _known(gpus: Sequence[int]) -> list[Device]:
    """Return the GPUs at these places as the system describes them; empty where it does not know them (WSL2)."""
    left = visibility.remaining(discover(), os.environ)
    return [left[number] for number in gpus] if max(gpus) < len(left) else []


def _stream(command: list[str], env: dict[str, str], deadline: float, ranks: Ranks) -> int:
    """Run the command, show and keep what it prints, and return its exit code; nothing of it outlives this.

    Raises:
        TimeoutError: the deadline passed.
    """
    process = children.start(command, env)
    try:
        for line in children.lines(process, deadline):
            _show(line, ranks)
        return process.wait()
    finally:
        children.end([process], env[children.MARK])


def _show(line: str, ranks: Ranks) -> None:
    """Print a line of a worker, and keep the last ones of each; torchelastic's own lines are only kept."""
    match = LINE.match(line)
    rank = int(match["rank"]) if match else None
    text = match["text"] if match else line
    ranks.setdefault(rank, deque(maxlen=200 if rank is None else KEPT_LINES)).append(text)
    if match:
        sys.stdout.write(f"[rank {rank}] {text}\n")
        sys.stdout.flush()


def _failure(script: str | Path, code: int, ranks: Ranks, gpus: Sequence[int], notes: Path) -> RocmlabError:
    rank, code = _culprit("\n".join(ranks.get(None, ())), code, notes)
    who = f"rank {rank} of {script}" if rank is not None else f"{script}"
    # What a rank prints and its errors come by two files, in any order; the error that it noted is what it said last.
    error = _noted(notes, rank)[1].splitlines()
    known = {line.strip() for line in error}
    lines = [line for line in ranks.get(rank, ()) if line.strip() not in known] + error
    return RocmlabError(
        f"{who} failed ({children.ending(code)})",
        "\n".join(lines[-KEPT_LINES:]) or "it printed nothing",
        f"mend {script} where these lines point" + _collective_fix(gpus),
        exit_code=1,
    )


def _culprit(told: str, code: int, notes: Path) -> tuple[int | None, int]:
    """Return the rank that failed first and its exit code; the others fail because their partner is gone.

    A rank that was killed or left at once has written no note. An abort without a note comes late: so ends a process
    whose collective never came back. SIGTERM comes last: torchelastic itself ends the others so.

    Args:
        told: torchelastic's own lines, with the failures it saw ("rank : 1 (local_rank: 1)", "exitcode : -9").
        code: torchelastic's exit code, for want of a better one.
        notes: the folder with what `rank.py` noted.
    """
    failed = {int(match["rank"]): int(match["code"] or code) for match in FAILED_RANK.finditer(told)}
    if not failed:
        return None, code

    def order(rank: int) -> tuple[int, int]:
        when, _error = _noted(notes, rank)
        if when is not None:
            return 1, when
        return {-signal.SIGABRT: 2, -signal.SIGTERM: 3}.get(failed[rank], 0), 0

    first = min(failed, key=order)
    return first, failed[first]


def _noted(notes: Path, rank: int | None) -> tuple[int | None, str]:
    """Return when a rank noted that it failed, in nanoseconds, None if it did not, and its error."""
    try:
        text = (notes / f"rank{rank}").read_text(encoding="utf-8")
    except OSError:
        return None, ""
    when, _, error = text.partition("\n")
    return int(when or 0), error


def _collective_fix(gpus: Sequence[int]) -> str:
    """Say what to do if the GPUs' talk is to blame, and look again next time how they can talk."""
    if len(gpus) < 2:
        return ""
    probes.forget(gpus)
    return "; if a collective is to blame: the next run probes the ways again, and NCCL_DEBUG=WARN says more"


def _last_lines(ranks: Ranks) -> str:
    return "\n".join(f"[rank {rank}] {lines[-1]}" for rank, lines in ranks.items() if rank is not None)
