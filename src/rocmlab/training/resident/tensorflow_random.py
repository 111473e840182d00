"""Random numbers of TensorFlow in programs that XLA compiles for a CPU.

There XLA's code for Philox, the generator that TensorFlow takes by itself, needs 9 ns a number, for Threefry, the one
of JAX, 0.8 ns. The masks of two layers of dropout are a third of an epoch of MNIST's network with Philox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# Where a function is found, its name, and what it calls the generator; through these four Keras draws its numbers.
DRAWING = (
    (tf.nn.experimental, "stateless_dropout", "rng_alg"),
    (tf.random, "stateless_uniform", "alg"),
    (tf.random, "stateless_normal", "alg"),
    (tf.random, "stateless_truncated_normal", "alg"),
)


@contextlib.contextmanager
def threefry() -> Iterator[None]:
    """Let the graph that is being traced draw from Threefry meanwhile, where it names no generator itself.

    Only that graph: others may be run without XLA later (a `tf.function` of the model's own, initial values of weights
    made by `tf.init_scope`, what other threads trace), and without it TensorFlow has no Threefry for a CPU.
    """
    graph = tf.compat.v1.get_default_graph()

    def with_threefry(function: Callable[..., Any], option: str) -> Callable[..., Any]:
        def draw(*args: Any, **named: Any) -> Any:  # noqa: ANN401  TensorFlow has no types
            if tf.compat.v1.get_default_graph() is graph:
                named.setdefault(option, "threefry")
            return function(*args, **named)

        return draw

    plain = [getattr(place, name) for place, name, _ in DRAWING]
    for function, (place, name, option) in zip(plain, DRAWING, strict=True):
        setattr(place, name, with_threefry(function, option))
    try:
        yield
    finally:
        for function, (place, name, _) in zip(plain, DRAWING, strict=True):
            setattr(place, name, function)
