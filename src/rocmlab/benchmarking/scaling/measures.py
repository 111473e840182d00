"""What is measured: networks, batches, how often, and the settings of DDP that can be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rocmlab.training.placement import XLA, XLA_IN_PLACE, XLA_OVERLAP, XLA_SUMS

Measure = dict[str, Any]  # what `ddp.py` and `keras_jax.py` read; JSON
Results = dict[str, dict[str, Any]]  # what they wrote, by the name of the measure

SIZES: dict[str, dict[str, int]] = {
    # 12 layers of 768, 32,000 tokens, sequences of 512: 124 million parameters
    "large": {"layers": 12, "width": 768, "hidden": 2560, "heads": 12, "vocabulary": 32_000, "length": 512},
    "small": {"layers": 6, "width": 512, "hidden": 1408, "heads": 8, "vocabulary": 32_000, "length": 256},
    "tiny": {"layers": 2, "width": 64, "hidden": 128, "heads": 4, "vocabulary": 512, "length": 32},
}
BATCHES = {"large": 32, "small": 32, "tiny": 8}  # sequences a GPU

# Gradients stay where DDP adds them up, and DDP need not look for what takes part in a step: it is always the same.
DDP = {"gradient_as_bucket_view": True, "static_graph": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"ddp": {}, "hook": None},
    "view": {"ddp": {"gradient_as_bucket_view": True}, "hook": None},
    "view_static": {"hook": None},
    "overlap_50mb": {"ddp": {**DDP, "bucket_cap_mb": 50}},
    "overlap_100mb": {"ddp": {**DDP, "bucket_cap_mb": 100}},
    "bf16": {"hook": "bf16"},
    "bf16_100mb": {"ddp": {**DDP, "bucket_cap_mb": 100}, "hook": "bf16"},
    "no_talk": {"talk": False},  # every GPU for itself: what sharing the host and its power costs
}

KERAS_VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"xla_flags": ""},
    "flash": {"flash": True},
    "copied_after_backward": {"xla_flags": XLA_SUMS},
    "copied": {"xla_flags": f"{XLA_SUMS} {XLA_OVERLAP}"},
    "after_backward": {"xla_flags": f"{XLA_SUMS} {XLA_IN_PLACE}"},
    "one_all_reduce": {"xla_flags": "--xla_gpu_all_reduce_combine_threshold_bytes=1073741824"},
}


def weak(size: str, blocks: int, is_gpu: bool = True, **changes: Any) -> Measure:  # noqa: ANN401  any JSON value
    """Return the larger network with the same batch on every GPU, however many there are."""
    measure = {
        "name": "transformer_weak",
        "network": "transformer",
        "size": SIZES[size],
        "batch": BATCHES[size],
        "steps": 40 if is_gpu else 10,
        "warm_up": 5,
        "blocks": blocks,
        "seed": 42,
        "bf16": is_gpu,
        "ddp": DDP,
        "hook": "overlap",
    }
    return {**measure, **changes}


def strong(size: str, blocks: int, count: int, is_gpu: bool = True) -> Measure:
    """Return the larger network with one batch that all GPUs share."""
    return weak(size, blocks, is_gpu, name="transformer_strong", batch=max(1, BATCHES[size] // count))


def mnist(batch: int, blocks: int) -> Measure:
    """Return MNIST's network with the same batch on every GPU."""
    return {
        "name": f"mnist_{batch}",
        "network": "mnist",
        "size": {},
        "batch": batch,
        "steps": 200 if batch < 1024 else 50,
        "warm_up": 20,
        "blocks": blocks,
        "seed": 42,
        "bf16": False,
        "ddp": DDP,
    }


def equality(size: str, is_gpu: bool) -> list[Measure]:
    """Return the measures that compare the losses of all ranks together with those of one."""
    larger = weak(size, 0, is_gpu, name="transformer_equal", check_steps=4)
    return [larger, {**mnist(128, 0), "name": "mnist_equal", "check_steps": 20}]


def of_one_size(size: str, blocks: int, count: int, is_tuning: bool) -> list[Measure]:
    """Return what `count` GPUs measure with DDP."""
    # Each GPU is also measured alone, alternating with all together: GPUs of one kind differ by a percent.
    listed = [{**one, "alone": True} for one in (weak(size, blocks), mnist(128, blocks), mnist(8192, blocks))]
    if count == 1:
        return [*listed, weak(size, blocks, name="transformer_compiled", compile=True)] if is_tuning else listed
    listed += [strong(size, blocks, count), *equality(size, is_gpu=True)]
    if is_tuning:
        listed += [weak(size, blocks, name=f"transformer_{name}", **changes) for name, changes in VARIANTS.items()]
        in_bf16 = VARIANTS["bf16"]  # gradients are rounded on their way: how far are the losses then?
        listed.append({**equality(size, is_gpu=True)[0], "name": "transformer_bf16_equal", **in_bf16})
        listed.append(weak(size, blocks, name="transformer_compiled", compile=True))
    return listed


def keras(size: str, blocks: int, is_gpu: bool = True, variant: str = "", counts: Sequence[int] = (1, 2, 4)) -> Measure:
    """Return the larger network in Keras, or a variant of it.

    The losses are compared on a network of two layers, which compiles faster, and on a batch that every one of these
    numbers of devices divides.
    """
    measure = weak(size, blocks, is_gpu, name=f"keras_jax_{variant or 'weak'}", steps_per_execution=10)
    measure["xla_flags"] = XLA if is_gpu else ""
    share = math.lcm(*counts)
    check = {"check_size": {**SIZES[size], "layers": 2}, "check_steps": 0 if variant else 4}
    check["check_batch"] = -(-BATCHES[size] // share) * share
    return {**measure, **check, **KERAS_VARIANTS.get(variant, {})}
