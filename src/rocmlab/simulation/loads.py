"""How busy each simulated GPU is at each instant, and what that does to its temperature, power, clocks and memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rocmlab.base.errors import RocmlabError
from rocmlab.simulation.hosts import Gpu, number

AMBIENT = 27.0
THERMAL_SECONDS = 25.0  # time constant of the heat sink
EPOCH_SECONDS = 40.0  # of the pattern `training`

Pattern = Callable[[int, float], float]  # HIP index and seconds to percent


@dataclass(frozen=True)
class State:
    """What one GPU does at one instant."""

    busy: float  # percent
    memory_busy: float  # percent
    vram_used: int  # bytes
    power: float  # watts
    junction: float  # degrees Celsius
    core_clock: int  # MHz
    memory_clock: int  # MHz
    energy: float = 0.0  # joules since the driver was loaded
    seconds: float = 0.0  # since then


def parse_busy(text: str, gpus: int) -> Pattern:
    """Turn `--busy` into a function: a pattern, a percentage for all GPUs, or percentages by HIP index: `0:95,1:10`.

    Raises:
        RocmlabError: it is none of these, or names a GPU that is not there or appears twice.
    """
    if text in PATTERNS:
        return PATTERNS[text]
    if re.fullmatch(r"\d+(?::\d+(?:,\d+:\d+)*)?", text):
        if ":" not in text:
            percent = _percent(int(text), text)
            return lambda gpu, seconds: percent
        pairs = [pair.split(":") for pair in text.split(",")]
        chosen: Mapping[int, float] = {int(gpu): _percent(int(percent), text) for gpu, percent in pairs}
        wrong = sorted(gpu for gpu in chosen if gpu >= gpus)
        if wrong or len(chosen) < len(pairs):
            raise RocmlabError(
                f"--busy {text}: GPU {wrong[0]} not found" if wrong else f"--busy {text}: a GPU is named twice",
                f"this host has {gpus}, from HIP index 0",
                "--busy 0:95" + (",1:10" if gpus > 1 else ""),
            )
        return lambda gpu, seconds: chosen.get(gpu, 0.0)
    raise _unknown(text)


def state_at(gpu: Gpu, index: int, pattern: Pattern, seconds: float, before: State | None = None) -> State:
    """Return what a GPU does that many seconds after the beginning; it still has the heat of the state before."""
    product = gpu.product
    busy = max(0.0, min(100.0, pattern(index, seconds)))
    share = busy / 100
    memory_busy = round(busy * 0.62)
    power = product.power_idle + (product.power_cap * 0.99 - product.power_idle) * share**0.8
    critical = product.temperature_limits[1]
    warmth = AMBIENT + 8 + (critical - AMBIENT - 24) * power / product.power_cap
    passed = seconds - before.seconds if before else 0.0
    junction = warmth + (before.junction - warmth) * math.exp(-passed / THERMAL_SECONDS) if before else warmth
    low, high = product.core_clocks
    levels = product.memory_clocks
    return State(
        busy=round(busy),
        memory_busy=memory_busy,
        vram_used=_vram_used(gpu, busy),
        power=power,
        junction=junction,
        core_clock=round(low + (high - low) * min(1.0, share * 1.25)),
        memory_clock=levels[min(len(levels) - 1, math.ceil(share * (len(levels) - 1)))],
        energy=(before.energy + power * passed) if before else power * (600 + seconds),
        seconds=seconds,
    )


def _vram_used(gpu: Gpu, busy: float) -> int:
    """Return bytes in use: what the driver itself takes, and a job's share that changes with the load in steps."""
    total = gpu.product.vram_bytes
    own = min(total // 8, 26 << 20) if not gpu.product.is_apu else total // 4
    job = 0.0 if busy < 2 else 0.35 + 0.5 * busy / 100
    return own + int((total - own) * job) // (1 << 21) * (1 << 21)


def _waves(gpu: int, seconds: float) -> float:
    return 50 + 45 * math.sin(2 * math.pi * (seconds / 60 + gpu / 8))


def _training(gpu: int, seconds: float) -> float:
    """High with small noise; low for a moment at each epoch's end, when the data are read again."""
    within = (seconds + 11) % EPOCH_SECONDS
    if within < 3:
        return 12.0 + gpu % 4
    return 92 + number(0, "training", gpu, int(seconds), bits=3)


PATTERNS: dict[str, Pattern] = {
    "idle": lambda gpu, seconds: 0.0,
    "steady": lambda gpu, seconds: 97.0,
    "waves": _waves,
    "training": _training,
}


def _percent(value: int, text: str) -> float:
    if value > 100:
        raise _unknown(text)
    return float(value)


def _unknown(text: str) -> RocmlabError:
    return RocmlabError(
        f"--busy {text}: not a pattern",
        f"it is one of {', '.join(PATTERNS)}, a percentage, or percentages by HIP index",
        "--busy training   or   --busy 0:95,1:10",
    )
