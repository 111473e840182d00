"""The arguments of `fit` as `fit_resident` takes them: checked, and applied to the data.

Each has the meaning that it has in Keras, or is rejected with what to do instead; none is ignored.
"""

from __future__ import annotations

import difflib
import inspect
import math
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident.engine import Array, Data, Options

DEFAULT_BATCH_SIZE = 32  # of Keras
INTEGERS = (int, np.integer)


def check(unknown: Collection[str], known: Collection[str], given: Mapping[str, object]) -> None:
    """Reject names that are `unknown` to `fit_resident`, numbers out of range, and values that mean nothing."""
    for name in unknown:
        raise _unknown(name, known)
    for name in MINIMA:
        _check_number(name, given[name])
    frequency(given["validation_freq"])
    if not isinstance(given["shuffle"], (bool, np.bool_)):
        raise RocmlabError(
            f"shuffle={given['shuffle']!r} is not supported",
            "fit_resident draws a new order of all samples for each epoch, or keeps the order of the arrays",
            "pass shuffle=True or shuffle=False",
        )
    if not isinstance(given["verbose"], (str, int)) or given["verbose"] not in ("auto", 0, 1, 2):
        raise RocmlabError(
            f"verbose={given['verbose']!r} is not supported",
            "0 prints nothing, 1 a progress line, 2 a line per epoch",
            'pass verbose="auto", 0, 1 or 2',
        )


# Whole numbers: the smallest value, whether None is one, what the number is.
MINIMA = {
    "batch_size": (1, True, "a step needs at least one sample"),
    "epochs": (0, False, "it is the epoch to stop before"),
    "initial_epoch": (0, False, "it is the epoch to begin with"),
    "steps_per_epoch": (1, True, "it is the number of batches in an epoch"),
    "validation_steps": (1, True, "it is the number of batches to validate with"),
    "validation_batch_size": (1, True, "a batch needs at least one sample"),
    "seed": (0, True, "it seeds the order of the samples"),
    "memory_bytes": (1, True, "it is a number of bytes"),
}


def _check_number(name: str, value: object) -> None:
    least, may_be_none, why = MINIMA[name]
    if may_be_none and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, INTEGERS) or value < least:
        raise RocmlabError(f"{name}={value!r} is not a whole number of at least {least}", why, f"pass {name}={least}")
    if name == "seed" and value >= 2**31:
        raise RocmlabError(f"seed={value!r} is too large", "devices draw from 31 bits", "pass a seed below 2^31")


def _unknown(name: str, known: Collection[str]) -> RocmlabError:
    """Return the error for an argument that does not exist here."""
    keras = sys.modules.get("keras")
    if keras is not None and name in inspect.signature(keras.Model.fit).parameters:
        return RocmlabError(
            f"fit_resident does not know the argument {name!r} of fit",
            f"it is new in Keras {keras.__version__}",
            "omit it, or use model.fit()",
        )
    near = difflib.get_close_matches(name, known, 1)
    return RocmlabError(
        f"fit_resident has no argument {name!r}",
        "it has those of Keras' fit, and seed, optimizer, loss, metrics and memory_bytes",
        f"pass {near[0]}=" if near else "omit it; help(fit_resident) lists the arguments",
    )


def frequency(validation_freq: object) -> int | frozenset[int]:
    """Return how often to validate: every N epochs, or after those of a list, from 1; an error for anything else."""
    if isinstance(validation_freq, INTEGERS) and not isinstance(validation_freq, bool) and validation_freq >= 1:
        return int(validation_freq)
    if isinstance(validation_freq, (list, tuple, set, frozenset, range)):
        epochs = list(validation_freq)
        if all(isinstance(one, INTEGERS) and not isinstance(one, bool) for one in epochs):
            return frozenset(int(one) for one in epochs)
    raise RocmlabError(
        f"validation_freq={validation_freq!r} is not supported",
        "it is a number of epochs between validations, or a list of epochs to validate after, counted from 1",
        "pass validation_freq=1, or for example validation_freq=[1, 5, 10]",
    )


def split(data: Data, validation_split: object) -> Data:
    """Return the data with the last part of the training samples as validation samples, as `fit` does.

    `validation_data` wins, also as in `fit`.

    Raises:
        RocmlabError: the part is not below 1, or one of the two would be empty.
    """
    if isinstance(validation_split, bool) or not isinstance(validation_split, (int, float, np.number)):
        raise _bad_split(validation_split, "it is the part of the samples to validate with")
    if not 0 <= validation_split < 1:
        raise _bad_split(validation_split, "it is the part of the samples to validate with, at least 0 and below 1")
    if not validation_split or data.validation is not None:
        return data
    count = data.train.count
    first = math.floor(count * (1.0 - validation_split))
    if first in (0, count):
        raise _bad_split(validation_split, f"of {count} sample(s) it leaves none to train or none to validate with")
    return Data(data.train.take(slice(0, first)), data.train.take(slice(first, count)))


def _bad_split(value: object, why: str) -> RocmlabError:
    return RocmlabError(
        f"validation_split={value!r} is not possible", why, "pass for example validation_split=0.2, or validation_data="
    )


def weigh(data: Data, class_weight: object, floats: str | None) -> Data:
    """Return the data with the weight of each training sample's class as its sample weight; 1 for other classes.

    The targets are of one output, (samples,) or (samples, 1) class numbers, or (samples, classes) one-hot.

    Raises:
        RocmlabError: the targets have no classes, or the samples have weights already.
    """
    if class_weight is None:
        return data
    if not isinstance(class_weight, Mapping):
        raise RocmlabError(
            f"class_weight is a {type(class_weight).__name__}",
            "it is a dict from the number of a class to its weight",
            "pass for example class_weight={0: 1.0, 1: 2.5}, or dict(enumerate(weights))",
        )
    if data.train.sample_weight is not None:
        raise RocmlabError(
            "class_weight and sample_weight were both given",
            "each sample has one weight",
            "multiply them: sample_weight=sample_weight * numpy.vectorize(class_weight.get)(y), without class_weight",
        )
    weights = _weights_of(data.train.y, class_weight).astype(floats or "float32")
    return Data(replace(data.train, sample_weight=weights), data.validation)


def _weights_of(y: object, class_weight: Mapping[Any, Any]) -> Array:
    """Return the weight of each target's class, (samples,), as Keras finds it."""
    if isinstance(y, np.ndarray):
        labels = y
        if y.ndim > 1:
            labels = y.argmax(axis=-1) if y.shape[-1] != 1 else y.squeeze(axis=-1)
        if labels.ndim == 1:
            labels = np.round(labels).astype("int32")
            kinds, places = np.unique(labels, return_inverse=True)
            return np.asarray([class_weight.get(int(kind), 1.0) for kind in kinds], dtype="float64")[places]
    raise RocmlabError(
        "class_weight needs the targets of one output, one class for each sample",
        "the targets are several arrays, missing, or have a class for each pixel or step",
        "pass sample_weight= instead, an array of weights for the targets",
    )


def cut(
    data: Data, options: Options, steps_per_epoch: int | None, validation_steps: int | None
) -> tuple[Data, Options]:
    """Return data and options with the sizes of batches filled in, and the validation cut to its steps.

    `options` has the batch sizes that were given, 0 and None where there was none; then the number of steps decides,
    as in `fit`.

    Raises:
        RocmlabError: an epoch would end before the end of the data.
    """
    steps_per_epoch, validation_steps = (
        capped(steps, "max_steps_per_epoch") for steps in (steps_per_epoch, validation_steps)
    )
    given = options.batch_size
    count = data.train.count
    size = given or (-(-count // steps_per_epoch) if steps_per_epoch else DEFAULT_BATCH_SIZE)
    options = replace(options, batch_size=size)
    if steps_per_epoch and steps_per_epoch < options.steps(count):
        raise RocmlabError(
            f"steps_per_epoch={steps_per_epoch}, but the {count} samples are {options.steps(count)} batches of {size}",
            "an epoch of fit_resident runs over all samples once",
            f"omit steps_per_epoch; or pass the samples of one epoch (x[:{steps_per_epoch * size}]); or omit "
            f"batch_size, so that {steps_per_epoch} batches hold all samples; or use fit()",
        )
    if steps_per_epoch and steps_per_epoch > options.steps(count):
        warnings.warn(
            f"fit_resident: an epoch has {options.steps(count)} batches, fewer than steps_per_epoch={steps_per_epoch}",
            UserWarning,
            stacklevel=4,
        )
    if data.validation is None:
        return data, replace(options, validation_batch_size=size)
    count = data.validation.count
    size = options.validation_batch_size or given
    size = size or (-(-count // validation_steps) if validation_steps else DEFAULT_BATCH_SIZE)
    validation = data.validation
    if validation_steps and validation_steps * size < count:
        validation = validation.take(slice(0, validation_steps * size))
    return Data(data.train, validation), replace(options, validation_batch_size=size)


def capped(number: int | None, name: str) -> int | None:
    """Return a number, or Keras' limit of it for trying programs out, where one is set and smaller; None: no limit."""
    config = getattr(sys.modules.get("keras"), "config", None)
    limit = getattr(config, name, lambda: None)()
    if not limit or (number is not None and limit >= number):
        return number
    warnings.warn(f"fit_resident: Keras limits {name} to {limit}", UserWarning, stacklevel=3)
    return int(limit)
