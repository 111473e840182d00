"""What is handed to `fit_resident` becomes arrays that fit together, or is rejected with a remedy."""

from __future__ import annotations

import numpy as np
import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident import samples
from rocmlab.training.resident.engine import leaves, tree_map


def gather(x, y=None, weight=None, validation=None, floats="float32"):
    """Call the function under test with defaults for what a test does not set."""
    return samples.gather(x, y, weight, validation, floats)


def test_floats_take_the_type_of_the_model_and_integers_stay():
    """Floating numbers are cast once, before they go to the device; whole numbers are labels and stay."""
    data = gather(np.zeros((6, 2)), np.arange(6))

    assert data.train.x.dtype == np.float32
    assert data.train.y.dtype == np.arange(6).dtype
    assert data.train.count == 6
    assert data.train.size_bytes == 6 * 2 * 4 + 6 * data.train.y.itemsize


def test_a_torch_module_keeps_its_types():
    """Without a type to cast to, every array stays as it is."""
    assert gather(np.zeros((6, 2)), floats=None).train.x.dtype == np.float64


def test_trees_keep_their_shape():
    """Dicts, lists and tuples of arrays stay what they are, and are cut together."""
    data = gather({"b": np.zeros((4, 1)), "a": [np.ones(4), None]}, (np.arange(4),))

    part = data.train.take(slice(1, 3))

    assert list(part.x) == ["b", "a"]
    assert part.x["a"][1] is None
    assert part.y[0].tolist() == [1, 2]
    assert part.count == 2


def test_one_weight_counts_for_every_output():
    """One array of sample weights belongs to each of several outputs, as in fit."""
    data = gather(np.zeros((3, 1)), [np.zeros(3), np.zeros(3)], np.ones(3))

    assert len(data.train.sample_weight) == 2


def test_a_torch_module_has_one_weight_for_each_sample():
    """Its loss may have several targets and gives one value per sample; a tree of weights is rejected."""
    targets = (np.zeros(3), np.zeros(3))

    assert gather(np.zeros((3, 1)), targets, np.ones(3), floats=None).train.sample_weight.tolist() == [1, 1, 1]
    with pytest.raises(RocmlabError, match="sample weights of the training data are a tuple"):
        gather(np.zeros((3, 1)), targets, (np.ones(3), np.ones(3)), floats=None)


def test_tensors_of_a_framework_come_to_the_host():
    """A tensor with a gradient on a device is detached and copied; a column of a table becomes (samples, 1)."""

    class Tensor:
        detached = False

        def detach(self):
            self.detached = True
            return self

        def cpu(self):
            return self

        def numpy(self):
            assert self.detached
            return np.ones((2, 3))

    class Series:
        ndim = 1

        def to_numpy(self):
            return np.arange(2)

        def __array__(self, dtype=None, copy=None):
            return np.arange(2)

    data = gather(Tensor(), Series())

    assert data.train.x.shape == (2, 3)
    assert data.train.y.shape == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"x": iter([1])}, "not an array"),
        ({"x": "words"}, "not an array"),
        ({"x": np.zeros((2, 1)), "y": np.zeros(3)}, "different lengths: 2, 3"),
        ({"x": None}, "have no inputs"),
        ({"x": [None], "y": np.zeros(3)}, "have no inputs"),
        ({"x": np.zeros((0, 1))}, "no sample"),
        ({"x": np.array(1.0)}, "counts the samples"),
        ({"x": np.array(["a", None], dtype=object)}, "counts the samples"),
        ({"x": np.zeros((2, 1)), "y": np.zeros(2), "validation": np.zeros(2)}, "validation_data have no targets"),
        ({"x": np.zeros((2, 1)), "validation": (np.zeros(2), np.zeros(3))}, "validation_data"),
    ],
)
def test_what_is_no_array_or_does_not_fit_is_rejected(arguments, what):
    """Generators, strings, lengths that differ, empty and shapeless arrays are rejected, with a remedy."""
    with pytest.raises(RocmlabError, match=what) as caught:
        gather(**arguments)

    assert caught.value.problem.fix


def test_leaves_come_by_sorted_key():
    """The arrays of a tree come in the order in which frameworks flatten it, without its Nones."""
    tree = {"b": 1, "a": (2, [3, None])}

    assert list(leaves(tree)) == [2, 3, 1]
    assert tree_map(lambda leaf: leaf * 2, tree) == {"b": 2, "a": (4, [6, None])}
