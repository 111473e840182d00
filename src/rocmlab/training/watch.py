"""What a training takes: the seconds of each epoch, and how busy it keeps its device."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from rocmlab.devices import Device, discover, sample
from rocmlab.devices.integral import Integral
from rocmlab.training.placement import Description

SECONDS_BETWEEN = 0.25


def stopwatch() -> Any:  # noqa: ANN401  a keras.callbacks.Callback
    """Return a callback for Keras' `fit` whose `seconds` lists how long each epoch of training took.

    The validation that follows an epoch is not counted, and the clock stops when the device has finished its work.
    """
    import keras

    class Stopwatch(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []
            self._started: float | None = None

        def on_train_begin(self, logs: object = None) -> None:
            self.seconds = []

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            self._started = time.perf_counter()

        def on_test_begin(self, logs: object = None) -> None:
            self._stop()

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            self._stop()

        def _stop(self) -> None:
            if self._started is None:  # stopped already, at the validation; or not part of a training
                return
            int(self.model.optimizer.iterations)  # is known when the last step is done
            self.seconds.append(time.perf_counter() - self._started)
            self._started = None

    return Stopwatch()


class Busy:
    """Watches, in a `with` block, how busy the device is that a framework computes on, and what power it draws.

    `percent` and `watts` are None on the CPU, for a GPU whose driver does not report them, and where it is unknown
    which of several GPUs the framework uses.
    """

    def __init__(self, used: Description, seconds_between: float = SECONDS_BETWEEN) -> None:
        self._device = _find(used)
        self._seconds_between = seconds_between
        self._readings: list[float] = []
        self._power = Integral()
        self._read = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rocmlab-busy", daemon=True)

    @property
    def is_watching(self) -> bool:
        """Return whether there is a device to read."""
        return self._device is not None

    @property
    def percent(self) -> float | None:
        """Return the mean of what the driver reported so far (0-100); None if it is unknown."""
        return sum(self._readings) / len(self._readings) if self._readings else None

    @property
    def watts(self) -> float | None:
        """Return the mean power of the whole device so far, idle draw included; None if it is unknown."""
        return self._power.mean

    def wait_for(self, readings: int, seconds: float) -> bool:
        """Wait until there are that many readings, and return whether there are."""
        with self._read:
            return self._read.wait_for(lambda: len(self._readings) >= readings, seconds)

    def __enter__(self) -> Busy:
        if self.is_watching:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self.is_watching:
            self._thread.join()

    def _watch(self) -> None:
        assert self._device is not None
        while not self._ended.wait(self._seconds_between):
            found = sample(self._device)
            self._power.add(time.monotonic(), found.power_watts)
            if found.busy_percent is not None:
                with self._read:
                    self._readings.append(found.busy_percent)
                    self._read.notify_all()


def _find(used: Description) -> Device | None:
    """Return the device that a framework describes: by its PCI address, else the only one this process may use."""
    if used["backend"] == "cpu":
        return None
    gpus = [one for one in discover() if one.backend == used["backend"] and one.is_usable]
    if used["pci"] is not None:
        gpus = [one for one in gpus if one.pci_address == used["pci"]]
    return gpus[0] if len(gpus) == 1 else None
