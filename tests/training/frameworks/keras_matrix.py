"""Train small models by `fit` and `fit_resident` with several versions of Keras on each backend; print a table.

Run it with an interpreter that has Keras, TensorFlow, PyTorch and JAX, for example the lab's:

    PYTHONPATH=src .venv/bin/python tests/training/frameworks/keras_matrix.py 3.10.0 3.12.4

Each version is installed by pip into a temporary folder, without its dependencies; "here" is the one that is installed.
A cell counts the models that end with the weights of `fit`; the lines below the table say what was reported or failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("3.10.0", "3.11.3", "3.12.4", "3.13.2", "3.14.1", "here")
BACKENDS = ("tensorflow", "jax", "torch")
LIMIT_SECONDS = 900


def say(line):
    """Print a line immediately."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def models(keras):
    """Return functions that make the models of the suite, by name: each (16, 16, 3) images to three classes."""
    layers = keras.layers

    def made(*inner, optimizer="rmsprop", **arguments):
        model = keras.Sequential([keras.Input((16, 16, 3)), *inner, layers.Dense(3, dtype="float32")])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"], **arguments)
        return model

    def attention():
        inputs = keras.Input((16, 16, 3))
        rows = layers.Dense(8)(layers.Reshape((16, 48))(inputs))
        rows = layers.LayerNormalization()(rows + layers.MultiHeadAttention(2, 4)(rows, rows))
        model = keras.Model(inputs, layers.Dense(3, "softmax")(layers.GlobalAveragePooling1D()(rows)))
        model.compile("adamw", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))

    return {
        "dense": lambda: made(layers.Flatten(), layers.Dense(32, "tanh")),
        "normalised": lambda: made(layers.Flatten(), layers.Dense(32), layers.BatchNormalization(), optimizer="adam"),
        "convolution": lambda: made(
            layers.Conv2D(8, 3, padding="same", activation="tanh"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(2),
            layers.Conv2D(4, 3),
            layers.Flatten(),
            optimizer="sgd",
        ),
        "recurrent": lambda: made(layers.Reshape((16, 48)), layers.LSTM(8), optimizer="nadam"),
        "attention": attention,
        "loss scaling": lambda: made(layers.Flatten(), layers.Dense(32, "tanh"), optimizer=scaled()),
    }


def fresh(keras, make):
    """Return a new model, always with the same weights."""
    keras.utils.set_random_seed(1)
    return make()


def measure():
    """Train the suite with this process's Keras and backend; print the result as JSON."""
    import warnings

    import keras
    import numpy as np

    from rocmlab.training import fit_resident

    rng = np.random.default_rng(7)
    x = rng.normal(size=(100, 16, 16, 3)).astype("float32")
    y = (x[:, 0, 0, 0] > 0).astype("int32") + (x[:, 8, 8, 1] > 0)
    given = {"batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0, "validation_split": 0.2}
    failed, reported = {}, set()
    suite = models(keras)
    for name, make in suite.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                theirs, ours = (fresh(keras, make) for _ in range(2))
                expected = theirs.fit(x, y, **given).history
                found = fit_resident(ours, x, y, **given).history
                for one, other in zip(theirs.get_weights(), ours.get_weights(), strict=True):
                    np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)
                assert list(expected) == list(found), (expected, found)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {str(error).strip()[:300]}"
        reported |= {str(one.message) for one in caught if str(one.message).startswith("fit_resident: our ")}
    result = {"version": keras.__version__, "models": len(suite), "failed": failed, "reported": sorted(reported)}
    say("RESULT " + json.dumps(result))


def run(version, backend, folder):
    """Measure one version on one backend in a process of its own; return what it printed, or why it failed."""
    target = Path(folder, version)
    if version != "here" and not target.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, f"keras=={version}"]
        subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
    path = [str(target)] * (version != "here") + [os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, __file__, "--measure"],
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not results:
        return {"version": version, "models": 0, "failed": {"all": done.stderr.strip()[-500:]}, "reported": []}
    return json.loads(results[0].removeprefix("RESULT "))


def main(versions):
    """Print the table, and below it what was reported and what failed; return the exit code."""
    say(f"| Keras | {' | '.join(BACKENDS)} |\n|---|{'---|' * len(BACKENDS)}")
    notes = []
    with tempfile.TemporaryDirectory(prefix="keras-matrix-") as folder:
        for version in versions:
            found = [run(version, backend, folder) for backend in BACKENDS]
            cells = [f"{one['models'] - len(one['failed'])} of {one['models']}" for one in found]
            say(f"| {found[0]['version']} | {' | '.join(cells)} |")
            for backend, one in zip(BACKENDS, found, strict=True):
                notes += [f"{one['version']}, {backend}: {line}" for line in one["reported"]]
                notes += [f"{one['version']}, {backend}, {name} failed: {why}" for name, why in one["failed"].items()]
    say("\n".join(notes))
    return int(any(" failed: " in note for note in notes))


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure()
    else:
        sys.exit(main(sys.argv[1:] or VERSIONS))
