"""The loop over batches of Keras on TensorFlow, as programs of different speed that all do the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rocmlab.training.resident.engine import Model, tree_map
from rocmlab.training.resident.tensorflow_random import quick_draws

Tensor = Any  # tf.Tensor
Arrays = Any  # x, y, sample_weight: trees of tensors (samples, ...), with a strategy PerReplica values of them
Logs = dict[str, Any]

# From the fastest, where it compiles, to the one that always runs.
EPOCH = "epoch"  # the whole loop is one XLA program
STEP = "step"  # the loop is a TensorFlow graph, the step inside it an XLA program
GRAPH = "graph"  # loop and step are one TensorFlow graph
BATCH = "batch"  # Python's loop over a graph of one step, as in `fit`
EAGER = "eager"  # Python's loop over operations, as in `fit` with run_eagerly

# On a CPU XLA's code for convolutions of many channels and for batched products (attention) is slower than
# TensorFlow's own kernels, for the rest it is not.
SLOW_IN_XLA = ("Conv", "DepthwiseConv", "BatchMatMul", "Einsum")

# On a GPU an XLA loop whose length is an argument waits for the host before each turn. So small steps go in groups of a
# fixed length there. Small: that many products of a weight and a sample, at most, and no operation of SLOW_IN_XLA.
GROUP = {"cpu": 1, "gpu": 16}  # at most
SMALL_STEP = 1e9


@dataclass(frozen=True)
class Program:
    """A loop over the batches of resident samples, in as many parts as the caller likes.

    `order` holds the positions of the samples, (samples,) int32.
    """

    part: Callable[[Arrays, Tensor, int, int], None]  # arrays, order, first group, groups to run
    last: Callable[[Arrays, Tensor], Logs]  # the batches that are left by whole groups, and the last one -> its logs
    group: int  # batches

    def groups(self, batches: int) -> int:
        """Return how many whole groups come before the last batch."""
        return (batches - 1) // self.group


class Loop:
    """Runs one step of a model, training or testing, over all batches of the samples it is given."""

    def __init__(self, model: Model, name: str, batch_size: int, is_cpu: bool) -> None:
        self._model, self._batch_size, self._is_cpu = model, batch_size, is_cpu
        self._keras_step = getattr(model, name)  # `train_step` or `test_step`, perhaps the model's own
        self._strategy = model.distribute_strategy
        # Keras' own step returns the metrics so far; they are read once, after the last, so no step computes them.
        own = any(
            getattr(type(model), method) is not getattr(keras.Model, method) for method in (name, "compute_metrics")
        )
        self._has_logs = own or name in vars(model)

    def program(self, way: str, arrays: Arrays, order: Tensor) -> Program:
        """Return the program of one of the ways; it is traced and compiled when it is called first."""
        if way == EAGER:
            return self._python_loop(self._step)
        if way == BATCH:
            return self._python_loop(None)
        if way == STEP:
            step = self._xla_step()
        else:
            step = tf.function(self._step if way == GRAPH else self._step_for_xla, autograph=False)
        group = self._group(arrays, order) if way == EPOCH else 1
        return self._graph_loop(step, group, True if way == EPOCH else None)

    def _graph_loop(self, step: Callable[..., Logs], group: int, jit_compile: bool | None) -> Program:
        def batches(arrays: Arrays, order: Tensor, begin: Tensor, count: Tensor) -> None:
            def body(index: Tensor) -> None:
                self._on_batch(step, arrays, order, index * self._batch_size, self._batch_size)

            _repeat(body, begin, count)

        def part(arrays: Arrays, order: Tensor, begin: Tensor, size: Tensor) -> None:
            if group == 1:
                batches(arrays, order, begin, size)
            else:
                _repeat(lambda number: batches(arrays, order, number * group, tf.constant(group)), begin, size)

        def last(arrays: Arrays, order: Tensor) -> Logs:
            full, rest = self._sizes(order)
            if left := full % group:
                batches(arrays, order, tf.constant(full - left), tf.constant(left))
            return self._on_batch(step, arrays, order, full * self._batch_size, rest)

        parts, lasts = (_by_size(tf.function(each, autograph=False, jit_compile=jit_compile)) for each in (part, last))

        def run_part(arrays: Arrays, order: Tensor, begin: int, size: int) -> None:
            parts(arrays, order, tf.constant(begin), tf.constant(size))

        return Program(run_part, lasts, group)

    def _group(self, arrays: Arrays, order: Tensor) -> int:
        """Return the steps of a group: 1 where a loop of unknown length costs nothing that could be measured."""
        weights = sum(int(np.prod(variable.shape)) for variable in self._model.trainable_variables)
        largest = GROUP["cpu" if self._is_cpu else "gpu"]
        if largest == 1 or weights * self._batch_size > SMALL_STEP or self.slow_in_xla(arrays, order):
            return 1
        return largest

    def slow_in_xla(self, arrays: Arrays, order: Tensor) -> str:
        """Return the kind of operation that makes XLA the slower way on a CPU; empty when there is none."""
        batch = self._batch(arrays, order, 0, min(self._batch_size, order.shape[0]))
        graph = self._xla_step().get_concrete_function(batch).graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        found = sorted({node.op for node in nodes if node.op.startswith(SLOW_IN_XLA)})
        return found[0] if found else ""

    def _xla_step(self) -> Any:  # noqa: ANN401  a tf.function
        if not hasattr(self, "_compiled"):
            self._compiled = tf.function(self._step_for_xla, autograph=False, jit_compile=True)
        return self._compiled

    def _python_loop(self, step: Callable[..., Logs] | None) -> Program:
        on_batch = self._on_batch
        if step is None:
            step, on_batch = self._step, tf.function(self._on_batch, autograph=False)

        def part(arrays: Arrays, order: Tensor, begin: int, size: int) -> None:
            for index in range(begin, begin + size):
                on_batch(step, arrays, order, tf.constant(index * self._batch_size), self._batch_size)

        def last(arrays: Arrays, order: Tensor) -> Logs:
            full, rest = self._sizes(order)
            return on_batch(step, arrays, order, tf.constant(full * self._batch_size), rest)

        return Program(part, last, 1)

    def batches(self, order: Tensor) -> int:
        """Return the number of batches of some samples."""
        return -(-int(order.shape[0]) // self._batch_size)

    def _sizes(self, order: Tensor) -> tuple[int, int]:
        """Return the number of batches before the last, and the samples of the last."""
        full = (order.shape[0] - 1) // self._batch_size
        return full, order.shape[0] - full * self._batch_size

    def _on_batch(self, step: Callable[..., Logs], arrays: Arrays, order: Tensor, start: Tensor, size: int) -> Logs:
        """Run one step on the `size` samples that begin at place `start` of the order."""
        if self._strategy.num_replicas_in_sync > 1:
            return self._on_replicas(arrays, order, start, size)
        return step(self._batch(arrays, order, start, size))

    def _on_replicas(self, arrays: Arrays, order: Tensor, start: Tensor, size: int) -> Logs:
        """Give each replica its part of a batch, as equal as can be; their gradients meet in Keras' optimizer."""
        count = self._strategy.num_replicas_in_sync

        def run(resident: Arrays) -> Logs:
            number = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
            begin, end = size * number // count, size * (number + 1) // count
            return self._step(self._batch(resident, order, start + begin, end - begin))

        logs = self._strategy.run(run, args=(arrays,))
        return {name: self._strategy.experimental_local_results(value)[0] for name, value in logs.items()}

    def _batch(self, arrays: Arrays, order: Tensor, start: Tensor, size: int) -> Any:  # noqa: ANN401  as train_step takes
        index = tf.slice(order, [start], [size])  # a length that is known beforehand: XLA compiles for one shape
        x, y, weight = tree_map(lambda leaf: tf.gather(leaf, index), arrays)
        return keras.utils.pack_x_y_sample_weight(x, y, weight)

    def _step(self, batch: Any) -> Logs:  # noqa: ANN401
        logs = self._keras_step(batch)
        return logs if self._has_logs else {}

    def _step_for_xla(self, batch: Any) -> Logs:  # noqa: ANN401
        with quick_draws() if self._is_cpu else contextlib.nullcontext():
            return self._step(batch)


def _repeat(body: Callable[[Tensor], None], begin: Tensor, count: Tensor) -> None:
    """Run the body for each number from `begin` on, one after the other: the next one reads what this one wrote."""

    def step(number: Tensor) -> Tensor:
        body(number)
        return number + 1

    end = begin + count
    tf.while_loop(lambda number: number < end, step, [begin], parallel_iterations=1)


def _by_size(function: Any) -> Callable[..., Any]:  # noqa: ANN401  a tf.function
    """Return the function with one trace for each number of samples: the data's, or a block's and the last block's."""
    traced: dict[int, Callable[..., Any]] = {}

    def run(arrays: Arrays, order: Tensor, *bounds: Tensor) -> Any:  # noqa: ANN401  what the function returns
        count = int(order.shape[0])
        if count not in traced:
            traced[count] = function.get_concrete_function(arrays, order, *bounds)
        return traced[count](arrays, order, *bounds)

    return run
