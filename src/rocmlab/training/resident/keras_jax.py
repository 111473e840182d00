"""Keras on JAX: the data stay on the device and an epoch is one XLA program over them.

Three ways, the first that works: an epoch in one program (`lax.scan` over the batches), a program per batch (for
convolutions on a CPU, which XLA computes far more slowly inside a loop), and Keras' uncompiled step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident import blocks
from rocmlab.training.resident.engine import (
    Array,
    Data,
    Model,
    Options,
    Samples,
    count_of,
    fell_back,
    summary,
    tree_map,
)
from rocmlab.training.resident.jax_programs import Arrays, Programs, State, numbers
from rocmlab.training.resident.pace import Pace

Device = Any  # jax.Device
Sharding = Any  # jax.sharding.Sharding
EPOCH, BATCH, EAGER = "epoch", "batch", "step"
TO_TRAIN = ("trainable", "other", "optimizer", "metrics")  # the parts of the state, in the order of a program's
TO_TEST = ("trainable", "other", "metrics")


class JaxEngine:
    """One model's epochs on JAX's default device, or on those of `keras.distribution` in this process."""

    def __init__(self, model: Model, data: Data, options: Options) -> None:
        self._sharding = _data_sharding()
        self._model, self._data, self._options = model, data, options
        self._device = _device(self._sharding)
        self._plan = blocks.plan(data, options, _free_bytes(self._device))
        self._programs = Programs(
            model, options, shuffle=options.shuffle and self._plan.is_resident, platform=self._device.platform
        )
        self._compiled: dict[tuple[str, bool], Callable[..., Any]] = {}
        self._state: dict[str, list[Any]] = {}
        self._train = self._put(data.train) if self._plan.is_resident else None
        self._validation = None
        if data.validation and len(self._plan.validation) == 1:
            self._validation = self._put(data.validation)
        self._paces = {training: Pace() for training in (True, False)}
        self._done = 0  # batches of the current block
        self._way, self._reason = EPOCH, ""
        if model.run_eagerly or not model.jit_compile:
            self._way = EAGER
            self._reason = "the model, or a layer of it, is not to be compiled (run_eagerly, jit_compile)"

    @property
    def how(self) -> str:
        """What runs an epoch, where, and why nothing faster if so."""
        steps = self._options.steps(self._data.train.count)
        kind = f"{self._device.device_kind} ({self._device.platform})"
        what = {
            EPOCH: f"one XLA program an epoch, a scan over its {steps} batches, on {kind}",
            BATCH: f"one XLA program a batch, {steps} an epoch, on {kind}",
            EAGER: f"Keras' uncompiled step, {steps} an epoch, on {kind}",
        }[self._way]
        parts = [what, self._plan.sentence or "data resident"]
        if self._sharding is not None:
            parts.append(f"each batch shared between {len(self._sharding.device_set)} devices")
        return ", ".join(parts) + (f"; {self._reason}" if self._reason else "")

    def train(self, epoch: int) -> dict[str, float]:
        """Train one epoch; the metrics are read once, at its end."""
        if self._train is not None:
            return self._run(True, iter([self._train]), epoch)
        order = blocks.order(self._data.train.count, self._options, epoch)
        return self._run(True, map(self._put, blocks.cut(self._data.train, self._plan.train, order)), epoch)

    def evaluate(self) -> dict[str, float]:
        """Run the validation set through the model."""
        if self._validation is not None:
            return self._run(False, iter([self._validation]), 0)
        samples = self._data.validation
        assert samples is not None
        return self._run(False, map(self._put, blocks.cut(samples, self._plan.validation)), 0)

    def close(self) -> None:
        """Forget the data and the programs; a state the model does not have yet goes back to it."""
        self._give_back()
        self._train = self._validation = None
        self._compiled.clear()

    def _take(self) -> None:
        """Take the state from the model's variables."""
        record = getattr(self._model, "_record_training_state_sharding_spec", None)
        if callable(record):  # of Keras before 3.12, whose steps read what its `fit` has noted first
            record()
        parts = [[variable.value for variable in part] for part in self._programs.variables(training=True)]
        self._state = dict(zip(TO_TRAIN, parts, strict=True))

    def _give_back(self) -> None:
        """Assign the state to the model's variables, whose own values went into the programs and are no more."""
        for variables, values in zip(self._programs.variables(training=True), self._state.values(), strict=False):
            for variable, value in zip(variables, values, strict=True):
                if variable.value is not value and not value.is_deleted():
                    variable.assign(value)
        self._state = {}

    def _put(self, samples: Samples) -> Arrays:
        """Start the transfer of samples to the device; every device of a distribution gets them all."""
        x, y, weight = tree_map(
            lambda leaf: jax.device_put(leaf, self._sharding), (samples.x, samples.y, samples.sample_weight)
        )
        return x, y, weight

    def _run(self, training: bool, arrays: Iterator[Arrays], epoch: int) -> dict[str, float]:
        """Run all blocks of an epoch; the next one is sent while the current one computes."""
        self._take()
        logs: dict[str, Any] = {}
        block: Arrays | None = next(arrays)
        before = 0  # batches of the blocks before
        while block is not None:
            earlier, logs = logs, self._with_fallback(training, block, epoch, before)
            jax.block_until_ready(earlier)  # two blocks on the device at most: this one and the next
            before += self._options.steps(count_of(block), training=training)
            block = next(arrays, None)
        self._give_back()
        results = numbers(logs)
        self._paces[training].settle()
        return results

    def _with_fallback(self, training: bool, block: Arrays, epoch: int, before: int) -> dict[str, Any]:
        """Dispatch one block, a slower way where the faster one cannot be compiled; return the logs so far.

        `before`: batches of the epoch's blocks before this one. A slower way continues where the faster one ended.
        """
        self._done = 0
        order = None  # of the samples, (count,) int32; None where they are taken as they are
        if training and self._options.shuffle and self._train is not None:
            program = self._program("order", True, lambda: jax.jit(self._programs.order, static_argnums=0))
            order = program(count_of(block), epoch)
        while True:
            try:
                self._spare_loops(training, self._read(training), block)
                run = self._whole if self._way == EPOCH else self._one_by_one
                return run(training, block, order, before)
            except Exception as err:
                if self._way == EAGER or any(value.is_deleted() for part in self._read(training) for value in part):
                    raise  # nothing slower is left, or the program had started: then it is no matter of compiling
                self._reason = f"a whole {self._way} could not be compiled ({summary(err)})"
                self._way = {EPOCH: BATCH, BATCH: EAGER}[self._way]
                fell_back(self.how)
                self._paces[training] = Pace()

    def _spare_loops(self, training: bool, state: State, block: Arrays) -> None:
        """Leave the scan where it is slower: on two cores a CNN's epoch took 9 times the CPU seconds in a scan."""
        if self._way != EPOCH or self._device.platform != "cpu":
            return
        if self._programs.inspect(state, block, training=training).convolves:
            self._way, self._reason = BATCH, "on a CPU, XLA computes convolutions many times slower inside a scan"

    def _whole(self, training: bool, block: Arrays, order: Array, before: int) -> dict[str, Any]:
        """Run a block in as few programs as an interrupt allows."""
        part = self._program("part", training, lambda: self._programs.part(training=training))
        tail = self._program("tail", training, lambda: self._programs.tail(training=training))
        groups, group = self._programs.groups(self._read(training), block, training=training)
        logs: dict[str, Any] = {}

        def run(program: Callable[..., Any], batches: int, *bounds: int) -> None:
            nonlocal logs
            is_first = before + self._done == 0
            state, logs = program(self._read(training), block, order, is_first, *bounds)
            self._keep(training, state)
            self._done += batches

        def last() -> dict[str, Any]:
            if left := self._options.steps(count_of(block), training=training) - self._done:
                run(tail, left)
            return logs

        results: dict[str, Any] = self._paces[training].run(
            0,
            groups,
            lambda begin, size: run(part, size * group, begin, size),
            last,
            lambda: jax.block_until_ready(logs),
            lambda _groups: self._report(training, before, lambda: logs),
        )
        return results

    def _one_by_one(self, training: bool, block: Arrays, order: Array, before: int) -> dict[str, Any]:
        """Run what is left of a block batch by batch, compiled or not."""
        compiled = self._way == BATCH
        step = self._program(self._way, training, lambda: self._programs.batch(training=training, compiled=compiled))
        count, full = count_of(block), self._options.batch(training=training)
        logs: dict[str, Any] = {}

        def part(begin: int, batches: int) -> None:
            nonlocal logs
            if before + begin == 0:
                self._keep(training, self._programs.reset(self._read(training)))
            for number in range(begin, begin + batches):
                start = number * full
                size = min(full, count - start)
                logs, state = step(self._read(training), block, order, start, size)
                self._keep(training, state)
                self._done += 1

        def read() -> dict[str, Any]:
            return self._programs.results(self._read(training))

        def last() -> dict[str, Any]:
            results = read()
            return results if not isinstance(logs, dict) or set(results) == set(logs) else logs

        results: dict[str, Any] = self._paces[training].run(
            self._done,
            self._options.steps(count, training=training),
            part,
            last,
            lambda: jax.block_until_ready(self._read(training)),
            lambda _batches: self._report(training, before, read),
        )
        return results

    def _report(self, training: bool, before: int, read: Callable[[], dict[str, Any]]) -> None:
        if training:
            self._options.report(before + self._done, lambda: numbers(read()))

    def _read(self, training: bool) -> State:
        return tuple(self._state[name] for name in (TO_TRAIN if training else TO_TEST))

    def _keep(self, training: bool, state: State) -> None:
        self._state.update(zip(TO_TRAIN if training else TO_TEST, state, strict=True))

    def _program(self, name: str, training: bool, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        key = (name, training)
        if key not in self._compiled:
            self._compiled[key] = make()
        return self._compiled[key]


def _device(sharding: Sharding | None) -> Device:
    """Return the device that computes, or the first of several, as JAX places it: a default may be set."""
    if sharding is not None:
        return sharding.mesh.devices.flat[0]
    return next(iter(jax.numpy.zeros(()).devices()))


def _data_sharding() -> Sharding | None:
    """Return where the resident data lie under `keras.distribution`: whole on each device; None without one.

    Raises:
        RocmlabError: the distribution spans several processes, each of which holds other data.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return None
    if jax.process_count() > 1:
        raise RocmlabError(
            f"fit_resident runs in one process, and this job has {jax.process_count()}",
            "each process would have to hold a part of the data that the others do not know",
            "use fit() there, or one process with all devices of this machine",
        )
    return jax.sharding.NamedSharding(distribution.device_mesh.backend_mesh, jax.sharding.PartitionSpec())


def _free_bytes(device: Device) -> int | None:
    """Return the memory JAX can still hand out on a device; None when it is unknown."""
    if device.platform == "cpu":
        return blocks.host_free_bytes()
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
