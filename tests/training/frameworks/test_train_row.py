"""One row of `rocmlab bench train`, really measured, on whichever backend these tests run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from variants import long_on

# In each run `15_compare` measures such a row on all three.
pytestmark = [pytest.mark.frameworks, long_on("jax", "tensorflow", together="a row")]
SRC = Path(__file__).parents[3] / "src"


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """MNIST FC, two epochs of three batches and a part of one, on the CPU."""
    backend = os.environ.get("KERAS_BACKEND", "")
    if backend not in ("tensorflow", "jax", "torch"):
        pytest.skip("KERAS_BACKEND=tensorflow, jax or torch selects it")
    folder = tmp_path_factory.mktemp("row")
    order = {"workload": "mnist_fc", "backend": backend, "runs": 2, "samples": 400, "device": "cpu"}
    share = os.environ.get("ROCMLAB_SHARE") or str(Path(__file__).parents[3] / "share")
    environment = {**os.environ, "PYTHONPATH": str(SRC), "ROCMLAB_SHARE": share}
    command = [sys.executable, "-m", "rocmlab.benchmarking.train_row", json.dumps(order), str(folder / "row.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((folder / "row.json").read_text())
    assert "problem" not in found, found
    return found


def test_both_ways_are_timed_and_the_first_epoch_is_apart(row: dict) -> None:
    """Two timed epochs each, compiling reported separately."""
    assert len(row["seconds"]) == len(row["seconds_theirs"]) == 2
    assert min(*row["seconds"], *row["seconds_theirs"], row["seconds_compile"], row["seconds_compile_theirs"]) > 0
    assert row["samples"] == 400
    assert len(row["loss"]) == len(row["loss_theirs"]) == 3
    assert row["curve"] == [row["accuracy"]]
    assert (row["watts"], row["watts_theirs"]) == (None, None)


def test_the_row_says_what_computed_and_how(row: dict) -> None:
    """The framework's own device, and the sentence of `fit_resident`."""
    assert row["device"]["backend"] == "cpu"
    assert row["framework"] == os.environ["KERAS_BACKEND"]
    assert row["how"]
    assert row["parameters"] == 669_706
    assert {"keras", row["framework"]} == set(row["versions"])


def test_both_have_learned_on_the_real_digits(row: dict) -> None:
    """Three epochs of 400 digits are far better than a guess, in either way."""
    assert min(row["accuracy"], row["accuracy_theirs"]) > 0.3


@pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND", "torch") != "torch",
    reason="no backend changes the numbers, and JAX compiles for half a minute: run it with KERAS_BACKEND=torch",
)
def test_the_networks_are_those_of_the_articles() -> None:
    """By their numbers of parameters: A4's, A1's and A2's."""
    pytest.importorskip("keras", reason="Keras is not installed here: tests/native runs this in the lab")
    from rocmlab.benchmarking import train_models

    assert train_models.fc().count_params() == 669_706
    assert train_models.cnn().count_params() == 1_199_882
    assert train_models.unet(512).count_params() == 20_886_706
