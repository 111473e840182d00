"""Keras on TensorFlow: the data stay on the device, and one program runs the batches of an epoch over them.

The ways, from the fastest that compiles: the whole loop as one XLA program, a `tf.function` whose loop calls an
XLA-compiled step, the same without XLA, and Python's loop.
The programs change the model's own variables, so there is nothing to take from the model or to give back.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident import blocks, probes
from rocmlab.training.resident.engine import Array, Data, Model, Options, Samples, layers_of, tree_map
from rocmlab.training.resident.tensorflow_loop import BATCH, EAGER, EPOCH, GRAPH, STEP, Arrays, Loop, Tensor
from rocmlab.training.resident.tensorflow_pass import SENTENCES, Pass


class TensorFlowEngine:
    """One model's epochs on the device of its variables, or on those of its distribution strategy."""

    def __init__(self, model: Model, data: Data, options: Options) -> None:
        self._model, self._data, self._options = model, data, options
        self._strategy = model.distribute_strategy
        self._replicas = int(self._strategy.num_replicas_in_sync)
        self._check_parts()
        if not model.optimizer.built:  # variables cannot be created inside a loop
            with self._strategy.scope():
                model.optimizer.build(model.trainable_variables)
        held = [str(variable.value.device) for variable in model.variables]
        self._device = next((name for name in held if name), "/CPU:0")  # in full: "/job:…/device:GPU:0"
        self._plan = blocks.plan(data, options, _free_bytes(self._device))
        self._train = self._put(data.train) if self._plan.is_resident else None
        self._validation = None
        if data.validation and len(self._plan.validation) == 1:
            self._validation = self._put(data.validation)
        ways, self._reason = possible_ways(model, self._replicas, self._device)
        # On a CPU Keras uses XLA only on request; there we decide.
        is_cpu = "CPU" in self._device
        avoidable = () if not is_cpu else (EPOCH,) if model.jit_compile else (EPOCH, STEP)
        self._training, self._testing = (
            Pass(model, Loop(model, step, options.batch(training=step == "train_step"), is_cpu), ways, avoidable)
            for step in ("train_step", "test_step")
        )

    @property
    def how(self) -> str:
        """What runs an epoch, where, and why nothing faster if so."""
        steps = self._options.steps(self._data.train.count)
        parts = [f"{SENTENCES[self._training.way].format(steps=steps)}, on {_spoken(self._device)}"]
        parts.append(self._plan.sentence or "data resident")
        if self._replicas > 1:
            parts.append(f"each batch shared between {self._replicas} replicas")
        reasons = dict.fromkeys(one for one in (self._reason, self._training.reason, self._testing.reason) if one)
        return "; ".join([", ".join(parts), *reasons, *probes.reports()])

    def train(self, epoch: int) -> dict[str, float]:
        """Train one epoch; the metrics are read once, at its end."""
        return self._training.run(lambda: self._blocks_to_train(epoch), self._options.report)

    def evaluate(self) -> dict[str, float]:
        """Run the validation set through the model."""
        return self._testing.run(self._blocks_to_test)

    def close(self) -> None:
        """Forget the data and the programs."""
        self._train = self._validation = None
        self._training.forget()
        self._testing.forget()

    def _blocks_to_train(self, epoch: int) -> Iterator[tuple[Arrays, Tensor]]:
        count = self._data.train.count
        order = self._order(count, epoch)
        if self._train is not None:
            yield self._train, order
            return
        yield from self._stream(blocks.cut(self._data.train, self._plan.train, order.numpy()))

    def _blocks_to_test(self) -> Iterator[tuple[Arrays, Tensor]]:
        samples = self._data.validation
        assert samples is not None
        if self._validation is not None:
            yield self._validation, tf.range(samples.count)
            return
        yield from self._stream(blocks.cut(samples, self._plan.validation))

    def _stream(self, parts: Iterator[Samples]) -> Iterator[tuple[Arrays, Tensor]]:
        """Yield blocks on the device; the next one is sent while the program works on the current one."""

        def send() -> tuple[Arrays, Tensor] | None:
            part = next(parts, None)
            return None if part is None else (self._put(part), tf.range(part.count))

        with ThreadPoolExecutor(1) as pool:
            block = pool.submit(send).result()
            while block is not None:
                following = pool.submit(send)
                yield block
                block = following.result()

    def _order(self, count: int, epoch: int) -> Tensor:
        """Return the order of an epoch's samples, drawn on the device from seed and epoch: (count,) int32."""
        with tf.device(self._device):
            if not self._options.shuffle:
                return tf.range(count)
            draws = tf.random.stateless_uniform([count], [self._options.seed, epoch], 0, 2**31 - 1, tf.int32)
            return tf.argsort(draws)

    def _put(self, samples: Samples) -> Arrays:
        """Return the samples as tensors on the device; with a strategy every replica's device gets them all."""
        return tree_map(self._tensor, (samples.x, samples.y, samples.sample_weight))

    def _tensor(self, leaf: Array) -> Any:  # noqa: ANN401  a tensor or a PerReplica value
        if self._replicas == 1:
            with tf.device(self._device):
                return tf.constant(leaf)
        devices = self._strategy.extended.worker_devices

        def on_replica(context: Any) -> Tensor:  # noqa: ANN401  a ValueContext
            with tf.device(devices[context.replica_id_in_sync_group]):
                return tf.constant(leaf)

        return self._strategy.experimental_distribute_values_from_function(on_replica)

    def _check_parts(self) -> None:
        """Reject batches that leave a replica without a sample: the mean of nothing would spoil the weights."""
        sets = [(self._data.train, True), *([(self._data.validation, False)] if self._data.validation else [])]
        last = min((one.count - 1) % self._options.batch(training=training) + 1 for one, training in sets)
        if last < self._replicas:
            raise RocmlabError(
                f"the last batch has {last} sample(s) for {self._replicas} replicas",
                f"each replica needs at least one, in training and validation (batch_size={self._options.batch_size})",
                f"leave the last {last} sample(s) out, or pass another batch_size",
            )


def possible_ways(model: Model, replicas: int, device: str) -> tuple[list[str], str]:
    """Return the ways to run an epoch, the fastest first, and why the fastest of all are not among them, else empty."""
    if model.run_eagerly:
        return [EAGER], "the model is compiled with run_eagerly"
    if replicas > 1:
        return [GRAPH, BATCH], "XLA cannot compile a step whose replicas exchange gradients"
    if not all(getattr(layer, "supports_jit", True) for layer in layers_of(model)):
        return [GRAPH, BATCH], "a layer of the model does not support XLA"
    if "CPU" not in device and not model.jit_compile:
        return [GRAPH, BATCH], "the model is compiled with jit_compile=False"
    return [EPOCH, STEP, GRAPH, BATCH], ""


def _spoken(device: str) -> str:
    return device.rsplit("device:", 1)[-1].lstrip("/")


def _free_bytes(device: str) -> int | None:
    """Return the memory TensorFlow can still hand out on a device; None when it is unknown.

    Source: `memory_limit` of `device_lib.list_local_devices()`, less what `get_memory_info` says is in use.
    """
    if "CPU" in device:
        return blocks.host_free_bytes()
    name = _spoken(device)
    try:
        from tensorflow.python.client import device_lib

        used = int(tf.config.experimental.get_memory_info(name)["current"])
    except (ImportError, ValueError, NotImplementedError):  # a PluggableDevice that does not count
        return None
    limits = [int(one.memory_limit) for one in device_lib.list_local_devices() if one.name.endswith(f"device:{name}")]
    return limits[0] - used if limits else None
