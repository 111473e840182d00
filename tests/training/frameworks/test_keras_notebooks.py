"""The Keras notebooks, run from first to last cell with a few images: what their parameters and their text promise."""

from __future__ import annotations

import os
import re

import notebook_program
import pytest

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.long,  # in each run both notebooks are run in short
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND") != "tensorflow", reason="run it with KERAS_BACKEND=tensorflow"),
]
FEW_DIGITS = """
import numpy as np
from rocmlab.training import datasets
warnings.filterwarnings("ignore", "__array__", DeprecationWarning)  # of TensorFlow's variables, to NumPy 2
draw = np.random.default_rng(0)
part = lambda count: (draw.integers(0, 256, (count, 28, 28), np.uint8), draw.integers(0, 10, count, np.uint8))
datasets.mnist = lambda progress=None: (part(240), part(100))
"""


def test_each_optimizer_of_02_trains_as_long_as_its_article(tmp_path):
    """RMSprop trains 50 epochs, unless another number is given; the test set does not choose the epoch."""
    parameters = {"device": "cpu", "limit": 240, "fit_epochs": 1}

    done, record = notebook_program.run("02_mnist_cnn", {**parameters, "optimizer": "rmsprop"}, tmp_path, FEW_DIGITS)

    assert record is not None, done.stderr
    assert record["training"]["epochs"] == len(record["history"]["val_accuracy"]) == 50
    assert (record["framework"], record["device"]["backend"], record["simulated"]) == ("tensorflow", "cpu", False)
    assert record["fit_milliseconds_per_step"] > 0


def test_06_prints_the_first_epoch_apart_and_the_hours_of_100000_steps(tmp_path):
    """The first epoch also compiles: it is printed for `fit` and `fit_resident`, and omitted from the others' time."""
    parameters = {"device": "cpu", "size": 64, "base": 2, "count": 56, "batch_size": 8, "epochs": 2}

    done, record = notebook_program.run("06_segmentation_unet", parameters, tmp_path)

    assert len(re.findall(r"first epoch +\d+\.\d+ s, others +\d+\.\d+ s", done.stdout)) == 2, done.stdout + done.stderr
    assert record["first_epoch_seconds"]["float32"] > record["seconds_per_epoch"]
    hours = record["hours_per_100000_steps"]["float32"]
    assert hours == pytest.approx(1e5 * record["milliseconds_per_step"]["float32"] / 3.6e6)
