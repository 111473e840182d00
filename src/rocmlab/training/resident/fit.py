"""`fit_resident`: train with the data on the device and a whole epoch as one program."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident import arguments, samples
from rocmlab.training.resident import callbacks as callback_lists
from rocmlab.training.resident.callbacks import Callbacks
from rocmlab.training.resident.engine import Data, Engine, Fit, Model, Options, Tree

# Module and class; a framework is imported only where it is used.
KERAS_ENGINES = {
    "jax": ("keras_jax", "JaxEngine"),
    "tensorflow": ("keras_tensorflow", "TensorFlowEngine"),
    "torch": ("keras_torch", "TorchEngine"),
}


def fit_resident(
    model: Model,
    x: Tree = None,
    y: Tree = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: object = None,
    validation_split: float = 0.0,
    validation_data: Tree = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Tree = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    seed: int | None = None,
    optimizer: object = None,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    memory_bytes: int | None = None,
    **unknown: object,
) -> Fit:
    """Train a model as `fit` does, with the data on the device and each epoch as one compiled program.

    All arguments up to `validation_freq` are those of `fit`, in its order.

    Args:
        model: a compiled Keras 3 model on any backend, or a plain torch module.
        x: inputs: an array, or a list, tuple or dict of arrays, every one (samples, ...).
        y: targets, likewise.
        batch_size: samples a step; the last batch of an epoch takes what is left. None: 32, or what
            `steps_per_epoch` batches of all samples need.
        epochs: the epoch to stop before, counted from 0.
        verbose: 0 nothing, 1 or "auto" a progress line, 2 a line per epoch.
        callbacks: Keras callbacks; batch hooks are not called. For a torch module see `callbacks.of_torch`.
        validation_split: the part of the samples, from the end, to validate with where there is no `validation_data`.
        validation_data: (x, y) or (x, y, sample_weight), run through the model after each epoch.
        shuffle: draw a new order for each epoch, on the device.
        class_weight: number of a class -> weight of the losses of its samples.
        sample_weight: weights of the samples' losses, (samples, ...).
        initial_epoch: the epoch to begin with.
        steps_per_epoch: batches of an epoch, which hold all samples: fewer are rejected.
        validation_steps: batches to validate with, from the first; None: all.
        validation_batch_size: samples a batch of the validation; None: as in training.
        validation_freq: validate after every N epochs, or after the epochs of a list, counted from 1.
        seed: of the order, 0 to 2^31-1; None: drawn from NumPy's, which `keras.utils.set_random_seed` sets.
        optimizer: only for a plain torch module: its optimizer.
        loss: only for a plain torch module: f(outputs, targets) -> scalar or per-sample tensor.
        metrics: only for a plain torch module: name -> f(outputs, targets) -> per-sample or scalar tensor.
        memory_bytes: how much of the device's memory the data may take; None: what is free, less a reserve.
        unknown: none; anything else is rejected by its name.

    Returns:
        The History of the training, for a Keras model a `keras.callbacks.History`, with `how` and `seconds`.

    Raises:
        RocmlabError: the model is not compiled, arrays do not fit together, or an argument is out of range.
    """
    given = dict(locals())
    arguments.check(unknown, inspect.signature(fit_resident).parameters, given)
    keras_backend = _keras_backend(model)
    is_keras = keras_backend is not None
    _check_model(model, is_keras, optimizer, loss, metrics)
    floats = str(sys.modules["keras"].config.floatx()) if is_keras else None
    data = samples.gather(x, y, sample_weight, validation_data, floats)
    data = arguments.weigh(arguments.split(data, validation_split), class_weight, floats)
    options = Options(
        batch_size=batch_size or 0,
        validation_batch_size=validation_batch_size,
        validation_freq=arguments.frequency(validation_freq),
        epochs=arguments.capped(epochs, "max_epochs") or 0 if is_keras else epochs,
        initial_epoch=initial_epoch,
        shuffle=bool(shuffle),
        seed=int(np.random.randint(2**31 - 1)) if seed is None else int(seed),
        memory_bytes=memory_bytes,
        optimizer=optimizer,
        loss=loss,
        metrics=dict(metrics or {}),
    )
    data, options = arguments.cut(data, options, steps_per_epoch, validation_steps)
    if is_keras:
        _build_keras(model, data, options)
    module, name = KERAS_ENGINES[keras_backend] if keras_backend else ("plain_torch", "ModuleEngine")
    make_engine = getattr(importlib.import_module(f"rocmlab.training.resident.{module}"), name)
    make = callback_lists.of_keras if is_keras else callback_lists.of_torch
    found, result = make(model, callbacks, verbose, options.epochs, options.steps(data.train.count))
    engine: Engine = make_engine(model, data, replace(options, report=callback_lists.reporter(found)))
    result.seconds = _loop(model, engine, data, options, found)
    result.how = engine.how
    return result


def _loop(model: Model, engine: Engine, data: Data, options: Options, callbacks: Callbacks) -> list[float]:
    """Run the epochs and everything that happens between them; return the seconds of training."""
    seconds: list[float] = []
    logs: dict[str, Any] = {}
    model.stop_training = False
    try:
        callbacks.on_train_begin()
        # Keras' BackupAndRestore stores here where an interrupted training continues.
        first = getattr(model, "_initial_epoch", None) or options.initial_epoch
        for epoch in range(first, options.epochs):
            callbacks.on_epoch_begin(epoch)
            began = time.perf_counter()
            logs = engine.train(epoch)
            seconds.append(time.perf_counter() - began)
            if data.validation is not None and options.validates(epoch):
                callbacks.on_test_begin()
                tested = engine.evaluate()
                callbacks.on_test_end(tested)
                logs = {**logs, **{f"val_{name}": value for name, value in tested.items()}}
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
    finally:
        engine.close()
    # Keras' optimizers put their averaged weights in place, as at the end of `fit`.
    finalize = getattr(getattr(model, "optimizer", None), "finalize_variable_values", None)
    if callable(finalize) and options.epochs > 0:
        finalize(model.trainable_weights)
    callbacks.on_train_end(logs)
    return seconds


def _keras_backend(model: Model) -> str | None:
    """Return the backend of a Keras model, or None for a torch module; an error for others, which cannot train."""
    keras, torch = sys.modules.get("keras"), sys.modules.get("torch")
    if keras is not None and hasattr(keras, "Model") and isinstance(model, keras.Model):
        backend = str(keras.backend.backend())
        if backend in KERAS_ENGINES:
            return backend
        raise RocmlabError(
            f"Keras runs on {backend}, which does not train",
            "fit_resident needs a backend with gradients",
            f"set KERAS_BACKEND to one of: {', '.join(KERAS_ENGINES)}",
        )
    if torch is not None and isinstance(model, torch.nn.Module):
        return None
    raise RocmlabError(
        f"fit_resident cannot train a {type(model).__module__}.{type(model).__qualname__}",
        "it trains compiled Keras 3 models and torch modules",
        "pass a keras.Model after compile(), or a torch.nn.Module with optimizer= and loss=",
    )


def _check_model(model: Model, is_keras: bool, optimizer: object, loss: object, metrics: object) -> None:
    """Reject a model that is not compiled, or whose arguments are those of the other kind of model."""
    if is_keras and not getattr(model, "compiled", False):
        raise RocmlabError(
            f"the model {model.name!r} is not compiled",
            "optimizer, loss and metrics come from compile()",
            'model.compile(optimizer="rmsprop", loss="sparse_categorical_crossentropy", metrics=["accuracy"])',
        )
    given = [name for name, value in (("optimizer", optimizer), ("loss", loss), ("metrics", metrics)) if value]
    if is_keras and given:
        raise RocmlabError(
            f"{', '.join(given)} given with a Keras model",
            "a Keras model brings its own from compile()",
            "omit them, or compile() the model again with them",
        )
    if not is_keras and (optimizer is None or loss is None):
        raise RocmlabError(
            "a torch module needs optimizer= and loss=",
            "it has no compile() to take them from",
            "fit_resident(module, x, y, optimizer=torch.optim.RMSprop(module.parameters()), "
            "loss=torch.nn.functional.cross_entropy)",
        )


def _build_keras(model: Model, data: Data, options: Options) -> None:
    """Create what `fit` creates before its first step: variables of layers, losses, metrics and optimizer."""
    first = data.train.take(slice(0, options.batch_size))
    scope = getattr(model, "distribute_strategy", None)  # TensorFlow's; its variables must be created inside
    build = getattr(model, "_symbolic_build", None)
    if build is None or "data_batch" not in inspect.signature(build).parameters:
        # A Keras that does it another way: evaluating a batch builds everything but the optimizer.
        model.test_on_batch(first.x, first.y, sample_weight=first.sample_weight)
        model.optimizer.build(model.trainable_variables)
        return
    with scope.scope() if scope is not None else contextlib.nullcontext():
        build(data_batch=(first.x, first.y, first.sample_weight))
