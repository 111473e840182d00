"""The arguments of `fit`, without a framework: each is applied as in Keras, or rejected with what to do instead."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident import arguments, fit, samples
from rocmlab.training.resident.engine import Options

USUAL = {name: one.default for name, one in inspect.signature(fit.fit_resident).parameters.items() if name != "unknown"}


def gathered(count=10, y=None, weights=None, validation=None):
    """Return samples numbered from 0."""
    x = np.arange(count, dtype="float32")[:, None]
    return samples.gather(x, np.arange(count) % 3 if y is None else y, weights, validation, "float32")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("epochs", -1),
        ("epochs", None),
        ("initial_epoch", True),
        ("steps_per_epoch", 0),
        ("validation_steps", -1),
        ("validation_batch_size", "8"),
        ("validation_freq", 0),
        ("validation_freq", "2"),
        ("validation_freq", [1, 2.5]),
        ("shuffle", "batch"),
        ("shuffle", None),
        ("verbose", 3),
        ("verbose", "loud"),
        ("seed", -1),
        ("seed", 2**31),
        ("memory_bytes", 0),
    ],
)
def test_a_value_that_means_nothing_is_rejected(name, value):
    """It is named with its value, and the fix is something to pass."""
    with pytest.raises(RocmlabError, match=name) as caught:
        arguments.check([], USUAL, {**USUAL, name: value})

    assert repr(value) in caught.value.problem.what
    assert "pass" in caught.value.problem.fix


def test_the_defaults_are_accepted():
    """What `fit` takes when nothing is given is accepted, NumPy's numbers too."""
    arguments.check([], USUAL, USUAL)
    arguments.check([], USUAL, {**USUAL, "epochs": np.int64(3), "shuffle": np.bool_(False), "validation_freq": [1, 3]})


@pytest.mark.parametrize(("name", "fix"), [("batchsize", "pass batch_size="), ("workers", "help(fit_resident)")])
def test_an_argument_that_does_not_exist_is_named(name, fix):
    """A name that is almost right brings the right one."""
    with pytest.raises(RocmlabError, match=f"no argument '{name}'") as caught:
        fit.fit_resident(None, None, **{name: 4})

    assert fix in caught.value.problem.fix


def test_the_last_part_of_the_samples_validates():
    """validation_split takes the end of the samples, targets and weights; validation_data wins."""
    found = arguments.split(gathered(10, weights=np.arange(10.0)), 0.25)

    assert found.train.x[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found.validation.x[:, 0].tolist() == [7, 8, 9]
    assert found.validation.sample_weight.tolist() == [7, 8, 9]
    data = gathered(10, validation=(np.zeros((2, 1)), np.zeros(2)))
    assert arguments.split(data, 0.5) is data
    assert arguments.split(gathered(), 0.0).validation is None


@pytest.mark.parametrize("part", [1.0, -0.1, 0.01, "0.2", None, True])
def test_a_part_that_leaves_nothing_is_rejected(part):
    """A split that leaves no sample on a side, or is not a number, is rejected."""
    with pytest.raises(RocmlabError, match="validation_split="):
        arguments.split(gathered(3), 0.99 if part == 0.01 else part)


@pytest.mark.parametrize(
    "y",
    [[0, 1, 2, 1], [[0], [1], [2], [1]], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]], [0.0, 1.0, 2.0, 1.0]],
)
def test_classes_weigh_their_samples(y):
    """Numbers of classes, a column of them and one-hot rows weigh alike; a class without weight counts once."""
    found = arguments.weigh(gathered(4, y=np.asarray(y)), {1: 2.5, 0: 0.5}, "float32")

    assert found.train.sample_weight.tolist() == [0.5, 2.5, 1.0, 2.5]
    assert found.train.sample_weight.dtype == np.float32


def test_classes_that_cannot_weigh_are_rejected():
    """Both kinds of weights, several outputs, images of classes and lists of weights are rejected with a fix."""
    cases = [
        (gathered(weights=np.ones(10)), {0: 2.0}, "multiply"),
        (gathered(y=[np.zeros(10), np.zeros(10)]), {0: 2.0}, "sample_weight"),
        (gathered(y=np.zeros((10, 4, 4, 2))), {0: 2.0}, "sample_weight"),
        (gathered(), [1.0, 2.0], "dict(enumerate(weights))"),
    ]
    for data, weights, fix in cases:
        with pytest.raises(RocmlabError, match="class_weight") as caught:
            arguments.weigh(data, weights, None)
        assert fix in caught.value.problem.fix


def test_steps_decide_the_size_of_batches_where_no_size_is_given():
    """As in `fit`: steps without a batch size are batches of all samples; without either a batch has 32."""
    data = gathered(100, validation=(np.zeros((50, 1)), np.zeros(50)))

    cases = [
        (Options(0), None, None, (32, 32), 50),
        (Options(0), 7, None, (15, 32), 50),
        (Options(0), 4, 3, (25, 17), 50),
        (Options(20), 5, 2, (20, 20), 40),
        (Options(20, validation_batch_size=8), None, 3, (20, 8), 24),
    ]
    for options, steps, validation_steps, sizes, count in cases:
        found, given = arguments.cut(data, options, steps, validation_steps)
        assert (given.batch_size, given.validation_batch_size) == sizes
        assert found.validation.count == count


def test_steps_that_leave_samples_out_are_rejected():
    """An epoch holds all samples: fewer steps are rejected, more are reported as Keras does."""
    with pytest.raises(RocmlabError, match="steps_per_epoch=3, but the 100 samples are 4 batches of 32") as caught:
        arguments.cut(gathered(100), Options(32), 3, None)
    assert "x[:96]" in caught.value.problem.fix
    with pytest.warns(UserWarning, match="4 batches, fewer than steps_per_epoch=9"):
        arguments.cut(gathered(100), Options(32), 9, None)


@pytest.mark.parametrize(
    ("given", "epochs"), [(1, [0, 1, 2, 3, 4, 5]), (2, [1, 3, 5]), ([1, 4], [0, 3]), (range(2, 4), [1, 2])]
)
def test_validation_follows_some_epochs(given, epochs):
    """A number means every N epochs, a list those with these numbers from 1."""
    options = Options(validation_freq=arguments.frequency(given))

    assert [epoch for epoch in range(6) if options.validates(epoch)] == epochs


def test_data_that_are_made_while_training_are_rejected():
    """A generator names `fit` as the way; missing inputs are named also."""
    with pytest.raises(RocmlabError, match="hold a builtins") as caught:
        samples.gather((one for one in range(3)), None, None, None, None)
    assert "fit()" in caught.value.problem.fix
    with pytest.raises(RocmlabError, match="have no inputs"):
        samples.gather(None, np.zeros(3), None, None, None)
    with pytest.raises(RocmlabError, match="has 4 parts"):
        gathered(validation=(1, 2, 3, 4))
