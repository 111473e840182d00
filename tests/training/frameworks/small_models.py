"""Samples and a small Keras model that the tests of every backend train, and what it means that two ended alike."""

from __future__ import annotations

import numpy as np


def digits(count=150):
    """Return samples of three classes that a small network can distinguish: (count, 12) float32, (count,) int64."""
    rng = np.random.default_rng(7)
    y = rng.integers(0, 3, count)
    x = rng.normal(size=(count, 12)).astype("float32") + np.eye(3, 12, dtype="float32")[y] * 2
    return x, y


def dense(keras, *inner, activation="relu", optimizer="rmsprop", seed=1, kind=None, **compile_arguments):
    """Return a small compiled classifier, always with the same weights."""
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((12,)), keras.layers.Dense(16, activation), *inner, keras.layers.Dense(3, "softmax")]
    model = (kind or keras.Sequential)(layers)
    arguments = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **compile_arguments}
    model.compile(optimizer=optimizer, **arguments)
    return model


def has_gpu():
    """Return whether Keras' backend computes on a GPU."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() != "cpu"
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.is_available()
    import tensorflow

    return bool(tensorflow.config.list_physical_devices("GPU"))


def assert_same(expected, found, rtol=2e-4, atol=2e-5):
    """Check that two Keras models hold the same weights, seeds, counters and optimizer state."""
    pairs = [*zip(expected.variables, found.variables, strict=True)]
    pairs += zip(expected.optimizer.variables, found.optimizer.variables, strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=atol, err_msg=one.path)


def assert_same_history(expected, found, rtol=1e-3, atol=1e-4):
    """Check that two histories have the same names in the same order and, within float tolerance, the same values."""
    assert list(expected) == list(found)
    for name in expected:
        values = [float(value) for value in expected[name]]
        np.testing.assert_allclose(values, found[name], rtol=rtol, atol=atol, err_msg=name)


def side_by_side(fit_resident, make, x, y, rtol=2e-4, atol=2e-5, history_rtol=1e-3, **arguments):
    """Train two equal models without shuffling, one by each way; check that they agree; return both and the Fit.

    Args:
        fit_resident: the function under test.
        make: returns a compiled model, always the same.
        x: samples.
        y: what they are.
        rtol: how far weights and state may be apart, as a part of them.
        atol: the same, as it is.
        history_rtol: how far losses and metrics may be apart; as it is a tenth of that.
        arguments: of `fit` and `fit_resident`.
    """
    common = {"batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0, **arguments}
    theirs, ours = make(), make()
    history = theirs.fit(x, y, **common).history
    result = fit_resident(ours, x, y, **common)

    assert_same(theirs, ours, rtol, atol)
    assert_same_history(history, result.history, history_rtol, max(atol, history_rtol / 10))
    return theirs, ours, result
