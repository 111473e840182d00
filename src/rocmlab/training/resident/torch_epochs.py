"""What the engines for Keras on torch and for plain torch modules share: the data, and who runs the steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from rocmlab.training.resident import blocks, torch_store
from rocmlab.training.resident.engine import Data, Options, Tree, fell_back
from rocmlab.training.resident.graphs import Graphs, Loop, Steps
from rocmlab.training.resident.pace import Counter, Pace
from rocmlab.training.resident.torch_store import Store, Untyped


class Epochs:
    """Epochs over resident data on the device of the weights: steps one after another, or on a GPU many in one graph.

    `uncapturable` returns why no steps can be captured; empty if they can, as far as known beforehand.

    Raises:
        RocmlabError: the memory allowed holds no two batches.
    """

    def __init__(self, device: torch.device, data: Data, options: Options, uncapturable: Callable[[], str]) -> None:
        self._device, self._options = device, options
        self._plan = blocks.plan(data, options, torch_store.free_bytes(device), keeps_both=True)
        self._train = Store(data.train, self._plan.train, device, options)
        self._validation: Store | None = None
        if data.validation is not None:
            self._validation = Store(data.validation, self._plan.validation, device, options)
        self._reason = uncapturable() if device.type == "cuda" else ""
        self.captures = device.type == "cuda" and not self._reason
        if self._reason:
            fell_back(f"{self._reason}; its steps run one after another")
        self._runners: list[Loop | Graphs] = []  # of the training, then of the validation if there is one
        self._paces = (Pace(), Pace())
        self._seen: Any = None  # what the graphs hold fixed, as it was when they were captured

    def run_by(
        self,
        train: Callable[[Tree], Steps],
        test: Callable[[Tree], Steps],
        recording: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        """Set how steps are made from the tensors of training and validation, and what makes them capturable."""
        sizes = [self._options.batch(training=training) for training in (True, False)]
        made = [(train, self._train), *([(test, self._validation)] if self._validation else [])]
        epochs = max(0, self._options.epochs - self._options.initial_epoch)
        for (make, store), size in zip(made, sizes, strict=False):
            steps = make(store.tensors)
            planned = -(-store.count // size) * epochs
            graphs = Graphs(steps, size, planned, self._device, recording) if self.captures else None
            self._runners.append(graphs or Loop(steps, size))

    @property
    def how(self) -> str:
        """What runs an epoch, where, and why nothing faster if so."""
        steps = self._options.steps(self._train.count)
        runner, reason = self._runners[0], self._reason
        what = f"a loop over {steps} steps an epoch"
        if isinstance(runner, Graphs):
            reason = runner.reason
            if runner.group:
                what = f"graphs of {runner.group} steps, {steps} steps an epoch,"
        what += f" on {torch_store.device_name(self._device)}"
        return "; ".join(filter(None, (what, self._plan.sentence or "data resident", reason)))

    def train(self, epoch: int, seed: int, read: Callable[[], dict[str, Any]]) -> Untyped:
        """Train on all samples once, random numbers drawn from this seed; return what the last steps returned.

        `read` returns the logs of the steps so far.
        """

        def report(done: int, has_logs: bool) -> None:
            self._options.report(done, read if has_logs else dict)

        with torch_store.random_stream(self._device, torch_store.stream_seed(seed, epoch)):
            return self._pass(0, self._train, self._train.orders(epoch, shuffle=self._options.shuffle), report)

    def validate(self) -> Untyped:
        """Test on all samples of the validation; return what the last steps returned."""
        assert self._validation is not None
        orders = self._validation.orders(0, shuffle=False)
        return self._pass(1, self._validation, orders, lambda done, has_logs: None)

    def _pass(
        self,
        place: int,
        store: Store,
        orders: Iterator[torch.Tensor | int],
        report: Callable[[int, bool], None],
    ) -> Untyped:
        found = None
        steps = self._options.steps(store.count, training=place == 0)
        counter = Counter(self._paces[place], steps, lambda: torch_store.synchronise(self._device), report)
        try:
            with counter.counting():
                for order in orders:
                    counter.begin_block()
                    found = self._runners[place].run(order)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of a device that has failed: what was raised says more
                torch_store.synchronise(self._device)  # data and graphs go next, and the device may read them
            raise
        return found

    def see(self, state: Untyped) -> bool:
        """Note what graphs hold fixed now; forget them, and return True, if that is something else than before."""
        if state == self._seen:
            return False
        self.note(state)
        self.forget()
        return True

    def note(self, state: Untyped) -> None:
        """Note what the graphs hold fixed now, which the training itself has changed."""
        self._seen = state

    def forget(self) -> None:
        """Drop the graphs."""
        for runner in self._runners:
            if isinstance(runner, Graphs):
                runner.forget()

    def close(self) -> None:
        """Drop graphs and data."""
        self.forget()
        for store in (self._train, self._validation):
            if store is not None:
                store.tensors = (None, None, None)
