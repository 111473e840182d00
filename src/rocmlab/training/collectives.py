"""How the chosen GPUs can communicate: tried before a training, in processes that can be ended.

RCCL (NCCL) hangs or fails on some mixtures of cards, drivers and firmware, and a hang inside a training looks like
slow work. So a small all-reduce runs first over exactly these GPUs, with a time limit; if it does not return, the
known remedies are tried one after the other, and the first that works is used for the training.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, device_id, discover, visibility
from rocmlab.training import children, interpreters
from rocmlab.training.interpreters import Interpreter

log = logging.getLogger("rocmlab")
PROGRAM = Path(__file__).with_name("collective_rank.py")
READY = "READY"
LIMIT_SECONDS = 30.0  # for the collectives, from when every rank has its device
START_SECONDS = 180.0  # for Python, PyTorch and the first touch of the GPUs
SUM_BYTES = {"cuda": 256 << 20, "cpu": 4 << 20}
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Rung:
    """One way to communicate: a backend of torch.distributed, and what it needs in the environment."""

    backend: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.backend, *(f"{name}={value}" for name, value in self.environment.items())])


# Source: the reports of hangs in ROCm's issue trackers; each rung costs more speed than the one before.
LADDER = (
    Rung("nccl"),
    Rung("nccl", {"NCCL_P2P_DISABLE": "1"}),  # through the host's shared memory
    Rung("nccl", {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),  # through sockets
    Rung("nccl", {"HSA_ENABLE_SDMA": "0"}),  # copies by kernels instead of the copy engines; nothing on NVIDIA
    Rung("gloo"),  # on the CPU
)


@dataclass(frozen=True)
class Collectives:
    """The way that works, and what was tried before it."""

    backend: str  # nccl (RCCL on AMD) or gloo
    environment: dict[str, str]  # the remedies it needs
    gigabytes_per_second: float  # of an all-reduce: bus bandwidth, as nccl-tests count it
    tried: tuple[str, ...] = ()  # what did not work, and how it failed
    is_remembered: bool = False  # found out by an earlier run

    def sentence(self) -> str:
        """Return how the devices communicate and how fast, and what did not work."""
        way = str(Rung(self.backend, self.environment))
        text = f"collectives: {way}, {self.gigabytes_per_second:.3g} GB/s"
        text += " (measured by an earlier run)" if self.is_remembered else ""
        return text + "".join(f"\n  did not work: {one}" for one in self.tried)


class _AttemptError(Exception):
    """One rung did not work."""


def probe(
    *,
    processes: int | None = None,
    gpus: Sequence[int] = (),
    limit_seconds: float = LIMIT_SECONDS,
    ladder: Sequence[Rung] | None = None,
    share: Path | None = None,
    again: bool = False,
    program: Path = PROGRAM,
) -> Collectives:
    """Return the first way in which these devices really add numbers up, with its bandwidth.

    Args:
        processes: how many processes on the CPU, which communicate by gloo.
        gpus: the GPUs to use instead, numbered as PyTorch numbers them in this process.
        limit_seconds: for the collectives of one attempt, from when every rank has its device.
        ladder: the ways, best first; None: `LADDER` for GPUs.
        share: where the result is remembered; None: `$ROCMLAB_SHARE`, or nowhere if that is not set.
        again: do not take what an earlier run remembered.
        program: what a rank runs.

    Raises:
        RocmlabError: no way works, the ranks do not even start, or PyTorch is missing.
    """
    count = len(gpus) if gpus else int(processes or 0)
    torch = interpreters.find("torch")
    place = _place(gpus, torch, share) if gpus else None
    if place and not again and (known := _recall(place)):
        return known
    env = children.rank_environment(torch.environment(), count, gpus)
    tried: list[str] = []
    for rung in ladder or (LADDER if gpus else LADDER[-1:]):
        if tried:
            log.warning("collectives: %s; trying %s", tried[-1], rung)
        try:
            speed = _attempt(rung, [torch.python, str(program)], env, count, "cuda" if gpus else "cpu", limit_seconds)
        except _AttemptError as err:
            tried.append(f"{rung}: {err}")
            continue
        found = Collectives(rung.backend, dict(rung.environment), speed, tuple(tried))
        if place:
            _remember(place, found)
        return found
    raise RocmlabError(
        f"{count} devices cannot communicate",
        "\n".join(tried),
        "`make doctor` checks the driver and the links; add iommu=pt to the kernel's command line; or use one device",
        exit_code=1,
    )


def numbered(gpus: Sequence[int]) -> list[Device]:
    """Return the GPUs with these numbers in this process; empty where the system does not know them so (WSL2)."""
    left = visibility.remaining(discover(), os.environ)
    return [left[number] for number in gpus] if gpus and max(gpus) < len(left) else []


def forget(gpus: Sequence[int], share: Path | None = None) -> None:
    """Forget what is remembered of these GPUs, so that the next run probes again."""
    if place := _place(gpus, interpreters.find("torch"), share):
        place.unlink(missing_ok=True)


def _attempt(rung: Rung, command: list[str], env: dict[str, str], count: int, kind: str, limit_seconds: float) -> float:
    """Run all ranks of one rung, none of which outlives this, and return GB/s; raise _AttemptError if it fails."""
    env = {**env, **rung.environment, "WORLD_SIZE": str(count), "NCCL_DEBUG": env.get("NCCL_DEBUG", "WARN")}
    with tempfile.TemporaryDirectory(prefix="rocmlab-probe-") as name:
        folder = Path(name)
        outputs = [folder / f"rank{rank}" for rank in range(count)]
        ranks: list[subprocess.Popen[str]] = []
        try:
            for rank, output in enumerate(outputs):
                arguments = [*command, rung.backend, str(folder / "meeting"), kind, str(SUM_BYTES[kind])]
                with output.open("w") as file:
                    ranks.append(children.start(arguments, {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, file))
            _await(ranks, outputs, limit_seconds)
        finally:
            children.end(ranks, env[children.TOKEN], grace_seconds=0.5)
        return float(json.loads(outputs[0].read_text().splitlines()[-1])["gigabytes_per_second"])


def _await(ranks: Sequence[subprocess.Popen[str]], outputs: Sequence[Path], limit_seconds: float) -> None:
    """Wait until every rank is done; raise _AttemptError if one fails later than at its start, or the time is up."""
    ready, deadline = False, time.monotonic() + START_SECONDS
    while True:
        codes = [one.poll() for one in ranks]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        texts = [output.read_text(errors="replace") for output in outputs]
        if not ready and all(READY in text for text in texts):
            ready, deadline = True, time.monotonic() + limit_seconds
        if failed is not None:
            output = [line.strip() for line in texts[failed].splitlines() if line.strip() and line != READY]
            last = output[-1] if output else "it printed nothing"
            how = f"rank {failed} exited ({children.exit_text(codes[failed] or 0)}): {last}"
            if READY in texts[failed]:
                raise _AttemptError(how)
            raise _no_start(how, texts[failed])
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            if ready:
                waiting = ", ".join(str(rank) for rank, code in enumerate(codes) if code is None)
                raise _AttemptError(f"hangs: no answer from rank {waiting} after {limit_seconds:g} seconds")
            raise _no_start(f"no rank was ready after {START_SECONDS:g} seconds", "\n".join(texts))
        time.sleep(POLL_SECONDS)


def _no_start(what: str, text: str) -> RocmlabError:
    return RocmlabError(
        "the devices could not be tested together",
        f"{what}\n" + "\n".join(text.splitlines()[-10:]),
        "`make devices` shows the devices, `make doctor` checks them",
        exit_code=1,
    )


def _place(gpus: Sequence[int], torch: Interpreter, share: Path | None) -> Path | None:
    """Return the file that remembers for this host, these GPUs, this driver and this PyTorch; None without a share."""
    folder = share or (Path(named).expanduser() if (named := os.environ.get("ROCMLAB_SHARE")) else None)
    if folder is None:
        return None
    chosen = [(device_id(gpu), gpu.unique_id, gpu.name, gpu.driver) for gpu in numbered(gpus)]
    if not chosen:
        return None
    given = {name: value for name, value in sorted(os.environ.items()) if name.startswith(("NCCL_", "RCCL_", "HSA_"))}
    # PyTorch's own version file, read without importing it.
    versions = sorted(Path(torch.python).parent.parent.glob("lib/python*/site-packages/torch/version.py"))
    version = versions[0].read_text(encoding="utf-8") if versions else None
    parts = [platform.node(), platform.release(), chosen, given, torch.python, version]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return folder / "cache" / "collectives" / f"{key}.json"


def _recall(place: Path) -> Collectives | None:
    """Return what was remembered; None if nothing, or nothing readable."""
    try:
        values = json.loads(place.read_text(encoding="utf-8"))
        return Collectives(
            str(values["backend"]),
            {str(name): str(value) for name, value in values["environment"].items()},
            float(values["gigabytes_per_second"]),
            tuple(str(one) for one in values["tried"]),
            is_remembered=True,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        log.warning("%s is not readable (%s); probing again", place, err)
        return None


def _remember(place: Path, found: Collectives) -> None:
    """Keep a result; where the share cannot be written, the next run probes again."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(place, json.dumps(asdict(found)))
    except OSError as err:
        log.warning("%s cannot be written (%s); the next run probes again", place, err)
