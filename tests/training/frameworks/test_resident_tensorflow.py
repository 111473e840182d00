"""Keras on TensorFlow: trained on resident data in one program, a model ends where `fit` takes it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from small_models import assert_same, dense, digits, side_by_side

import rocmlab
from rocmlab.base.errors import RocmlabError

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        os.environ.get("KERAS_BACKEND") != "tensorflow", reason="KERAS_BACKEND=tensorflow runs these tests"
    ),
    # Keras' own, where it reads a variable with NumPy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),
]
SRC = str(Path(rocmlab.__file__).parents[1])
WAYS = ("epoch", "step", "graph", "batch", "eager")


@pytest.fixture(scope="module")
def keras():
    """Return Keras, which runs on TensorFlow in this process."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return pytest.importorskip("keras", reason="Keras and TensorFlow are not installed")


@pytest.fixture
def engine(keras):
    """Return the engine's module."""
    from rocmlab.training.resident import keras_tensorflow

    return keras_tensorflow


class TestSameAsFit:
    """With no shuffling and the same start, the weights are those of `fit`."""

    def test_remainder_validation_and_batch_normalization(self, keras, fit_resident):
        """A smaller last batch, moving averages, validation, optimizer's steps and history are as in fit."""
        x, y = digits()

        def make():
            return dense(keras, keras.layers.BatchNormalization())

        _theirs, ours, result = side_by_side(fit_resident, make, x, y, validation_data=digits(50))

        assert int(ours.optimizer.iterations) == 2 * 5
        assert "val_accuracy" in result.history
        assert result.how.startswith("one XLA program an epoch, a loop over its 5 batches")
        assert len(result.seconds) == 2

    def test_fewer_samples_than_a_batch(self, keras, fit_resident):
        """An epoch of one small batch is trained as one batch."""
        side_by_side(fit_resident, lambda: dense(keras), *digits(20))

    @pytest.mark.long
    def test_sample_weights(self, keras, fit_resident):
        """Weights of samples weigh loss and weighted metrics, in training and in validation."""
        x, y = digits()
        weights = np.linspace(0, 2, len(x)).astype("float32")

        side_by_side(
            fit_resident,
            lambda: dense(keras, weighted_metrics=["accuracy"]),
            x,
            y,
            sample_weight=weights,
            validation_data=(x[:40], y[:40], weights[:40]),
        )

    @pytest.mark.long
    def test_several_inputs_and_outputs(self, keras, fit_resident):
        """Dicts of inputs and of targets reach the model under their names.

        Only whole batches: Keras weighs the losses of single outputs by the batch size where its shape is known,
        which `fit` on TensorFlow leaves open.
        """
        x, y = digits(128)

        def make():
            keras.utils.set_random_seed(1)
            left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
            both = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()([left, right]))
            outputs = {"kind": keras.layers.Dense(3, name="kind")(both), "sum": keras.layers.Dense(1, name="sum")(both)}
            model = keras.Model({"left": left, "right": right}, outputs)
            loss = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "sum": "mse"}
            model.compile("adam", loss, metrics={"kind": ["accuracy"], "sum": ["mae"]})
            return model

        inputs = {"left": x[:, :6], "right": x[:, 6:]}
        side_by_side(fit_resident, make, inputs, {"kind": y, "sum": x.sum(axis=1, keepdims=True)})

    def test_learning_rate_schedule(self, keras, fit_resident):
        """A schedule counts the optimizer's steps inside the program."""
        schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)

        side_by_side(fit_resident, lambda: dense(keras, optimizer=keras.optimizers.SGD(schedule)), *digits())

    def test_callbacks_change_the_rate_and_stop(self, keras, fit_resident):
        """A rate set between epochs holds in the next one, and stop_training ends the training."""

        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.stop_training = epoch == 1

        callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1) ** 2), Stop()]

        *_, result = side_by_side(
            fit_resident, lambda: dense(keras, optimizer="sgd"), *digits(), epochs=5, callbacks=callbacks
        )

        assert result.epoch == [0, 1]

    @pytest.mark.parametrize("policy", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.long)])
    def test_mixed_precision(self, keras, fit_resident, policy):
        """Under a mixed policy loss scaling works as in fit, also where a first scale is too large for the type."""
        keras.config.set_dtype_policy(policy)
        try:
            _theirs, ours, result = side_by_side(
                fit_resident, lambda: dense(keras, optimizer=big_scale(keras)), *digits(), rtol=0.05, atol=0.01
            )
        finally:
            keras.config.set_dtype_policy("float32")

        scale = next(one for one in ours.optimizer.variables if "dynamic_scale" in one.path)
        assert float(scale.numpy()) < 2.0**24 or policy == "mixed_bfloat16"
        assert "one XLA program an epoch" in result.how

    @pytest.mark.long
    def test_dropout_advances_the_seeds(self, keras, fit_resident):
        """Seeds of dropout move on as in fit, and the network learns as well."""
        x, y = digits(600)

        def train(fit):
            model = dense(keras, keras.layers.Dropout(0.2, seed=3))
            fit(model, x, y, batch_size=32, epochs=6, verbose=0)
            return model, model.evaluate(x, y, verbose=0)[1]

        theirs, accuracy = train(lambda model, *data, **arguments: model.fit(*data, **arguments))
        ours, found = train(fit_resident)

        states = [[np.asarray(one) for one in model.non_trainable_variables] for model in (theirs, ours)]
        np.testing.assert_array_equal(*states)
        assert accuracy > 0.8
        assert abs(found - accuracy) < 0.05


def big_scale(keras):
    """Return an optimizer whose first loss scale makes float16 overflow, so that steps are skipped."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=2.0**24)


class TestWays:
    """Every way of running an epoch does the same, and the fastest that works is taken."""

    @pytest.mark.long
    @pytest.mark.parametrize("way", WAYS)
    def test_each_way_ends_where_fit_does(self, keras, fit_resident, engine, monkeypatch, way):
        """A whole epoch in XLA, a compiled step, a graph, a graph of a step and eager steps agree with fit."""
        monkeypatch.setattr(engine, "possible_ways", lambda *_: ([way], ""))

        *_, result = side_by_side(
            fit_resident,
            lambda: dense(keras, keras.layers.BatchNormalization()),
            *digits(),
            validation_data=digits(40),
        )

        assert engine.SENTENCES[way].format(steps=5) in result.how

    def test_what_xla_cannot_compile_falls_back(self, keras, fit_resident):
        """A step that XLA rejects runs as a graph: reported in a warning and in `how`, and the weights are fit's."""
        import tensorflow as tf

        @keras.saving.register_keras_serializable("tests")
        class Outside(keras.layers.Layer):
            def call(self, inputs):
                outputs = tf.numpy_function(lambda array: array, [tf.stop_gradient(inputs)], inputs.dtype)
                return inputs + 0 * tf.reshape(outputs, tf.shape(inputs))

        with pytest.warns(RuntimeWarning, match="without XLA"):
            *_, result = side_by_side(fit_resident, lambda: dense(keras, Outside()), *digits())

        assert "a loop over its 5 batches without XLA" in result.how
        assert "not as one program for each step" in result.how

    @pytest.mark.long
    def test_a_failure_in_the_last_batch_leaves_no_trace(self, keras, fit_resident, engine, monkeypatch):
        """When the way fails after some steps of its first epoch, those are undone before the next way begins."""
        from rocmlab.training.resident import tensorflow_loop

        program = tensorflow_loop.Loop.program

        def fails_late(self, way, *data):
            made = program(self, way, *data)

            def late(arrays, order):
                made.last(arrays, order)
                raise ValueError("the last batch cannot be compiled")

            return dataclasses.replace(made, last=late) if way in ("epoch", "step") else made

        monkeypatch.setattr(tensorflow_loop.Loop, "program", fails_late)
        with pytest.warns(RuntimeWarning, match="the last batch cannot be compiled"):
            side_by_side(fit_resident, lambda: dense(keras, keras.layers.Dropout(0.2, seed=3)), *digits())

    def test_error_of_the_model_is_raised(self, keras, fit_resident):
        """When no way works, the model's own error comes through."""

        class Broken(keras.Sequential):
            def train_step(self, data):
                raise ZeroDivisionError("of the model")

        model = Broken([keras.Input((12,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
        x, _y = digits(40)

        with pytest.raises(ZeroDivisionError, match="of the model"):
            fit_resident(model, x, x[:, :3], verbose=0)

    def test_convolutions_stay_with_tensorflow_on_a_cpu(self, keras, fit_resident):
        """On a CPU a network with convolutions runs without XLA and reports why; on request it uses XLA."""
        rng = np.random.default_rng(0)
        x, y = rng.random((70, 8, 8, 1), dtype="float32"), rng.integers(0, 3, 70)

        def make(**arguments):
            keras.utils.set_random_seed(1)
            layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("adam", loss, metrics=["accuracy"], **arguments)
            return model

        *_, result = side_by_side(fit_resident, make, x, y)
        told = fit_resident(make(jit_compile=True), x, y, batch_size=32, verbose=0)

        assert "on a CPU XLA's code for Conv2D is slower than TensorFlow's" in result.how
        assert "XLA-compiled step" in told.how

    def test_run_eagerly_is_respected(self, keras, fit_resident):
        """A model compiled to run eagerly does, for example to be debugged."""
        *_, result = side_by_side(fit_resident, lambda: dense(keras, run_eagerly=True), *digits(64))

        assert "run_eagerly" in result.how

    def test_logs_of_a_train_step_of_ones_own(self, keras, fit_resident):
        """A model with a train_step of its own is trained by it, and what it returns last is logged."""

        class Own(keras.Sequential):
            def train_step(self, data):
                logs = super().train_step(data)
                return {"loss": logs["loss"], "steps": self.optimizer.iterations.value}

        def make():
            keras.utils.set_random_seed(1)
            model = Own([keras.Input((12,)), keras.layers.Dense(3)])
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            return model

        *_, result = side_by_side(fit_resident, make, *digits())

        assert result.history["steps"] == [5, 10]


class TestOrder:
    """The order of the samples."""

    @pytest.mark.long
    def test_same_seed_same_training(self, keras, fit_resident):
        """The same seed gives the same weights to the last bit, another seed gives others."""
        x, y = digits()

        def weights(seed):
            model = dense(keras, keras.layers.Dropout(0.1, seed=2))
            fit_resident(model, x, y, epochs=2, seed=seed, verbose=0)
            return np.concatenate([one.ravel() for one in model.get_weights()])

        once = weights(5)

        np.testing.assert_array_equal(once, weights(5))
        assert np.abs(once - weights(6)).max() > 1e-4

    def test_each_epoch_has_an_order_of_its_own(self, keras, engine):
        """Every sample comes once an epoch, in another order each time."""
        from rocmlab.training.resident.engine import Data, Options, Samples

        x, y = digits(1000)
        made = engine.TensorFlowEngine(dense(keras), Data(Samples(x, y, None, 1000)), Options(seed=3))

        first, second = (made._order(1000, epoch).numpy() for epoch in (0, 1))

        for order in (first, second):
            np.testing.assert_array_equal(np.sort(order), np.arange(1000))
        assert (first != second).mean() > 0.9
        assert (first != np.arange(1000)).mean() > 0.9

    @pytest.mark.long
    def test_blocks_train_as_resident_data_do(self, keras, fit_resident):
        """Data too large for the memory they may have stream in blocks: the same weights, and `how` reports it."""
        x, y = digits(330)

        def train(memory_bytes):
            model = dense(keras)
            common = {"batch_size": 32, "epochs": 2, "seed": 4, "verbose": 0, "validation_data": (x, y)}
            return model, fit_resident(model, x, y, memory_bytes=memory_bytes, **common)

        resident, whole = train(None)
        streamed, result = train(4 * 32 * (12 * 4 + 8))

        assert_same(resident, streamed)
        assert "resident blocks" in result.how
        assert "data resident" in whole.how
        for name, values in whole.history.items():
            np.testing.assert_allclose(values, result.history[name], rtol=1e-3, err_msg=name)

    def test_two_blocks_lie_on_the_device_at_most(self, keras, fit_resident, engine, monkeypatch):
        """The block that was computed is gone before the one after the next is sent: each has half of the memory."""
        x, y = digits(330)
        sent, alive, tree_map = [], [], engine.tree_map

        def counted(to_device, samples):
            block = tree_map(to_device, samples)
            sent.append(weakref.ref(block[0]))
            alive.append(sum(one() is not None for one in sent))
            return block

        monkeypatch.setattr(engine, "tree_map", counted)
        fit_resident(dense(keras), x, y, epochs=2, memory_bytes=4 * 32 * (12 * 4 + 8), verbose=0)

        assert len(alive) == 2 * 6
        assert max(alive) == 2


class TestRandomNumbers:
    """XLA's programs for a CPU draw what changes from Threefry, whose code is ten times as fast there."""

    @pytest.fixture
    def tf(self, keras):
        """Return TensorFlow."""
        import tensorflow

        return tensorflow

    @pytest.fixture(params=["stateless_dropout", "stateless_uniform", "stateless_normal", "stateless_truncated_normal"])
    def draw(self, tf, request):
        """Return one of the functions that draw, as `f(seed, generator=None, inside=False)`, in a program of XLA's."""
        from rocmlab.training.resident.tensorflow_random import quick_draws

        def draw(seed, generator=None, inside=False):
            with quick_draws() if inside else contextlib.nullcontext():
                if request.param == "stateless_dropout":
                    named = {"rng_alg": generator} if generator else {}
                    return tf.nn.experimental.stateless_dropout(tf.ones([50]), 0.5, seed=seed, **named)
                named = {"alg": generator} if generator else {}
                return getattr(tf.random, request.param)([50], seed=seed, **named)

        return draw

    def test_numbers_are_threefry_s(self, tf, draw):
        """With a seed that changes a graph traced inside draws Threefry's numbers; one that names a generator, its."""

        def run(**named):
            program = tf.function(lambda seed: draw(seed, **named), jit_compile=True, autograph=False)
            return program(tf.constant([3, 4])).numpy().tolist()

        assert run(inside=True) == run(generator="threefry") != run(generator="philox")
        assert run(inside=True, generator="philox") == run(generator="philox")

    def test_a_fixed_seed_has_the_numbers_of_a_cpu(self, tf, draw):
        """With a constant seed the numbers are those that the model has when it is called without XLA."""
        program = tf.function(lambda: draw([3, 4], inside=True), jit_compile=True, autograph=False)

        np.testing.assert_allclose(program(), draw([3, 4]), rtol=1e-6)
        np.testing.assert_allclose(draw([3, 4], inside=True), draw([3, 4]))  # and where nothing is traced

    def test_a_generator_named_by_its_place(self, tf):
        """A generator passed without its name stays also."""
        from rocmlab.training.resident.tensorflow_random import quick_draws

        def mask(seed, inside):
            with quick_draws() if inside else contextlib.nullcontext():
                return tf.nn.experimental.stateless_dropout(tf.ones([50]), 0.5, seed, "philox")

        inside, outside = (
            tf.function(lambda seed, inside=inside: mask(seed, inside), jit_compile=True)(tf.constant([3, 4]))
            for inside in (True, False)
        )
        assert inside.numpy().tolist() == outside.numpy().tolist()

    def test_an_epoch_draws_from_it(self, tf, keras, fit_resident):
        """What a step draws in an epoch by XLA are Threefry's numbers; afterwards TensorFlow draws as before."""
        drawing = tf.random.stateless_uniform

        class Draws(keras.Sequential):
            def train_step(self, data):
                drawn.assign(tf.random.stateless_uniform([9], seed=seed + 1))
                return super().train_step(data)

        drawn, seed = tf.Variable(tf.zeros([9])), tf.Variable([2, 3])
        result = fit_resident(dense(keras, kind=Draws), *digits(32), batch_size=32, epochs=1, verbose=0)

        program = tf.function(lambda seed: tf.random.stateless_uniform([9], seed, alg="threefry"), jit_compile=True)
        assert result.how.startswith("one XLA program an epoch")
        assert drawn.numpy().tolist() == program(tf.constant([3, 4])).numpy().tolist()
        assert tf.random.stateless_uniform is drawing

    def test_numbers_fixed_in_a_layer_are_those_of_evaluate(self, tf, keras, fit_resident):
        """A layer that draws the same numbers at each call is evaluated with those it was trained with."""

        class Features(keras.layers.Layer):
            def call(self, inputs):
                return keras.ops.matmul(inputs, keras.random.normal((16, 16), seed=42))

        model = dense(keras, Features())
        result = fit_resident(model, *digits(), batch_size=32, epochs=2, verbose=0, validation_data=digits(80))

        assert result.how.startswith("one XLA program an epoch")
        validated = {name: values[-1] for name, values in result.history.items()}
        loss, accuracy = model.evaluate(*digits(80), verbose=0)
        assert validated["val_loss"] == pytest.approx(loss, rel=1e-4)
        assert validated["val_accuracy"] == pytest.approx(accuracy)

    def test_masks_have_the_rate_and_change(self, tf, keras, fit_resident):
        """A dropout of 0.3 leaves out three of ten, others in each batch, and scales the rest."""

        class Masks(keras.Sequential):
            def train_step(self, data):
                mask = self.layers[0](tf.ones([100, 200]), training=True)
                row = self.optimizer.iterations.value % 10
                seen.scatter_nd_update([[row]], mask[None])
                return super().train_step(data)

        seen = tf.Variable(tf.zeros([10, 100, 200]))
        model = dense(keras, kind=lambda layers: Masks([keras.layers.Dropout(0.3), *layers[1:]]))
        model.build((None, 12))
        result = fit_resident(model, *digits(320), batch_size=32, epochs=1, verbose=0)

        masks = seen.numpy()
        assert result.how.startswith("one XLA program an epoch")
        assert set(np.unique(masks)) == {np.float32(0), np.float32(1 / 0.7)}
        assert abs((masks == 0).mean() - 0.3) < 0.01  # 200,000 draws: nine standard deviations
        for one in range(10):
            for other in range(one):
                assert abs((masks[one] == masks[other]).mean() - 0.58) < 0.03  # as chance has it: 0.3^2 + 0.7^2

    def test_a_function_of_the_model_s_own_still_runs_without_xla(self, tf, keras, fit_resident):
        """A tf.function with dropout that an epoch in XLA has traced can be called without XLA afterwards."""

        class Own(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.dropout = keras.layers.Dropout(0.5)

            @tf.function(autograph=False)
            def call(self, inputs):
                return self.dropout(inputs, training=True)

        layer = Own()
        result = fit_resident(dense(keras, layer), *digits(64), batch_size=32, epochs=1, verbose=0)

        assert result.how.startswith("one XLA program an epoch")
        assert 0 < np.count_nonzero(layer(tf.ones([32, 16]))) < 32 * 16


MIRRORED = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras, numpy as np, tensorflow as tf
from rocmlab.base.errors import RocmlabError
from rocmlab.training import fit_resident

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(7)
y = rng.integers(0, 3, 144)
x = rng.normal(size=(144, 12)).astype("float32") + np.eye(3, 12, dtype="float32")[y] * 2

def make():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model

common = {"batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (x[:50], y[:50])}
single = make()
history = single.fit(x, y, **common).history
with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
    double = make()
result = fit_resident(double, x, y, **common)
pairs = list(zip(single.get_weights(), double.get_weights()))
copies = [[part.numpy() for part in one.value.values] for one in double.trainable_variables]
try:
    fit_resident(double, x[:33], y[:33], verbose=0)
    rejected = ""
except RocmlabError as err:
    rejected = str(err)
print(json.dumps({
    "weights": max(float(np.abs(one - other).max()) for one, other in pairs),
    "replicas": max(float(np.abs(one - other).max()) for one, other in copies),
    "history": {name: [history[name], result.history[name]] for name in history},
    "how": result.how, "rejected": rejected,
}))
"""


@pytest.mark.long
def test_mirrored_strategy_equals_one_device(keras):
    """On two parts of the CPU each takes half of a batch, also of the last, and the weights are one device's."""
    environment = {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MIRRORED], env=environment, capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["weights"] < 2e-5
    assert found["replicas"] == 0
    for name, (expected, ours) in found["history"].items():
        np.testing.assert_allclose(expected, ours, rtol=1e-3, atol=1e-4, err_msg=name)
    assert "shared between 2 replicas" in found["how"]
    assert "the last batch has 1 sample(s) for 2 replicas" in found["rejected"]


def test_too_little_memory_is_an_error(keras, fit_resident):
    """Memory for less than two batches is rejected with what to do about it."""
    with pytest.raises(RocmlabError, match="larger memory_bytes"):
        fit_resident(dense(keras), *digits(), memory_bytes=1000, verbose=0)
