"""One way after the other, from the fastest, until one runs a model's batches on TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import keras
import tensorflow as tf

from rocmlab.training.resident.engine import Model, fell_back, number, summary
from rocmlab.training.resident.pace import Pace, Report
from rocmlab.training.resident.tensorflow_loop import (
    BATCH,
    EAGER,
    EPOCH,
    GRAPH,
    STEP,
    Arrays,
    Logs,
    Loop,
    Program,
    Tensor,
)

Blocks = Callable[[], Iterator[tuple[Arrays, Tensor]]]  # resident samples and their order, from the first block on

SENTENCES = {
    EPOCH: "one XLA program an epoch, a loop over its {steps} batches",
    STEP: "one tf.function an epoch, a loop over its {steps} batches with an XLA-compiled step",
    GRAPH: "one tf.function an epoch, a loop over its {steps} batches without XLA",
    BATCH: "one tf.function a batch, {steps} an epoch",
    EAGER: "Keras' uncompiled step, {steps} an epoch",
}


class Pass:
    """Runs a set through the model, and finds the fastest way to do so at its first run."""

    def __init__(self, model: Model, loop: Loop, ways: Sequence[str], avoidable: Collection[str]) -> None:
        """Begin with the first of the ways, from the fastest; some are avoidable where XLA's code is the slower one."""
        self._model, self._loop, self._avoidable = model, loop, avoidable
        self._ways = list(ways)  # the fastest first
        self._program: Program | None = None
        self._pace = Pace()
        self._is_proven = self._has_failed = False
        self.reason = ""  # why it is not the fastest way

    @property
    def way(self) -> str:
        """The current way."""
        return self._ways[0]

    def forget(self) -> None:
        """Drop the program and what it holds."""
        self._program = None

    def run(self, make_blocks: Blocks, report: Report = lambda done, read: None) -> dict[str, float]:
        """Run all blocks once; the first time a slower way follows where a faster one cannot be compiled.

        A program may fail after some of its steps (the last, smaller batch is compiled on its own), so the state
        before them is kept until one way has come to its end.
        """
        if self._is_proven:
            return self._run(make_blocks(), report)
        model = self._model
        changed = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
        before = [(one, one.numpy()) for one in {id(one): one for one in changed}.values()]
        while True:
            try:
                logs = self._run(make_blocks(), report)
            except Exception as err:
                if len(self._ways) == 1:
                    raise
                for variable, value in before:
                    variable.assign(value)
                unit = EPOCH if self.way == GRAPH else self.way
                self.reason = f"not as one program for each {unit} ({summary(err)})"
                self._ways.pop(0)
                self._program, self._has_failed = None, True
            else:
                self._is_proven = True
                if self._has_failed:  # one warning, about the way that was found
                    fell_back(f"{SENTENCES[self.way].format(steps='its')}; {self.reason}")
                return logs

    def _run(self, parts: Iterator[tuple[Arrays, Tensor]], report: Report) -> dict[str, float]:
        self._model.reset_metrics()
        logs: Logs = {}
        done = 0  # steps of the blocks before
        for arrays, order in parts:
            if done:
                report(done, self._results)
            if self._program is None:
                self._choose(arrays, order)
                self._program = self._loop.program(self.way, arrays, order)
            logs = self._run_block(self._program, arrays, order, done, report)
            done += self._loop.batches(order)
            del arrays, order  # its memory is needed: the block after next is sent when the next one is requested
        tf.test.experimental.sync_devices()
        self._pace.settle()
        results = self._model.get_metrics_result()
        if logs and set(logs) != set(results):  # a train_step of the model's own that returns something else
            results = logs
        return _numbers(results)

    def _run_block(self, program: Program, arrays: Arrays, order: Tensor, done: int, report: Report) -> Logs:
        logs: Logs = self._pace.run(
            0,
            program.groups(self._loop.batches(order)),
            lambda begin, size: program.part(arrays, order, begin, size),
            lambda: program.last(arrays, order),
            tf.test.experimental.sync_devices,
            lambda groups: report(done + groups * program.group, self._results),
        )
        return logs

    def _results(self) -> dict[str, float]:
        return _numbers(self._model.get_metrics_result())

    def _choose(self, arrays: Arrays, order: Tensor) -> None:
        """Avoid XLA where it is the slower way on a CPU."""
        if self.way not in self._avoidable or not (operation := self._loop.slow_in_xla(arrays, order)):
            return
        self._ways = [way for way in self._ways if way not in self._avoidable]
        where = " inside a loop" if self.way == STEP else ""
        self.reason = f"on a CPU XLA's code for {operation} is slower than TensorFlow's{where}"


def _numbers(logs: Logs) -> Logs:
    return {name: number(keras.ops.convert_to_numpy(value)) for name, value in logs.items()}
