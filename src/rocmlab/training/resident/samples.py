"""What a caller hands to `fit_resident`, as trees of numpy arrays that fit together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident.engine import Array, Data, Samples, Tree, leaves, tree_map


def gather(x: Tree, y: Tree, sample_weight: Tree, validation_data: Tree, floats: str | None) -> Data:
    """Return training and validation samples as numpy arrays that fit together.

    `floats` is the type of floating numbers of a Keras model; None for a torch module, whose arrays keep theirs.
    """
    train = _samples(x, y, sample_weight, floats, "the training data")
    if validation_data is None:
        return Data(train)
    parts = list(validation_data) if isinstance(validation_data, (tuple, list)) else [validation_data]
    if len(parts) not in (1, 2, 3):
        raise RocmlabError(
            f"validation_data has {len(parts)} parts",
            "it holds inputs and targets, and perhaps sample weights",
            "pass validation_data=(x_test, y_test)",
        )
    x, y, sample_weight = (*parts, None, None)[:3]
    validation = _samples(x, y, sample_weight, floats, "validation_data")
    if validation.y is None and train.y is not None:
        raise RocmlabError(
            "validation_data have no targets",
            "they are inputs and targets, and perhaps sample weights",
            "pass validation_data=(x_test, y_test)",
        )
    return Data(train, validation)


def _samples(x: Tree, y: Tree, sample_weight: Tree, floats: str | None, name: str) -> Samples:
    arrays = [tree_map(lambda leaf: _array(leaf, floats, name), part) for part in (x, y, sample_weight)]
    if not any(True for _leaf in leaves(arrays[0])):
        raise RocmlabError(
            f"{name} have no inputs",
            "resident data are arrays; y and sample weights belong to inputs x",
            "pass x: an array, or a list, tuple or dict of arrays",
        )
    lengths = sorted({int(leaf.shape[0]) for leaf in leaves(arrays)})
    if len(lengths) != 1:
        raise RocmlabError(
            f"the arrays of {name} have different lengths: {', '.join(map(str, lengths))}",
            "each sample needs its input, target and weight",
            "compare len(x), len(y) and len(sample_weight)",
        )
    if lengths[0] == 0:
        raise RocmlabError(f"{name} hold no sample", "the arrays are empty", "check how they were made")
    inputs, targets, weights = arrays
    if floats is None and isinstance(weights, (Mapping, list, tuple)):
        raise RocmlabError(
            f"the sample weights of {name} are a {type(weights).__name__}",
            "the loss of a torch module gives one value per sample, which is multiplied by one weight",
            "pass one array, and weigh several outputs in the loss",
        )
    if floats is not None and isinstance(targets, (Mapping, list, tuple)) and isinstance(weights, np.ndarray):
        weights = tree_map(lambda _leaf: arrays[2], targets)  # one array counts for each output, as in `fit`
    return Samples(inputs, targets, weights, lengths[0])


def _array(value: Array, floats: str | None, name: str) -> Array:
    """Return an array as numpy's, (samples, ...), floating numbers in the type `floats`; an error if it is not one."""
    if callable(getattr(value, "detach", None)):  # a torch tensor, perhaps on a GPU
        value = value.detach().cpu().numpy()
    is_series = hasattr(value, "to_numpy") and getattr(value, "ndim", 0) == 1  # Keras makes them a column also
    if not hasattr(value, "__array__"):
        raise RocmlabError(
            f"{name} hold a {type(value).__module__}.{type(value).__qualname__}, which is not an array",
            "resident data are arrays, or lists, tuples or dicts of arrays; generators, Dataset and PyDataset "
            "make their batches while they train",
            "use fit() for those, or make arrays of them first, for example with numpy.asarray()",
        )
    array = np.asarray(value)
    if array.ndim == 0 or array.dtype == object:
        raise RocmlabError(
            f"{name} hold an array of shape {array.shape} and type {array.dtype}",
            "its first dimension counts the samples, and its values are numbers",
            "convert it to an array of numbers, (samples, ...)",
        )
    if is_series:
        array = array[:, None]
    if floats is not None and np.issubdtype(array.dtype, np.floating):
        array = array.astype(floats, copy=False)
    return array
