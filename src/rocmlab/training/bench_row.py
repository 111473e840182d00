"""One row of `rocmlab bench train`, in a process of its own: `python -m rocmlab.training.bench_row ORDER ANSWER`.

`fit_resident` and `fit` train equal fresh models on the same data, an epoch of the one and an epoch of the other in
turn, both timed by the same clock between the same two callbacks, the device done. Batch, optimizer and loss are those
of the notebooks. The first epoch of each compiles and is kept apart.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rocmlab.errors import RocmlabError
from rocmlab.training import backends, datasets, fit_resident, placement
from rocmlab.training import bench_models as models

SEED = 42
# Of an epoch, (on the CPU, on a GPU): convolutions take two cores minutes.
SAMPLES = {"mnist_fc": (60_000, 60_000), "mnist_cnn": (12_800, 60_000), "unet": (48, 480)}
BATCHES = {"mnist_fc": 128, "mnist_cnn": 128, "unet": 16}

Arrays = tuple[np.ndarray, np.ndarray]


def measure(
    workload: str, backend: str, runs: int, samples: int | None, device: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train both ways and return the row; times in seconds, one for each epoch after the first.

    Args:
        workload: `mnist_fc`, `mnist_cnn` or `unet`.
        backend: Keras' backend.
        runs: epochs of each after the first.
        samples: of an epoch; None: `SAMPLES`.
        device: `auto`, `gpu` or `cpu`.
        say: prints a line of progress.

    Raises:
        RocmlabError: there is no such device, or a framework is missing.
    """
    backends.use(backend)
    import keras

    used = placement.choose("keras", device)
    is_cpu = used["backend"] == "cpu"
    batch = 8 if workload == "unet" and is_cpu else BATCHES[workload]
    train, test = _data(workload, samples or SAMPLES[workload][0 if is_cpu else 1], is_cpu, say)
    make = {"mnist_fc": models.fc, "mnist_cnn": models.cnn, "unet": models.unet(train[0].shape[1])}[workload]
    ours, theirs = (_fresh(keras, make) for _ in range(2))
    parameters = int(ours.count_params())
    mine, other = _stopwatches(keras, backend)
    started: list[float] = []

    def turn(epoch: int, logs: object = None) -> None:
        """Let `fit` train its epoch, after each of `fit_resident`."""
        started.append(time.perf_counter())
        theirs.fit(*train, batch_size=batch, epochs=1, shuffle=True, verbose=0, callbacks=[other])
        if len(started) == 1:
            started.append(time.perf_counter())  # both have compiled
        say(f"epoch {epoch + 1} of {runs + 1}: {mine.seconds[-1]:.3f} s, fit {other.seconds[-1]:.3f} s")

    mine.then = turn
    began = time.perf_counter()
    fit = fit_resident(
        ours, *train, batch_size=batch, epochs=runs + 1, shuffle=True, seed=SEED, verbose=0, callbacks=[mine]
    )
    accuracies = [
        float(model.evaluate(*test, batch_size=min(250, 4 * batch), verbose=0)[1]) for model in (ours, theirs)
    ]
    return {
        "seconds": mine.seconds[1:],
        "seconds_theirs": other.seconds[1:],
        "seconds_compile": started[0] - began,  # from the call to the end of the first epoch, that one included
        "seconds_compile_theirs": started[1] - started[0],
        "how": fit.how,
        "workload": workload,
        "framework": backend,
        "device": used,
        "samples": len(train[0]),
        "batch_size": batch,
        "parameters": parameters,
        "accuracy": accuracies[0],
        "accuracy_theirs": accuracies[1],
        "versions": backends.versions(),
        "median_seconds": median(mine.seconds[1:]),
    }


def _fresh(keras: Any, make: Callable[[], Any]) -> Any:  # noqa: ANN401  a module, a model
    keras.utils.set_random_seed(SEED)
    return make()


def _stopwatches(keras: Any, backend: str) -> tuple[Any, Any]:  # noqa: ANN401  the module Keras
    """Return two callbacks that time epochs; `then` of the first is called when its clock stands."""
    synchronise = _synchroniser(backend)

    class Stopwatch(keras.callbacks.Callback):  # type: ignore[misc]  # frameworks have no types
        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []
            self.then: Callable[[int, object], None] = lambda epoch, logs: None

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            synchronise()
            self.started = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            synchronise()
            self.seconds.append(time.perf_counter() - self.started)
            self.then(epoch, logs)

    return Stopwatch(), Stopwatch()


def _synchroniser(backend: str) -> Callable[[], None]:
    """Return what waits for the device. TensorFlow and JAX are done when `fit` has read the epoch's metrics."""
    if backend == "torch":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.synchronize  # type: ignore[no-any-return]
        if torch.backends.mps.is_available():
            return torch.mps.synchronize  # type: ignore[no-any-return]
    if backend == "jax":
        import jax

        return jax.effects_barrier  # type: ignore[no-any-return]
    return lambda: None


def _data(workload: str, samples: int, is_cpu: bool, say: Callable[[str], None]) -> tuple[Arrays, Arrays]:
    """Return training and test data: the real digits, or triangles made as the notebook makes them."""
    if workload == "unet":
        from rocmlab.training.datasets import generated

        size = 128 if is_cpu else 512
        images, masks = generated.triangles(samples + 32, size, SEED)  # both (n, size, size) uint8
        x, y = images[..., None].astype("float32") / 255, masks[..., None].astype("float32")
        return (x[:samples], y[:samples]), (x[samples:], y[samples:])
    (x_train, y_train), (x_test, y_test) = datasets.mnist(progress=say)
    if samples > len(x_train):
        raise RocmlabError(f"--samples {samples}", f"MNIST has {len(x_train)} training digits", "ask for fewer")
    shape = (-1, 784) if workload == "mnist_fc" else (-1, 28, 28, 1)
    train, test = (part.reshape(shape).astype("float32") / 255 for part in (x_train[:samples], x_test))
    return (train, y_train[:samples].astype("int32")), (test, y_test.astype("int32"))


def main(order: str, answer: str) -> int:
    """Measure what the order says and write the answer, or the problem."""
    wanted = json.loads(order)
    name = f"{wanted['workload']}_{wanted['backend']}"
    progress = sys.stdout

    def say(line: str) -> None:
        progress.write(f"{name}: {line}\n")
        progress.flush()

    with contextlib.redirect_stdout(sys.stderr):  # what frameworks print is no progress
        try:
            found = measure(**wanted, say=say)
        except RocmlabError as err:
            problem = err.problem
            found = {"problem": {"what": problem.what, "why": problem.why, "fix": problem.fix}}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
