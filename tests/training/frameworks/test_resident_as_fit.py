"""Every argument of Keras' `fit`, on each backend: `fit_resident` does the same with it, or names what to do."""

from __future__ import annotations

import inspect
import os
import pickle

import numpy as np
import pytest
from small_models import dense, digits, side_by_side
from variants import long_on

from rocmlab.base.errors import RocmlabError

pytestmark = [
    pytest.mark.frameworks,
    # Keras' variables do not know NumPy 2's argument yet; `get_weights` meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def keras():
    """Return Keras on the backend of this process."""
    return pytest.importorskip("keras", reason="Keras is not installed")


def test_arguments_are_those_of_fit(keras, fit_resident):
    """Names, order and defaults are those of `fit`, so that what is new in Keras is noticed here."""
    theirs = list(inspect.signature(keras.Model.fit).parameters.values())[1:]
    ours = list(inspect.signature(fit_resident).parameters.values())[1 : len(theirs) + 1]

    assert [(one.name, one.default, one.kind) for one in ours] == [(one.name, one.default, one.kind) for one in theirs]


@long_on("jax")
def test_parts_weights_and_rare_validation_are_those_of_fit(keras, fit_resident):
    """Class weights, a split, validation at some epochs, in its own batches and for some steps end as by `fit`."""
    x, y = digits()

    def spread(y_true, y_pred):  # of a batch: another size of batches gives another mean
        return keras.ops.max(y_pred) - keras.ops.min(y_pred)

    *_, result = side_by_side(
        fit_resident,
        lambda: dense(keras, activation="tanh", metrics=["accuracy", spread]),
        x,
        y,
        epochs=4,
        initial_epoch=1,
        class_weight={0: 0.5, 2: 3.0},
        validation_split=0.3,
        validation_freq=[2, 4],
        validation_batch_size=12,
        validation_steps=2,
    )

    assert result.epoch == [1, 2, 3]
    assert len(result.history["val_loss"]) == 2
    assert isinstance(result, keras.callbacks.History)
    assert result.model.history is result
    assert len(result.seconds) == 3
    assert result.how
    assert result.params["epochs"] == 4


@long_on("jax")
def test_a_history_can_be_pickled_and_an_interrupted_one_be_read(keras, fit_resident):
    """As that of `fit`; after an error `model.history` has what was done so far."""
    model = dense(keras)
    x, y = digits()

    def stop(epoch, logs):
        raise KeyError("stopped")

    with pytest.raises(KeyError, match="stopped"):
        fit_resident(model, x, y, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=stop)])
    interrupted = model.history
    result = fit_resident(model, x, y, verbose=0)
    result.set_model(None)
    again = pickle.loads(pickle.dumps(result))

    assert (interrupted.how, interrupted.seconds) == ("", [])
    assert (again.history, again.how) == (result.history, result.how)


@long_on("jax")
def test_places_and_steps_are_those_of_fit(keras, fit_resident):
    """Arguments by their places, and steps without a size of batches, are those of `fit`."""
    x, y = digits()
    weights = np.linspace(0.0, 2.0, 50)
    kept = [dense(keras, activation="tanh") for _ in range(2)]
    places = (x, y, None, 2, 0, [], 0.0, (x[:50], y[:50], weights), False, None, None, 0, 7)

    expected, found = kept[0].fit(*places), fit_resident(kept[1], *places)

    assert {name: pytest.approx(values, rel=1e-3) for name, values in expected.history.items()} == found.history
    assert expected.params == found.params


def test_what_is_not_an_argument_or_not_an_array_is_rejected(keras, fit_resident):
    """Unknown names, generators, data sets and functions among callbacks are rejected before anything is trained."""
    x, y = digits(20)
    model = dense(keras)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return x, y

    for given in ({"workers": 2}, {"x": iter([(x, y)])}, {"x": Batches()}, {"validation_data": Batches()}):
        with pytest.raises(RocmlabError) as caught:
            fit_resident(model, **{"x": x, "y": y, **given})
        assert caught.value.problem.fix
    with pytest.raises(RocmlabError, match="LambdaCallback"):
        fit_resident(model, x, y, callbacks=[lambda epoch, logs: None])


@pytest.mark.skipif(os.environ.get("KERAS_BACKEND") != "torch", reason="only there Keras' fit compiles by torch")
def test_compiling_by_torch_is_reported_as_not_used(keras, fit_resident):
    """`jit_compile=True` on PyTorch draws a warning, and `how` holds it."""
    x, y = digits(20)

    with pytest.warns(RuntimeWarning, match="jit_compile=True is not used"):
        trained = fit_resident(dense(keras, jit_compile=True), x, y, verbose=0)

    assert "jit_compile=True is not used" in trained.how
