"""Keras on torch and plain torch modules: trained on resident data, they end where `fit` or a loop takes them."""

from __future__ import annotations

import os
import warnings
from functools import partial

import numpy as np
import pytest
import small_models
from small_models import assert_same, digits

from rocmlab.base.errors import RocmlabError

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND") != "torch", reason="KERAS_BACKEND=torch runs these tests"),
    # Keras' variables do not know NumPy 2's argument yet; `get_weights` meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

dense = partial(small_models.dense, activation="tanh")  # smooth, so that rounding stays small
KERAS_OPTIMIZERS = {
    "sgd": {},
    "SGD": {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True},
    "rmsprop": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "adam": {},
    "Adam": {"amsgrad": True, "weight_decay": 0.01, "global_clipnorm": 0.5},
    "Adadelta": {"learning_rate": 1.0},
    "Nadam": {},
    "Lion": {"learning_rate": 1e-3},
    "adamw": {"gradient_accumulation_steps": 2},
    "Adamax": {"use_ema": True},
}
TORCH_OPTIMIZERS = {
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "Adam": {"lr": 1e-2, "amsgrad": True},
    "AdamW": {"lr": 1e-2},
    "RMSprop": {"lr": 1e-3, "centered": True},
    "Adadelta": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
}


@pytest.fixture(scope="module")
def torch():
    """Return torch on one thread: the networks here are small."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="module")
def keras(torch):
    """Return Keras, which runs on torch in this process."""
    return pytest.importorskip("keras", reason="Keras is not installed")


def plain(torch, drop=0.0, norm=False):
    """Return a small torch classifier, always with the same weights."""
    torch.manual_seed(1)
    inner = [torch.nn.BatchNorm1d(16)] if norm else []
    return torch.nn.Sequential(
        torch.nn.Linear(12, 16), *inner, torch.nn.Tanh(), torch.nn.Dropout(drop), torch.nn.Linear(16, 3)
    )


def hits(outputs, targets):
    """Return which samples are classified rightly: (batch,) float."""
    return (outputs.argmax(-1) == targets).float()


def loop(torch, module, optimizer, x, y, epochs, batch=16, after=None):
    """Train by a hand-written loop without shuffling."""
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    for _epoch in range(epochs):
        for start in range(0, len(x), batch):
            optimizer.zero_grad()
            part = slice(start, start + batch)
            torch.nn.functional.cross_entropy(module(x[part]), y[part]).backward()
            optimizer.step()
        if after is not None:
            after()


def side_by_side(fit_resident, make, x, y, **arguments):
    """Train one model by `fit` and its twin resident, check that they end alike, and return the second's Fit."""
    given = {"batch_size": 16, **arguments}
    return small_models.side_by_side(fit_resident, make, x, y, history_rtol=1e-4, **given)[2]


@pytest.mark.filterwarnings("ignore:fit_resident. its optimizer accumulates:RuntimeWarning")  # so on a GPU: no graphs
@pytest.mark.parametrize("name", KERAS_OPTIMIZERS)
def test_ends_where_fit_ends(keras, fit_resident, name):
    """Every optimizer of Keras gives the weights, slots, steps and history of `fit`, remainder batch included."""
    x, y = digits()
    keys = {"class_name": name, "config": KERAS_OPTIMIZERS[name]}

    side_by_side(fit_resident, lambda: dense(keras, optimizer=keras.optimizers.get(dict(keys))), x, y)


def test_schedules_weights_and_validation_are_those_of_fit(keras, fit_resident):
    """A schedule, sample weights, weighted metrics, validation and a callback that sets the rate work as in `fit`."""
    x, y = digits()
    weights = np.random.default_rng(1).random(len(x)).astype("float32")
    data = {"sample_weight": weights, "validation_data": (x[:50], y[:50]), "epochs": 3}

    def scheduled():
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.5)
        return dense(keras, optimizer=keras.optimizers.SGD(rate), weighted_metrics=["accuracy"])

    side_by_side(fit_resident, scheduled, x, y, **data)
    halve = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]
    side_by_side(fit_resident, lambda: dense(keras, optimizer="sgd"), x, y, callbacks=halve, **data)


def test_metrics_that_take_a_batch_as_one_are_those_of_fit(keras, fit_resident):
    """Functions with one value for a batch, or whose samples depend on each other, are applied to each batch alone."""
    x, y = digits()
    metrics = [
        keras.losses.dice,
        keras.losses.Tversky(),
        keras.losses.MeanSquaredError(),
        keras.metrics.CosineSimilarity(axis=0),
    ]
    for metric in metrics:

        def make(metric=metric):
            return dense(keras, loss="categorical_crossentropy", metrics=[metric])

        side_by_side(fit_resident, make, x, np.eye(3, dtype="float32")[y])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no graph can have Keras' `circle`
        side_by_side(fit_resident, lambda: dense(keras, metrics=[keras.losses.circle]), x, y)

    def flat():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1), keras.layers.Reshape(())])
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    side_by_side(fit_resident, flat, x, y.astype("float32"))


def test_masked_steps_count_in_no_metric(keras, fit_resident):
    """Metrics of sequences with padding are those of `fit`."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(1, 5, (40, 6)), draw.integers(0, 3, (40, 6))
    x[::2, 3:] = 0

    def make():
        keras.utils.set_random_seed(1)
        layers = keras.layers
        embedded = layers.Embedding(5, 4, mask_zero=True)
        model = keras.Sequential([keras.Input((6,)), embedded, layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
        return model

    side_by_side(fit_resident, make, x, y)


def test_batch_normalization_and_loss_scaling_are_those_of_fit(keras, fit_resident):
    """Moving averages, regularization and the scale of a LossScaleOptimizer follow `fit`."""
    x, y = digits()

    def scaled():
        keras.utils.set_random_seed(1)
        layers = keras.layers
        inner = layers.Dense(16, "tanh", use_bias=False, kernel_regularizer=keras.regularizers.L2(0.01))
        model = keras.Sequential([keras.Input((12,)), inner, layers.BatchNormalization(), layers.Dense(3, "softmax")])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), dynamic_growth_steps=4)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    side_by_side(fit_resident, scaled, x, y)


def test_layers_for_images_in_fewer_passes_are_those_of_fit(keras, fit_resident, torch, monkeypatch):
    """Convolutions, pooling, and normalisation in its variants end in the same weights and moving averages."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which rounds products to 10 bits
    layers = keras.layers
    usual = own_pieces(keras)

    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((12, 12, 2)),
                layers.Conv2D(6, 3, padding="same"),
                layers.BatchNormalization(momentum=0.9),
                layers.MaxPooling2D(2),
                layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
                layers.BatchNormalization(scale=False, center=False),
                layers.SeparableConv2D(4, 3),
                layers.BatchNormalization(axis=1),
                layers.AveragePooling2D(2),
                layers.BatchNormalization(trainable=False),
                layers.Flatten(),
                layers.BatchNormalization(),
                layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    x = np.random.default_rng(0).normal(1, 3, (90, 12, 12, 2)).astype("float32")
    y = (x[:, 0, 0, 0] > 1).astype("int32") + (x[:, 5, 5, 1] > 2)

    small_models.side_by_side(fit_resident, make, x, y, batch_size=32, epochs=3)

    assert own_pieces(keras) == usual, "they are Keras' own again"


def own_pieces(keras):
    """Return what `torch_layers` replaces while a model trains."""
    from keras.src.backend.torch import nn

    return keras.layers.BatchNormalization.call, nn._transpose_spatial_inputs


def test_own_steps_and_own_metrics_are_called_for_each_batch(keras, fit_resident, torch):
    """A model's train_step and compute_metrics, and metrics of batches, count as in `fit`."""
    x, y = digits()
    calls = []

    class Own(keras.Sequential):
        def train_step(self, data):
            calls.append(1)
            return super().train_step(data)

    class Measured(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return super().compute_metrics(x, y, y_pred, sample_weight)

    def spread(y_true, y_pred):
        return keras.ops.max(y_pred) - keras.ops.min(y_pred)

    side_by_side(fit_resident, lambda: dense(keras, kind=Own), x, y)
    assert len(calls) == 2 * 2 * 10 or torch.cuda.is_available()  # what a GPU has captured is not called again
    side_by_side(fit_resident, lambda: dense(keras, kind=Measured), x, y)
    side_by_side(fit_resident, lambda: dense(keras, metrics=[spread, "accuracy"]), x, y)


def test_blocks_give_the_weights_of_resident_data(keras, fit_resident):
    """Data larger than the memory allowed are streamed, report it, and train to the same weights."""
    x, y = digits()

    trained = side_by_side(fit_resident, lambda: dense(keras), x, y)
    blocks = dense(keras)
    streamed = fit_resident(blocks, x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, memory_bytes=4096)

    assert_same(trained.model, blocks)
    assert "resident blocks" in streamed.how
    fit_resident(blocks, x, y, batch_size=16, epochs=1, verbose=0, memory_bytes=4096)
    assert int(blocks.optimizer.iterations.numpy()) == 30


def test_blocks_of_both_sets_take_no_more_than_allowed(keras, torch):
    """With a validation set too large as well, all places on the device together stay within the memory allowed."""
    from rocmlab.training.resident import keras_torch
    from rocmlab.training.resident.engine import Data, Options, Samples, leaves

    x, y = digits()
    samples = Samples(x, y, None, len(x))
    model = dense(keras)
    model.optimizer.build(model.trainable_variables)
    allowed = 8 * samples.take(slice(0, 16)).size_bytes

    engine = keras_torch.TorchEngine(model, Data(samples, samples), Options(batch_size=16, memory_bytes=allowed))

    stores = (engine._epochs._train, engine._epochs._validation)
    held = [leaf for store in stores for leaf in leaves((store.tensors, store._incoming))]  # both stream
    assert sum(leaf.element_size() * leaf.numel() for leaf in held) <= allowed


def test_the_same_seed_gives_the_same_run(keras, torch, fit_resident):
    """Order and dropout come from the seed; another seed gives another run, and the caller's stream stays."""
    x, y = digits()
    torch.manual_seed(3)
    stream = torch.get_rng_state()
    runs = []
    for seed in (5, 5, 6):
        model = dense(keras, keras.layers.Dropout(0.5))
        torch.set_rng_state(stream)
        runs.append(fit_resident(model, x, y, batch_size=16, epochs=2, verbose=0, seed=seed).history["loss"])
        assert torch.equal(torch.get_rng_state(), stream)

    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_reaches_the_accuracy_of_fit(keras, fit_resident, torch):
    """Shuffled and with dropout the network learns what it learns by `fit`."""
    x, y = digits(600)

    model = dense(keras, keras.layers.Dropout(0.1), optimizer=keras.optimizers.Adam(0.01))
    trained = fit_resident(model, x[:500], y[:500], epochs=12, verbose=0, seed=0, validation_data=(x[500:], y[500:]))
    other = dense(keras, keras.layers.Dropout(0.1), optimizer=keras.optimizers.Adam(0.01))
    other.fit(x[:500], y[:500], epochs=12, verbose=0)

    reached = trained.history["val_accuracy"][-1]
    assert reached > 0.85
    assert abs(reached - other.evaluate(x[500:], y[500:], verbose=0)[1]) < 0.08
    assert len(trained.seconds) == 12
    assert (torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU") in trained.how


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_a_module_ends_where_a_loop_takes_it(torch, fit_resident, name):
    """A plain module with BatchNorm, scheduler, metrics and validation ends as by a hand-written loop."""
    x, y = digits()
    runs = []
    for _run in range(2):
        module = plain(torch, norm=True)
        optimizer = getattr(torch.optim, name)(module.parameters(), **TORCH_OPTIMIZERS[name])
        runs.append((module, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)))
    (expected, before, steps), (found, after, others) = runs

    loop(torch, expected, before, x, y, 3, after=steps.step)
    trained = fit_resident(
        found,
        x,
        y,
        batch_size=16,
        epochs=3,
        shuffle=False,
        verbose=0,
        optimizer=after,
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": hits},
        callbacks=[lambda epoch, logs: others.step()],
        validation_data=(x, y),
    )

    for key, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[key], value)
    assert after.param_groups[0]["lr"] == before.param_groups[0]["lr"]
    assert list(trained.history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    found.eval()
    with torch.no_grad():
        right = hits(found(torch.from_numpy(x)), torch.from_numpy(y)).mean().item()
    assert trained.history["val_accuracy"][-1] == pytest.approx(right)


def test_callbacks_of_keras_serve_a_module(keras, torch, fit_resident, recwarn):
    """Early stopping ends a module's training, and is not reported to wait for batches as TerminateOnNaN is."""
    x, y = digits(32)
    module = plain(torch)
    common = {"optimizer": torch.optim.SGD(module.parameters(), 0.0), "loss": torch.nn.functional.cross_entropy}
    stopping = keras.callbacks.EarlyStopping("loss", patience=1)

    trained = fit_resident(module, x, y, epochs=5, verbose=0, callbacks=[stopping], shuffle=False, **common)

    assert trained.epoch == [0, 1]
    assert not [one for one in recwarn if "each batch" in str(one.message)]
    with pytest.warns(UserWarning, match="TerminateOnNaN"):
        fit_resident(module, x, y, verbose=0, callbacks=keras.callbacks.TerminateOnNaN(), **common)


def test_a_column_of_weights_weighs_each_sample_once(torch):
    """A table's column is (samples, 1): it weighs as (samples,) does; weights that are wider than the loss do not."""
    from rocmlab.training.resident.plain_torch import loss_of

    def squares(outputs, y):
        return (outputs - y) ** 2

    values, y, weights = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3), torch.tensor([0.0, 0.0, 1.0])

    assert loss_of(squares, values, y, weights) == 3.0
    assert loss_of(squares, values, y, weights[:, None]) == 3.0
    with pytest.raises(RocmlabError, match=r"shape \(3, 2\) with a loss of shape \(3,\)"):
        loss_of(squares, values, y, torch.ones(3, 2))


def test_sample_weights_of_a_module(torch, fit_resident):
    """Weights multiply each sample's loss; a loss without values per sample is rejected with the remedy."""
    x, y = digits(32)
    weights = np.repeat([0.0, 2.0], 16).astype("float32")
    results = []
    for data in ((x, y, weights), (x[16:], y[16:], None)):
        module = plain(torch)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        fit_resident(
            module,
            data[0],
            data[1],
            sample_weight=data[2],
            batch_size=32,
            shuffle=False,
            verbose=0,
            optimizer=optimizer,
            loss=loss,
        )
        results.append(module)

    for one, other in zip(results[0].parameters(), results[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(RocmlabError, match="one value per sample"):
        fit_resident(
            plain(torch),
            x,
            y,
            sample_weight=weights,
            verbose=0,
            loss=torch.nn.CrossEntropyLoss(),
            optimizer=torch.optim.SGD(results[0].parameters(), 0.1),
        )


def test_several_inputs_autocast_and_modes(torch, fit_resident):
    """A dict of inputs is passed by name, bfloat16 autocast trains, and frozen parts stay in evaluation mode."""
    x, y = digits()

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.net = torch.nn.BatchNorm1d(12), plain(torch)

        def forward(self, left, right):
            return self.net(self.norm(left) + right)

    module = Two()
    module.norm.eval()
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    with torch.autocast("cpu", torch.bfloat16):
        trained = fit_resident(
            module,
            {"left": x, "right": x},
            y,
            batch_size=16,
            epochs=6,
            verbose=0,
            seed=0,
            optimizer=optimizer,
            loss=torch.nn.functional.cross_entropy,
            metrics={"accuracy": hits},
        )

    assert trained.history["accuracy"][-1] > 0.8
    assert int(module.norm.num_batches_tracked) == 0
    assert module.training
    assert not module.norm.training


def test_a_module_that_changes_its_input_leaves_the_arrays(torch, fit_resident):
    """Each batch is a copy: the caller's arrays stay, and the next epoch and validation begin with the same samples."""
    x, y = digits()
    given, trained = x.copy(), []
    for inplace in (False, True):
        module = torch.nn.Sequential(torch.nn.ELU(inplace=inplace), plain(torch))
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        fit = fit_resident(
            module,
            given,
            y,
            batch_size=16,
            epochs=3,
            verbose=0,
            shuffle=False,
            validation_data=(given, y),
            optimizer=optimizer,
            loss=torch.nn.functional.cross_entropy,
        )
        trained.append(fit.history)

    assert np.array_equal(given, x)
    assert trained[0] == trained[1]


def test_autocast_uses_no_weights_of_before(torch, fit_resident):
    """What steps, graphs and a callback have changed counts in the next step and the next validation."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = digits()
    modules = [plain(torch).to(kind) for _side in range(2)]
    optimizers = [torch.optim.SGD(module.parameters(), 0.2) for module in modules]
    inputs, targets = torch.from_numpy(x).to(kind), torch.from_numpy(y).to(kind)
    cast, loss = partial(torch.autocast, kind, torch.bfloat16), torch.nn.functional.cross_entropy
    start, tested = plain(torch).state_dict(), []
    for epoch in range(4):
        for first in range(0, len(x), 16):
            optimizers[0].zero_grad()
            part = slice(first, first + 16)
            with cast():
                value = loss(modules[0](inputs[part]), targets[part])
            value.backward()
            optimizers[0].step()
        with cast(), torch.no_grad():
            tested.append(loss(modules[0](inputs), targets).item())
        if epoch == 0:
            modules[0].load_state_dict(start)
    with cast():
        trained = fit_resident(
            modules[1],
            x,
            y,
            batch_size=16,
            epochs=4,
            verbose=0,
            shuffle=False,
            validation_data=(x, y),
            optimizer=optimizers[1],
            loss=loss,
            callbacks=[lambda epoch, logs: modules[1].load_state_dict(start) if epoch == 0 else None],
        )

    assert ("graphs" in trained.how) == (kind == "cuda")
    assert trained.history["val_loss"] == pytest.approx(tested, rel=2e-3)


@pytest.mark.usefixtures("alone")
def test_parallel_modules_train_and_share_their_metrics(torch, fit_resident):
    """A module in DistributedDataParallel ends where the plain one does; its logs are those of all processes."""
    x, y = digits()
    modules = [plain(torch), torch.nn.parallel.DistributedDataParallel(plain(torch))]
    fits = [
        fit_resident(
            module,
            x,
            y,
            batch_size=16,
            shuffle=False,
            verbose=0,
            validation_data=(x, y),
            optimizer=torch.optim.SGD(module.parameters(), 0.1),
            loss=torch.nn.functional.cross_entropy,
        )
        for module in modules
    ]

    for one, other in zip(*(module.parameters() for module in modules), strict=True):
        torch.testing.assert_close(one, other)
    for name, values in fits[0].history.items():
        assert fits[1].history[name] == pytest.approx(values)


def test_steps_as_a_graph_takes_them_train_the_same(keras, torch):
    """Without branches, with constants made once and losses averaged by one division, Keras' step is the same."""
    from rocmlab.training.resident import keras_torch
    from rocmlab.training.resident.graphs import Constants

    x, y = (torch.from_numpy(part) for part in digits(64))
    for scale, updates in ((2.0**15, 32), (2.0**126, None)):
        models = []
        for recording in (False, True):
            inner = keras.optimizers.Adam(0.01)
            optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=scale, dynamic_growth_steps=3)
            model = dense(keras, optimizer=optimizer)
            model._symbolic_build(data_batch=(x, y, None))
            steps, constants = keras_torch.TrainSteps(model, (x, y, None)), Constants("cpu")
            for _epoch in range(8):
                if not recording:
                    steps(slice(0, 64), 16)
                    continue
                with keras_torch._recording(model), constants:
                    steps(torch.arange(64), 16)
            constants.check()
            models.append(model)
        assert_same(*models)
        assert updates in (None, int(models[0].optimizer.iterations.numpy()))


def test_seeded_dropout_advances_its_generator_when_recorded(keras, torch):
    """Under recording the masks come from torch's generator, and Keras' seed advances as it does outside."""
    from rocmlab.training.resident import keras_torch

    model = dense(keras, keras.layers.Dropout(0.5, seed=3))
    x = torch.ones(4, 12)
    with keras_torch._recording(model):
        outputs = [model(x, training=True) for _call in range(3)]

    assert not torch.equal(outputs[0], outputs[1])
    assert model.layers[1].seed_generator.state.numpy().tolist() == [3, 3]


def test_constants_are_made_once_and_watched(torch):
    """The same number is the same tensor, a fresh tensor is fresh, and a constant changed in place is noticed."""
    from rocmlab.training.resident.graphs import Constants

    constants = Constants("cpu")
    with constants:
        one = torch.as_tensor(0.5, dtype=torch.float32, device="cpu")
        again = torch.as_tensor(0.5, dtype=torch.float32, device="cpu")
        fresh = torch.tensor(0.5, dtype=torch.float32, device="cpu")
        wide = torch.as_tensor(np.arange(3), device="cpu")
    fresh += 1
    constants.check()

    assert one is again
    assert one.item() == 0.5
    assert wide.tolist() == [0, 1, 2]
    one += 1
    with pytest.raises(RuntimeError, match=r"in place: .*0\.5"):
        constants.check()


@pytest.mark.parametrize(
    ("steps", "planned", "seconds", "size"),
    [(468, 4680, 0.003, 36), (468, 4680, 0.06, 4), (40, 80, 0.001, 20), (3, 30, 0.001, 3), (468, 4680, 2.0, 1)],
)
def test_graphs_are_as_large_as_they_are_useful(torch, steps, planned, seconds, size):
    """Few launches an epoch and little left over; slow steps and short trainings get small graphs."""
    from rocmlab.training.resident.graphs import group_size

    assert group_size(steps, planned, seconds) == size


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_an_optimizer_in_pieces_is_the_whole_one(torch, name):
    """Updating views of parameters and state gives what updating them whole gives, counts of steps included."""
    from rocmlab.training.resident.torch_optimizer import Pieces

    torch.manual_seed(0)
    start = [torch.randn(40, 30), torch.randn(30)]
    sides = [[torch.nn.Parameter(value.clone()) for value in start] for _side in range(2)]
    optimizers = [getattr(torch.optim, name)(side, **TORCH_OPTIMIZERS[name]) for side in sides]
    pieces = None
    for _step in range(6):
        for one, other in zip(*sides, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        optimizers[0].step()
        if pieces is None:
            optimizers[1].step()
            pieces = Pieces(optimizers[1], 256)
        else:
            pieces.step()

    for one, other in zip(*sides, strict=True):
        torch.testing.assert_close(one, other)
        for key, value in optimizers[0].state[one].items():
            torch.testing.assert_close(optimizers[1].state[other][key], value)


def test_rates_and_capturable_come_back_as_they_were(torch):
    """While steps may be captured the rate is a tensor and the counts are on the device; then both are restored."""
    from rocmlab.training.resident.torch_optimizer import Optimizer, Scaled

    module = plain(torch)
    given = torch.optim.Adam(module.parameters(), 0.01)
    held = Optimizer(given, torch.device("cpu"))
    held.make_capturable()
    held.begin()
    during = given.param_groups[0]["lr"]
    assert isinstance(during, torch.Tensor)
    assert given.param_groups[0]["capturable"]
    held.end()
    given.param_groups[0]["lr"] = 0.005  # as a scheduler does between epochs
    held.begin()
    assert given.param_groups[0]["lr"] is during
    assert during.item() == pytest.approx(0.005)
    held.end()
    held.close()

    assert given.param_groups[0]["lr"] == 0.005
    assert given.param_groups[0]["capturable"] is False
    assert "no `capturable`" in Optimizer(torch.optim.Adagrad(module.parameters()), torch.device("cpu")).uncapturable()
    assert "fused=True" in Optimizer(Scaled(given, object()), torch.device("cpu")).uncapturable()
    given.register_step_post_hook(lambda *_arguments: None)
    assert "hooks" in held.uncapturable()


def test_what_keras_decides_on_the_host_is_known_beforehand(keras):
    """Gradient accumulation and rates computed by Python are named as reasons; an ordinary model has none."""
    from rocmlab.training.resident.keras_torch import _uncapturable

    optimizers = keras.optimizers
    assert _uncapturable(dense(keras)) == ""
    assert "accumulates" in _uncapturable(dense(keras, optimizer=optimizers.SGD(gradient_accumulation_steps=2)))
    assert "Python" in _uncapturable(dense(keras, optimizer=optimizers.SGD(lambda: 0.1)))
    assert "run_eagerly" in _uncapturable(dense(keras, run_eagerly=True))


def test_changes_between_epochs_change_the_fingerprint(keras, torch):
    """What a graph holds fixed is noticed: frozen layers, other rates of dropout, other numbers of the optimizer."""
    from rocmlab.training.resident.keras_torch import _fingerprint

    x, y = (torch.from_numpy(part) for part in digits(16))
    model = dense(keras, keras.layers.Dropout(0.5), optimizer="adam")
    model._symbolic_build(data_batch=(x, y, None))
    seen = _fingerprint(model)
    assert _fingerprint(model) == seen
    model.optimizer.learning_rate = 0.5  # a variable: a graph reads it again
    assert _fingerprint(model) == seen
    for change in (
        lambda: setattr(model.layers[0], "trainable", False),
        lambda: setattr(model.layers[1], "rate", 0.25),
        lambda: setattr(model.optimizer, "beta_1", 0.8),
    ):
        before = _fingerprint(model)
        change()
        assert _fingerprint(model) != before


def older_normalisation(keras, monkeypatch):
    """Make BatchNormalization that of Keras before 3.14: it has neither the option nor the attribute `renorm`."""
    layer = keras.layers.BatchNormalization

    def call(self, inputs, training=None, mask=None):
        mean, variance = keras.ops.moments(inputs, axes=[0])
        if not training:
            mean, variance = self.moving_mean, self.moving_variance
        else:
            for moving, now in ((self.moving_mean, mean), (self.moving_variance, variance)):
                moving.assign(moving * self.momentum + now * (1.0 - self.momentum))
        return (inputs - mean) / keras.ops.sqrt(variance + self.epsilon) * self.gamma + self.beta

    def make():
        model = dense(keras, layer())
        vars(model.layers[1]).pop("renorm", None)
        return model

    monkeypatch.setattr(layer, "call", call)
    return make


def test_normalisation_of_an_older_keras_trains(keras, fit_resident, monkeypatch):
    """A BatchNormalization without `renorm` ends where `fit` takes it."""
    x, y = digits()

    side_by_side(fit_resident, older_normalisation(keras, monkeypatch), x, y)


def test_parts_of_keras_that_are_others_are_left_alone(keras, fit_resident, monkeypatch):
    """Where Keras' private parts are not as expected its own run: the results of `fit`, and one warning for each."""
    from rocmlab.training.resident import keras_torch, probes

    monkeypatch.setattr(probes, "reasons", {})
    layer = keras.layers.BatchNormalization
    usual = layer.__init__
    monkeypatch.setattr(layer, "__init__", lambda self, *a, unheard=0, **b: usual(self, *a, **b))
    kind = type(keras.optimizers.RMSprop())
    step = kind._parallel_update_step
    monkeypatch.setattr(kind, "_parallel_update_step", lambda self, *a: step(self, *[a[0], a[1], a[2] * 0.5]))
    monkeypatch.setattr(keras_torch, "PARTS", ("_an_attribute_of_another_keras",))
    x, y = digits()

    def make():
        return dense(keras, layer())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = side_by_side(fit_resident, make, x, y)
        side_by_side(fit_resident, make, x, y)

    warned = [str(one.message) for one in caught if "does not fit this version" in str(one.message)]
    assert len(warned) == len(set(warned))
    for replaced in ("batch normalisation", "update of RMSprop", "training step"):
        assert len([one for one in warned if replaced in one]) == 1, warned
    assert "does not fit" in result.how
