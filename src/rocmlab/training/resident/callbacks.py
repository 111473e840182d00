"""The callbacks of `fit_resident`: Keras' own for a Keras model, a small list of the same calls for a torch module."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partialmethod
from typing import Any, Protocol

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident.engine import Fit, Model
from rocmlab.training.resident.pace import Report

Logs = dict[str, Any]
BATCH_HOOKS = tuple(f"on_{kind}batch_{when}" for kind in ("", "train_", "test_") for when in ("begin", "end"))


class Callbacks(Protocol):
    """What the epoch loop calls; the names and arguments are those of Keras."""

    def on_train_begin(self, logs: Logs | None = None) -> None: ...  # noqa: D102
    def on_train_end(self, logs: Logs | None = None) -> None: ...  # noqa: D102
    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None: ...  # noqa: D102
    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None: ...  # noqa: D102
    def on_test_begin(self, logs: Logs | None = None) -> None: ...  # noqa: D102
    def on_test_end(self, logs: Logs | None = None) -> None: ...  # noqa: D102


def of_keras(model: Model, callbacks: object, verbose: str | int, epochs: int, steps: int) -> tuple[Callbacks, Fit]:
    """Return Keras' CallbackList with its progress line, and its History, which `model.history` is from now on."""
    import keras

    from rocmlab.training.resident.keras_history import KerasFit

    given = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks
    given = [] if given is None else keras.tree.flatten(given)
    for one in given:
        if not isinstance(one, keras.callbacks.Callback):
            raise RocmlabError(
                f"callbacks hold a {type(one).__module__}.{type(one).__qualname__}",
                "a Keras model calls objects of keras.callbacks.Callback",
                "wrap a function: keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ...)",
            )
    history = KerasFit()  # the last one in the list is the model's
    found = keras.callbacks.CallbackList(
        [*given, history], add_progbar=verbose != 0, model=model, verbose=verbose, epochs=epochs, steps=steps
    )
    _warn_of_batch_hooks(found.callbacks, keras.callbacks.Callback)
    return found, history


def of_torch(model: Model, callbacks: object, verbose: str | int, epochs: int, steps: int) -> tuple[Callbacks, Fit]:
    """Return the list of callbacks of a plain torch module, and the history it keeps.

    A callback is an object with any of the methods of `Callbacks` (and `set_model`, `set_params`, as in Keras), or a
    function of epoch and logs that is called after each epoch.
    """
    given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks] if callbacks is not None else []
    found = PlainCallbacks(model, given, verbose, {"verbose": verbose, "epochs": epochs, "steps": steps})
    keras = sys.modules.get("keras")  # its callbacks work for a torch module also, and inherit empty batch hooks
    _warn_of_batch_hooks(given, getattr(getattr(keras, "callbacks", None), "Callback", object))
    return found, found.result


def reporter(callbacks: Callbacks) -> Report:
    """Return what shows the steps of an epoch that are done, and its losses and metrics so far, while it runs."""
    if isinstance(callbacks, PlainCallbacks):
        return callbacks.on_steps
    import keras

    listed = getattr(callbacks, "callbacks", [])
    bars = [one for one in listed if isinstance(one, keras.callbacks.ProgbarLogger) and one.verbose == 1]

    def report(done: int, read: Callable[[], Logs]) -> None:
        if bars:
            logs = read()  # from the device: not where it is not shown
            for bar in bars:
                bar.on_train_batch_end(done - 1, logs)

    return report


class PlainCallbacks:
    """Calls callbacks without Keras, keeps the history and prints a line per epoch."""

    def __init__(self, model: Model, callbacks: Sequence[Any], verbose: str | int, params: Logs) -> None:
        self.result = Fit()
        self.result.model, self.result.params = model, params
        self.result.history, self.result.epoch = {}, []
        self.params = params
        self._callbacks, self._verbose = callbacks, verbose
        self._number = 0  # of the epoch that runs
        for callback in callbacks:
            for name, value in (("set_params", params), ("set_model", model)):
                getattr(callback, name, _nothing)(value)

    def _call(self, name: str, *arguments: object) -> None:
        for callback in self._callbacks:
            getattr(callback, name, _nothing)(*arguments)

    def _call_with_logs(self, name: str, logs: Logs | None = None) -> None:
        self._call(name, logs)

    on_train_begin = partialmethod(_call_with_logs, "on_train_begin")
    on_train_end = partialmethod(_call_with_logs, "on_train_end")
    on_test_begin = partialmethod(_call_with_logs, "on_test_begin")
    on_test_end = partialmethod(_call_with_logs, "on_test_end")

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Call every callback."""
        self._number = epoch
        self._call("on_epoch_begin", epoch, logs)

    def on_steps(self, done: int, read: Callable[[], Logs]) -> None:
        """Print how far the epoch is, as Keras does: in place on a screen and in notebooks, elsewhere in a new line."""
        if self._verbose in (1, "auto"):
            values = "".join(f" - {name}: {value:.4g}" for name, value in read().items())
            end = "\r" if sys.stdout.isatty() or "ipykernel" in sys.modules else "\n"
            sys.stdout.write(f"Epoch {self._number + 1}: {done}/{self.params['steps']} steps{values}{end}")
            sys.stdout.flush()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Keep and print the logs, and call every callback and every plain function."""
        logs = logs or {}
        self._call("on_epoch_end", epoch, logs)
        for callback in self._callbacks:
            if callable(callback) and not hasattr(callback, "on_epoch_end"):
                callback(epoch, logs)
        self.result.epoch.append(epoch)
        for name, value in logs.items():
            self.result.history.setdefault(name, []).append(value)
        if self._verbose:
            values = " - ".join(f"{name}: {value:.4g}" for name, value in logs.items())
            sys.stdout.write(f"Epoch {epoch + 1}/{self.params['epochs']} - {values}\n")


def _nothing(*_arguments: object) -> None:
    """Stand for a method that a callback does not have."""


def _warn_of_batch_hooks(callbacks: Sequence[Any], base: type) -> None:
    """Warn of callbacks that wait for calls at each batch: an epoch is one program."""
    waiting = [type(one).__name__ for one in callbacks if _waits_for_batches(one, base)]
    if waiting:
        warnings.warn(
            f"fit_resident does not call callbacks at each batch (an epoch is one program): {', '.join(waiting)}",
            UserWarning,
            stacklevel=4,
        )


def _waits_for_batches(callback: object, base: type) -> bool:
    # Keras' own that act at epochs override batch hooks also: the progress line, and checkpoints of whole epochs.
    if type(callback).__name__ == "ProgbarLogger" or getattr(callback, "save_freq", None) == "epoch":
        return False
    usual = base if isinstance(callback, base) else None
    own = getattr(callback, "__dict__", {})
    return any(
        name in own or getattr(type(callback), name, None) is not getattr(usual, name, None) for name in BATCH_HOOKS
    )
