"""The programs of Keras on JAX: an epoch as one XLA program, or a batch at a time where that is faster.

Every program is a pure function of the model's state. The arithmetic of a step is Keras' own `train_step` and
`test_step`, so losses, regularisation, metrics, mixed precision and custom steps are those of `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import keras
from jax import lax
from jax import numpy as jnp

from rocmlab.training.resident.engine import Array, Model, Options, Tree, count_of, tree_map

State = tuple[list[Any], ...]  # variables: trainable, non-trainable, (optimizer, only to train,) metrics
Arrays = tuple[Tree, Tree, Tree]  # x, y and sample weights on the device, leaves (count, ...)
Jaxpr = Any  # a program as JAX traced it
Step = Callable[[State, Any], tuple[dict[str, Any], State]]
# Steps of a scan written out one after the other, by JAX's name of the platform. On an H200 four made a small dense
# network 1.18 times as fast; on a CPU they gained nothing. Each costs time to compile, so large steps are written once.
UNROLL = {"cpu": 1, "gpu": 4}
SMALL_STEP = 1000  # operations of a traced step, at most; dense networks for MNIST have 300, a U-Net 3,000 and more


@dataclass(frozen=True)
class Inspection:
    """What a step holds that decides how it runs."""

    has_own_logs: bool  # logs other than the model's metrics: those of an epoch's last batch count, as in `fit`
    convolves: bool
    operations: int


class Programs:
    """The compiled functions of one model: whole epochs, single batches, and what an epoch begins and ends with."""

    def __init__(self, model: Model, options: Options, *, shuffle: bool, platform: str) -> None:
        self._model = model
        self._batch_size = options.batch_size
        self._seed = options.seed
        self._inspections: dict[bool, Inspection] = {}
        self._shuffle = shuffle  # on the device; blocks that stream come shuffled
        self._unroll = UNROLL.get(platform, 1)

    def epoch(self, *, training: bool, compiled: bool = True) -> Callable[..., tuple[State, dict[str, Any]]]:
        """Return `f(state, arrays, epoch, first) -> (state, logs)`: all batches of the arrays, in one program."""

        def run(state: State, arrays: Arrays, epoch: Array, first: Array) -> tuple[State, dict[str, Any]]:
            step = self._step(training)
            state = self._reset(state, first)
            count = count_of(arrays)
            order = self.order(count, epoch) if training and self._shuffle else None
            full, rest = divmod(count, self._batch_size)
            inspected = self.inspect(state, arrays, training=training)
            own_logs = inspected.has_own_logs
            if own_logs and not rest:  # the last batch runs apart, so that its logs are at hand
                full, rest = full - 1, self._batch_size

            def body(carry: State, number: Array) -> tuple[State, None]:
                _logs, new = step(carry, self._batch(arrays, order, number * self._batch_size, self._batch_size))
                return _like(new, carry), None

            logs = None
            if full:
                unroll = min(self._unroll if inspected.operations <= SMALL_STEP else 1, full)
                state, _nothing = lax.scan(body, state, jnp.arange(full), unroll=unroll)
            if rest:
                logs, new = step(state, self._batch(arrays, order, full * self._batch_size, rest))
                state = _like(new, state)
            return state, logs if logs is not None and own_logs else self.results(state)

        return self._jit(run, training) if compiled else run

    def batch(self, *, training: bool, compiled: bool) -> Callable[..., tuple[dict[str, Any], State]]:
        """Return `f(state, arrays, order, start, size) -> (logs, state)`: one batch of the arrays.

        `order` holds the positions of an epoch's samples, (count,), or is None; `size` is a constant.
        """

        def run(state: State, arrays: Arrays, order: Array, start: Array, size: int) -> tuple[dict[str, Any], State]:
            logs, new = self._step(training)(state, self._batch(arrays, order, start, size))
            return logs, _like(new, state)

        if not compiled:
            return run
        shardings = self._out_shardings(training, last=True)
        program: Callable[..., tuple[dict[str, Any], State]] = jax.jit(
            run, static_argnums=4, donate_argnums=0, out_shardings=shardings
        )
        return program

    def order(self, count: int, epoch: Array) -> Array:
        """Return the order of an epoch's samples, (count,) int32, drawn on the device from seed and epoch."""
        return jax.random.permutation(jax.random.fold_in(jax.random.key(self._seed), epoch), count)

    def inspect(self, state: State, arrays: Arrays, *, training: bool) -> Inspection:
        """Trace one batch without computing it, and say what its step holds."""
        if training not in self._inspections:
            size = min(self._batch_size, count_of(arrays))
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (state, arrays))

            def run(state: State, arrays: Arrays) -> tuple[Any, State]:
                return self._step(training)(state, self._batch(arrays, None, 0, size))

            program, (logs, _state) = jax.make_jaxpr(run, return_shape=True)(*shapes)
            names = set(logs) if isinstance(logs, dict) else set()
            has_own_logs = bool(names) and names != set(jax.eval_shape(self.results, shapes[0]))
            operations = [operation.primitive.name for operation in _operations(program.jaxpr)]
            convolves = "conv_general_dilated" in operations
            self._inspections[training] = Inspection(has_own_logs, convolves, len(operations))
        return self._inspections[training]

    def variables(self, *, training: bool) -> list[list[Any]]:
        """Return the model's variables in the order of a state."""
        model = self._model
        optimizer = [model.optimizer.variables] if training else []
        return [
            list(part)
            for part in (
                model.trainable_variables,
                model.non_trainable_variables,
                *optimizer,
                model.metrics_variables,
            )
        ]

    def reset(self, state: State) -> State:
        """Return the state with the metrics as at the start of an epoch."""
        return self._reset(state, True)

    def results(self, state: State) -> dict[str, Any]:
        """Return what the metrics of a state say, under the names that `fit` logs."""
        mapping = list(zip(self._model.metrics_variables, state[-1], strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            results: dict[str, Any] = self._model.get_metrics_result()
        return results

    def _step(self, training: bool) -> Step:
        step: Step = self._model.train_step if training else self._model.test_step
        return step

    def _batch(self, arrays: Arrays, order: Array, start: Array, size: int) -> Tree:
        """Return the batch of `size` samples from `start`, as `fit` hands it to a step."""
        if order is None:
            x, y, weight = tree_map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size), arrays)
        else:
            index = lax.dynamic_slice_in_dim(order, start, size)
            x, y, weight = tree_map(lambda leaf: leaf.at[index].get(mode="promise_in_bounds"), arrays)
        x, y, weight = tree_map(self._shared, (x, y, weight))
        return keras.utils.pack_x_y_sample_weight(x, y, weight)

    def _shared(self, leaf: Array) -> Array:
        """Share a batch between the devices; one that cannot be divided evenly is computed by each of them."""
        distribution = keras.distribution.distribution()
        if distribution is None:
            return leaf
        sharding = distribution.get_data_layout(leaf.shape).backend_layout
        try:
            sharding.shard_shape(leaf.shape)
        except ValueError:
            return leaf
        return lax.with_sharding_constraint(leaf, sharding)

    def _reset(self, state: State, first: Array) -> State:
        """Return the state with the metrics as at the start of an epoch if `first`."""
        variables = self._model.metrics_variables
        with keras.StatelessScope(state_mapping=list(zip(variables, state[-1], strict=True))) as scope:
            self._model.reset_metrics()
        metrics = []
        for variable, value in zip(variables, state[-1], strict=True):
            start = scope.get_current_value(variable)
            metrics.append(value if start is None else jnp.where(first, jnp.asarray(start, value.dtype), value))
        return (*state[:-1], metrics)

    def _jit(self, run: Callable[..., Any], training: bool) -> Callable[..., Any]:
        program: Callable[..., Any] = jax.jit(
            run, donate_argnums=0, out_shardings=self._out_shardings(training, last=False)
        )
        return program

    def _out_shardings(self, training: bool, *, last: bool) -> object:
        """Return where the results lie: the state as the model's variables do, when several devices share it."""
        if keras.distribution.distribution() is None:
            return None
        state = tuple([v.value.sharding for v in part] for part in self.variables(training=training))
        return (None, state) if last else (state, None)


def _like(new: State, old: State) -> State:
    """Return the new state in the old one's types, as assigning to the variables would."""
    parts = tuple(list(part) for part in new)
    like: State = jax.tree.map(lambda value, before: jnp.asarray(value, before.dtype), parts, old)
    return like


def _operations(program: Jaxpr) -> Iterator[Any]:
    """Yield every operation of a traced program and of those inside it."""
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if type(value) in (list, tuple) else [value]:
                if hasattr(part, "eqns") or hasattr(part, "jaxpr"):
                    yield from _operations(getattr(part, "jaxpr", part))
