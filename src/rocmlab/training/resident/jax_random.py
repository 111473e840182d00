"""JAX's random numbers in programs for a CPU: the same numbers, six times as fast.

JAX writes the twenty rounds of its generator, Threefry, as a loop there, which XLA cannot fuse with what the numbers
are for: 5 ns a number, where rounds written out need 0.75. On a GPU JAX writes them out itself.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend
from jax import lax
from jax import numpy as jnp

from rocmlab.training.resident.engine import Array

# Salmon and others, Parallel random numbers: as easy as 1, 2, 3 (2011): Threefry-2x32-20.
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


@contextlib.contextmanager
def unrolled() -> Iterator[None]:
    """Let Keras draw from rounds that are written out meanwhile, where it draws from JAX's Threefry."""
    from keras.src.backend.jax import random

    draw = random.jax_draw_seed

    def draw_unrolled(seed: Any) -> Array:  # noqa: ANN401  an integer, a SeedGenerator or a key
        key = draw(seed)
        return jax.random.wrap_key_data(key, impl=_UNROLLED) if _is_threefry(key) else key

    random.jax_draw_seed = draw_unrolled
    try:
        yield
    finally:
        random.jax_draw_seed = draw


def _is_threefry(key: Array) -> bool:
    """Whether JAX would draw from Threefry with this key, numbered as here: each number by its place."""
    is_default = jax.config.jax_default_prng_impl == "threefry2x32" and jax.config.jax_threefry_partitionable
    return bool(is_default and key.shape == (2,) and key.dtype == jnp.uint32)


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def _bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Return random bits as JAX does for a key: (2,) uint32 -> `shape` of unsigned integers."""
    if bit_width != 32 or math.prod(shape) >= 2**32:
        return jax.random.bits(key, shape, dtype=f"uint{bit_width}")
    place = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    first, second = _threefry(key, jnp.zeros_like(place), place)
    return first ^ second


def _threefry(key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Return the two words of Threefry-2x32-20 for two words of a counter, all uint32."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    first, second = first + keys[0], second + keys[1]
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            first = first + second
            second = first ^ ((second << bits) | (second >> (32 - bits)))
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second


_UNROLLED = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: jax.random.key_data(jax.random.key(seed, impl="threefry2x32")),
    split=lambda key, shape: jax.random.split(key, shape),
    random_bits=_bits,
    fold_in=jax.random.fold_in,
    name="threefry2x32_unrolled",
    tag="fryu",
)
