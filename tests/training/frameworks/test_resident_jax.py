"""Keras on JAX: trained on resident data in one program, a model ends where `fit` takes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_models import assert_same, assert_same_history, dense, digits, has_gpu, side_by_side

import rocmlab
from rocmlab.base.errors import RocmlabError

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND") != "jax", reason="KERAS_BACKEND=jax runs these tests"),
    # Keras' variables do not know NumPy 2's argument yet; `get_weights` meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
SRC = str(Path(rocmlab.__file__).parents[1])


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    """Return Keras, which runs on JAX in this process; programs that are alike are compiled once."""
    keras = pytest.importorskip("keras", reason="Keras and JAX are not installed")
    jax = pytest.importorskip("jax", reason="Keras and JAX are not installed")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("programs")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return keras


class TestSameAsFit:
    """With no shuffling and the same start, the weights are those of `fit`."""

    def test_remainder_batch_validation_and_history(self, keras, fit_resident):
        """The last, smaller batch counts as in fit; history, validation and optimizer's steps are the same."""
        x, y = digits()

        _theirs, ours, result = side_by_side(fit_resident, lambda: dense(keras), x, y, validation_data=(x[:50], y[:50]))

        assert int(ours.optimizer.iterations) == 2 * 5
        assert result.epoch == [0, 1]
        assert result.params["steps"] == 5
        assert len(result.seconds) == 2
        assert all(seconds > 0 for seconds in result.seconds)
        assert "one XLA program an epoch" in result.how
        assert "data resident" in result.how

    @pytest.mark.parametrize("small", [True, False])
    def test_steps_written_out_four_times_as_on_a_gpu(self, keras, fit_resident, monkeypatch, small):
        """Small steps run in groups of a fixed length and are written out, large ones are not; the weights agree."""
        from rocmlab.training.resident import jax_programs

        written = []
        scan = jax_programs.lax.scan
        monkeypatch.setattr(
            jax_programs.lax, "scan", lambda *given, **how: written.append(how.get("unroll")) or scan(*given, **how)
        )
        for platform in ("cpu", "gpu"):
            monkeypatch.setitem(jax_programs.UNROLL, platform, 4)
            monkeypatch.setitem(jax_programs.GROUP, platform, 4)
        monkeypatch.setattr(jax_programs, "SMALL_STEP", 1000 if small else 10)
        x, y = digits(230)

        side_by_side(fit_resident, lambda: dense(keras), x, y)

        assert set(written) == ({3} if small else set())

    def test_multiplications_of_a_step_are_counted(self, keras):
        """Those of products and of convolutions, by which the steps of a group on a GPU are chosen."""
        from rocmlab.training.resident import jax_programs

        def step(x, kernel, weights):
            y = keras.ops.conv(x, kernel, padding="valid")  # 2 * 6 * 6 outputs of 5 channels, 3 * 3 * 4 each
            return keras.ops.reshape(y, (2, 180)) @ weights  # 2 * 7 outputs, 180 each

        import jax

        shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((2, 8, 8, 4), (3, 3, 4, 5), (180, 7))]
        operations = list(jax_programs._operations(jax.make_jaxpr(step)(*shapes).jaxpr))

        counted = sum(map(jax_programs._multiplications, operations))
        assert counted == 2 * 6 * 6 * 5 * 36 + 2 * 7 * 180

    def test_weights_of_samples_added_losses_averages_and_seeds(self, keras, fit_resident):
        """Sample weights, regularisers and add_loss count as in fit; averages and seeds end where fit leaves them."""
        x, y = digits(80)
        weights = np.linspace(0, 2, 80)

        def make():
            inner = [
                keras.layers.Dense(8, "tanh", kernel_regularizer="l2"),
                keras.layers.ActivityRegularization(l1=0.01),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.5, seed=3),
            ]
            return dense(keras, *inner, weighted_metrics=["accuracy"])

        side_by_side(fit_resident, make, x, y, sample_weight=weights, validation_data=(x[:40], y[:40], weights[:40]))

    @pytest.mark.long
    def test_learning_rate_schedule_and_averaged_weights(self, keras, fit_resident):
        """A schedule counts the optimizer's steps; averaged weights are put in place at the end."""
        x, y = digits(70)

        def make():
            schedule = keras.optimizers.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.5)
            return dense(keras, optimizer=keras.optimizers.SGD(schedule, momentum=0.9, use_ema=True))

        side_by_side(fit_resident, make, x, y)

    def test_mixed_precision_and_loss_scaling(self, keras, fit_resident):
        """A mixed_float16 model scales its loss as in fit: the scale and its counter are the same afterwards."""
        x, y = digits(64)

        def make():
            policy = keras.dtype_policies.DTypePolicy("mixed_float16")
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [
                    keras.Input((12,)),
                    keras.layers.Dense(8, "relu", dtype=policy),
                    keras.layers.Dense(3, "softmax", dtype="float32"),
                ]
            )
            optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), dynamic_growth_steps=3)
            model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy")
            return model

        _theirs, ours, _result = side_by_side(fit_resident, make, x, y)

        assert float(ours.optimizer.dynamic_scale.value) == 2.0**16  # doubled after the third step
        assert ours.layers[0].compute_dtype == "float16"

    def test_several_inputs_outputs_and_own_loss_names(self, keras, fit_resident):
        """Dicts of inputs and lists of targets are cut batch by batch as fit cuts them."""
        x, y = digits(50)

        def make():
            keras.utils.set_random_seed(1)
            left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
            both = keras.layers.Concatenate()([left, right])
            outputs = [keras.layers.Dense(3, "softmax", name="kind")(both), keras.layers.Dense(1, name="size")(both)]
            model = keras.Model({"left": left, "right": right}, outputs)
            model.compile("sgd", ["sparse_categorical_crossentropy", "mse"], metrics=[["accuracy"], ["mae"]])
            return model

        side_by_side(fit_resident, make, {"right": x[:, 6:], "left": x[:, :6]}, [y, x[:, :1]])

    @pytest.mark.long
    def test_convolutions_run_batch_by_batch_on_a_cpu(self, keras, fit_resident):
        """Where a scan would be slower, each batch is a program of its own, `how` reports it, and the weights agree."""
        x, y = digits(40)

        def make():
            keras.utils.set_random_seed(1)
            layers = [keras.Input((3, 4, 1)), keras.layers.Conv2D(4, 2, activation="relu"), keras.layers.Flatten()]
            model = keras.Sequential([*layers, keras.layers.Dropout(0.2, seed=1), keras.layers.Dense(3, "softmax")])
            model.compile("adadelta", "sparse_categorical_crossentropy", metrics=["accuracy"])
            return model

        images = x.reshape(-1, 3, 4, 1)
        _theirs, _ours, result = side_by_side(
            fit_resident, make, images, y, batch_size=16, validation_data=(images[:20], y[:20])
        )

        words = ("a scan over",) if has_gpu() else ("one XLA program a batch", "convolutions")
        assert all(each in result.how for each in words)

    def test_steps_of_an_older_keras_find_what_its_fit_notes(self, keras, fit_resident):
        """Before Keras 3.12 a step read where the variables are, which `fit` had noted in the model."""
        x, y = digits(32)

        class Older(keras.Sequential):
            def _record_training_state_sharding_spec(self):
                self.noted = [variable.value.sharding for variable in self.trainable_variables]

            def train_step(self, state, data):
                assert len(self.noted) == len(state[0])
                return super().train_step(state, data)

        model = dense(keras, kind=Older)

        trained = fit_resident(model, x, y, batch_size=16, verbose=0)

        assert "one XLA program an epoch" in trained.how

    def test_own_step_with_own_logs(self, keras, fit_resident):
        """A model with a train_step of its own logs what its last batch returned, as in fit, remainder or not."""
        x, y = digits(64)

        class Own(keras.Sequential):
            def train_step(self, state, data):
                logs, state = super().train_step(state, data)
                return {**logs, "largest": keras.ops.max(data[0])}, state

        def make():
            keras.utils.set_random_seed(1)
            model = Own([keras.Input((12,)), keras.layers.Dense(3, "softmax")])
            model.compile("sgd", "sparse_categorical_crossentropy")
            return model

        _theirs, _ours, result = side_by_side(fit_resident, make, x, y)

        assert result.history["largest"][0] == pytest.approx(float(x[32:].max()))


class TestCallbacks:
    """Callbacks work between epochs: they see, change and keep the model."""

    def test_callbacks_change_the_rate_and_restore_weights(self, keras, fit_resident):
        """A scheduled learning rate is used, early stopping ends the training and restores the best weights."""
        x, y = digits(64)
        rates = {0: 0.1, 1: 0.01}

        def callbacks():
            return [
                keras.callbacks.LearningRateScheduler(lambda epoch: rates.get(epoch, 3.0)),
                keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True),
            ]

        theirs, ours = dense(keras, optimizer="sgd"), dense(keras, optimizer="sgd")
        history = theirs.fit(x, y, epochs=9, shuffle=False, verbose=0, callbacks=callbacks())
        result = fit_resident(ours, x, y, epochs=9, shuffle=False, verbose=0, callbacks=callbacks())

        assert_same(theirs, ours)
        assert_same_history(history.history, result.history)
        assert len(result.epoch) < 9
        assert ours.history.history == result.history

    def test_batch_callbacks_are_told_and_epochs_get_a_line(self, keras, fit_resident, capsys):
        """A callback that waits for batches draws a warning by its name and is not called; each epoch gets a line."""
        x, y = digits(32)

        class EachBatch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                raise AssertionError("called")

        with pytest.warns(UserWarning, match="EachBatch"):
            fit_resident(dense(keras), x, y, epochs=2, verbose=2, callbacks=[EachBatch()])

        told = capsys.readouterr().out
        assert "Epoch 2/2" in told
        assert told.count("accuracy") == 2

    def test_training_goes_on_where_it_stopped(self, keras, fit_resident):
        """Two calls with initial_epoch end where one call ends: optimizer and seeds are kept in between."""
        x, y = digits(64)
        whole, parts = dense(keras), dense(keras)

        fit_resident(whole, x, y, epochs=3, seed=5, verbose=0)
        fit_resident(parts, x, y, epochs=1, seed=5, verbose=0)
        fit_resident(parts, x, y, epochs=3, initial_epoch=1, seed=5, verbose=0)

        assert_same(whole, parts)

    def test_an_error_in_a_callback_leaves_a_usable_model(self, keras, fit_resident):
        """When a callback stops the training before the validation, the model holds what was trained until then."""
        x, y = digits(64)
        model = dense(keras)

        class Stop(keras.callbacks.Callback):
            def on_test_begin(self, logs=None):
                assert np.isfinite(self.model.get_weights()[0]).all()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit_resident(model, x, y, epochs=3, verbose=0, validation_data=(x, y), callbacks=[Stop()])

        assert int(model.optimizer.iterations) == 2
        assert np.isfinite(model.predict(x, verbose=0)).all()

    def test_an_interrupted_training_keeps_its_own_weights(self, keras, fit_resident):
        """Averaged weights take their place only at the end: continuing needs those that were trained."""
        x, y = digits(64)
        model = dense(keras, optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))

        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.trained = np.array(self.model.get_weights()[0])
                raise KeyboardInterrupt

        stop = Stop()
        with pytest.raises(KeyboardInterrupt):
            fit_resident(model, x, y, verbose=0, callbacks=[stop])

        np.testing.assert_array_equal(model.get_weights()[0], stop.trained)


class TestShuffle:
    """The order of the samples comes from the seed."""

    def test_same_seed_same_run_other_seed_other_run(self, keras, fit_resident):
        """A seed fixes the run, and another one gives another."""
        x, y = digits(64)
        runs = [dense(keras), dense(keras), dense(keras)]
        for model, seed in zip(runs, (11, 11, 12), strict=True):
            fit_resident(model, x, y, epochs=2, seed=seed, verbose=0)

        first, again, other = (np.asarray(model.weights[0]) for model in runs)
        np.testing.assert_array_equal(first, again)
        assert not np.allclose(first, other)

    @pytest.mark.long
    def test_reaches_the_accuracy_of_fit(self, keras, fit_resident):
        """Shuffled, a model learns as well as by fit."""
        x, y = digits(600)
        theirs, ours = dense(keras), dense(keras)

        theirs.fit(x, y, epochs=6, verbose=0)
        fit_resident(ours, x, y, epochs=6, seed=1, verbose=0)

        expected, found = (model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] for model in (theirs, ours))
        assert expected > 0.75
        assert found == pytest.approx(expected, abs=0.05)


class TestTooLarge:
    """Data that do not fit stream in blocks."""

    @pytest.mark.long
    def test_blocks_give_the_same_weights(self, keras, fit_resident):
        """Streamed in blocks, with the validation set cut as well, the model ends where fit takes it."""
        x, y = digits(330)

        _theirs, _ours, result = side_by_side(
            fit_resident_with(fit_resident, memory_bytes=8000), lambda: dense(keras), x, y, validation_data=(x, y)
        )

        assert "stream in 6 resident blocks" in result.how

    def test_blocks_are_shuffled_over_the_whole_set(self, keras, fit_resident):
        """A seed fixes a streamed run also, and the samples do not stay in their blocks."""
        x, y = digits(330)
        models = [dense(keras) for _ in range(3)]
        for model, shuffle in zip(models, (True, True, False), strict=True):
            fit_resident(model, x, y, shuffle=shuffle, seed=3, memory_bytes=8000, verbose=0)

        first, again, unshuffled = (np.asarray(model.weights[0]) for model in models)
        np.testing.assert_array_equal(first, again)
        assert not np.allclose(first, unshuffled)


def fit_resident_with(fit_resident, **extra):
    """Return the function with arguments that `fit` does not have."""
    return lambda *arguments, **keywords: fit_resident(*arguments, **keywords, **extra)


class TestFallback:
    """What cannot be compiled whole runs a slower way, and reports it."""

    def test_a_step_that_cannot_be_traced_runs_uncompiled(self, keras, fit_resident):
        """A train_step that looks at its values cannot be compiled: it runs batch by batch as it is, with a warning."""
        x, _y = digits(40)

        class Looks(keras.Sequential):
            def train_step(self, state, data):
                if float(keras.ops.mean(data[0])) > 1e9:
                    raise AssertionError("the data are small")
                return super().train_step(state, data)

        plain, looking = (kind([keras.Input((12,)), keras.layers.Dense(3)]) for kind in (keras.Sequential, Looks))
        looking.set_weights(plain.get_weights())
        for model in (plain, looking):
            model.compile("sgd", "mse")
        fit_resident(plain, x, x[:, :3], shuffle=False, verbose=0)
        with pytest.warns(RuntimeWarning, match="could not be compiled"):
            result = fit_resident(looking, x, x[:, :3], shuffle=False, verbose=0)

        assert "uncompiled step" in result.how
        assert_same(plain, looking)

    def test_run_eagerly_is_respected(self, keras, fit_resident):
        """A model compiled to run eagerly does so on resident data."""
        x, y = digits(32)  # one batch: each operation is compiled for each shape

        theirs, ours = dense(keras, optimizer="sgd"), dense(keras, optimizer="sgd", run_eagerly=True)
        theirs.fit(x, y, epochs=1, shuffle=False, verbose=0)
        result = fit_resident(ours, x, y, shuffle=False, verbose=0)

        assert_same(theirs, ours)
        assert "run_eagerly" in result.how


class TestRefused:
    """What cannot work is rejected with the reason and the remedy."""

    def test_uncompiled_models_and_wrong_arguments(self, keras, fit_resident):
        """An uncompiled model, an optimizer next to compile(), a generator and a Dataset are rejected."""
        x, y = digits(32)
        model = dense(keras)
        bare = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3)])

        with pytest.raises(RocmlabError, match="not compiled"):
            fit_resident(bare, x, y)
        with pytest.raises(RocmlabError, match="optimizer given with a Keras model"):
            fit_resident(model, x, y, optimizer="sgd")
        with pytest.raises(RocmlabError, match=r"use fit\(\)"):
            fit_resident(model, ((x, y) for _ in range(2)))
        with pytest.raises(RocmlabError, match="different lengths: 31, 32"):
            fit_resident(model, x, y[:31])


PARALLEL = """
import json, numpy as np, keras
from rocmlab.training import fit_resident

devices = keras.distribution.list_devices()
rng = np.random.default_rng(0)
x = rng.normal(size=(75, 12)).astype("float32")
y = rng.integers(0, 3, 75)

def make():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")])
    model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model

def train():
    return fit_resident(make(), x, y, batch_size=16, epochs=2, seed=4, verbose=0, validation_data=(x, y))

alone = train()
with keras.distribution.DataParallel(devices=devices).scope():
    shared = train()
pairs = zip(alone.model.get_weights(), shared.model.get_weights())
kernel = shared.model.trainable_variables[0].value
print(json.dumps({
    "worst": max(float(np.abs(one - other).max()) for one, other in pairs),
    "validation": [abs(a - b) for a, b in zip(alone.history["val_loss"], shared.history["val_loss"])],
    "how": shared.how,
    "devices": len(kernel.sharding.device_set),
}))
"""


@pytest.mark.long
def test_two_devices_share_each_batch(keras):
    """Under DataParallel two devices train to the weights of one, also with a batch that cannot be halved."""
    env = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "NPROC": "8",
        "PYTHONPATH": os.pathsep.join([SRC, *filter(None, sys.path)]),
    }

    done = subprocess.run([sys.executable, "-c", PARALLEL], env=env, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["worst"] < 1e-4
    assert max(found["validation"]) < 1e-3
    assert found["devices"] == 2
    assert "shared between 2 devices" in found["how"]
