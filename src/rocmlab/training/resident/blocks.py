"""How the data are placed on the device: whole, or in blocks of whole batches when they are too large for it.

Pure functions of sizes and arrays; the engines move the blocks. While a block computes the next one arrives, so two
of them are on the device at the same time and each takes half of what the data may have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rocmlab.base.errors import RocmlabError
from rocmlab.devices.cpu import memory_in_use
from rocmlab.devices.roots import read_text
from rocmlab.training.resident.engine import Data, Options, Samples

Order = npt.NDArray[np.int64]  # (count,) positions of the samples, in order

RESERVE_SHARE = 0.25  # of the free memory: weights, gradients and activations need memory also
RESERVE_BYTES = 512 * 2**20  # and never less than this


@dataclass(frozen=True)
class Plan:
    """Where the samples of an epoch are cut; one slice means that the set is resident."""

    train: tuple[slice, ...]
    validation: tuple[slice, ...]
    sentence: str  # what `how` reports about it; empty when everything is resident

    @property
    def is_resident(self) -> bool:
        """Whether the whole training set is on the device."""
        return len(self.train) == 1


def plan(data: Data, options: Options, free_bytes: int | None, *, keeps_both: bool = False) -> Plan:
    """Decide how to place the data on a device with `free_bytes` free (None: unknown, taken as enough).

    `keeps_both`: the engine's buffers for blocks of training and of validation are on the device at the same time, so
    that where both stream each has half of the memory.

    Raises:
        RocmlabError: not even two batches fit in the memory that the data may have.
    """
    allowed = options.memory_bytes
    if allowed is None and free_bytes is not None:
        allowed = max(0, free_bytes - max(RESERVE_BYTES, int(free_bytes * RESERVE_SHARE)))
    validation_bytes = data.validation.size_bytes if data.validation else 0
    needed = data.train.size_bytes + validation_bytes
    if allowed is None or needed <= allowed:
        return Plan((slice(0, data.train.count),), _whole(data.validation), "")
    keep_validation = validation_bytes <= allowed // 4
    available = allowed - validation_bytes if keep_validation else allowed // (1 + keeps_both)
    train = _cut(data.train, options.batch_size, available)
    validation = _whole(data.validation)
    if data.validation and not keep_validation:
        validation = _cut(data.validation, options.batch(training=False), available)
    sentence = (
        f"the data ({_readable(needed)}) are larger than the {_readable(allowed)} they may take of the device, so they "
        f"stream in {len(train)} resident blocks"
    )
    return Plan(train, validation, sentence)


def order(count: int, options: Options, epoch: int) -> Order | None:
    """Return the order of an epoch's samples, (count,) int64, from seed and epoch; None: as they are."""
    if not options.shuffle:
        return None
    return np.random.default_rng((options.seed, epoch)).permutation(count)


def cut(samples: Samples, slices: tuple[slice, ...], permutation: Order | None = None) -> Iterator[Samples]:
    """Yield the blocks of an epoch; a permutation shuffles over the whole set, not inside a block."""
    for part in slices:
        yield samples.take(part if permutation is None else permutation[part])


def host_free_bytes() -> int | None:
    """Return the memory a CPU can still hand out; None when the system does not report it. Source: /proc/meminfo."""
    used, total = memory_in_use(read_text(Path("/proc/meminfo")) or "")
    return None if used is None or total is None else total - used


def _whole(samples: Samples | None) -> tuple[slice, ...]:
    return (slice(0, samples.count),) if samples else ()


def _cut(samples: Samples, batch_size: int, available_bytes: int) -> tuple[slice, ...]:
    batch_bytes = max(1, -(-samples.size_bytes * batch_size // samples.count))
    batches = available_bytes // 2 // batch_bytes
    if batches < 1:
        raise RocmlabError(
            f"{_readable(available_bytes)} of the device hold fewer than two batches of {_readable(batch_bytes)}",
            "the data stream in resident blocks of whole batches, one computing while the next arrives",
            "pass a larger memory_bytes or a smaller batch_size, or use fit()",
        )
    block = batches * batch_size
    return tuple(slice(start, min(start + block, samples.count)) for start in range(0, samples.count, block))


def _readable(size_bytes: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"
