"""A plain torch module with its own optimizer, loss and metrics: data on the device, many steps one graph on a GPU.

The module is called as `module(x)`, or `module(*x)` and `module(**x)` where the inputs are a list, tuple or dict.
Under `torch.autocast` around `fit_resident` the forward pass and the loss run in it; a scaler comes in
`torch_optimizer.Scaled`. Steps and callbacks begin without the casts of weights that autocast keeps: the weights have
changed since, and a graph would read the casts instead of making them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident import torch_store
from rocmlab.training.resident.engine import Data, Options, Tree, tree_map
from rocmlab.training.resident.graphs import Rows
from rocmlab.training.resident.torch_epochs import Epochs
from rocmlab.training.resident.torch_optimizer import Optimizer
from rocmlab.training.resident.torch_store import Batches, Untyped, join


class ModuleEngine:
    """One module's epochs on its device; under DistributedDataParallel each process trains its own part of the data."""

    def __init__(self, module: Untyped, data: Data, options: Options) -> None:
        self._module, self._seed = module, options.seed
        self._device = _device(module)
        self._optimizer = Optimizer(options.optimizer, self._device)
        self._epochs = Epochs(self._device, data, options, self._uncapturable)
        if self._epochs.captures:
            self._optimizer.make_capturable()
        self._modes = [(part, part.training) for part in module.modules()]
        if _is_parallel(module):  # the processes of a job draw different dropout masks
            self._seed += torch.distributed.get_rank()
        self._totals = totals = Totals(["loss", *options.metrics], self._device)
        inner = module.module if _is_parallel(module) else module
        self._epochs.run_by(
            lambda tensors: Training(module, self._optimizer, options, tensors, totals),
            lambda tensors: Evaluation(inner, options, tensors, totals),
        )

    @property
    def how(self) -> str:
        """What runs an epoch, where, and why nothing faster if so."""
        return self._epochs.how

    def train(self, epoch: int) -> dict[str, float]:
        """Train one epoch and wait for the device."""
        self._optimizer.begin()
        if self._epochs.see(_fingerprint(self._module, self._optimizer.optimizer)):  # changed by a callback
            self._optimizer.forget()
        self._set_modes()
        self._totals.clear()
        self._epochs.train(epoch, self._seed, lambda: self._totals.read(together=False))
        logs = self._totals.read(together=_is_parallel(self._module))
        torch_store.synchronise(self._device)
        self._epochs.note(_fingerprint(self._module, self._optimizer.optimizer))
        self._optimizer.end()  # a scheduler or a callback finds its own learning rate
        torch.clear_autocast_cache()
        return logs

    def evaluate(self) -> dict[str, float]:
        """Return the loss and metrics of the validation set."""
        self._module.eval()
        self._totals.clear()
        self._epochs.validate()
        logs = self._totals.read(together=_is_parallel(self._module))
        self._set_modes()
        torch.clear_autocast_cache()
        return logs

    def close(self) -> None:
        """Drop data, graphs and gradients; the optimizer is as its caller made it, with its new state."""
        self._optimizer.end()
        self._optimizer.close()
        for part, training in self._modes:
            part.training = training
        self._optimizer.forget()
        self._optimizer.drop_gradients()
        self._epochs.close()

    def _set_modes(self) -> None:
        """Train: parts that the caller had put in evaluation mode inside a training module stay there."""
        if not self._modes[0][1]:
            self._module.train()
            return
        for part, training in self._modes:
            part.training = training

    def _uncapturable(self) -> str:
        """Return why the host must take part in each step; empty when it need not, as far as can be seen beforehand."""
        if _is_parallel(self._module):
            return "DistributedDataParallel's exchange of gradients is not captured in a graph"
        return self._optimizer.uncapturable()


class Totals:
    """Sums of losses and metrics on the device, read once an epoch."""

    def __init__(self, names: list[str], device: torch.device) -> None:
        self._names = names
        kind = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.zeros(len(names), dtype=kind, device=device)
        self._count = torch.zeros((), dtype=kind, device=device)

    def clear(self) -> None:
        """Begin an epoch."""
        self._sums.zero_()
        self._count.zero_()

    def add(self, means: list[torch.Tensor], samples: int) -> None:
        """Add the mean of each quantity, (), over this many samples."""
        self._sums.add_(torch.stack([mean.detach().to(self._sums.dtype) for mean in means]), alpha=samples)
        self._count.add_(samples)

    def read(self, *, together: bool) -> dict[str, float]:
        """Return the means over everything added, over all processes of a job where they train together."""
        values = torch.cat([self._sums, self._count.reshape(1)])
        if together:
            torch.distributed.all_reduce(values)
        *sums, count = values.tolist()
        return {name: total / count for name, total in zip(self._names, sums, strict=True)}


class Training:
    """Training steps of a module over rows of resident samples."""

    def __init__(self, module: Untyped, optimizer: Optimizer, options: Options, tensors: Tree, totals: Totals) -> None:
        self._module, self._optimizer, self._options = module, optimizer, options
        self._tensors, self._totals = tensors, totals
        self._row_bytes = torch_store.row_bytes(tensors)

    def __call__(self, rows: Rows, batch: int) -> None:
        """Train the rows in steps of `batch`."""
        torch.clear_autocast_cache()
        pending: list[Any] = []
        for x, y, weight in Batches(self._tensors, rows, batch, self._row_bytes):
            self._optimizer.drop_gradients()
            outputs = call(self._module, x)
            loss = loss_of(self._options.loss, outputs, y, weight)
            with _outside_autocast(loss.device.type):
                self._optimizer.step(loss)
            pending.append((loss.detach(), tree_map(torch.detach, outputs), y))
            if torch_store.tensor_bytes(pending[0][1]) * len(pending) > torch_store.OUTPUT_BYTES:
                _account(self._options, self._totals, pending, batch)
                pending = []
        self._optimizer.drop_gradients()
        if pending:
            _account(self._options, self._totals, pending, batch)


class Evaluation:
    """Steps that only measure."""

    def __init__(self, module: Untyped, options: Options, tensors: Tree, totals: Totals) -> None:
        self._module, self._options, self._tensors, self._totals = module, options, tensors, totals
        self._row_bytes = torch_store.row_bytes(tensors)

    def __call__(self, rows: Rows, batch: int) -> None:
        """Measure the rows in steps of `batch`."""
        torch.clear_autocast_cache()
        with torch.no_grad():
            for x, y, weight in Batches(self._tensors, rows, batch, self._row_bytes):
                outputs = call(self._module, x)
                loss = loss_of(self._options.loss, outputs, y, weight)
                _account(self._options, self._totals, [(loss, outputs, y)], batch)


def call(module: Untyped, x: Tree) -> Untyped:
    """Call the module on a batch: a dict by names, a list or tuple by places."""
    if isinstance(x, Mapping):
        return module(**x)
    return module(*x) if isinstance(x, (list, tuple)) else module(x)


def loss_of(loss: Untyped, outputs: Untyped, y: Tree, weight: Tree) -> torch.Tensor:
    """Return a batch's loss, (), the weighted mean over samples; an error for weights without a loss per sample."""
    values = loss(outputs, y)
    if weight is None:
        return values if values.ndim == 0 else values.mean()
    is_wide = weight.ndim > values.ndim and weight.numel() != values.numel()
    if values.ndim == 0 or values.shape[0] != weight.shape[0] or is_wide:
        raise RocmlabError(
            f"sample weights of shape {tuple(weight.shape)} with a loss of shape {tuple(values.shape)}",
            "each sample's loss is multiplied by its weight, so the loss must give one value per sample",
            'pass a loss that reduces nothing, for example torch.nn.CrossEntropyLoss(reduction="none")',
        )
    if weight.ndim > values.ndim:  # a column of weights; with (samples,) it would weigh each loss by every weight
        weight = weight.reshape(values.shape)
    weighted = values * weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim))
    return weighted.mean()


def _account(options: Options, totals: Totals, pending: list[Any], batch: int) -> None:
    """Add the losses and metrics of some steps; a metric with a value per sample is taken over all of them together."""
    losses = [loss for loss, _, _ in pending]
    means = [losses[0] if len(losses) == 1 else torch.stack(losses).mean()]
    joined: Any = None
    with torch.no_grad():
        for function in options.metrics.values():
            values = [function(pending[0][1], pending[0][2])]
            if len(pending) > 1 and values[0].ndim and values[0].shape[0] == batch:
                joined = joined or [join([step[place] for step in pending]) for place in (1, 2)]
                values = [function(*joined)]
            else:
                values += [function(outputs, y) for _, outputs, y in pending[1:]]
            found = [value.to(torch.float32).mean() for value in values]
            means.append(found[0] if len(found) == 1 else torch.stack(found).mean())
    totals.add(means, batch * len(pending))


def _is_parallel(module: Untyped) -> bool:
    return isinstance(module, torch.nn.parallel.DistributedDataParallel)


def _device(module: Untyped) -> torch.device:
    """Return the device of the module's parameters; an error if it has none."""
    for parameter in module.parameters():
        return torch.device(parameter.device)
    raise RocmlabError(
        f"{type(module).__name__} has no parameters", "nothing in it can be trained", "add layers to it in its __init__"
    )


@contextlib.contextmanager
def _outside_autocast(kind: str) -> Iterator[None]:
    """Leave the caller's autocast for gradients and update, and drop the casts of weights that are about to change."""
    if not torch.is_autocast_enabled(kind):
        yield
        return
    with torch.autocast(kind, enabled=False):
        yield
    torch.clear_autocast_cache()


def _fingerprint(module: Untyped, optimizer: Untyped) -> Untyped:
    """Return everything of a module and its optimizer that a graph holds fixed: addresses, and numbers of the host."""
    tensors = [*module.parameters(), *module.buffers()]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    groups = []
    for group in optimizer.param_groups:
        numbers = {key: value for key, value in group.items() if key != "params"}
        rate = numbers.get("lr")
        numbers["lr"] = rate.data_ptr() if isinstance(rate, torch.Tensor) else rate
        groups.append((repr(numbers), len(group["params"])))
    return [(tensor.data_ptr(), tensor.requires_grad) for tensor in tensors], groups
