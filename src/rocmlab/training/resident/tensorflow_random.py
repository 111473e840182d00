"""Random numbers of TensorFlow in programs that XLA compiles for a CPU.

There XLA's code for TensorFlow's own choice of a generator, Philox, needs 9 ns a number, for Threefry, the one of JAX,
0.8 ns. With Philox the masks of two layers of dropout are a third of an epoch of MNIST's network.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from rocmlab.training.resident import probes

# Where a function is found, its name, and what it calls the generator: what layers of Keras draw from while training.
DRAWING = (
    (tf.nn.experimental, "stateless_dropout", "rng_alg"),
    (tf.random, "stateless_uniform", "alg"),
    (tf.random, "stateless_normal", "alg"),
    (tf.random, "stateless_truncated_normal", "alg"),
)
_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def quick_draws() -> Iterator[None]:
    """Choose the generator for what the graph that is being traced draws meanwhile, where it names none itself.

    Threefry where the seed changes from step to step. Where it is a constant, Philox: by XLA's default the numbers of
    one seed are not those of TensorFlow's kernel, with which the model is evaluated later.

    Only that graph: others may be run without XLA (a `tf.function` of the model's own, initial values of weights
    made by `tf.init_scope`, what other threads trace), and without it TensorFlow has no Threefry for a CPU.
    """
    graph = tf.compat.v1.get_default_graph()

    def choosing(function: Callable[..., Any], option: str) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def draw(*args: Any, **named: Any) -> Any:  # noqa: ANN401  TensorFlow has no types
            if not tf.executing_eagerly() and tf.compat.v1.get_default_graph() is graph:
                given = signature.bind(*args, **named).arguments
                if option not in given:
                    named[option] = "philox" if _is_constant(given["seed"]) else "threefry"
            return function(*args, **named)

        return draw

    with _ONE_AT_A_TIME:
        usual = [one for one in DRAWING if probes.usable(f"generator for {one[1]}", partial(_try, *one))]
        replaced = [(place, name, choosing(getattr(place, name), option)) for place, name, option in usual]
        with probes.replacing(replaced):
            yield


def _try(place: Any, name: str, option: str) -> str:  # noqa: ANN401  a module
    """Say what a function that draws lacks of what is used here: a generator that can be named, and a seed."""
    known = inspect.signature(getattr(place, name)).parameters
    missing = [one for one in (option, "seed") if one not in known]
    return f"it has no {', '.join(missing)}" if missing else ""


def _is_constant(seed: Any) -> bool:  # noqa: ANN401  a tensor or numbers
    """Whether nothing but constants of the graph go into a seed."""
    waiting, seen = [tf.convert_to_tensor(seed).op], set()
    while waiting:
        operation = waiting.pop()
        if not operation.inputs and operation.type != "Const":  # a variable, an argument
            return False
        if operation.name not in seen:
            seen.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
    return True
