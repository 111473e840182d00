"""Keras as it is installed computes with the backend and on the device that were chosen; run once per backend."""

from __future__ import annotations

import os
import sys

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training import backends, placement, watch

pytestmark = pytest.mark.frameworks


@pytest.fixture
def keras():
    """Return Keras with the backend of this process."""
    backends.use("auto")
    import keras

    return keras


@pytest.fixture
def model(keras):
    """Return a compiled model with one layer."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_keras_computes_with_the_backend_of_the_kernel(keras):
    """What was chosen is what Keras reports, with its versions; another is not available any more."""
    backend = os.environ["KERAS_BACKEND"]

    assert keras.backend.backend() == backend == backends.use(backend)
    assert backends.versions() == {"keras": keras.__version__, backend: sys.modules[backend].__version__}
    for other in {*backends.TITLES} - {backend}:
        with pytest.raises(RocmlabError, match="cannot change"):
            backends.use(other)


def test_weights_are_on_the_device_that_placement_names(keras, model):
    """After `cpu` was chosen, weights are on the CPU, whatever GPUs there are."""
    assert placement.choose("keras", "cpu")["backend"] == "cpu"

    value = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]).layers[0].kernel.value

    where = getattr(value, "device", None) or ""
    assert "cpu" in str(where).lower()
    assert placement.describe("keras")["backend"] == "cpu"


def test_the_stopwatch_has_a_time_for_each_epoch_of_training(model):
    """With and without a validation there are as many times as epochs, and a second `fit` begins again."""
    import numpy as np

    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    stopwatch = watch.stopwatch()

    model.fit(x, y, epochs=3, validation_data=(x, y), callbacks=[stopwatch], verbose=0)
    first = stopwatch.seconds
    model.fit(x, y, epochs=2, callbacks=[stopwatch], verbose=0)
    model.evaluate(x, y, callbacks=[stopwatch], verbose=0)

    assert (len(first), len(stopwatch.seconds)) == (3, 2)
    assert all(seconds > 0 for seconds in [*first, *stopwatch.seconds])


def test_the_stopwatch_leaves_the_examination_out(model):
    """A slow examination does not make the training slower."""
    import time

    import keras
    import numpy as np

    class Slow(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            time.sleep(0.5)

    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    stopwatch = watch.stopwatch()
    model.fit(x, y, verbose=0)
    began = time.perf_counter()

    model.fit(x, y, validation_data=(x, y), epochs=3, callbacks=[stopwatch, Slow()], verbose=0)

    assert sum(stopwatch.seconds) < time.perf_counter() - began - 1.5
