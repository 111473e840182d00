"""Long epochs run in several programs: progress shows, an interrupt acts soon, and the numbers stay the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from small_models import dense, digits, has_gpu
from variants import long_on

import rocmlab

BACKEND = os.environ.get("KERAS_BACKEND")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        BACKEND not in ("jax", "tensorflow", "torch"), reason="KERAS_BACKEND=jax, tensorflow or torch runs these tests"
    ),
    # Keras' variables do not know NumPy 2's argument yet.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
PROGRAM = Path(__file__).with_name("interrupted_program.py")
LIMIT_SECONDS = 10.0  # a whole epoch, or a whole validation, takes longer


class Child:
    """The program of two long trainings, its output read while it runs."""

    def __init__(self, kind):
        source = str(Path(rocmlab.__file__).parents[1])
        self.text, self._read = "", 0
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, kind],
            env={**os.environ, "PYTHONPATH": source, "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.follower = threading.Thread(target=self._follow, daemon=True)
        self.follower.start()

    def _follow(self):
        while found := self.process.stdout.read1():
            self.text += found.decode(errors="replace")

    def wait_for(self, pattern, seconds=60.0):
        """Return the next match of a pattern in what was printed; None when the time is up."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := re.compile(pattern).search(self.text, self._read):
                self._read = found.end()
                return found
            assert self.process.poll() is None, self.text[-3000:]
            time.sleep(0.02)
        return None

    def answer(self, seconds=60.0):
        """Return the next line of JSON."""
        found = self.wait_for(r"\n(\{.*\})\n", seconds)
        assert found, self.text[-3000:]
        return json.loads(found[1])

    def interrupt(self):
        """Send SIGINT; return when."""
        self.process.send_signal(signal.SIGINT)
        return time.time()


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [pytest.param("keras", marks=long_on("torch", "jax")), *(["plain"] if BACKEND == "torch" else [])]
)
def test_an_interrupt_acts_within_seconds_and_leaves_a_complete_step(kind):
    """SIGINT in the middle of a long epoch, and of a long validation: handled soon, and the training continues."""
    child = Child(kind)
    try:
        assert child.wait_for("begin training", 120)
        shown = child.wait_for(r"\D([1-9]\d+)/20000", 60)  # progress inside the epoch
        sent = child.interrupt()
        trained = child.answer()
        assert shown, "no progress was shown"
        assert trained["handled"] - sent < LIMIT_SECONDS
        assert 0 < trained["steps"] < 20_000
        assert child.answer()["apart"] < 1e-5  # from that many steps of a training that nothing ended

        assert child.wait_for("begin validation")
        time.sleep(2)  # programs last a second, from the third step on
        sent = child.interrupt()
        validated = child.answer()
        assert validated["handled"] - sent < LIMIT_SECONDS
        assert validated["more"] == [4, 4]
        assert validated["finite"]
        assert child.process.wait(30) == 0
    finally:
        child.process.kill()
        child.process.wait()
        child.follower.join()
        child.process.stdout.close()


class TestCuts:
    """Where an epoch is cut is not seen in its results."""

    @pytest.fixture
    def keras(self):
        """Return Keras, which runs on the chosen backend in this process."""
        return pytest.importorskip("keras", reason="Keras is not installed")

    @pytest.fixture
    def train(self, keras, fit_resident, monkeypatch):
        """Return a function that trains an equal model in programs of N steps; None: as few as possible."""
        from rocmlab.training.resident.pace import Pace

        def run(steps, shuffle=True, **arguments):
            monkeypatch.setattr(Pace, "steps", lambda _self, left: min(left, steps or left))
            model = dense(keras, keras.layers.BatchNormalization(), keras.layers.Dropout(0.2, seed=3))
            common = {"batch_size": 16, "epochs": 2, "seed": 5, "verbose": 0, "validation_data": digits(90)}
            result = fit_resident(model, *digits(150), shuffle=shuffle, **common | arguments)
            numbers = [np.array(one) for one in map(np.asarray, (*model.variables, *model.optimizer.variables))]
            return numbers, result.history

        return run

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("steps", "memory_bytes"),
        [
            pytest.param(4, None, id="resident"),
            pytest.param(1, 8000, id="streamed", marks=long_on("jax", "tensorflow")),
        ],
    )
    def test_any_number_of_programs_gives_the_same_numbers(self, train, steps, memory_bytes):
        """Weights, state, optimizer and history are equal to the last bit, with shuffling and a smaller last batch."""
        whole, history = train(None, memory_bytes=memory_bytes)

        cut, cut_history = train(steps, memory_bytes=memory_bytes)

        for one, other in zip(whole, cut, strict=True):
            np.testing.assert_array_equal(one, other)
        assert cut_history == history

    @pytest.mark.long
    @long_on("jax", "tensorflow")
    @pytest.mark.skipif(BACKEND == "torch", reason="PyTorch runs no loop on the device")
    def test_groups_of_a_fixed_length_as_on_a_gpu(self, train, monkeypatch):
        """Steps in groups, as a GPU needs them, with single ones that are left, give the same numbers also."""
        whole, history = train(None)
        if BACKEND == "jax":
            from rocmlab.training.resident import jax_programs

            monkeypatch.setitem(jax_programs.GROUP, "cpu", 4)
        else:
            from rocmlab.training.resident import tensorflow_loop

            monkeypatch.setitem(tensorflow_loop.GROUP, "cpu", 4)

        cut, cut_history = train(1)

        for one, other in zip(whole, cut, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(cut_history["loss"], history["loss"], rtol=1e-5)

    def test_progress_inside_an_epoch(self, train, capsys):
        """The bar of Keras moves between the programs of an epoch, with the losses and metrics so far."""
        train(4, epochs=1, verbose=1)

        lines = [line for line in re.split("[\r\n]", capsys.readouterr().out) if "/10" in line]
        done = [int(re.search(r"(\d+)/10", line)[1]) for line in lines]
        losses = [float(found) for line in lines for found in re.findall(r" loss: ([\d.]+)", line)]
        assert done == sorted(done)
        assert done[-1] == 10
        assert len(set(done)) >= 2 or has_gpu()  # where groups are longer than this epoch
        assert losses
        assert min(losses) > 0

    @long_on("tensorflow")
    def test_a_shown_bar_changes_no_number(self, train):
        """Reading the metrics in between leaves them and the random numbers as they are."""
        silent, history = train(2)

        shown, shown_history = train(2, verbose=1)

        for one, other in zip(silent, shown, strict=True):
            np.testing.assert_array_equal(one, other)
        assert shown_history == history
