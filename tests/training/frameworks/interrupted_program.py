"""Two long trainings that the test of interrupts ends by SIGINT: one while it trains, one while it validates.

Arguments: `keras` or `plain`. A line "begin …" goes out when a phase runs, then a line of JSON about what was left.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time

import numpy as np
from small_models import has_gpu

from rocmlab.training import fit_resident

BATCH, STEPS, SMALL = 64, 20_000, 4
WIDTHS = {False: 768, True: 8192}  # of a layer, on a GPU or not: some milliseconds a step on both


def say(word):
    """Print a line that the parent reads immediately."""
    sys.stdout.write(f"\n{word}\n")
    sys.stdout.flush()


class Kind:
    """What the trainings need of a model of Keras."""

    def make(self):
        """Return a model of dense layers: some milliseconds a step."""
        import keras

        keras.utils.set_random_seed(1)
        width = WIDTHS[has_gpu()]
        layers = [keras.Input((8,)), *(keras.layers.Dense(width, "relu") for _ in range(3)), keras.layers.Dense(3)]
        model = keras.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, metrics=["accuracy"])
        return model

    def fit(self, model, x, y, **arguments):
        """Train, not shuffled, so that the first steps are known."""
        return fit_resident(model, x, y, batch_size=BATCH, shuffle=False, **arguments)

    def on_test(self):
        """Return a callback that reports when the validation begins."""
        import keras

        return keras.callbacks.LambdaCallback(on_test_begin=lambda *_: say("begin validation"))

    def steps(self, model):
        """Return the steps that the optimizer did."""
        return int(model.optimizer.iterations)

    def state(self, model):
        """Return weights and the optimizer's numbers."""
        return [np.array(one) for one in (*model.get_weights(), *map(np.asarray, model.optimizer.variables))]

    def loss(self, model, x, y):
        """Evaluate the model as a caller would."""
        return float(model.evaluate(x, y, verbose=0)[0])


class Plain(Kind):
    """The same of a module of PyTorch, whose optimizer counts here."""

    def make(self):
        """Return a module with its optimizer and a counter."""
        import torch

        torch.manual_seed(1)
        width = WIDTHS[torch.cuda.is_available()]
        sizes = [8, width, width, width]
        layers = [layer for pair in itertools.pairwise(sizes) for layer in (torch.nn.Linear(*pair), torch.nn.ReLU())]
        module = torch.nn.Sequential(*layers, torch.nn.Linear(width, 3))
        module = module.to("cuda" if torch.cuda.is_available() else "cpu")
        module.own = torch.optim.Adam(module.parameters(), 1e-4)
        return module

    def fit(self, model, x, y, **arguments):
        """Train by cross-entropy."""
        import torch

        return super().fit(model, x, y, optimizer=model.own, loss=torch.nn.functional.cross_entropy, **arguments)

    def on_test(self):
        """Return an object with the method alone."""

        class Tell:
            def on_test_begin(self, logs=None):
                say("begin validation")

        return Tell()

    def steps(self, model):
        """Return the steps that the optimizer did, the same for each weight."""
        (steps,) = {int(state["step"]) for state in model.own.state.values()}
        return steps

    def state(self, model):
        """Return weights and the optimizer's averages."""
        averages = [value for state in model.own.state.values() for value in state.values()]
        return [value.detach().cpu().numpy().copy() for value in (*model.parameters(), *averages)]

    def loss(self, model, x, y):
        """Evaluate the module as a caller would."""
        import torch

        where = next(model.parameters()).device
        with torch.no_grad():
            scores = model(torch.from_numpy(x).to(where))
            return float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(y).to(where)))


def interrupted(kind, model, x, y, **arguments):
    """Train until SIGINT; return when its handler was called, by the clock of the machine."""
    try:
        kind.fit(model, x, y, **arguments)
    except KeyboardInterrupt:
        return time.time()
    raise AssertionError("the training came to its end")


def main(kind):
    """Run both phases."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in a shell's background begins with it ignored
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, BATCH * STEPS)
    x = rng.normal(size=(len(y), 8)).astype("float32") + np.eye(3, 8, dtype="float32")[y]
    model, small = kind.make(), slice(0, BATCH * SMALL)

    say("begin training")
    handled = interrupted(kind, model, x, y, epochs=1)
    steps, state = kind.steps(model), kind.state(model)
    say(json.dumps({"handled": handled, "steps": steps}))

    again = kind.make()
    kind.fit(again, x[: steps * BATCH], y[: steps * BATCH], verbose=0)
    pairs = zip(state, kind.state(again), strict=True)
    say(json.dumps({"apart": max(float(np.abs(one - other).max()) for one, other in pairs)}))

    handled = interrupted(
        kind, model, x[small], y[small], epochs=2, verbose=0, validation_data=(x, y), callbacks=[kind.on_test()]
    )
    trained = kind.steps(model)
    kind.fit(model, x[small], y[small], verbose=0)
    say(
        json.dumps(
            {
                "handled": handled,
                "more": [trained - steps, kind.steps(model) - trained],
                "finite": bool(np.isfinite(kind.loss(model, x[small], y[small]))),
            }
        )
    )


if __name__ == "__main__":
    main({"keras": Kind, "plain": Plain}[sys.argv[1]]())
