"""One row of `rocmlab bench train`, in a process of its own: `python -m rocmlab.benchmarking.train_row ORDER ANSWER`.

`fit_resident` and `fit` train equal fresh models on the same data, alternating epoch by epoch, both timed by the same
callback (`watch.stopwatch`). Batch, optimizer and loss are those of the notebooks. The first epoch of each compiles and
is reported separately.
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

from rocmlab.base.errors import RocmlabError
from rocmlab.benchmarking import train_models as models
from rocmlab.training import backends, datasets, fit_resident, placement, watch

SEED = 42
# Of an epoch, (on the CPU, on a GPU): convolutions take two cores minutes.
SAMPLES = {"mnist_fc": (60_000, 60_000), "unet": (48, 480), "unet_mixed": (48, 480)}
SAMPLES |= dict.fromkeys(("mnist_cnn", "mnist_cnn_rmsprop"), (12_800, 60_000))
BATCH, UNET_BATCHES = 128, {512: 16}  # the U-Net with smaller images: 8
POWER_SECONDS = 4.0  # how long each way trains for its power alone
MAX_POWER_EPOCHS = 10_000

Arrays = tuple[np.ndarray, np.ndarray]


def measure(
    workload: str,
    backend: str,
    runs: int,
    samples: int | None,
    device: str,
    say: Callable[[str], None],
    *,
    size: int | None = None,
    curves: bool = False,
    test_samples: int | None = None,
) -> dict[str, Any]:
    """Train both ways and return the row; times in seconds, one for each epoch after the first.

    Args:
        workload: one of `train.WORKLOADS`.
        backend: Keras' backend.
        runs: epochs of each after the first.
        samples: of an epoch; None: `SAMPLES`.
        device: `auto`, `gpu` or `cpu`.
        say: prints a line of progress.
        size: width and height in pixels of the U-Net's images; None: 512 on a GPU, 128 on the CPU.
        curves: test both ways after each epoch.
        test_samples: how many are tested with; None: all.

    Raises:
        RocmlabError: there is no such device, or a framework is missing.
    """
    backends.use(backend)
    import keras

    used = placement.choose("keras", device)
    is_cpu = used["backend"] == "cpu"
    size = size or (128 if is_cpu else 512)
    batch = UNET_BATCHES.get(size, 8) if workload.startswith("unet") else BATCH
    train, test = _data(workload, samples or SAMPLES[workload][0 if is_cpu else 1], size, say)
    ours, theirs = (_fresh(keras, workload, size) for _ in range(2))
    mine, other = watch.stopwatch(), watch.stopwatch()
    seconds_theirs: list[float] = []
    started: list[float] = []
    scores: list[tuple[float, float]] = []
    losses: list[float] = []
    power = _Power(used)

    def turn(epoch: int) -> None:
        """Let `fit` train its epoch, after each of `fit_resident`; at the end measure the power of each."""
        if epoch > runs:
            ours.stop_training = power.is_read()
            return
        started.append(time.perf_counter())
        done = theirs.fit(*train, batch_size=batch, epochs=1, shuffle=True, verbose=0, callbacks=[other])
        seconds_theirs.extend(other.seconds)
        losses.append(float(done.history["loss"][0]))
        if len(started) == 1:
            started.append(time.perf_counter())  # both have compiled
        say(f"epoch {epoch + 1} of {runs + 1}: {mine.seconds[-1]:.3f} s, fit {seconds_theirs[-1]:.3f} s")
        if curves or epoch == runs:
            few = [part[:test_samples] for part in test]
            first, second = (
                model.evaluate(*few, batch_size=min(250, 4 * batch), verbose=0)[1] for model in (ours, theirs)
            )
            scores.append((float(first), float(second)))
        if epoch == runs:
            power.begin()

    epochs = runs + 1 + (MAX_POWER_EPOCHS if power.is_known else 0)
    began = time.perf_counter()
    after = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _logs: turn(epoch))
    fit = fit_resident(
        ours, *train, batch_size=batch, epochs=epochs, shuffle=True, seed=SEED, verbose=0, callbacks=[mine, after]
    )
    watts = power.end()
    watts_theirs = power.of(lambda: theirs.fit(*train, batch_size=batch, epochs=1, shuffle=True, verbose=0))
    return {
        "seconds": mine.seconds[1 : runs + 1],
        "seconds_theirs": seconds_theirs[1:],
        "seconds_compile": started[0] - began,  # from the call to the end of the first epoch, that one included
        "seconds_compile_theirs": started[1] - started[0],
        "watts": watts,  # of the whole GPU while it trained in this way; None: unknown
        "watts_theirs": watts_theirs,
        "how": fit.how,
        "workload": workload,
        "framework": backend,
        "device": used,
        "samples": len(train[0]),
        "batch_size": batch,
        "size": size,
        "parameters": int(ours.count_params()),
        "accuracy": scores[-1][0],
        "accuracy_theirs": scores[-1][1],
        "curve": [first for first, _ in scores],
        "curve_theirs": [second for _, second in scores],
        "loss": [float(value) for value in fit.history["loss"][: runs + 1]],
        "loss_theirs": losses,
        "versions": backends.versions(),
        "median_seconds": median(mine.seconds[1 : runs + 1]),
    }


class _Power:
    """The mean power of a GPU while it trains in one way and does nothing else."""

    def __init__(self, used: placement.Description) -> None:
        self._used, self._watch, self._began = used, watch.Busy(used), 0.0
        self.is_known = self._watch.is_watching

    def begin(self) -> None:
        """Start to read, where there is something to be read."""
        self._watch, self._began = watch.Busy(self._used), time.monotonic()
        self._watch.__enter__()

    def is_read(self) -> bool:
        """Whether it was read for long enough."""
        return time.monotonic() - self._began > POWER_SECONDS

    def of(self, train: Callable[[], object]) -> float | None:
        """Return the watts while `train` is called again and again; None: unknown."""
        self.begin()
        while self.is_known and not self.is_read():
            train()
        return self.end()

    def end(self) -> float | None:
        """Stop, and return watts; None: unknown."""
        self._watch.__exit__(None, None, None)
        return self._watch.watts


def _fresh(keras: Any, workload: str, size: int) -> Any:  # noqa: ANN401  a module, a model
    keras.utils.set_random_seed(SEED)
    return models.MAKERS[workload](size)


def _data(workload: str, samples: int, size: int, say: Callable[[str], None]) -> tuple[Arrays, Arrays]:
    """Return training and test data: the real digits, or triangles made as the notebook makes them."""
    if workload.startswith("unet"):
        from rocmlab.training.datasets import generated

        images, masks = generated.triangles(samples + 32, size, SEED)  # both (n, size, size) uint8
        x, y = images[..., None].astype("float32") / 255, masks[..., None].astype("float32")
        return (x[:samples], y[:samples]), (x[samples:], y[samples:])
    (x_train, y_train), (x_test, y_test) = datasets.mnist(progress=say)
    if samples > len(x_train):
        raise RocmlabError(
            f"--samples {samples} is too many", f"MNIST has {len(x_train)} training digits", "pass a smaller number"
        )
    shape = (-1, 784) if workload == "mnist_fc" else (-1, 28, 28, 1)
    train, test = (part.reshape(shape).astype("float32") / 255 for part in (x_train[:samples], x_test))
    return (train, y_train[:samples].astype("int32")), (test, y_test.astype("int32"))


def main(task: str, answer: str) -> int:
    """Measure as requested and write the result, or the problem."""
    wanted = json.loads(task)
    name = f"{wanted['workload']}_{wanted['backend']}"
    progress = sys.stdout

    def say(line: str) -> None:
        progress.write(f"{name}: {line}\n")
        progress.flush()

    with contextlib.redirect_stdout(sys.stderr):  # what frameworks print is not progress
        try:
            found = measure(**wanted, say=say)
        except RocmlabError as err:
            found = {"problem": err.problem.as_dict()}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
