"""The programs of Keras on JAX: the batches of an epoch in one XLA program, or one at a time where that is faster.

Every program is a pure function of the model's state. The arithmetic of a step is Keras' own `train_step` and
`test_step`, so losses, regularisation, metrics, mixed precision and custom steps are those of `fit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import keras
from jax import lax
from jax import numpy as jnp

from rocmlab.training.resident.engine import Array, Model, Options, Tree, count_of, number, tree_map

State = tuple[list[Any], ...]  # variables: trainable, non-trainable, (optimizer, only to train,) metrics
Arrays = tuple[Tree, Tree, Tree]  # x, y and sample weights on the device, leaves (count, ...)
Jaxpr = Any  # a program as JAX traced it
Step = Callable[[State, Any], tuple[dict[str, Any], State]]
# Steps of a scan written out one after the other, by JAX's name of the platform. On an H200 four made a small dense
# network 1.18 times as fast; on a CPU they gained nothing. Each costs time to compile, so large steps are written once.
UNROLL = {"cpu": 1, "gpu": 4}
# A GPU's loop whose length is an argument waits for the host before each iteration, about 20 us. So small steps go in
# groups of a fixed length there, with limits for steps and multiplications: a group must not take seconds.
GROUP = {"cpu": 1}
MAX_GROUP = 64
GROUP_MULTIPLICATIONS = 1e12
SMALL_STEP = 1000  # operations of a traced step, at most; dense networks for MNIST have 300, a U-Net 3,000 and more


@dataclass(frozen=True)
class Inspection:
    """What a step holds that decides how it runs."""

    has_own_logs: bool  # logs other than the model's metrics: those of an epoch's last batch count, as in `fit`
    convolves: bool
    operations: int
    multiplications: float  # of its convolutions and products of matrices


class Programs:
    """The compiled functions of one model: whole epochs, single batches, and the start and end of an epoch."""

    def __init__(self, model: Model, options: Options, *, shuffle: bool, platform: str) -> None:
        self._model = model
        self._sizes = {training: options.batch(training=training) for training in (True, False)}
        self._seed = options.seed
        self._inspections: dict[bool, Inspection] = {}
        self._shuffle = shuffle  # on the device; blocks that stream come shuffled
        self._unroll = UNROLL.get(platform, 1)
        self._largest_group = GROUP.get(platform, MAX_GROUP)

    def groups(self, state: State, arrays: Arrays, *, training: bool) -> tuple[int, int]:
        """Return how many groups of batches a set is, and the batches of a group; what they leave is the tail's."""
        inspected = self.inspect(state, arrays, training=training)
        full, rest = divmod(count_of(arrays), self._sizes[training])
        if inspected.has_own_logs and not rest:  # the last batch runs apart, so that its logs are at hand
            full -= 1
        largest = min(self._largest_group, full, int(GROUP_MULTIPLICATIONS // max(1, inspected.multiplications)))
        if largest <= 1 or inspected.operations > SMALL_STEP:
            return full, 1
        group = min(range(largest, largest // 2, -1), key=lambda size: full % size)
        return full // group, group

    def part(self, *, training: bool) -> Callable[..., tuple[State, dict[str, Any]]]:
        """Return `f(state, arrays, order, first, begin, size) -> (state, logs)`: `size` groups, in one program.

        `order` holds the positions of an epoch's samples, (count,), or is None; `first`: the epoch begins here.
        """

        def run(
            state: State, arrays: Arrays, order: Array, first: Array, begin: Array, size: Array
        ) -> tuple[State, dict[str, Any]]:
            _groups, group = self.groups(state, arrays, training=training)

            def body(number: Array, carry: State) -> State:
                return self._batches(training, carry, arrays, order, number * group, group)

            state = lax.fori_loop(begin, begin + size, body, self.reset(state, first))
            return state, self.results(state)

        return self._jit(run, training)

    def tail(self, *, training: bool) -> Callable[..., tuple[State, dict[str, Any]]]:
        """Return `f(state, arrays, order, first) -> (state, logs)`: the batches that whole groups leave."""

        def run(state: State, arrays: Arrays, order: Array, first: Array) -> tuple[State, dict[str, Any]]:
            groups, group = self.groups(state, arrays, training=training)
            has_own_logs = self.inspect(state, arrays, training=training).has_own_logs
            count, begin = count_of(arrays), groups * group
            left, rest = divmod(count - begin * self._sizes[training], self._sizes[training])
            if has_own_logs and not rest:
                left, rest = left - 1, self._sizes[training]
            state = self.reset(state, first)
            if left:
                state = self._batches(training, state, arrays, order, begin, left)
            logs: Any = None
            if rest:
                logs, new = self._step(training)(state, self._batch(arrays, order, count - rest, rest))
                state = _like(new, state)
            return state, logs if logs is not None and has_own_logs else self.results(state)

        return self._jit(run, training)

    def _batches(self, training: bool, state: State, arrays: Arrays, order: Array, begin: Array, count: int) -> State:
        """Return the state after `count` whole batches from `begin` on."""

        def body(carry: State, number: Array) -> tuple[State, None]:
            batch = self._batch(arrays, order, number * self._sizes[training], self._sizes[training])
            _logs, new = self._step(training)(carry, batch)
            return _like(new, carry), None

        if count == 1:
            return body(state, begin)[0]
        is_small = self.inspect(state, arrays, training=training).operations <= SMALL_STEP
        unroll = min(self._unroll if is_small else 1, count)
        found: State = lax.scan(body, state, begin + jnp.arange(count), unroll=unroll)[0]
        return found

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
        """Trace one batch without computing it, and return what its step holds."""
        if training not in self._inspections:
            size = min(self._sizes[training], count_of(arrays))
            shapes = jax.eval_shape(lambda *given: given, state, arrays)  # int64 is int32 there, without a warning

            def run(state: State, arrays: Arrays) -> tuple[Any, State]:
                return self._step(training)(state, self._batch(arrays, None, 0, size))

            program, (logs, _state) = jax.make_jaxpr(run, return_shape=True)(*shapes)
            names = set(logs) if isinstance(logs, dict) else set()
            has_own_logs = bool(names) and names != set(jax.eval_shape(self.results, shapes[0]))
            operations = list(_operations(program.jaxpr))
            convolves = any(operation.primitive.name == "conv_general_dilated" for operation in operations)
            multiplications = float(sum(map(_multiplications, operations)))
            self._inspections[training] = Inspection(has_own_logs, convolves, len(operations), multiplications)
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

    def reset(self, state: State, first: Array = True) -> State:
        """Return the state with the metrics as at the start of an epoch if `first`."""
        variables = self._model.metrics_variables
        with keras.StatelessScope(state_mapping=list(zip(variables, state[-1], strict=True))) as scope:
            self._model.reset_metrics()
        metrics = []
        for variable, value in zip(variables, state[-1], strict=True):
            start = scope.get_current_value(variable)
            metrics.append(value if start is None else jnp.where(first, jnp.asarray(start, value.dtype), value))
        return (*state[:-1], metrics)

    def results(self, state: State) -> dict[str, Any]:
        """Return the values of a state's metrics, under the names that `fit` logs."""
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

    def _jit(self, run: Callable[..., Any], training: bool) -> Callable[..., Any]:
        program: Callable[..., Any] = jax.jit(
            run, donate_argnums=0, out_shardings=self._out_shardings(training, last=False)
        )
        return program

    def _out_shardings(self, training: bool, *, last: bool) -> object:
        """Return where the results are placed: the state as the model's variables do, when several devices share it."""
        if keras.distribution.distribution() is None:
            return None
        state = tuple([v.value.sharding for v in part] for part in self.variables(training=training))
        return (None, state) if last else (state, None)


def numbers(logs: dict[str, Any]) -> dict[str, Any]:
    """Read logs from the device."""
    return {name: number(value) for name, value in jax.device_get(logs).items()}


def _like(new: State, old: State) -> State:
    """Return the new state in the old one's types, as assigning to the variables would."""
    parts = tuple(list(part) for part in new)
    like: State = jax.tree.map(lambda value, before: jnp.asarray(value, before.dtype), parts, old)
    return like


def _multiplications(operation: Jaxpr) -> int:
    """Return the multiplications of a traced product of matrices or convolution; 0 for anything else."""
    name, given = operation.primitive.name, operation.params.get("dimension_numbers")
    if name not in ("dot_general", "conv_general_dilated"):
        return 0
    left, right = (value.aval.shape for value in operation.invars[:2])
    if name == "dot_general":
        each = math.prod(left[axis] for axis in given[0][0])
    else:
        each = math.prod(right) // max(1, right[given.rhs_spec[0]])
    return int(each * math.prod(operation.outvars[0].aval.shape))


def _operations(program: Jaxpr) -> Iterator[Any]:
    """Yield every operation of a traced program and of those inside it."""
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if type(value) in (list, tuple) else [value]:
                if hasattr(part, "eqns") or hasattr(part, "jaxpr"):
                    yield from _operations(getattr(part, "jaxpr", part))
