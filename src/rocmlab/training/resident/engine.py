"""The interface between `fit_resident` and whatever runs an epoch: one engine per framework.

An engine, made as `Engine(model, data, options)`, keeps the training data on the device and runs a whole epoch there.
`fit_resident` owns everything around it: checks, callbacks, history, validation's place in the epoch, seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocmlab.training.resident.pace import Report

Model = Any  # of Keras or PyTorch
Array = Any  # of numpy or a framework; inside a program perhaps a number
Tree = Any  # an array, None, or a dict, list or tuple of trees


class Engine(Protocol):
    """Runs epochs of one model over one set of data.

    Each call begins with the model's current state, for a callback may have changed it, and ends with the new state in
    the model, where callbacks can read, save or replace it.
    """

    @property
    def how(self) -> str:
        """One sentence: what runs an epoch, and why nothing faster if it fell back; it may change while training."""

    def train(self, epoch: int) -> dict[str, float]:
        """Train one epoch and block until the device is done; the logs are named as `fit` names them.

        A long epoch runs in several programs (`pace`): between two of them progress is reported, and an interrupt
        takes effect. Then the model keeps the weights and the optimizer state of the last program's last step.
        """

    def evaluate(self) -> dict[str, float]:
        """Return the logs of the validation set, named without `val_`; only called when there is one."""

    def close(self) -> None:
        """Give the device's memory back; the model keeps its state. Called once, also after an error."""


@dataclass(frozen=True)
class Samples:
    """Samples as trees of numpy arrays, every leaf with the same first dimension; floats are in Keras' floatx."""

    x: Tree  # leaves (count, ...)
    y: Tree  # leaves (count, ...), None when the model needs no targets
    sample_weight: Tree  # leaves (count, ...), None when there are none
    count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(int(leaf.nbytes) for leaf in leaves((self.x, self.y, self.sample_weight)))

    def take(self, index: slice | Array) -> Samples:
        """Return the samples of `index`: a slice (a view) or an array of integers (a copy)."""
        x, y, weight = tree_map(lambda leaf: leaf[index], (self.x, self.y, self.sample_weight))
        return Samples(x, y, weight, len(range(self.count)[index]) if isinstance(index, slice) else len(index))


@dataclass(frozen=True)
class Data:
    """What to train on, and what to validate with after each epoch."""

    train: Samples
    validation: Samples | None = None


@dataclass(frozen=True)
class Options:
    """How to train: the arguments of `fit_resident` after its checks."""

    batch_size: int = 32
    validation_batch_size: int | None = None  # None: that of the training
    epochs: int = 1
    initial_epoch: int = 0
    shuffle: bool = True
    seed: int = 0  # of the order of the samples, 0 to 2^31-1; drawn by `fit_resident` when its caller gave none
    validation_freq: int | frozenset[int] = 1  # epochs between validations, or those to validate after, from 1
    memory_bytes: int | None = None  # of the device for the data; None: what is free, less a reserve
    optimizer: Any = None  # this and the next two only for a plain torch module
    loss: Callable[..., Any] | None = None
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    report: Report = lambda done, read: None  # called between the programs of an epoch of training

    def steps(self, count: int, *, training: bool = True) -> int:
        """Batches of an epoch, or a validation, over `count` samples, the last one possibly smaller."""
        return -(-count // self.batch(training=training))

    def batch(self, *, training: bool) -> int:
        """Samples of a full batch, of the training or of the validation."""
        return self.batch_size if training else self.validation_batch_size or self.batch_size

    def validates(self, epoch: int) -> bool:
        """Whether a validation follows this epoch, counted from 0."""
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return epoch + 1 in self.validation_freq


class Fit:
    """What a training did. That of a Keras model is also a `keras.callbacks.History`, as `fit` returns it.

    Attributes:
        model: what was trained.
        history: one value an epoch for each log; validation's names begin with val_.
        epoch: numbers of the epochs that were run, from 0.
        params: verbose, epochs, steps.
        how: one sentence: what ran an epoch, and why nothing faster if it fell back.
        seconds: of training only, per epoch, synchronised; the first one compiles.
    """

    model: Any
    history: dict[str, list[Any]]
    epoch: list[int]
    params: dict[str, Any]
    how: str
    seconds: list[float]


def leaves(tree: Tree) -> Iterator[Any]:
    """Yield the arrays of a tree, without its Nones; dicts by sorted key, as frameworks flatten them."""
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            yield from leaves(tree[key])
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from leaves(part)
    elif tree is not None:
        yield tree


def count_of(tree: Tree) -> int:
    """Return the first dimension of a tree's arrays."""
    return int(next(leaves(tree)).shape[0])


def tree_map(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return the tree with `function` applied to every array; Nones, key order and container types stay."""
    if isinstance(tree, Mapping):
        return {key: tree_map(function, part) for key, part in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, part) for part in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, part) for part in tree)
    return None if tree is None else function(tree)


def layers_of(model: Model) -> list[Any]:
    """Return a Keras model and every layer in it; where Keras does not list the inner ones, only those of the model."""
    flatten = getattr(model, "_flatten_layers", None)
    return list(flatten()) if callable(flatten) else [model, *model.layers]


def fell_back(reason: str) -> None:
    """Warn, once per cause, that an epoch runs a slower way than it could; the engine's `how` has the same text."""
    warnings.warn(f"fit_resident: {reason}", RuntimeWarning, stacklevel=3)


def number(log: Any) -> Any:  # noqa: ANN401  whatever a `train_step` returns
    """Return a log as a number; one that is an array, a mapping or another object stays what it is, as in `fit`."""
    try:
        return log if getattr(log, "ndim", 0) else float(log)
    except (TypeError, ValueError):
        return log


def summary(error: BaseException) -> str:
    """Return an error in a line: its type, and the beginning of what it says."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
